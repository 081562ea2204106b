"""What is known of a compiled model, and the parts of it that may still lie in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from tilewright.edges import NO_EDGES, Edges
from tilewright.errors import UsageError
from tilewright.ir.dtype import DType
from tilewright.options import Options
from tilewright.records import dataclass
from tilewright.results import about
from tilewright.steps import CostInfo, MemoryInfo, NodeOrigin, StepInfo
from tilewright.text.printable import printable

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine
    from tilewright.ir.graph import Value
    from tilewright.program import Program
    from tilewright.target_ref import TargetRef
    from tilewright.targets.base import Executable
    from tilewright.targets.stored import StoredCode

_ONNX_TYPE_NAMES = {DType.FLOAT32: "float", DType.FLOAT64: "double"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A model input or output, with the attributes that onnxruntime's have."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @classmethod
    def of(cls, value: Value) -> TensorInfo:
        """What a graph value is."""
        return cls(value.name, value.dtype, value.shape)

    @property
    def type(self) -> str:
        """The type in ONNX's words.

        >>> TensorInfo("x", DType.FLOAT32, (1, 3)).type
        'tensor(float)'
        """
        return f"tensor({_ONNX_TYPE_NAMES.get(self.dtype, str(self.dtype))})"

    @property
    def size_bytes(self) -> int:
        """Bytes of the dense tensor."""
        size = self.dtype.size_bytes
        for extent in self.shape:
            size *= extent
        return size

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "dtype": str(self.dtype), "shape": list(self.shape)}

    def __str__(self) -> str:
        return f"{printable(self.name)}: {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class OpenTensorInfo(TensorInfo):
    """An input or output whose shape is open: symbols and None stand for its dimensions, as onnxruntime's."""

    shape: tuple[int | str | None, ...]  # type: ignore[assignment]  # computing with it needs numbers

    @property
    def size_bytes(self) -> int:
        """Not known.

        Raises:
            UsageError: always; says what is open.
        """
        raise UsageError(open_shape_text(self))

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{printable(self.name)}: {self.dtype}[{dims}]"


def tensor_info(name: str, dtype: DType, dims: Sequence[int | str | None]) -> TensorInfo:
    """What an input or output is, some of whose dimensions may be open."""
    numbers = tuple(d for d in dims if isinstance(d, int))
    return (
        TensorInfo(name, dtype, numbers)
        if len(numbers) == len(dims)
        else OpenTensorInfo(name, dtype, tuple(dims))
    )


@dataclass(frozen=True, slots=True)
class MapsInfo(TensorInfo):
    """An output that is a list of maps, one for each row, whose keys are of this type."""

    keys: DType

    @property
    def type(self) -> str:
        """The type in ONNX's words."""
        value = TensorInfo(self.name, self.dtype, self.shape).type
        return f"seq(map({self.keys},{value}))"


def edge_info(info: TensorInfo, edges: Edges) -> TensorInfo:
    """What a model's input or output is that holds numbers inside the model."""
    if info.name in edges.inputs or info.name in edges.outputs:
        return replace(info, dtype=DType.STRING)
    keys = edges.maps.get(info.name)
    if keys is None:
        return info
    return MapsInfo(
        info.name, info.dtype, info.shape, DType.STRING if isinstance(keys[0], str) else DType.INT64
    )


def open_shape_text(spec: TensorInfo) -> str | None:
    """What to tell a user who needs a shape that is open; None if it is not."""
    dims: tuple[object, ...] = spec.shape
    if all(isinstance(d, int) for d in dims):
        return None
    axes = ", ".join(f"{i} ({d})" if d else str(i) for i, d in enumerate(dims) if not isinstance(d, int))
    flag = "x".join(str(d) if isinstance(d, int) else "?" for d in dims)
    return (
        f"input {spec.name!r} leaves dimension {axes} open; fix it with --shapes {spec.name}:{flag}, "
        "a number in place of each ?"
    )


@dataclass(frozen=True, slots=True)
class MeasuredError:
    """How far outputs were from the reference in float64: the largest difference over the largest value.

    `output` is the worst one's name, `inputs` say what was run.
    """

    relative: float = field(metadata=about(nullable=True))
    output: str
    inputs: str

    def __str__(self) -> str:
        return f"{self.relative:.1e} of the largest value of {self.output!r}, on {self.inputs}"


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a model's file says of itself, with the attributes that onnxruntime's has."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompiledFacts:
    """What an artifact keeps of a compilation beside its program and code.

    `machine` is what a target that is a described machine was made for; None for the others, which are made
    for the host. `cost` is what the plan costs by estimate; the first artifacts have none. `inputs` and
    `outputs` are numbers where the model has texts or maps, which `edges` say.
    """

    target: TargetRef
    tool_version: str
    model_sha256: str
    options: Options
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    steps: tuple[StepInfo, ...] = ()
    memory: MemoryInfo | None = None
    origins: tuple[NodeOrigin, ...] = ()
    error: MeasuredError | None = None
    cost: CostInfo | None = None
    machine: Machine | None = None
    metadata: ModelMetadata = field(default_factory=ModelMetadata)
    edges: Edges = NO_EDGES


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """The parts of a compiled model that may still lie in a file: each is read when it is first called for.

    `stored` gives what an artifact keeps of the code; nothing where that is made again from the program.
    """

    program: Callable[[], Program]
    stored: Callable[[], tuple[StoredCode, ...]]
    load: Callable[[int | None], Executable]
