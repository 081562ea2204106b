"""The shape of every `--json` document: `tilewright schema KIND` prints it, tests hold the verbs to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tilewright.cli.output import SCHEMA_VERSION


class Part(BaseModel):
    """A part of a document: all keys are there, and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Report(Part):
    """What every document begins with."""

    schema_version: Literal[1]
    tilewright_version: str


class Host(Part):
    """The machine on which a report was made."""

    cpu: str
    architecture: str
    cores: int = Field(description="Cores that the process may use.")
    threads: int = Field(description="Worker threads by default: cores, or the quota if that is less.")
    quota_cores: float | None
    memory_limit_bytes: int | None


class ModelReport(Report):
    """What every document on a model begins with."""

    model_sha256: str
    target: str
    host: Host


class Tensor(Part):
    """An input or output."""

    name: str
    dtype: str
    shape: list[int]


class Network(Part):
    """One network of the zoo."""

    name: str
    family: str
    description: str
    paper: str
    input_shapes: dict[str, list[int]]


class ZooReport(Report):
    """The networks that can be built."""

    kind: Literal["zoo"]
    networks: list[Network]


class ZooBuildReport(Report):
    """A network written to a file."""

    kind: Literal["zoo-build"]
    name: str
    path: str
    size_bytes: int
    num_nodes: int


class NamedTarget(Part):
    """A target and what it is."""

    name: str
    about: str


class TargetsReport(Report):
    """The targets and the machines that can be named."""

    kind: Literal["targets"]
    targets: list[NamedTarget]
    machines: list[NamedTarget] = Field(
        description="Described machines; empty where one target was asked for."
    )


class MachineNumber(Part):
    """One number of a machine, where it stands and where it comes from."""

    path: str
    value: float
    source: str | None


class MachineDescriptionReport(Report):
    """A described machine in the words of `schema machine`, and the source of each of its numbers."""

    kind: Literal["machine-description"]
    machine: dict[str, Any]
    numbers: list[MachineNumber]


class HostReport(Report):
    """This machine in the words of `schema machine`."""

    kind: Literal["host"]
    machine: dict[str, Any]


class Finding(Part):
    """One thing that doctor looked at."""

    name: str
    ok: bool
    found: str
    advice: str


class DoctorReport(Report):
    """The state of this installation and machine."""

    kind: Literal["doctor"]
    ok: bool
    checks: list[Finding]
    versions: dict[str, str | None]
    host: Host


class Error(Part):
    """The error against the reference in float64, over the largest value of the output."""

    relative: float | None
    output: str
    inputs: str


class LoadedModel(Part):
    """A model as it was loaded. Multiply-accumulates and operations are of one inference."""

    name: str
    sha256: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    operator_counts: dict[str, int]
    num_nodes: int
    num_parameters: int
    parameter_bytes: int
    macs: int
    flop: int


