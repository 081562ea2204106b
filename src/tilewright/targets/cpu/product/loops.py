"""Strided loops: what one step of a loop moves in the operands of a product, and how loops become one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


LoopT = TypeVar("LoopT", bound=StridedLoop)


def digits(e: Emitter, number: Int, loops: Sequence[LoopT]) -> Iterator[tuple[LoopT, Int]]:
    """Each of nested loops and its index at one of their combinations, innermost first."""
    return zip(reversed(loops), e.digits(number, [x.extent for x in loops]), strict=True)
