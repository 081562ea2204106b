"""An ONNX model under construction, at one opset, with an array for each of its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, defs, helper, numpy_helper
from tests.fuzz.special import draw

from tilewright.ir.dtype import DType

Array = np.ndarray[Any, Any]
OLDEST, NEWEST = 13, defs.onnx_opset_version()
IR_VERSION = 10


@cache
def allowed_types(op_type: str, opset: int, position: int) -> frozenset[DType]:
    """The element types that the standard lets an operand of an operator have, of those known here."""
    schema = schema_of(op_type, opset)
    if schema is None or not schema.inputs:
        return frozenset()
    parameter = schema.inputs[min(position, len(schema.inputs) - 1)]
    names = {text.removeprefix("tensor(").removesuffix(")") for text in parameter.types}
    words = {DType.FLOAT32: "float", DType.FLOAT64: "double"}
    return frozenset(d for d in DType if words.get(d, str(d)) in names and d is not DType.STRING)


def schema_of(op_type: str, opset: int) -> Any:
    """The operator's definition at an opset, None where there is none."""
    try:
        return defs.get_schema(op_type, opset, "")
    except defs.SchemaError:
        return None


def typed_apart(op_type: str, opset: int, a: int, b: int) -> bool:
    """Whether two operands may differ in type."""
    schema = schema_of(op_type, opset)
    last = len(schema.inputs) - 1
    return bool(schema.inputs[min(a, last)].type_str != schema.inputs[min(b, last)].type_str)


