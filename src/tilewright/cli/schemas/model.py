"""Documents on one model: what is in it, how it was compiled, what it gave."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tilewright.cli.schemas.base import ModelReport, Part, Tensor


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
    """One product at all its places, or kernels that share steps; times in a run of the model."""

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
