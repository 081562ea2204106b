"""Loops over rows: slices of values of which each is computed from the same slice of others, alike.

A graph says which axes of its inputs hold rows. From there it follows nest by nest where values hold them,
and which loops run over them: such a loop may end early, where a run has fewer rows than there is memory for.
What lies behind the rows of a run is whatever was there, so nothing that could fail may look at it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir.expr import Iter
from tilewright.ir.fuse import NestGroup
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.nest import (
    Access,
    Affine,
    Index,
    Indirect,
    Lookup,
    Nest,
    Opaque,
    Operand,
    RowsOf,
    Walks,
    dim_of,
    index_dims,
)
from tilewright.ir.ops.registry import describe

RowAxes = Mapping[Value, int]
"""Of values that hold rows: the axis that does."""
_Axes = dict[tuple[str, int], int | None]

_LEAST_ROWS = 2
"""Nests for one row are written in another way."""


def rows_of(graph: Graph) -> RowAxes | None:
    """Where values hold the rows of the graph's inputs; None where a nest mixes rows, or might fail for those
    that a run does not have.

    That is: where an operator runs on the host, and where an index that is looked at is not an input's.
    """
    axes: dict[Value, int] = {v: graph.row_axes[v.name] for v in graph.inputs if v.name in graph.row_axes}
    if len({v.shape[axis] for v, axis in axes.items()}) != 1 or num_rows_of(axes) < _LEAST_ROWS:
        return None
    for node in graph.nodes:
        found = _rows_of_node(node, axes, frozenset(graph.inputs))
        if found is None:
            return None
        axes.update(found)
    return axes


def num_rows_of(axes: RowAxes) -> int:
    """The most rows of a run."""
    return next((value.shape[axis] for value, axis in axes.items()), 0)


def with_row_loops(group: NestGroup, axes: RowAxes) -> NestGroup:
    """The group, whose loops over rows say so. A nest that is not seen to have one stays as it is."""
    known: _Axes = {}
    for kind, values in (("input", group.inputs), ("output", group.outputs)):
        known.update(((kind, position), axes.get(value)) for position, value in enumerate(values))
    num_rows = num_rows_of(axes)
    nests = []
    for nest in group.nests:
        found = _row_loop(nest, known, group.inputs)
        name, axis = found or (None, None)
        known.setdefault(nest.write.operand.key, axis)
        rows = RowsOf(num_rows)
        is_row_loop = known[nest.write.operand.key] == axis
        dims = (replace(d, rows=rows) if d.name == name and is_row_loop else d for d in nest.dims)
        nests.append(nest if name is None else replace(nest, dims=tuple(dims)))
    return replace(group, nests=tuple(nests))


def without_row_loops(nests: Sequence[Nest]) -> tuple[Nest, ...]:
    """The nests with loops that always run to their end."""
    return tuple(
        replace(nest, dims=tuple(replace(d, rows=None) for d in nest.dims))
        if any(d.rows for d in nest.dims)
        else nest
        for nest in nests
    )


def _rows_of_node(node: Node, axes: RowAxes, inputs: frozenset[Value]) -> dict[Value, int] | None:
    """Where the results of a node hold rows; None where it does not do the same to each."""
    if not any(value in axes for value in node.operands()):
        return {}
    description = describe(node)
    nests = description.reach if isinstance(description, Walks) else description
    if isinstance(nests, Opaque):
        return None
    known: _Axes = {}
    for nest in nests:
        for access in nest.reads:
            operand = access.operand
            if operand.kind == "input" and operand.key not in known:
                value = node.input(operand.position)
                known[operand.key] = None if value is None else axes.get(value)
        found = _row_loop(nest, known, node.inputs)
        if found is None or not _looks_at_inputs(node, nest, axes, inputs):
            return None
        if known.setdefault(nest.write.operand.key, found[1]) != found[1]:
            return None
    held = {v: known.get(("output", i)) for i, v in enumerate(node.outputs) if v is not None}
    return {value: axis for value, axis in held.items() if axis is not None}


def _looks_at_inputs(node: Node, nest: Nest, axes: RowAxes, inputs: frozenset[Value]) -> bool:
    """Whether every index that is data, and may lie outside, is one of the model's inputs or has no rows."""
    for access in (*nest.reads, nest.write):
        for index in access.index:
            if isinstance(index, Indirect):
                operand: Operand = nest.reads[index.read].operand
                value = node.input(operand.position) if operand.kind == "input" else None
                if value is None or (value in axes and value not in inputs):
                    return False
    return True


