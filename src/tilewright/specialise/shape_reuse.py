"""Which code for prepared shapes is proven to serve others: on rows of them, padded, or both."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from tilewright.compiled import CompiledModel
from tilewright.frontend.onnx.prepared import PreparedModel
from tilewright.ir.graph import Graph, Shape
from tilewright.specialise.binding import Binding, Key
from tilewright.specialise.divided import DividedRows, PaddedShapes, cover
from tilewright.specialise.masked import Mask, Padding, masked_graph, padding
from tilewright.specialise.parts import CompiledPart
from tilewright.specialise.rows import divided_rows, rows_share

ByOthers = DividedRows | PaddedShapes
"""What runs by the code for other shapes."""
Axes = Mapping[str, int]
"""Of inputs: the axis that has some extent."""

LEAST_SHARE = 0.9
"""Of the work of code that is as much as a run has rows: then not all of a range is compiled."""
LEAST_ROWS = 0.75
"""Of the rows that code was made for: fewer have code of their own where a range was asked for. Tiles and
threads fit the rows that code was made for: small models took up to 1.3 times as long for 2 of 8 rows as by
code for 2, and up to 1.1 times for 5 of 8."""
MAX_PROVEN_AHEAD = 256
"""Sets of shapes between prepared ones for which it is known ahead what serves them, if no run may wait."""
MAX_PROVING_S = 5.0
"""Total time limit, s."""

_LEAST_PADDED = 3
"""Extents of two and one are not compared: nests of one are written in another way."""


class ShapeReuse:
    """Looks among what was prepared, `ahead`, for what serves a set of shapes that was not.

    Where compilations are not allowed (`is_frozen`), code that hides what pads must have been prepared, too.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        binding: Binding,
        ahead: Callable[[], Mapping[Key, CompiledPart]],
        compile_masked: Callable[[Key, Graph], CompiledModel],
        *,
        is_frozen: bool,
    ) -> None:
        self._prepared = prepared
        self._binding = binding
        self._ahead = ahead
        self._compile_masked = compile_masked
        self._is_frozen = is_frozen
        self._masked: dict[tuple[Key, tuple[Mask, ...]], CompiledModel] = {}
        self._proven: dict[Key, ByOthers] = {}

    def serving(self, key: Key) -> ByOthers | None:
        """The code for prepared shapes, where it is proven to serve these."""
        return self._proven.get(key) or self._proof(key)

    def rows_of_larger(self, key: Key) -> DividedRows | None:
        """The rows of these shapes by prepared code for more of them, where it takes less for fewer."""
        for axes in self._binding.listed_axes().values():
            beside, extent = self._beside(key, axes), _extent(key, axes)
            larger = min((e for e in beside if e > extent), default=None)
            if larger is None or extent < LEAST_ROWS * larger:
                continue
            if rows_share(beside[larger][1], axes) < LEAST_SHARE:
                continue
            parts = {larger: beside[larger][1]}
            found = divided_rows(self._prepared.graph(dict(key)), parts, axes, extent, [larger])
            if found is not None:
                return found
        return None

    def prove_ahead(self, known: Collection[Key]) -> None:
        """Look for what serves the sets of shapes between prepared ones, so that no run does.

        For those that are `known` it was looked for. That is an import for each. It ends with
        `MAX_PROVEN_AHEAD` of them, or after `MAX_PROVING_S`; those that are left are proven when they come.
        """
        end_s = time.monotonic() + MAX_PROVING_S
        for axes in self._binding.listed_axes().values():
            extents = self._extents(axes)
            prepared = dict.fromkeys(with_extent(key, axes, 0) for key in self._ahead())
            for key in prepared:
                for extent in range(1, max(extents, default=0)):
                    between = with_extent(key, axes, extent)
                    if extent in extents or between in self._proven or between in known:
                        continue
                    if len(self._proven) >= MAX_PROVEN_AHEAD or time.monotonic() > end_s:
                        return
                    found = self._proof(between)
                    if found is None and extent > _LEAST_PADDED:
                        break  # nor will the next ones be
                    if found is not None:
                        self._proven[between] = found

    def _proof(self, key: Key) -> ByOthers | None:
        groups = list(self._binding.listed_axes().values())
        graph: Graph | None = None
        for axes in groups:
            beside = self._beside(key, axes)
            if not beside:
                continue
            graph = graph or self._prepared.graph(dict(key))
            found = self._rows(key, graph, axes, beside) or self._padded(key, graph, axes, beside)
            if found is not None:
                return found
        for axes in groups:
            for row_axes in groups:
                if row_axes is not axes:
                    both = self._rows_of_padded(key, axes, row_axes)
                    if both is not None:
                        return both
        return None

    def prepare(self, key: Key, part: CompiledPart) -> None:
        """Compile prepared code with masks, too: the next smaller extent says if it can be used."""
        if part.whole is None or part.graph is None:
            return
        for axes in self._binding.listed_axes().values():
            extent = _extent(key, axes)
            if extent < _LEAST_PADDED:
                continue
            graph = self._prepared.graph(dict(with_extent(key, axes, extent - 1)))
            if divided_rows(graph, {extent: part}, axes, extent - 1, [extent]) is not None:
                continue
            found = _padding(graph, part.graph, axes, extent - 1, extent)
            if found is not None:
                self._masked_code(key, part.graph, found.masks, is_ahead=True)

    def close(self) -> None:
        """Unload the code with masks."""
        for code in self._masked.values():
            code.close()
        self._masked.clear()
        self._proven.clear()

    def _rows(
        self, key: Key, graph: Graph, axes: Axes, beside: Mapping[int, tuple[Key, CompiledPart]]
    ) -> DividedRows | None:
        extent = _extent(key, axes)
        shares = {e: rows_share(part, axes) for e, (_, part) in beside.items()}
        extents = cover(extent, sorted(beside), shares)
        parts = {e: beside[e][1] for e in extents}
        return divided_rows(graph, parts, axes, extent, extents) if extents else None

    def _padded(
        self, key: Key, graph: Graph, axes: Axes, beside: Mapping[int, tuple[Key, CompiledPart]]
    ) -> PaddedShapes | None:
        """A run by code for a larger extent that hides what pads."""
        extent = _extent(key, axes)
        larger = min((e for e in beside if e > extent), default=None)
        if larger is None:
            return None
        prepared, part = beside[larger]
        assert part.graph is not None  # what is prepared keeps its graph
        found = _padding(graph, part.graph, axes, extent, larger)
        code = None if found is None else self._masked_code(prepared, part.graph, found.masks)
        return (
            None if found is None or code is None else self._shapes(found, code, code, axes, extent, larger)
        )

    def _rows_of_padded(self, key: Key, axes: Axes, row_axes: Axes) -> PaddedShapes | None:
        """A run padded along some axes, whose rows along others are divided: nothing has either extent."""
        extent = _extent(key, axes)
        larger = min((e for e in self._extents(axes) if e > extent), default=None)
        if larger is None:
            return None
        padded_key = with_extent(key, axes, larger)
        beside = self._beside(padded_key, row_axes)
        num_rows = _extent(key, row_axes)
        shares = {e: rows_share(part, row_axes) for e, (_, part) in beside.items()}
        extents = cover(num_rows, sorted(beside), shares)
        if not extents:
            return None
        graph = self._prepared.graph(dict(padded_key))
        found = _padding(self._prepared.graph(dict(key)), graph, axes, extent, larger)
        if found is None:
            return None
        parts: dict[int, CompiledPart] = {}
        for e in extents:
            prepared, part = beside[e]
            assert part.graph is not None
            code = self._masked_code(prepared, part.graph, found.masks)
            if code is None:
                return None
            parts[e] = CompiledPart(code, None, {}, (), None, {}, masked_graph(part.graph, found.masks))
        rows = divided_rows(masked_graph(graph, found.masks), parts, row_axes, num_rows, extents)
        code = parts[extents[0]].compiled
        if rows is None or code is None:
            return None
        return self._shapes(found, rows, code, axes, extent, larger)

    def _shapes(
        self,
        found: Padding,
        runs: CompiledModel | DividedRows,
        code: CompiledModel,
        axes: Axes,
        extent: int,
        larger: int,
    ) -> PaddedShapes:
        masks = {i.name: i.shape[0] for i in code.get_inputs() if i.name not in self._binding.names}
        return PaddedShapes(larger - extent, larger, found.is_at_end, runs, masks, axes, found.outputs)

    def _beside(self, key: Key, axes: Axes) -> dict[int, tuple[Key, CompiledPart]]:
        """What was prepared for a key but for some axes of the same extent, by that extent."""
        found = {}
        for prepared, part in self._ahead().items():
            extent = _extent(prepared, axes)
            if with_extent(key, axes, extent) == prepared:
                found[extent] = prepared, part
        return found

    def _extents(self, axes: Axes) -> Sequence[int]:
        """Those of some axes that were prepared."""
        return sorted({_extent(prepared, axes) for prepared in self._ahead()})

    def _masked_code(
        self, key: Key, graph: Graph, masks: tuple[Mask, ...], *, is_ahead: bool = False
    ) -> CompiledModel | None:
        """The code of a prepared graph with masks, made if it is not there; None if that is not allowed."""
        code = self._masked.get((key, masks))
        if code is None and (is_ahead or not self._is_frozen):
            code = self._compile_masked(key, masked_graph(graph, masks))
            code.load()
            self._masked[key, masks] = code
        return code


def _padding(graph: Graph, larger: Graph, axes: Axes, extent: int, larger_extent: int) -> Padding | None:
    inputs = {name: frozenset({axis}) for name, axis in axes.items()}
    return padding(graph, larger, inputs, (extent, larger_extent))


def _extent(key: Key, axes: Axes) -> int:
    name, axis = next(iter(axes.items()))
    return dict(key)[name][axis]


def with_extent(key: Key, axes: Axes, extent: int) -> Key:
    """The set of shapes with another extent of these axes."""

    def changed(name: str, shape: Shape) -> Shape:
        axis = axes.get(name)
        return shape if axis is None else (*shape[:axis], extent, *shape[axis + 1 :])

    return tuple((name, changed(name, shape)) for name, shape in key)