class StoredModel(Part):
    """What an artifact says about its model."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    num_nodes: int


class MemorySummary(Part):
    """Planned memory."""

    peak_bytes: int
    lower_bound_bytes: int
    constant_bytes: int
    scratch_bytes: int


class InspectReport(ModelReport):
    """What a model or an artifact holds."""

    kind: Literal["inspect"]
    file: str
    format: Literal["onnx", "tilewright"]
    model: LoadedModel | StoredModel
    planned_peak_bytes: int | None
    memory: MemorySummary | None
    num_kernels: int | None
    algorithms: dict[str, int] | None = Field(description="Kernels by the template that made them.")
    error: Error | None = Field(description="Measured when the artifact was made.")


class Operator(Part):
    """Operators of one type that a target treats alike."""

    op_type: str
    opset: int
    verdict: Literal["native", "host", "unsupported"]
    reason: str
    nodes: list[str]


class CheckReport(ModelReport):
    """What a target makes of each operator."""

    kind: Literal["check"]
    model: str
    ok: bool
    operators: list[Operator]


class Buffer(Part):
    """One buffer of the arena, and the steps during which it is needed."""

    name: str
    offset_bytes: int
    size_bytes: int
    first_step: int
    last_step: int


class Memory(MemorySummary):
    """Planned memory with every buffer."""

    buffers: list[Buffer]


class Kernel(Part):
    """One launch of generated code, or one operator that runs on the host."""

    id: str
    symbol: str
    template: str
    nodes: list[str]
    subgraph_id: int | None
    num_chunks: int
    macs: int
    scratch_bytes: int
    notes: list[str]


class Step(Part):
    """Kernels that run side by side."""

    index: int
    kernels: list[Kernel]


class TunedKernel(Part):
    """One kernel, at all its places together; times in a run of the model."""

    nodes: list[str]
    template: str = Field(description="What the estimate chose.")
    choice: str | None = Field(description="What replaced it; null where it stayed.")
    before_ns: float | None
    after_ns: float | None = Field(description="Of the best alternative, taken or not.")


class TuningPart(Part):
    """How measurements chose kernels."""

    speedup: float
    plain_ns: float = Field(
        description="A run with the estimates' choices; 0 if nothing was compared with it."
    )
    tuned_ns: float
    num_trials: int
    is_complete: bool
    is_interrupted: bool
    is_stored: bool = Field(description="An earlier search found it.")
    kernels: list[TunedKernel]


class TuneReport(ModelReport, TuningPart):
    """A search for faster kernels."""

    kind: Literal["tune"]
    artifact: str | None


class CompileReport(ModelReport):
    """A compilation: kernels, memory, and the seconds that each phase took."""

    kind: Literal["compile"]
    artifact: str
    artifact_bytes: int
    options: dict[str, Any] = Field(description="As `tilewright schema options`.")
    inputs: list[Tensor]
    outputs: list[Tensor]
    num_nodes: int
    num_subgraphs: int
    num_stages: int
    memory: Memory | None
    algorithms: dict[str, int] = Field(description="Kernels by the template that made them.")
    error: Error | None = Field(description="With --error.")
    tuning: TuningPart | None = Field(description="Where measurements chose kernels.")
    steps: list[Step]
    phase_s: dict[str, float]
    remarks: list[str]
    dumps: dict[str, str] = Field(description="The graph as text after each pass of --dump-after.")


class Output(Part):
    """One output of a run; `range` is its least and largest finite value."""

    name: str
    dtype: str
    shape: list[int]
    range: list[float] | None


class RunReport(ModelReport):
    """One inference."""

    kind: Literal["run"]
    outputs: list[Output]
    written: str | None


class MachineState(Part):
    """What else the machine did, before and after."""

    cpu_name: str
    num_cores: int
    governor: str | None
    load_before: float | None
    load_after: float | None
    busy_share_before: float | None = Field(description="Of the cores, by other programs.")
    busy_share_after: float | None
    core_latency_before_ns: float | None
    core_latency_after_ns: float | None
    steal_share: float | None


class Timing(Part):
    """Milliseconds: the median of each round, and all runs."""

    samples_ms: list[float]
    runs_ms: list[float]


class Ratio(Part):
    """Its time over the first contestant's, round by round, with a 95 % interval of the median."""

    median: float
    low: float
    high: float
    verdict: Literal["faster", "slower", "tie", "can't tell"] = Field(description="Of the first contestant.")


class Contestant(Part):
    """One engine; `timing` is null and `error` says why if it did not run."""

    label: str
    engine: str
    version: str
    load_s: float
    first_run_s: float
    peak_bytes: int
    timing: Timing | None
    max_error: float | None = Field(description="Against float64, over the output's largest value.")
    error: str | None
    median_ms: float | None
    percentiles_ms: dict[str, float] | None
    ratio: Ratio | None


class Comparison(Part):
    """Engines measured in turns."""

    model: str
    num_threads: int
    num_rounds: int
    machine: MachineState
    contestants: list[Contestant]


class BoundShares(Part):
    """Shares of the first model's time by what binds it; `limits` is the sum of the machine's limits."""

    compute: float
    memory: float
    overhead: float
    host: float
    limits: float


class BenchReport(ModelReport):
    """Latency of engines measured in turns."""

    kind: Literal["bench"]
    model: str
    num_threads: int
    num_rounds: int
    machine: MachineState
    contestants: list[Contestant]
    options: dict[str, Any]
    bound: BoundShares | None = Field(description="Absent without advice.")
    advice: list[str]


class ProfiledKernel(Part):
    """One step in the running model; `of_limit` is its speed as a share of what the machine would allow.

    Of operators on the host only times are known.
    """

    id: str
    template: str
    nodes: list[str]
    operators: list[str]
    median_ns: float
    low_ns: float
    high_ns: float
    share: float
    flop: int = Field(description="All operations, by weight; `gflop_per_s` is their rate.")
    product_flop: int = Field(description="Those of products, two for each.")
    constant_bytes: int
    activation_bytes: int
    limit_ns: float
    bound: Literal["compute", "memory", "overhead", "host"]
    notes: list[str]
    gflop_per_s: float
    of_limit: float


