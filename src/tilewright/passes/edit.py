"""Edits that keep what others rely on: output names, types, shapes, and values read by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.block_weights import BlockWeights
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attributes, Graph, Node, Value
from tilewright.ir.ops.registry import has_effect


class Editor:
    """Edits one graph, and remembers which nodes an edit may have made ready for another.

    A pass that never asks for those leaves it out (`remembers=False`): it takes time for each reader of what
    an edit is beside, and one value may have many thousands.
    """

    def __init__(self, graph: Graph, *, remembers: bool = True) -> None:
        self.graph = graph
        self._remembers = remembers
        self._inputs = frozenset(graph.inputs)
        self._touched: dict[Node, None] = {}

    def take_touched(self) -> tuple[Node, ...]:
        """Nodes edited since the last call, and their neighbours; those that are gone are left out."""
        touched = tuple(node for node in self._touched if is_in_graph(node))
        self._touched.clear()
        return touched

    def data(self, value: Value | None) -> Array | None:
        """What is known of a value: an initializer's data, unless a caller may feed other data."""
        return None if value is None or value in self._inputs else value.data

    def is_constant(self, value: Value) -> bool:
        """Whether a value is known."""
        return value.is_constant and value not in self._inputs

    def is_output(self, value: Value) -> bool:
        """Whether callers see this value."""
        return value in self.graph.outputs

    def sole_user(self, value: Value) -> Node | None:
        """The one node that reads a value which no other node and no output has."""
        users = value.users
        return users[0] if len(users) == 1 and not self.is_output(value) else None

    def constant(self, data: Array | BlockWeights, dtype: DType, stem: str) -> Value:
        """A new initializer; the data are rounded to the type once."""
        if isinstance(data, BlockWeights):
            return self.graph.constant(data, stem)
        return self.graph.constant(np.asarray(data).astype(dtype.numpy, copy=False), stem)

    def insert(
        self,
        anchor: Node,
        op_type: str,
        inputs: Sequence[Value | None],
        result: tuple[str, DType, Sequence[int]],
        attributes: Attributes | None = None,
        *,
        since: int = 1,
    ) -> Value:
        """The result (named by a stem, of a type and shape) of a new node just before `anchor`.

        `since` is the first opset that has the operator.
        """
        value = self.graph.value(*result)
        node = Node(op_type, inputs, [value], attributes, opset=max(anchor.opset, since))
        self.graph.insert_before(anchor, node)
        self._touch(node)
        return value

    def become(
        self,
        node: Node,
        op_type: str,
        inputs: Sequence[Value | None],
        attributes: Attributes | None = None,
        *,
        since: int = 1,
        name: str | None = None,
        domain: str = "",
    ) -> None:
        """Make a node another operator with the same results; what only its old inputs needed goes.

        The new inputs must exist where the node stands. `since` is the first opset that has the operator.
        """
        old = list(node.operands())
        node.op_type = op_type
        node.domain = domain
        node.opset = max(node.opset, since)
        node.name = name or node.name
        node.attributes = dict(attributes or {})
        self.graph.set_inputs(node, inputs)
        self._touch(node)
        self.discard(v.producer for v in old)

    def replace(self, old: Value, new: Value) -> bool:
        """Make every reader of `old`, callers included, read `new`; False where that cannot be.

        A graph output keeps its name: `new` takes it over, unless it is an input or an output itself. The
        bodies of control-flow operators read by name, so a value they read stays.
        """
        if _is_captured(old):
            return False
        if self.is_output(old):
            if self.is_output(new) or new in self._inputs or _is_captured(new):
                return False
            old.name, new.name = new.name, old.name
        users = old.users
        self.graph.replace_uses(old, new)
        for node in (*users, *((new.producer,) if new.producer else ())):
            self._touch(node)
        self.discard([old.producer])
        return True

    def discard(self, nodes: Iterable[Node | None]) -> None:
        """Remove nodes whose results are never read, and then what only they needed."""
        pending = [node for node in nodes if node is not None]
        while pending:
            node = pending.pop()
            if not is_in_graph(node) or has_effect(node):
                continue
            if any(v.users or self.is_output(v) for v in node.results()):
                continue
            operands = list(node.operands())
            self.graph.remove(node)
            for value in operands:
                # Its result has one reader less: that may be what another rule waits for.
                if self._remembers:
                    self._touched.update(dict.fromkeys(value.users))
                if value.producer is not None:
                    pending.append(value.producer)

    def _touch(self, node: Node) -> None:
        if not self._remembers:
            return
        self._touched[node] = None
        for value in node.operands():
            if value.producer is not None:
                self._touched[value.producer] = None
        for value in node.results():
            self._touched.update(dict.fromkeys(value.users))


def is_in_graph(node: Node) -> bool:
    """Whether a node has not been removed: `Graph.remove` parts it from its results."""
    return any(value.producer is node for value in node.results())


def _is_captured(value: Value) -> bool:
    return any(value in user.captures for user in value.users)
