"""Documents on described accelerators: mapped operators, simulated networks, the papers' figures."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tilewright.cli.schemas.base import Part, Report


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
    split_dim: int | None = Field(description="The axis of the outermost cut; null where nothing is cut.")
    factor: int = Field(description="Instances: slices of the output.")
    cuts: list[tuple[int, int]] = Field(description="Axes that are cut with their factors, the outer first.")
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


class SimulatedRun(Part):
    """A run of so many samples on each cluster: planned for just these, padded, or as plans for parts."""

    samples: int
    buckets: list[int] = Field(description="Powers of two, run one after another.")
    direct_s: float | None = Field(description="null where it cannot be planned.")
    padded_s: float | None = Field(description="As the next power of two.")
    in_buckets_s: float | None
    best: Literal["direct", "padded", "buckets"]
    throughput_per_s: float = Field(description="Of all clusters, in the best way.")


class SimulateReport(SimulatedPlan, Report):
    """A network on a described accelerator."""

    kind: Literal["simulate"]
    machine: str
    network: str
    samples_per_cluster: int
    batches: list[TriedBatch]
    runs: list[SimulatedRun]
    tried: list[TriedRecipe] = Field(description="Of the portfolio and the search; empty for other recipes.")
    num_simulated: int = Field(description="How many of them came to different plans.")
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