class Limits(Part):
    """What this machine did at best."""

    num_threads: int
    fma_flop_per_s: float
    tile_flop_per_s: float | None
    memory_bytes_per_s: float
    cache_bytes_per_s: float
    small_bytes_per_s: float = Field(description="Of what fits `small_bytes`: the smallest caches.")
    small_bytes: int
    constant_bytes_per_s: float = Field(description="Where this model's constants stay between runs.")


class ProfileReport(ModelReport):
    """Where the time of a run goes."""

    kind: Literal["profile"]
    kernels: list[ProfiledKernel]
    run_ns: float
    between_ns: float
    limit_ns: float
    num_runs: int
    limits: Limits
    operator_share: dict[str, float]
    bound_share: dict[str, float]
    verdict: str
    trace: str | None


class ExportReport(ModelReport):
    """Files for a C program: sizes are what it needs at run time."""

    kind: Literal["export"]
    name: str
    isa: str
    object: str
    header: str
    weights: str
    example: str
    workspace_bytes: int
    weights_bytes: int
    num_kernels: int


class MappedLevel(Part):
    """The loops of one level: pairs of a dim and a factor."""

    level: str
    temporal_outer_to_inner: list[tuple[str, int]]
    spatial_outer_to_inner: list[tuple[str, int]]


class OnNetwork(Part):
    """A mapping on a network on chip, simulated cycle by cycle; flits with headers, DRAM's without."""

    cycles: int
    compute_cycles: int
    wait_cycles: dict[str, int] = Field(
        description="By tensor; Drain: for room for partial sums; End: until the last result was in DRAM."
    )
    steps: int
    simulated_steps: int = Field(description="The others repeated one of them exactly.")
    elements_used: int
    sent_flits: dict[str, int] = Field(description="What the memory sent, by tensor.")
    returned_flits: int = Field(description="What the elements sent to the memory and to each other.")
    dram_read_flits: int
    dram_written_flits: int
    hop_energy_pJ: float = Field(  # noqa: N815  # the unit's symbol
        description="Of the links from router to router, in no other figure; 0 where the machine gives none."
    )
    memory_utilization: float = Field(description="Share of the cycles in which the memory sent a flit.")
    link_flits: list[list[int]] = Field(
        description="What left each router, row by row: into its element, north, east, south, west."
    )


class MappedBlock(Part):
    """How a mapping onto a GPU is launched. Loops are pairs of a dim and a factor."""

    shape: list[int] = Field(description="Extents of a block along x, y and z.")
    axes: list[list[tuple[str, int]]] = Field(description="The loops along x, y and z, outermost first.")
    grid: list[tuple[str, int]] = Field(description="Blocks by dim of the output.")
    num_threads: int
    num_blocks: int
    num_steps: int = Field(description="Tiles of shared memory that a block works on in turn.")
    shared_bytes: int
    registers_per_thread: int = Field(description="What tiles need; a kernel needs more for addresses.")
    max_resident: int = Field(description="Blocks that fit on a multiprocessor; counted is one at a time.")


class MappedLayer(Part):
    """One operator on a described machine; all figures are estimates, counts are those of one instance."""

    name: str
    operator: str | None = Field(description="ONNX operator, for a node of a model.")
    dims: dict[str, int]
    stride: dict[str, int] = Field(description="W of P with R, H of Q with S.")
    steps: dict[str, int] = Field(description="How far one iteration of a dim moves a sliding window.")
    macs: int
    mapping: list[MappedLevel]
    cycles: int
    compute_cycles: int
    energy_pJ: float  # noqa: N815  # the unit's symbol
    edp_pJ_cycles: float  # noqa: N815  # the unit's symbol
    utilization: float
    padding: float = Field(description="Iterations beyond the operator's own, as a share of those.")
    bound_cycles: int
    bound_energy_pJ: float  # noqa: N815  # the unit's symbol
    gap: float | None = Field(description="Of the objective: above its bound, relative to the bound.")
    status: str
    seconds: float
    planner: str
    note: str
    levels: dict[str, dict[str, Any]]
    block: MappedBlock | None = Field(description="Its launch on a GPU; null on machines without threads.")
    noc: OnNetwork | None = Field(default=None, description="With --noc.")


