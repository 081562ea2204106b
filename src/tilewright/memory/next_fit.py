"""Each buffer behind the one before, around the capacity: a place is used again as late as possible.

What is written where something lay waits for all that read it. Where steps overlap and capacity is left,
other places let slices run side by side that low offsets put in sequence.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.memory.base import Buffer, MemoryPlan, MemoryProblem, aligned
from tilewright.memory.first_fitting import FirstFitting, in_time_order
from tilewright.memory.levels import place_levels
from tilewright.memory.packing import Packing
from tilewright.planning import Budget, Infeasible, Meter


@dataclass(frozen=True, slots=True)
class NextFit:
    """Each buffer in the first gap behind the last one that was placed, from the beginning again at the end
    of the capacity; as `first-fitting` where that fails, in order of time where there is no capacity.

    Next fit: Knuth, "The Art of Computer Programming", volume 1, 2.5.
    """

    name: ClassVar[str] = "next-fit"

    def solve(self, problem: MemoryProblem, budget: Budget) -> MemoryPlan | Infeasible:
        """One placement of each level, as long as that fits."""
        return place_levels(problem, budget, self)

    def pack_level(self, buffers: Sequence[Buffer], capacity_bytes: int | None, meter: Meter) -> Packing:
        """One placement around the capacity. O(n * live)."""
        if any(b.beside for b in buffers):  # steps of lanes have no order
            return FirstFitting().pack_level(buffers, capacity_bytes, meter)
        if capacity_bytes is None:
            meter.spend()
            return Packing(in_time_order(buffers), "time")
        offsets = _around(buffers, capacity_bytes)
        if offsets is None:
            return FirstFitting().pack_level(buffers, capacity_bytes, meter)
        meter.spend()
        return Packing({b.name: offsets[b.name] for b in buffers}, "next fit")


def _around(buffers: Sequence[Buffer], capacity_bytes: int) -> dict[str, int] | None:
    """Offsets of buffers, placed in order of time; None where some gap is too small."""
    by_name = {b.name: b for b in buffers}
    offsets: dict[str, int] = {}
    busy: list[tuple[int, int, int]] = []  # start, end and last step of what is live, by start
    replaced: set[str] = set()
    behind = 0
    for buffer in sorted(buffers, key=lambda b: (b.first_step, -b.size_bytes)):
        busy = [place for place in busy if place[2] >= buffer.first_step]
        old = next((by_name[n] for n in buffer.may_reuse if n in by_name and n not in replaced), None)
        if old is not None and buffer.fits_in_place_of(old):
            start = offsets[old.name]
            replaced.add(old.name)
        else:
            found = _gap(busy, buffer, behind, capacity_bytes)
            if found is None:
                return None
            start, behind = found, found + buffer.size_bytes
        offsets[buffer.name] = start
        insort(busy, (start, start + buffer.size_bytes, buffer.last_step))
    return offsets


def _gap(
    busy: Sequence[tuple[int, int, int]], buffer: Buffer, behind: int, capacity_bytes: int
) -> int | None:
    """The first gap behind an offset that is large enough, else the first of all."""
    first: int | None = None
    start = 0
    for stop, end in (*((place[0], place[1]) for place in busy), (capacity_bytes, capacity_bytes)):
        for offset in (start, max(start, aligned(behind, buffer.alignment_bytes))):
            if offset + buffer.size_bytes <= stop:
                if offset >= behind:
                    return offset
                first = offset if first is None else first
        start = max(start, aligned(end, buffer.alignment_bytes))
    return first