def _row_loop(
    nest: Nest, known: Mapping[tuple[str, int], int | None], inputs: Sequence[Value | None]
) -> tuple[str | None, int | None] | None:
    """The loop over rows and the axis that is written along it, None for both where no rows are read; None
    where the nest does not do the same to each row.
    """
    axes = [None if a.operand.data is not None else known.get(a.operand.key) for a in nest.reads]
    loops = {_dim_at(access, axis) for access, axis in zip(nest.reads, axes, strict=True) if axis is not None}
    if not loops:
        return None, None
    name = next(iter(loops))
    if len(loops) > 1 or name is None or nest.write.view is not None:
        return None
    along = Affine(((name, 1),))
    axes = [
        _alike_rows(access, along, inputs) if axis is None else axis
        for access, axis in zip(nest.reads, axes, strict=True)
    ]
    written = [axis for axis, index in enumerate(nest.write.index) if index == along]
    if len(written) != 1 or row_form(nest, axes, written[0]) is None:
        return None
    return name, written[0]


def _alike_rows(access: Access, along: Affine, inputs: Sequence[Value | None]) -> int | None:
    """The axis of a constant that is read row by row, if all rows are the same: an initial state of zeros."""
    operand = access.operand
    value = inputs[operand.position] if operand.kind == "input" else None
    data = operand.data if value is None else value.data
    axes = [axis for axis, index in enumerate(access.index) if index == along]
    if data is None or access.view is not None or len(axes) != 1 or data.size == 0:
        return None
    rows = np.moveaxis(data, axes[0], 0)
    # Their bits: zeros of both signs are equal, and NaN is not.
    first = rows[0].tobytes()
    return axes[0] if all(row.tobytes() == first for row in rows) else None


def row_form(nest: Nest, axes: Sequence[int | None], written: int | None) -> Hashable | None:
    """What a nest does to one row; None if that is not the same for all, or depends on others.

    `axes` of its reads and `written` of its write hold rows. Loops of one iteration are left out, as
    operators do, and the others named in order: so nests for one row and for many have the same form.
    """
    accesses = (*zip(nest.reads, axes, strict=True), (nest.write, written))
    extents = {access.operand.shape[axis] for access, axis in accesses if axis is not None}
    row: str | None = None
    if extents and extents != {1}:
        found = {_dim_at(access, axis) for access, axis in accesses if axis is not None}
        row = next(iter(found))
        if len(found) > 1 or (row, *extents) not in [(d.name, d.extent) for d in nest.parallel_dims]:
            return None
    kept = [d for d in nest.dims if d.name != row and d.extent > 1]
    names = {d.name: f"d{number}" for number, d in enumerate(kept)}
    counters = {part.dim for part in nest.parts() if isinstance(part, Iter)}
    if not all(names.get(dim) == dim for dim in counters):
        return None
    indices = []
    for access, axis in accesses:
        if any(row in index_dims(index) for i, index in enumerate(access.index) if i != axis):
            return None
        if access.view is not None and axis is not None:
            return None
        named = tuple(_named(index, names) for index in access.index)
        operand = access.operand
        indices.append((operand.key, operand.dtype, access.fill, access.view, named))
    dims = tuple((d.role, d.extent) for d in kept)
    return dims, tuple(indices), nest.body, nest.combine, nest.init, nest.finish


def _dim_at(access: Access, axis: int) -> str | None:
    """The dim that is the index of an axis; None where there is none, or more is done to it."""
    return dim_of(access.index[axis]) if access.view is None else None


def _named(index: Index, names: Mapping[str, str]) -> Index:
    """An index in other names of its dims; those without one are left out: the row, or of one iteration."""
    match index:
        case Affine(terms, offset):
            kept = sorted((names[dim], c) for dim, c in terms if dim in names)
            return Affine(tuple(kept), offset)
        case Lookup(table, dim):
            return Lookup(table, names[dim]) if dim in names else Affine((), table[0])
    return index