class StreamedNode(Part):
    """An operator of a model that is no sum of products: what it costs at least, unfused."""

    name: str
    operator: str
    cycles: int
    energy_pJ: float  # noqa: N815  # the unit's symbol


class MapTotal(Part):
    """Sums over all layers, one after the other; each distinct layer was solved once."""

    macs: int
    cycles: int
    energy_pJ: float  # noqa: N815  # the unit's symbol
    bound_cycles: int
    bound_energy_pJ: float  # noqa: N815  # the unit's symbol
    num_distinct: int
    seconds: float
    streamed_cycles: int
    streamed_energy_pJ: float  # noqa: N815  # the unit's symbol


class MapReport(Report):
    """Operators mapped onto a machine."""

    kind: Literal["map"]
    machine: str
    mapped_onto: str = Field(description="The part of the machine that one operator uses; empty for all.")
    mapper: str
    objective: Literal["latency", "energy", "edp"]
    layers: list[MappedLayer]
    streamed: list[StreamedNode]
    total: MapTotal


class SweptMachine(Part):
    """A variant of a machine: its values in the order of the axes, and what everything costs on it."""

    values: list[str]
    total: MapTotal | None
    error: str | None
    is_best: bool = Field(description="No other variant is as good in cycles and energy and better in one.")


class MapSweepReport(Report):
    """Operators mapped onto variants of a machine."""

    kind: Literal["map-sweep"]
    machine: str
    mapper: str
    objective: Literal["latency", "energy", "edp"]
    axes: list[str]
    variants: list[SweptMachine]


class SimulatedSubgraph(Part):
    """Operators compiled together, and how they run."""

    nodes: list[str]
    split_dim: int | None
    factor: int = Field(description="Instances: slices of the output along split_dim.")
    output_shapes: list[list[int]]
    instance_shapes: list[list[int]]
    binding: list[int] = Field(
        description="Parts of an instance's output along each axis, one for each core."
    )


class SimulatedPlan(Part):
    """A plan of a network and what it costs one cluster; every figure is an estimate."""

    recipe: str
    subgraphs: list[SimulatedSubgraph]
    order: list[str]
    buffers: dict[str, int] = Field(description="Pieces by the level that they live in.")
    spilled_bytes: int
    time_s: float
    throughput_per_s: float = Field(description="Of all clusters.")
    energy_j: float = Field(description="Of all clusters, static power included.")
    energy_by_j: dict[str, float]
    energy_source: str
    bytes: dict[str, int] = Field(description="By level and direction, of one cluster.")
    utilization: dict[str, float]
    lower_bound_s: float
    bound_by: str
    gap: float
    provenance: Literal["estimated"]


class TriedRecipe(Part):
    """A plan of the portfolio; null where it cannot be made."""

    recipe: str
    time_s: float | None


class TriedBatch(Part):
    """Throughput of all clusters with so many samples for each."""

    batch: int
    throughput_per_s: float


class SimulateReport(SimulatedPlan, Report):
    """A network on a described accelerator."""

    kind: Literal["simulate"]
    machine: str
    network: str
    samples_per_cluster: int
    batches: list[TriedBatch]
    tried: list[TriedRecipe]
    compared: dict[str, SimulatedPlan]
    values_checked: bool


class ReproducedFigure(Part):
    """A number of ours and the paper's; null where there is none."""

    what: str
    ours: float | None
    paper: float | None


class ReproducedExhibit(Part):
    """A table or figure of a paper."""

    name: str
    title: str
    said: str = Field(description="What was done, and what does not reproduce and why.")
    figures: list[ReproducedFigure]
    heads: list[str]
    rows: list[list[str]]


class ReproduceReport(Report):
    """A paper's tables and figures, ours beside the paper's."""

    kind: Literal["reproduce"]
    paper: str
    file: str
    exhibits: list[ReproducedExhibit]


class EvaluatedMapping(Part):
    """What a given mapping costs, or why it is impossible."""

    id: str
    error: str | None
    summary: dict[str, float] | None
    levels: dict[str, dict[str, Any]]
    noc: OnNetwork | None = Field(default=None, description="With --noc, unless there is an error.")


class MapEvaluateReport(Report):
    """Given mappings, evaluated."""

    kind: Literal["map-evaluate"]
    machine: str
    link_transfers: bool
    cases: list[EvaluatedMapping]