def tensor_type(array: Array) -> int:
    return DType.from_numpy(array.dtype).value


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One node with the arrays that it takes."""

    proto: NodeProto
    arrays: dict[str, Array]
    constants: frozenset[str]
    opset: int

    @property
    def op_type(self) -> str:
        return str(self.proto.op_type)

    def inputs(self) -> list[Array | None]:
        return [self.arrays[name] if name else None for name in self.proto.input]

    def attribute(self, name: str, default: Any = None) -> Any:
        for attribute in self.proto.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def feed(self) -> dict[str, Array]:
        return {n: a for n, a in self.arrays.items() if n not in self.constants}

    def model(self) -> ModelProto:
        """A model of this node alone, results without declared shapes."""
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.proto.output if name]
        return _model([self.proto], self.feed(), outputs, self.arrays, self.constants, self.opset)


def _model(
    nodes: Sequence[NodeProto],
    feed: dict[str, Array],
    outputs: Sequence[Any],
    arrays: dict[str, Array],
    constants: Sequence[str] | frozenset[str],
    opset: int,
) -> ModelProto:
    inputs = [helper.make_tensor_value_info(n, tensor_type(a), a.shape) for n, a in feed.items()]
    weights = [numpy_helper.from_array(arrays[name], name) for name in sorted(constants)]
    graph = helper.make_graph(list(nodes), "fuzz", inputs, list(outputs), weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


@dataclass(eq=False)
class Sketch:
    """Nodes so far, and a seeded source of chance. `special` is the fraction of numbers at the edges."""

    rng: np.random.Generator
    opset: int
    special: float
    empty: bool
    arrays: dict[str, Array] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    nodes: list[NodeProto] = field(default_factory=list)
    count: int = 0

    # Chance.

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def flag(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)

    def choice(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def extent(self) -> int:
        if self.empty and self.flag(0.15):
            return 0
        return int(self.choice((1, 2, 3, 4, 5, 7, 8, 17)))

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        return tuple(self.extent() for _ in range(self.number(low, high)))

    # Values.

    def data(self, shape: Sequence[int], dtype: DType, *, huge: bool = True) -> Array:
        return draw(self.rng, shape, dtype, special=self.special, huge=huge)

    def given(self, array: Array, *, constant: bool | None = None) -> str:
        """A new input or constant that holds the array."""
        constant = self.flag(0.4) if constant is None else constant
        names = self.constants if constant else self.inputs
        name = f"{'c' if constant else 'x'}{len(names)}"
        names.append(name)
        self.arrays[name] = array
        return name

    def numbers(self, *numbers: int, constant: bool | None = None) -> str:
        """Shape-like operands: mostly constants, as exporters write them."""
        constant = self.flag(0.97) if constant is None else constant
        return self.given(np.array(numbers, np.int64), constant=constant)

    def fresh(self, shape: Sequence[int], dtype: DType, *, huge: bool = True) -> str:
        return self.given(self.data(shape, dtype, huge=huge))

    def value(
        self,
        op_type: str,
        fits: Callable[[Array], bool] = lambda a: True,
        *,
        rank: tuple[int, int] = (0, 4),
        position: int = 0,
        huge: bool = True,
        only: Callable[[DType], bool] = lambda d: True,
    ) -> str | None:
        """Something made before that fits, or else something new, of a type that the operator takes."""
        types = sorted(
            (d for d in allowed_types(op_type, self.opset, position) if only(d)), key=lambda d: d.value
        )
        types = [d for d in types if not d.name.startswith("COMPLEX")]
        if not types:
            return None
        low, high = rank
        fitting = [
            n
            for n in self.made
            if DType.from_numpy(self.arrays[n].dtype) in types
            and low <= self.arrays[n].ndim <= high
            and fits(self.arrays[n])
        ]
        if fitting and self.flag(0.75):
            return str(self.choice(fitting[-4:] if self.flag(0.7) else fitting))
        common = [d for d in types if d in (DType.FLOAT32, DType.INT64, DType.FLOAT16, DType.BOOL)]
        for _ in range(20):
            dtype = self.choice(common if common and self.flag(0.5) else types)
            array = self.data(self.shape(low, high), dtype, huge=huge)
            if fits(array):
                name = self.given(array, constant=self.flag(0.1))
                return name
        return None

    def like(self, name: str, shape: Sequence[int] | None = None, *, huge: bool = True) -> str:
        """Something of the type of `name`."""
        array = self.arrays[name]
        dtype = DType.from_numpy(array.dtype)
        wanted = array.shape if shape is None else tuple(shape)
        same = [
            n for n in self.made if self.arrays[n].dtype == array.dtype and self.arrays[n].shape == wanted
        ]
        if same and self.flag(0.6):
            return str(self.choice(same))
        return self.fresh(wanted, dtype, huge=huge)

    def partner(self, name: str) -> str:
        """Something that broadcasts with `name`, of its type."""
        shape = self.arrays[name].shape
        kind = self.number(0, 4)
        if kind == 0:
            other: tuple[int, ...] = ()
        elif kind == 1:
            other = shape[self.number(0, len(shape)) :]
        elif kind == 2:
            other = tuple(1 if self.flag(0.4) else d for d in shape)
        elif kind == 3 and len(shape) < 4:
            other = (self.extent(), *shape)
        else:
            other = shape
        return self.like(name, other)

    # Nodes.

    def step(self, op_type: str, inputs: Sequence[str], outputs: int = 1, /, **attributes: Any) -> Step:
        """A node that is not yet part of the model. Attributes that are None are left out."""
        self.count += 1
        results = [f"v{self.count}_{i}" for i in range(outputs)]
        kept = {k: v for k, v in attributes.items() if v is not None}
        proto = helper.make_node(op_type, list(inputs), results, name=f"{op_type}_{self.count}")
        for key, value in kept.items():
            if isinstance(value, list | tuple) and not value:
                proto.attribute.append(helper.make_attribute(key, [], attr_type=AttributeProto.INTS))
            else:
                proto.attribute.append(helper.make_attribute(key, value))
        read = dict.fromkeys(n for n in inputs if n)
        arrays = {n: self.arrays[n] for n in read}
        return Step(proto, arrays, frozenset(n for n in read if n in self.constants), self.opset)

    def accept(self, step: Step, results: Sequence[Array]) -> None:
        self.nodes.append(step.proto)
        for name, array in zip(step.proto.output, results, strict=True):
            self.arrays[name] = array
            self.made.append(name)

    def model(self) -> ModelProto:
        """The whole: results that nobody reads, and some others, are outputs."""
        read = {name for node in self.nodes for name in node.input}
        results = [n for n in self.made if n not in read or self.flag(0.2)]
        outputs = [
            helper.make_tensor_value_info(n, tensor_type(self.arrays[n]), self.arrays[n].shape)
            for n in results
        ]
        feed = {n: self.arrays[n] for n in self.inputs if n in read}
        return _model(
            self.nodes, feed, outputs, self.arrays, [c for c in self.constants if c in read], self.opset
        )

    def feed(self) -> dict[str, Array]:
        read = {name for node in self.nodes for name in node.input}
        return {n: self.arrays[n] for n in self.inputs if n in read}
