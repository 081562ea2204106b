"""Graphs, nodes and values, with ONNX's own words.

A `Graph` owns its nodes in a topological order. Shapes are static. Values and nodes have identity and
are changed only through the graph's methods, which keep producers and uses right.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tilewright.errors import InternalError
from tilewright.ir.block_weights import BlockWeights
from tilewright.ir.dtype import DType
from tilewright.records import dataclass
from tilewright.system.mapped_file import mapped_files

if TYPE_CHECKING:
    from tilewright.ir.nest import Description

Shape = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SubgraphAttribute:
    """The body of a control-flow operator, kept as ONNX bytes: such operators are opaque."""

    serialized: bytes


Attribute = (
    int | float | str | bytes | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | np.ndarray[Any, Any]
)
Attributes = Mapping[str, Attribute | SubgraphAttribute]


class Value:
    """A tensor: graph input, initializer (`data` set) or the output of one node.

    `stored` is the data as they lie in memory, which may be integers with scales where `data` are floats.
    """

    __slots__ = ("_floats", "_uses", "dtype", "name", "producer", "shape", "stored")

    def __init__(
        self,
        name: str,
        dtype: DType,
        shape: Sequence[int],
        data: np.ndarray[Any, Any] | BlockWeights | None = None,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape: Shape = tuple(int(d) for d in shape)
        self.stored = data
        self._floats: weakref.ref[np.ndarray[Any, Any]] | None = None
        self.producer: Node | None = None
        self._uses: list[Node] = []

    @property
    def data(self) -> np.ndarray[Any, Any] | None:
        """The elements of an initializer; floats of `BlockWeights` are made on request."""
        stored = self.stored
        if not isinstance(stored, BlockWeights):
            return stored
        floats = None if self._floats is None else self._floats()
        if floats is None:
            floats = stored.floats()
            self._floats = weakref.ref(floats)
        return floats

    @data.setter
    def data(self, data: np.ndarray[Any, Any] | None) -> None:
        self.stored = data

    @property
    def is_constant(self) -> bool:
        """Whether this is an initializer."""
        return self.stored is not None

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return int(prod(self.shape))

    @property
    def size_bytes(self) -> int:
        """Bytes of the dense tensor."""
        return self.num_elements * self.dtype.size_bytes

    @property
    def users(self) -> tuple[Node, ...]:
        """Nodes that read this value, each once, in the order in which they began to."""
        return tuple(dict.fromkeys(self._uses))

    def __repr__(self) -> str:
        return f"%{self.name}: {self.dtype}{list(self.shape)}"


class Node:
    """One operator application. `inputs` may hold None for an omitted optional input.

    `captures` are outer values that a control-flow body reads; they count as uses.
    """

    __slots__ = (
        "_description",
        "_facts",
        "attributes",
        "captures",
        "domain",
        "inputs",
        "name",
        "op_type",
        "opset",
        "outputs",
    )

    def __init__(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value | None],
        attributes: Attributes | None = None,
        *,
        name: str = "",
        domain: str = "",
        opset: int = 21,
        captures: Sequence[Value] = (),
    ) -> None:
        self.op_type = op_type
        self.domain = domain
        self.opset = opset
        self.name = name or next((o.name for o in outputs if o is not None), op_type)
        self.inputs: tuple[Value | None, ...] = tuple(inputs)
        self.outputs: tuple[Value | None, ...] = tuple(outputs)
        self.attributes: dict[str, Attribute | SubgraphAttribute] = dict(attributes or {})
        self.captures: tuple[Value, ...] = tuple(captures)
        # Loop nests, filled in by `ops.describe`; they depend on attributes and constant inputs.
        self._description: Description | None = None
        # What follows from these, by its author.
        self._facts: dict[Callable[[Node], Any], Any] = {}

    def described(self, build: Callable[[Node], Description]) -> Description:
        """The remembered description, built on first use and forgotten when the inputs change."""
        if self._description is None:
            self._description = build(self)
        return self._description

    def remembered(self, fact: Callable[[Node], T]) -> T:
        """What a function says of the node, worked out once for it and its copies, until the inputs change.

        It may look at the description and at types and shapes, not at which nodes and values there are.
        """
        if fact not in self._facts:
            self._facts[fact] = fact(self)
        found: T = self._facts[fact]
        return found

    def describe_as(self, other: Node) -> None:
        """Take over what was found out about a node of which this one is a copy.

        It speaks of positions, shapes and constants, which are the same; before a node is described, its
        attributes may still change.
        """
        if other._description is not None:
            self._description, self._facts = other._description, other._facts

    @property
    def output(self) -> Value:
        """The first output."""
        first = self.outputs[0]
        if first is None:
            raise InternalError(f"{self.op_type} {self.name!r} has no first output.")
        return first

    def operands(self) -> Iterator[Value]:
        """Every value this node reads, captures included, repeats included, None skipped."""
        yield from (v for v in self.inputs if v is not None)
        yield from self.captures

    def results(self) -> Iterator[Value]:
        """Every value this node produces."""
        return (v for v in self.outputs if v is not None)

    def input(self, index: int) -> Value | None:
        """The `index`-th input, or None where it is omitted or beyond the end."""
        return self.inputs[index] if index < len(self.inputs) else None

    def require(self, index: int) -> Value:
        """The `index`-th input, which must be there."""
        value = self.input(index)
        if value is None:
            raise InternalError(f"{self.op_type} {self.name!r} lacks its input {index}.")
        return value

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """Data of the `index`-th input if it is an initializer, else None."""
        value = self.input(index)
        return None if value is None else value.data

    def int_attr(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attributes.get(name, default)
        assert isinstance(value, int), f"attribute {name!r} of {self.op_type} is not an integer"
        return value

    def float_attr(self, name: str, default: float) -> float:
        """A floating-point attribute, or the default as ONNX holds it: in float32, as all of a file's are.

        What passes make of float64 constants keeps its digits.
        """
        value = self.attributes.get(name)
        if value is None:
            return float(np.float32(default))
        assert isinstance(value, float | int), f"attribute {name!r} of {self.op_type} is not a number"
        return float(value)

    def str_attr(self, name: str, default: str) -> str:
        """A text attribute."""
        value = self.attributes.get(name, default)
        assert isinstance(value, str), f"attribute {name!r} of {self.op_type} is not text"
        return value

    def ints_attr(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...] | None:
        """A list-of-integers attribute, or the default."""
        value = self.attributes.get(name)
        if value is None:
            return None if default is None else tuple(default)
        assert isinstance(value, tuple), f"attribute {name!r} of {self.op_type} is not a list"
        return tuple(int(v) for v in value)

    def __repr__(self) -> str:
        return f"{self.op_type}({self.name})"


class Graph:
    """A directed acyclic graph of nodes, kept in a topological order."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.row_axes: dict[str, int] = {}
        """Of inputs by name: axes whose extent is the most rows that a run may have (see `ir.rows`)."""
        self.past_axes: dict[str, int] = {}
        """Of inputs and outputs by name: axes of caches that have fewer places in a run (see `ir.past`)."""
        self.shares_constants = False
        """Whether code for other shapes of the model reads the same constants, then in one form."""
        self._nodes: list[Node] = []
        self._names: set[str] = set()  # only grows
        self._first_free: dict[str, int] = {}  # no smaller number behind a stem is free

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, every producer before its users."""
        return tuple(self._nodes)

    @property
    def num_samples(self) -> int:
        """The extent of the first axis of the inputs, the least of them; 1 where there are none."""
        return min((value.shape[0] for value in self.inputs if value.shape), default=1)

    @property
    def initializers(self) -> tuple[Value, ...]:
        """Constant values that some node reads or that are outputs, in order of first use."""
        seen: dict[Value, None] = {}
        for node in self._nodes:
            for value in node.operands():
                if value.is_constant:
                    seen[value] = None
        for value in self.outputs:
            if value.is_constant:
                seen[value] = None
        return tuple(seen)

    def values(self) -> Iterator[Value]:
        """Inputs, initializers and node results, each once."""
        yield from self.inputs
        yield from (v for v in self.initializers if v not in self.inputs)
        for node in self._nodes:
            yield from node.results()

    def require_unchanged(self) -> None:
        """Raise unless the files that its constants lie in are as they were.

        Raises:
            UsageError: another program wrote to one.
        """
        stored = (value.stored for value in self.values())
        arrays = (a.arrays() if isinstance(a, BlockWeights) else (a,) for a in stored if a is not None)
        for file in mapped_files(chain.from_iterable(arrays)):
            file.require_unchanged()

    def fresh_name(self, stem: str) -> str:
        """A value name not used in this graph; the stem itself if it is free."""
        if stem not in self._names:
            return stem
        number = self._first_free.get(stem, 1)
        while f"{stem}_{number}" in self._names:
            number += 1
        self._first_free[stem] = number
        return f"{stem}_{number}"

    def add_input(self, value: Value) -> Value:
        """Declare a graph input."""
        self._names.add(value.name)
        self.inputs.append(value)
        return value

    def constant(self, data: np.ndarray[Any, Any] | BlockWeights, name: str = "const") -> Value:
        """A new initializer holding `data`."""
        value = Value(self.fresh_name(name), DType.from_numpy(data.dtype), data.shape, data)
        self._names.add(value.name)
        return value

    def value(self, name: str, dtype: DType, shape: Sequence[int]) -> Value:
        """A new value with a fresh name, to become the output of a node."""
        value = Value(self.fresh_name(name), dtype, shape)
        self._names.add(value.name)
        return value

    def append(self, node: Node) -> Node:
        """Add a node at the end; its operands must exist already."""
        return self._insert(len(self._nodes), node)

    def insert_before(self, anchor: Node, node: Node) -> Node:
        """Add a node just before `anchor`."""
        return self._insert(self._nodes.index(anchor), node)

    def _insert(self, position: int, node: Node) -> Node:
        for value in node.results():
            if value.producer is not None:
                raise InternalError(f"value {value.name!r} already has a producer")
            value.producer = node
            self._names.add(value.name)
        for value in node.operands():
            value._uses.append(node)
            self._names.add(value.name)
        self._nodes.insert(position, node)
        return node

    def remove(self, node: Node) -> None:
        """Take a node out; its results must have no users left and not be graph outputs."""
        for value in node.results():
            if value._uses or value in self.outputs:
                raise InternalError(f"cannot remove {node!r}: {value.name!r} is still used")
        for value in node.operands():
            value._uses.remove(node)
        for value in node.results():
            value.producer = None
        self._nodes.remove(node)

    def set_inputs(self, node: Node, inputs: Sequence[Value | None]) -> None:
        """Replace a node's whole input list."""
        for value in node.inputs:
            if value is not None:
                value._uses.remove(node)
        node.inputs = tuple(inputs)
        node._description, node._facts = None, {}
        for value in node.inputs:
            if value is not None:
                value._uses.append(node)

    def replace_uses(self, old: Value, new: Value) -> None:
        """Make every reader of `old`, graph outputs included, read `new`."""
        for node in old.users:
            if old in node.captures:
                raise InternalError(f"{old.name!r} is captured by a control-flow body and cannot be replaced")
            self.set_inputs(node, [new if v is old else v for v in node.inputs])
        self.outputs = [new if v is old else v for v in self.outputs]

    def sort(self) -> None:
        """Restore topological order, stable with respect to the current order.

        Raises:
            InternalError: the graph has a cycle.
        """
        position = {node: i for i, node in enumerate(self._nodes)}
        missing = {
            node: len({v.producer for v in node.operands() if v.producer is not None}) for node in self._nodes
        }
        import heapq

        ready = [position[n] for n, count in missing.items() if count == 0]
        heapq.heapify(ready)
        ordered: list[Node] = []
        while ready:
            node = self._nodes[heapq.heappop(ready)]
            ordered.append(node)
            for user in dict.fromkeys(u for v in node.results() for u in v.users):
                missing[user] -= 1
                if missing[user] == 0:
                    heapq.heappush(ready, position[user])
        if len(ordered) != len(self._nodes):
            raise InternalError("the graph has a cycle")
        self._nodes = ordered

    def clone(self) -> Graph:
        """A deep copy that shares only constant data."""
        return self.extract(lambda node: True)

    def extract(self, keep: Callable[[Node], bool]) -> Graph:
        """Copy with the nodes for which `keep` holds; inputs and outputs stay those of this graph."""
        copy = Graph(self.name)
        mapping: dict[Value, Value] = {}

        def copied(value: Value | None) -> Value | None:
            if value is None:
                return None
            if value not in mapping:
                mapping[value] = Value(value.name, value.dtype, value.shape, value.stored)
            return mapping[value]

        for value in self.inputs:
            clone = copied(value)
            assert clone is not None
            copy.add_input(clone)
        for node in self._nodes:
            if keep(node):
                captures: Iterable[Value] = [c for c in map(copied, node.captures) if c is not None]
                twin = Node(
                    node.op_type,
                    [copied(v) for v in node.inputs],
                    [copied(v) for v in node.outputs],
                    node.attributes,
                    name=node.name,
                    domain=node.domain,
                    opset=node.opset,
                    captures=tuple(captures),
                )
                twin.describe_as(node)
                copy.append(twin)
        copy.outputs = [v for v in map(copied, self.outputs) if v is not None]
        copy.row_axes = dict(self.row_axes)
        copy.past_axes = dict(self.past_axes)
        copy.shares_constants = self.shares_constants
        return copy

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self._nodes)} nodes)"