class DemoReport(ModelReport):
    """The figures of the demonstration."""

    kind: Literal["demo"]
    network: str
    compile_s: float
    num_kernels: int
    median_ms: float
    max_error: float
    comparison: Comparison


class Difference(Part):
    """How one tensor differs; `max_difference` is null where shapes or the places of NaN differ."""

    name: str
    shape: list[int]
    max_difference: float | None
    scale: float
    allowed: float
    ok: bool


class CompareReport(ModelReport):
    """Differences between two ways to run a model."""

    kind: Literal["compare"]
    a: str
    b: str
    ok: bool
    rtol: float
    atol: float
    outputs: list[Difference]
    layers: list[Difference] | None
    changed_kernels: list[str] | None


class NodeStory(Part):
    """A node of the model, what it became, and the kernels that run it."""

    name: str
    op_type: str
    became: list[str]
    kernels: list[str]
    note: str


class Edge(Part):
    """A data edge: fused or cut, and why."""

    producer: str
    consumer: str
    value: str
    is_fused: bool
    code: str
    text: str


class ExplainReport(ModelReport):
    """Which nodes became which kernel, and why."""

    kind: Literal["explain"]
    subject: str
    nodes: list[NodeStory]
    kernels: list[Kernel]
    edges: list[Edge]
    algorithms: dict[str, int] = Field(description="Kernels of the model by the template that made them.")
    error: Error | None = Field(description="Where it was measured.")


class CacheEntry(Part):
    """One stored kernel."""

    key: str
    size_bytes: int


class TuningDatabase(Part):
    """What tuning found out."""

    path: str
    num_plans: int = Field(description="Models that were tuned.")
    num_trials: int = Field(description="Measurements of single kernels.")
    size_bytes: int


class CacheReport(Report):
    """The kernels stored."""

    kind: Literal["cache"]
    directory: str
    total_bytes: int
    entries: list[CacheEntry]
    tuning: TuningDatabase


class CacheVerifyReport(Report):
    """Entries found whole, and the keys of those that were damaged and are now removed."""

    kind: Literal["cache-verify"]
    num_whole: int
    damaged: list[str]
    num_damaged_findings: int = Field(description="Of tuning; now removed.")


class CachePruneReport(Report):
    """Bytes that were removed."""

    kind: Literal["cache-prune"]
    removed_bytes: int


class CacheForgetReport(Report):
    """Findings of tuning that were removed."""

    kind: Literal["cache-forget"]
    num_removed: int


class CacheExportReport(Report):
    """Entries written to an archive."""

    kind: Literal["cache-export"]
    path: str
    num_entries: int


class CacheImportReport(Report):
    """Entries taken from an archive, and names of members that were refused."""

    kind: Literal["cache-import"]
    num_imported: int
    refused: list[str]


_ALL: tuple[type[Report], ...] = (
    DemoReport,
    DoctorReport,
    ZooReport,
    ZooBuildReport,
    TargetsReport,
    MachineDescriptionReport,
    HostReport,
    InspectReport,
    CheckReport,
    ExplainReport,
    CompileReport,
    TuneReport,
    CacheReport,
    CacheVerifyReport,
    CachePruneReport,
    CacheForgetReport,
    CacheExportReport,
    CacheImportReport,
    RunReport,
    BenchReport,
    ProfileReport,
    ExportReport,
    MapReport,
    MapEvaluateReport,
    MapSweepReport,
    ReproduceReport,
    SimulateReport,
    CompareReport,
)
REPORTS: Mapping[str, type[Report]] = {m.model_fields["kind"].annotation.__args__[0]: m for m in _ALL}  # type: ignore[union-attr]  # each kind is a Literal


def report_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of one kind of document."""
    document = REPORTS[kind].model_json_schema()
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    document["$comment"] = f"schema_version {SCHEMA_VERSION}"
    return document


def parse_report(document: Mapping[str, Any]) -> Report:
    """A document as an object.

    Raises:
        pydantic.ValidationError: it is not what its kind promises.
    """
    return REPORTS[document["kind"]].model_validate(document)


def violations(document: Mapping[str, Any]) -> list[str]:
    """Where a document departs from its schema; empty when it conforms.

    >>> violations({"kind": "zoo", "schema_version": 1, "tilewright_version": "0", "networks": 3})
    ['networks: Input should be a valid list']
    """
    try:
        parse_report(document)
    except ValidationError as error:
        return [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
    return []
