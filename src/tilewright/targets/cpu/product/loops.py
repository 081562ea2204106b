"""Strided loops: what one step of a loop moves in the operands of a product, and how loops become one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tilewright.ir.nest import RowsOf
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int


@dataclass(frozen=True, slots=True)
class StridedLoop:
    """A loop with the elements that one step moves in the factors `a` and `b`, the result `c`, and in each
    operand of the epilogue. With `rows`, a run may ask for the first iterations only."""

    extent: int
    a: int = 0
    b: int = 0
    c: int = 0
    extras: tuple[int, ...] = ()
    name: str = ""
    rows: RowsOf | None = None

    def moves(self, operand: str | int) -> int:
        """Elements that a step moves in `a`, `b` or `c`, or in an operand of the epilogue by its number."""
        if isinstance(operand, int):
            return self.extras[operand]
        return {"a": self.a, "b": self.b, "c": self.c}[operand]

    def collapses_into(self, outer: StridedLoop, *, ignore_b: bool = False) -> bool:
        """Whether `outer` and this loop walk like one loop in every operand."""
        n = self.extent
        same_b = ignore_b or outer.b == self.b * n
        same_extras = all(o == i * n for o, i in zip(outer.extras, self.extras, strict=True))
        return outer.a == self.a * n and outer.c == self.c * n and same_b and same_extras

    def rows_with(self, inner: StridedLoop) -> RowsOf | None:
        """What rows are to this loop and `inner` as one."""
        return None if self.rows is None else self.rows.inside(inner.extent)


@dataclass(frozen=True, slots=True)
class WindowLoop(StridedLoop):
    """A loop over output positions along an axis of A, along which a window may slide.

    The index is `step * position + tap_step * tap + offset`; outside [0, `size`) A reads as its fill. `a` are
    the elements of A between neighbouring indices, `tap_b` those of B between taps.
    """

    step: int = 1
    num_taps: int = 1
    tap_step: int = 1
    tap_b: int = 0
    offset: int = 0
    size: int = 0

    @property
    def is_window(self) -> bool:
        """Whether several taps, or padding, make indices differ from output positions."""
        return self.num_taps > 1

    @property
    def leaves(self) -> bool:
        """Whether some positions of one tap are padding."""
        return self.offset < 0 or self.offset + self.step * (self.extent - 1) >= self.size

    def collapses_into(self, outer: StridedLoop, *, ignore_b: bool = False) -> bool:
        """Whether `outer` and this loop walk like one loop in every operand, and neither is a window."""
        assert isinstance(outer, WindowLoop)
        if self.is_window or outer.is_window:
            return False
        return self.by_position.collapses_into(outer.by_position, ignore_b=ignore_b)

    @property
    def by_position(self) -> StridedLoop:
        """The loop with what a step from one output position to the next moves."""
        return StridedLoop(self.extent, self.step * self.a, self.b, self.c, self.extras, self.name, self.rows)


@dataclass(frozen=True, slots=True)
class Window:
    """A padded axis of A: its index is `position_step * position + tap_step * tap + offset` in [0, size).

    `position` is an output dim, `tap` a summed dim; taps outside the axis read zero and are skipped.
    """

    position: str
    position_step: int
    tap: str
    tap_step: int
    offset: int
    size: int

    def taps_inside(self, position: int, num_taps: int) -> range:
        """Taps that read inside the axis at one output position.

        >>> Window("o", 2, "k", 1, -3, 8).taps_inside(0, 7)
        range(3, 7)
        """
        at = self.position_step * position + self.offset
        first = min(max(0, -(at // self.tap_step)), num_taps)
        return range(first, max(first, min(num_taps, -((at - self.size) // self.tap_step))))

    def share_inside(self, extents: Mapping[str, int]) -> float:
        """The part of all positions and taps that reads inside the axis."""
        positions, num_taps = range(extents[self.position]), extents[self.tap]
        inside = sum(len(self.taps_inside(p, num_taps)) for p in positions)
        return inside / (len(positions) * num_taps)


@dataclass(frozen=True, slots=True)
class Spread:
    """Small groups side by side in one vector: lane `l` belongs to group `l // size`.

    `loop` is the summed loop within a group. Its `size` elements lie side by side in A, as the groups do, so
    one vector of A holds every factor of `size` steps; each step picks its own within the lanes of a group.
    """

    loop: StridedLoop
    size: int


LoopT = TypeVar("LoopT", bound=StridedLoop)


def digits(e: Emitter, number: Int, loops: Sequence[LoopT]) -> Iterator[tuple[LoopT, Int]]:
    """Each of nested loops and its index at one of their combinations, innermost first."""
    return zip(reversed(loops), e.digits(number, [x.extent for x in loops]), strict=True)
