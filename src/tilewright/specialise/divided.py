"""Runs at shapes that were not prepared, by code for others: divided into rows, or padded.

Only where an axis is proven to hold rows (`rows`), or where code hides what pads (`masked`). What pads are
copies of the last row, so that nothing can fail for them that could not fail for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field

import numpy as np

from tilewright.arrays import Array
from tilewright.calls import checked_places
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import TensorInfo
from tilewright.errors import UsageError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Shape
from tilewright.records import dataclass
from tilewright.targets.runs import RunsRows, written_into

NO_SHARES: Mapping[int, float] = {}

MAX_SMALLER_PIECES = 3
"""Of what is left when the largest extent fits no more: more pieces take longer than rows for nothing."""


class _Staging:
    """Memory for inputs of all rows of some code, each for one run at a time.

    Behind the rows of a run lies what earlier ones had, or zeros: both are valid, and what is computed from
    them is not read.
    """

    def __init__(self) -> None:
        self._free: list[dict[str, Array]] = []

    @contextmanager
    def filled(
        self, code: CompiledModel, rows: Mapping[str, Array], axes: Mapping[str, int]
    ) -> Iterator[dict[str, Array]]:
        """Inputs that begin with these rows. What a run failed on is not kept.

        Raises:
            UsageError: an input has another type.
        """
        try:
            whole = self._free.pop()
        except IndexError:  # other threads have them, or there are none yet
            infos = (info for info in code.get_inputs() if info.name in axes)
            whole = {info.name: np.zeros(info.shape, info.dtype.numpy) for info in infos}
        for name, array in rows.items():
            place = whole[name]
            if array.dtype != place.dtype:
                raise UsageError(
                    f"input {name!r} is {array.dtype}{list(array.shape)}, the model takes {place.dtype}."
                )
            _first(place, axes[name], array.shape[axes[name]])[...] = array
        yield whole
        self._free.append(whole)


@dataclass(frozen=True, slots=True, eq=False)
class DividedRows:
    """Pieces of the rows, in order: the extent that each is computed at, and the code for that.

    `input_axes` and `output_axes` hold the rows; outputs without have none, and inputs that are not named.
    """

    num_rows: int
    extents: tuple[int, ...]
    code: Mapping[int, CompiledModel]
    input_axes: Mapping[str, int]
    output_axes: Mapping[str, int | None]
    staging: Mapping[int, _Staging] = field(default_factory=lambda: defaultdict(_Staging))

    def run(self, names: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        """Outputs in the order of `names`."""
        arrays = {name: np.asarray(array) for name, array in feed.items()}
        results: list[list[Array]] = []
        start = 0
        for extent in self.extents:
            count = min(extent, self.num_rows - start)
            rows = {
                name: array[(slice(None),) * self.input_axes[name] + (slice(start, start + count),)]
                for name, array in arrays.items()
                if name in self.input_axes
            }
            others = {name: array for name, array in arrays.items() if name not in rows}
            found = self._run_piece(names, rows, others, extent, count)
            results.append([self._cut(n, array, count) for n, array in zip(names, found, strict=True)])
            start += count
        return [
            self._joined(name, pieces) for name, pieces in zip(names, zip(*results, strict=True), strict=True)
        ]

    def _run_piece(
        self,
        names: Sequence[str],
        rows: Mapping[str, Array],
        others: Mapping[str, Array],
        extent: int,
        count: int,
    ) -> list[Array]:
        """Outputs of which the first rows are those of the piece, by code that ends with them if it can."""
        code = self.code[extent]
        executable = code.load()
        if count == extent or not isinstance(executable, RunsRows) or executable.row_axes != self.input_axes:
            whole = {name: _padded(array, self.input_axes[name], extent) for name, array in rows.items()}
            return code.run_numbers(names, {**whole, **others})
        with self.staging[extent].filled(code, rows, self.input_axes) as whole:
            results = executable.run_rows({**whole, **others}, count)
        return [results[name] for name in names]

    def _cut(self, name: str, array: Array, count: int) -> Array:
        axis = self.output_axes[name]
        return array if axis is None or array.shape[axis] == count else _first(array, axis, count).copy()

    def _joined(self, name: str, pieces: Sequence[Array]) -> Array:
        axis = self.output_axes[name]
        return pieces[0] if axis is None or len(pieces) == 1 else np.concatenate(pieces, axis)


@dataclass(frozen=True, slots=True, eq=False)
class PaddedShapes:
    """A run padded to a larger extent, whose code hides what pads: `masks` of these extents say what is real.

    `outputs` are the real shapes.
    """

    num_padded: int
    extent: int
    is_at_end: bool
    code: CompiledModel | DividedRows
    masks: Mapping[str, int]
    input_axes: Mapping[str, int]
    outputs: Mapping[str, Shape]

    @property
    def extents(self) -> tuple[int, ...]:
        """The extent that it is computed at."""
        return (self.extent,)

    def run(self, names: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        """Outputs in the order of `names`."""
        padded = {name: np.asarray(array) for name, array in feed.items()}
        for name, axis in self.input_axes.items():
            padded[name] = self._padded(padded[name], axis)
        for name, extent in self.masks.items():
            mask = padded[name] = np.zeros(extent, np.bool_)
            mask[real_places(extent, self.num_padded, is_at_end=self.is_at_end)] = True
        run = self.code.run_numbers if isinstance(self.code, CompiledModel) else self.code.run
        found = run(names, padded)
        return [self._cut(array, self.outputs[name]) for name, array in zip(names, found, strict=True)]

    def _padded(self, array: Array, axis: int) -> Array:
        place = 0 if self.is_at_end else array.shape[axis] - 1
        copies = array[(slice(None),) * axis + (slice(place, place + 1),)].repeat(self.num_padded, axis)
        return np.concatenate([copies, array] if self.is_at_end else [array, copies], axis)

    def _cut(self, array: Array, real: Shape) -> Array:
        if array.shape == real:
            return array
        pairs = zip(array.shape, real, strict=True)
        return array[tuple(real_places(x, x - y, is_at_end=self.is_at_end) for x, y in pairs)].copy()


def real_places(extent: int, num_padded: int, *, is_at_end: bool) -> slice:
    """Of an axis, those that are not padding."""
    return slice(num_padded, extent) if is_at_end else slice(0, extent - num_padded)


def placed(results: dict[str, Array], feed: Mapping[str, Array], into: Mapping[str, Array]) -> list[Array]:
    """Outputs of a run, those copied that have an array to lie in.

    Raises:
        UsageError: one does not fit its output.
    """
    specs = [TensorInfo(name, DType.from_numpy(array.dtype), array.shape) for name, array in results.items()]
    return list(written_into(results, checked_places(specs, into, feed)).values())


def cover(num_rows: int, extents: Sequence[int], shares: Mapping[int, float] = NO_SHARES) -> list[int]:
    """Extents that together hold so many rows: the largest while it fits, then what is the least work.

    `shares` say how much of the work of an extent is less for fewer rows. Nothing where there are no rows, or
    no extents that hold any.

    >>> cover(20, [2, 8]), cover(5, [4, 8]), cover(100, [128, 256])
    ([8, 8, 2, 2], [8], [128])
    >>> cover(20, [2, 8], {8: 1.0})
    [8, 8, 8]
    """
    usable = [extent for extent in extents if extent > 0]
    if num_rows <= 0 or not usable:
        return []
    pieces = [usable[-1]] * (num_rows // usable[-1])
    return pieces + _rest(num_rows % usable[-1], usable, shares)


def _rest(num_rows: int, extents: Sequence[int], shares: Mapping[int, float]) -> list[int]:
    """For fewer rows than the largest extent: one that holds them all, or smaller ones that pad less."""
    if num_rows == 0:
        return []
    whole = next(extent for extent in extents if extent >= num_rows)
    smaller = [extent for extent in extents if extent < num_rows]
    if whole == num_rows or not smaller:
        return [whole]
    pieces = [smaller[-1], *_rest(num_rows - smaller[-1], extents, shares)]
    is_less = _work(pieces, num_rows, shares) < _work([whole], num_rows, shares)
    return pieces if is_less and len(pieces) <= MAX_SMALLER_PIECES else [whole]


def _work(pieces: Sequence[int], num_rows: int, shares: Mapping[int, float]) -> float:
    """Rows that pieces compute, of which the last has fewer; parts of them where its code ends early."""
    *before, last = pieces
    padded = last - (num_rows - sum(before))
    return sum(pieces) - shares.get(last, 0.0) * padded


def _first(array: Array, axis: int, count: int) -> Array:
    """So many rows of an array, the first ones."""
    return array[(slice(None),) * axis + (slice(count),)]


def _padded(rows: Array, axis: int, extent: int) -> Array:
    """Rows of an input, and copies of the last one up to an extent."""
    count = rows.shape[axis]
    if count == extent:
        return rows
    last = rows[(slice(None),) * axis + (slice(count - 1, count),)]
    return np.concatenate([rows, last.repeat(extent - count, axis)], axis)
