"""Equal nodes on equal operands are computed once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, SubgraphAttribute, Value
from tilewright.ir.ops.host import RANDOM
from tilewright.passes.base import PassResult, Remark
from tilewright.passes.edit import Editor
from tilewright.progress import checkpoint
from tilewright.records import dataclass

# Bytes of a constant that tell it from others of its shape, before two are compared in full.
_SAMPLE = 64


@dataclass(frozen=True, slots=True)
class CommonSubexpressions:
    """Merges nodes with the same operator, attributes and operands, in one walk.

    Constants are the same if type, shape and every bit are. Only those that agree in a sample of their bytes
    are compared, so that the time does not grow with the size of weights that differ.
    """

    name: ClassVar[str] = "common-subexpressions"

    def run(self, graph: Graph) -> PassResult:
        """Edit the graph in place."""
        editor = Editor(graph, remembers=False)
        constants = _Constants()
        seen: dict[Hashable, Node] = {}
        remarks: list[Remark] = []
        for node in graph.nodes:
            checkpoint()
            key = _key(node, editor, constants)
            if key is None:
                continue
            first = seen.setdefault(key, node)
            if first is not node and _merge(editor, node, first):
                remarks.append(Remark(node.name, f"removed: it computes the same as {first.name}"))
        return PassResult(len(remarks), tuple(remarks))


def _key(node: Node, editor: Editor, constants: _Constants) -> Hashable | None:
    if node.captures or (not node.domain and node.op_type in RANDOM):
        return None
    attributes: list[Hashable] = []
    for name, value in sorted(node.attributes.items()):
        if isinstance(value, SubgraphAttribute):
            return None
        plain: Hashable = (
            (str(value.dtype), value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
        )
        # 1 and 1.0 are equal keys but not equal attributes.
        attributes.append((name, type(value).__name__, plain))
    operands = tuple(
        None if v is None else v if not editor.is_constant(v) else constants.representative(v)
        for v in node.inputs
    )
    results = tuple(None if v is None else (v.dtype, v.shape) for v in node.outputs)
    return node.domain, node.op_type, node.opset, tuple(attributes), operands, results


def _merge(editor: Editor, node: Node, first: Node) -> bool:
    """Give the readers of `node` the results of `first`; not if both are outputs with names of their own."""
    merged = True
    for old, new in zip(node.outputs, first.outputs, strict=True):
        if old is not None and new is not None and (old.users or editor.is_output(old)):
            merged &= editor.replace(old, new)
    editor.discard([node])
    return merged


class _Constants:
    """One representative for all constants of equal content."""

    def __init__(self) -> None:
        self._representatives: dict[Value, Value] = {}
        self._alike: dict[tuple[DType, tuple[int, ...], bytes], list[Value]] = {}

    def representative(self, value: Value) -> Value:
        """The first constant seen that has this type, shape and content."""
        if value in self._representatives:
            return self._representatives[value]
        data = value.stored
        if not isinstance(data, np.ndarray) or data.dtype.kind == "O":
            self._representatives[value] = value
            return value
        alike = self._alike.setdefault((value.dtype, value.shape, _sample(data)), [])
        found = next((other for other in alike if _same_bits(data, other.data)), value)
        if found is value:
            alike.append(value)
        self._representatives[value] = found
        return found


def _sample(data: Array) -> bytes:
    flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return flat[:: max(1, flat.size // _SAMPLE) | 1].tobytes()


def _same_bits(a: Array, b: Array | None) -> bool:
    if b is None:
        return False
    left, right = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return bool(np.array_equal(left, right))
