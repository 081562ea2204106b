"""Builds random graphs node by node on concrete arrays: what a node gives decides if it stays.

A graph is *exact* or *real*. In exact graphs every value is a small multiple of 1/64, so that sums and
products are the same in any order and results must be equal bit by bit, whatever is compared, rounded or
converted on the way. Real graphs hold normally distributed numbers and smooth operators only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, Value
from tilewright.ir.interpret import run_node

Array = np.ndarray[Any, Any]

MAX_ELEMENTS = 20_000
MAX_MACS = 4_000_000
# Largest magnitude of an exact value, by type: all multiples of 1/64 up to here are representable.
_EXACT_LIMIT = {DType.FLOAT32: 2.0**16, DType.FLOAT64: 2.0**16, DType.FLOAT16: 2.0**5, DType.BFLOAT16: 2.0}
_REAL_LIMIT = 300.0
FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)
INTEGERS = (DType.INT32, DType.INT64, DType.INT8, DType.UINT8, DType.INT16)


class Maker:
    """A graph under construction, with an array for each value and a seeded source of chance."""

    def __init__(self, seed: int, *, exact: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.exact = exact
        self.graph = Graph(f"fuzz_{seed}")
        self.arrays: dict[Value, Array] = {}
        self.values: list[Value] = []
        self.count = 0

    # Chance.

    def number(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return int(self.rng.integers(low, high + 1))

    def flag(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)

    def choice(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def pick(self, of: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A computed or given value, recent ones preferred so that graphs grow deep."""
        fitting = [v for v in self.values if of(v)]
        if not fitting:
            return None
        return self.choice(fitting[-4:] if self.flag(0.7) else fitting)

    def data(self, shape: Sequence[int], dtype: DType = DType.FLOAT32, scale: float = 1.0) -> Array:
        if dtype is DType.BOOL:
            return np.asarray(self.rng.integers(0, 2, tuple(shape)), np.bool_)
        if self.exact or not dtype.is_float:
            low = 0 if dtype in (DType.UINT8,) else -2
            return np.asarray(self.rng.integers(low, 3, tuple(shape))).astype(dtype.numpy)
        return np.asarray(self.rng.standard_normal(tuple(shape)) * scale).astype(dtype.numpy)

    # Values.

    def input(self, shape: Sequence[int], dtype: DType = DType.FLOAT32, scale: float = 1.0) -> Value:
        value = self.graph.add_input(Value(f"x{len(self.graph.inputs)}", dtype, shape))
        self.arrays[value] = self.data(shape, dtype, scale)
        self.values.append(value)
        return value

    def constant(self, shape: Sequence[int], dtype: DType = DType.FLOAT32, scale: float = 0.5) -> Value:
        return self.literal(self.data(shape, dtype, scale))

    def positive(self, shape: Sequence[int]) -> Value:
        if self.exact:
            return self.literal(np.ones(tuple(shape), np.float32))
        return self.literal(self.rng.uniform(0.5, 2, tuple(shape)).astype(np.float32))

    def integers(self, *numbers: int) -> Value:
        return self.literal(np.array(numbers, np.int64))

    def literal(self, array: Array) -> Value:
        value = self.graph.constant(np.asarray(array), f"c{self.count}")
        self.arrays[value] = np.asarray(array)
        return value

    def weight(self, shape: Sequence[int], dtype: DType) -> Value:
        """A factor: mostly a constant, at times a model input or something computed from one."""
        scale = 1 / max(1.0, float(np.prod(shape[1:])) ** 0.5)
        if not self.flag(0.12):
            return self.constant(shape, dtype, scale)
        value = self.input(shape, dtype, scale)
        self.values.pop()
        return value

    # Nodes.

    def add(
        self, op_type: str, inputs: Sequence[Value | None], /, *dtypes: DType, **attributes: Attribute
    ) -> Value | None:
        """Append a node if it can run and its results stay small and finite; its first result."""
        self.count += 1
        dtypes = dtypes or (next(v.dtype for v in inputs if v is not None),)
        outputs = [Value(f"v{self.count}_{i}", dtype, ()) for i, dtype in enumerate(dtypes)]
        node = Node(op_type, inputs, outputs, attributes, name=f"{op_type}_{self.count}", opset=20)
        given = [None if v is None else self.arrays[v] for v in inputs]
        try:
            arrays = run_node(node, given)
            if self.exact and not all(map(_equal, arrays, run_node(node, given, dtype=DType.FLOAT64))):
                return None  # rounded: then it matters when
        except TilewrightError:
            return None
        if not all(
            array is not None and self._keeps(array, v) for array, v in zip(arrays, outputs, strict=True)
        ):
            return None
        for value, array in zip(outputs, arrays, strict=True):
            assert array is not None
            value.shape = array.shape
            self.arrays[value] = array
        self.graph.append(node)
        self.values += outputs
        return outputs[0]

    def _keeps(self, array: Array, value: Value) -> bool:
        if not 0 < array.size <= MAX_ELEMENTS:
            return False
        if not value.dtype.is_float:
            return value.dtype is DType.BOOL or float(np.abs(array.astype(np.float64)).max()) < 2.0**30
        wide = array.astype(np.float64)
        if not np.isfinite(wide).all():
            return False
        if not self.exact:
            return float(np.abs(wide).max()) <= _REAL_LIMIT
        return float(np.abs(wide).max()) <= _EXACT_LIMIT[value.dtype] and bool((wide * 64 % 1 == 0).all())

    def sums_exactly(self, a: Value, b: Value, num_terms: int) -> bool:
        """Whether sums of products of the two are exact in any order (always so in real graphs)."""
        if not self.exact:
            return True
        largest = [float(np.abs(self.arrays[v].astype(np.float64)).max()) for v in (a, b)]
        quanta = [all_multiples(self.arrays[v]) for v in (a, b)]
        return largest[0] * largest[1] * num_terms < 2.0**22 * quanta[0] * quanta[1]

    def finish(self) -> Graph:
        """Name the outputs: what nobody reads, some others, at times an input, a constant, one twice."""
        made = [v for v in self.values if v.producer is not None]
        outputs = [v for v in made if not v.users or self.flag(0.15)]
        if self.flag(0.05) and self.graph.inputs:
            outputs.append(self.graph.inputs[0])
        if self.flag(0.05):
            outputs.append(self.constant((2, 3)))
        if self.flag(0.05) and outputs:
            outputs.append(outputs[0])
        self.graph.outputs = outputs
        return self.graph

    def feed(self) -> dict[str, Array]:
        return {v.name: self.arrays[v] for v in self.graph.inputs}


def _equal(a: Array | None, b: Array | None) -> bool:
    return a is not None and b is not None and np.array_equal(a.astype(np.float64), b.astype(np.float64))


def all_multiples(array: Array) -> float:
    """The largest power of two up to 1, and not below 1/64, that divides every element."""
    wide = array.astype(np.float64)
    quantum = 1.0
    while quantum > 1 / 64 and not (wide / quantum % 1 == 0).all():
        quantum /= 2
    return quantum
