"""Proof that an axis holds rows: slices of which each is computed from the same slice of the inputs, alike.

Two graphs of one model, for two extents of the axis, are walked side by side. Their loop nests must be the
same but for the extent of at most one dim, the row; whatever holds rows is read and written at that dim, and
nothing else depends on it: no other operand, no index, no sum, no value of the loop's counter. Then any rows
may be computed beside any others, by the code for any extent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.compiled import CompiledModel
from tilewright.ir.graph import Graph
from tilewright.ir.nest import Nest
from tilewright.ir.rows import row_form
from tilewright.specialise.divided import DividedRows
from tilewright.specialise.graph_pairing import (
    NO_AXES,
    Axes,
    GraphPairing,
    Places,
    grown_axes,
    same_bits,
    walk,
)
from tilewright.specialise.parts import CompiledPart
from tilewright.targets.runs import RunsRows


def row_axes(graph: Graph, other: Graph, inputs: Mapping[str, int]) -> dict[str, int | None] | None:
    """Which axis of each output holds rows, where the axes of the inputs do; None where that is not proven.

    The graphs are of one model at two extents of these axes. Outputs without rows have None.
    """
    num_rows, num_others = _extent(graph, inputs), _extent(other, inputs)
    if num_rows is None or num_others is None:
        return None
    pairing = GraphPairing(num_others - num_rows, _constant_rows)
    axes = {name: frozenset({axis}) for name, axis in inputs.items()}
    if walk(graph, other, axes, pairing, _RowPlaces) is None:
        return None
    pairs = zip(graph.outputs, other.outputs, strict=True)
    return {a.name: _only(pairing.axes(a, b) or NO_AXES) for a, b in pairs}


class _RowPlaces(Places):
    """Operands whose only axis that differs holds rows."""

    def follow(self, nest: Nest, other: Nest) -> bool:
        """Whether two nests do the same to each row."""
        if len(nest.reads) != len(other.reads):
            return False
        if not all(self.reads(a.operand, b.operand) for a, b in zip(nest.reads, other.reads, strict=True)):
            return False
        if not self.writes(nest.write.operand, other.write.operand):
            return False
        accesses = (*nest.reads, nest.write)
        if any(len(self.axes[access.operand.key]) > 1 for access in accesses):
            return False
        *axes, written = (_only(self.axes[access.operand.key]) for access in accesses)
        form = row_form(nest, axes, written)
        return form is not None and form == row_form(other, axes, written)


def _extent(graph: Graph, axes: Mapping[str, int]) -> int | None:
    """Of these axes of inputs; None where they have several."""
    extents = {value.shape[axes[value.name]] for value in graph.inputs if value.name in axes}
    return extents.pop() if len(extents) == 1 else None


def _only(axes: Axes) -> int | None:
    return next(iter(axes), None)


def _constant_rows(a: Array, b: Array) -> Axes | None:
    """The axis of two constants that holds rows, all of which are alike; none where the constants are equal.

    Those of two extents are made by the model's arithmetic on shapes: an initial state of zeros, say.
    """
    if a.shape == b.shape:
        return NO_AXES if same_bits(a, b) else None
    if a.ndim != b.ndim or a.size == 0 or b.size == 0:
        return None
    axes = grown_axes(a.shape, b.shape)
    if len(axes) > 1:
        return None
    first = a.take([0], next(iter(axes)))
    return axes if all(same_bits(np.broadcast_to(first, c.shape), c) for c in (a, b)) else None


def divided_rows(
    graph: Graph,
    prepared: Mapping[int, CompiledPart],
    axes: Mapping[str, int],
    num_rows: int,
    extents: Sequence[int],
) -> DividedRows | None:
    """The rows of a graph by prepared code; None where the axes of its inputs are not proven to hold rows."""
    outputs: dict[str, int | None] | None = None
    code: dict[int, CompiledModel] = {}
    for extent, part in prepared.items():
        if part.whole is None or part.graph is None:
            return None
        found = row_axes(graph, part.graph, axes)
        if found is None or (outputs is not None and outputs != found):
            return None
        outputs, code[extent] = found, part.whole
    if outputs is None:
        return None
    return DividedRows(num_rows, tuple(extents), code, axes, outputs)


def rows_share(part: CompiledPart, axes: Mapping[str, int]) -> float:
    """How much of the work of prepared code is less, where fewer rows along these axes are asked for."""
    if part.whole is None or part.graph is None or part.graph.row_axes != axes:
        return 0.0
    executable = part.whole.load()
    # What was kept of an earlier compilation may end along others.
    return executable.rows_share if isinstance(executable, RunsRows) and executable.row_axes == axes else 0.0
