"""Whether a node's loop nests stay inside its tensors and write all of its results.

Generated code relies on that without checking.

Graphs from the ONNX frontend have inferred shapes, so this holds for them. A graph read back from a file
states its shapes itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.nest import Access, Affine, Indirect, Lookup, Nest, Opaque, format_access
from tilewright.ir.ops import describe


def find_out_of_bounds(graph: Graph) -> str | None:
    """The first access of any nest that leaves its tensor, or None. O(accesses)."""
    for node in graph.nodes:
        for problem in _problems(node):
            return f"{node.op_type} {node.name!r}: {problem}"
    return None


def _problems(node: Node) -> Iterator[str]:
    nests = describe(node)
    if isinstance(nests, Opaque):
        return
    for nest in nests:
        if any(d.extent < 0 for d in nest.dims):
            yield "a loop has a negative extent"
        for access in (*nest.reads, nest.write):
            if not _fits_value(access, node):
                yield f"{format_access(access)} has another shape or type than its tensor"
            elif not _stays_inside(access, nest, is_write=access is nest.write):
                yield f"{format_access(access)} leaves its tensor {list(access.shape)}"

    for position, value in enumerate(node.outputs):
        written = sum(
            math.prod(d.extent for d in nest.parallel_dims)
            for nest in nests
            if nest.write.operand.key == ("output", position)
        )
        if value is not None and written < value.num_elements:
            yield f"result {value.name!r} has {value.num_elements} elements, {written} are written"


def _fits_value(access: Access, node: Node) -> bool:
    operand = access.operand
    if access.view is not None and math.prod(access.view) != operand.num_elements:
        return False
    if len(access.index) != len(access.shape):
        return False
    values: tuple[Value | None, ...] = {"input": node.inputs, "output": node.outputs}.get(operand.kind, ())
    if operand.kind in ("local", "table"):
        return operand.data is None or operand.data.shape == operand.shape
    value = values[operand.position] if operand.position < len(values) else None
    return value is not None and value.shape == operand.shape and value.dtype is operand.dtype


def _stays_inside(access: Access, nest: Nest, *, is_write: bool) -> bool:
    if nest.num_iterations == 0:
        return True
    if access.fill is not None and not is_write:
        return True
    extents = nest.extents
    for index, size in zip(access.index, access.shape, strict=True):
        match index:
            case Affine():
                low, high = index.bounds(extents)
            case Lookup(table, dim):
                if len(table) < extents[dim]:
                    return False
                low, high = min(table), max(table)
            case Indirect():  # generated code clamps it
                low, high = 0, size - 1
        if low < 0 or high >= max(size, 0):
            return False
    return True
