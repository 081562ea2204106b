"""Which buffers leave a level of memory that is too small for all that is live.

At the first step where too much is live one buffer goes to the next outer level, for its whole life, until
the rest fits. A policy says which; a buffer that the step reads or writes goes only if there is no other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import field

from tilewright.memory.base import Buffer, MemoryProblem, aligned
from tilewright.progress import checkpoint
from tilewright.records import dataclass

Policy = Callable[[Buffer], tuple[int, int]]
"""How much a buffer is to blame: the greatest leaves first, the first of equals."""


def longest_liveness(buffer: Buffer) -> tuple[int, int]:
    """What is needed last would have to leave again and again: on a tie the larger one frees more."""
    return buffer.last_step - buffer.first_step, buffer.size_bytes


def largest_size(buffer: Buffer) -> tuple[int, int]:
    """The largest frees the most at once: on a tie the one that is needed last."""
    return buffer.size_bytes, buffer.last_step - buffer.first_step


@dataclass(slots=True, eq=False)
class Residence:
    """The level that every buffer of a problem lives in, by number, as buffers move outward."""

    problem: MemoryProblem
    levels: list[int] = field(init=False)
    _reusable: list[tuple[int, ...]] | None = field(init=False, default=None)
    _starting: dict[int, list[int]] = field(init=False, default_factory=dict)
    _readers: dict[int, set[int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.levels = [b.level for b in self.problem.buffers]

    def numbers_in(self, level: int) -> list[int]:
        """The buffers that live in a level, ascending."""
        return [number for number, home in enumerate(self.levels) if home == level]

    def spill(self, level: int, capacity_bytes: int, policy: Policy) -> None:
        """Move buffers out of a level until no step has more than its capacity live in it.

        One pass over the steps: moving a buffer never makes another step need more.
        O((buffers + reads) log buffers).
        """
        self._index()
        _Sweep(self, level, capacity_bytes, policy).run()

    def victim_at(self, step: int, live: Sequence[int], policy: Policy) -> int:
        """Which of the buffers that are live at a step has to go; the first of equals."""
        self._index()
        buffers = self.problem.buffers
        return min(live, key=lambda n: (self.closeness(n, step), *(-x for x in policy(buffers[n])), n))

    def closeness(self, number: int, step: int) -> int:
        """0 for what a step does not touch, 1 for what it reads, 2 for what it writes."""
        if self.problem.buffers[number].first_step == step:
            return 2
        return int(number in self._readers.get(step, ()))

    def starting_at(self, step: int, level: int) -> list[int]:
        """The buffers of a level that a step writes."""
        return [n for n in self._starting.get(step, ()) if self.levels[n] == level]

    def shared_bytes(self, step: int, level: int) -> int:
        """Bytes that buffers which a step writes take in place of others."""
        assert self._reusable is not None
        return sum(
            reserved_bytes(self.problem.buffers[number])
            for number in self.starting_at(step, level)
            if any(self.levels[old] == level for old in self._reusable[number])
        )

    def _index(self) -> None:
        if self._reusable is not None:
            return
        buffers, by_name = self.problem.buffers, self.problem.by_name
        number_of = {b.name: n for n, b in enumerate(buffers)}
        self._reusable = []
        for number, buffer in enumerate(buffers):
            self._starting.setdefault(buffer.first_step, []).append(number)
            for step in buffer.read_steps:
                self._readers.setdefault(step, set()).add(number)
            known = (name for name in buffer.may_reuse if name in by_name)
            self._reusable.append(
                tuple(number_of[name] for name in known if buffer.fits_in_place_of(by_name[name]))
            )


def reserved_bytes(buffer: Buffer) -> int:
    """What a buffer takes of a level: offsets are multiples of the alignment."""
    return aligned(buffer.size_bytes, buffer.alignment_bytes)


class _Sweep:
    def __init__(self, residence: Residence, level: int, capacity_bytes: int, policy: Policy) -> None:
        self.residence = residence
        self.buffers = residence.problem.buffers
        self.level = level
        self.capacity_bytes = capacity_bytes
        self.policy = policy
        self.live_bytes = 0
        self.live: list[tuple[int, int, int]] = []
        self.ending: dict[int, list[int]] = {}

    def run(self) -> None:
        residence = self.residence
        here = [self.buffers[n] for n in residence.numbers_in(self.level)]
        for step in sorted({s for b in here for s in (b.first_step, b.last_step)}):
            checkpoint()
            for number in residence.starting_at(step, self.level):
                self._enter(number)
            while self.live_bytes - residence.shared_bytes(step, self.level) > self.capacity_bytes:
                victim = self._pop_victim(step)
                self.live_bytes -= reserved_bytes(self.buffers[victim])
                residence.levels[victim] += 1
            for number in self.ending.get(step, ()):
                if residence.levels[number] == self.level:
                    self.live_bytes -= reserved_bytes(self.buffers[number])

    def _enter(self, number: int) -> None:
        buffer = self.buffers[number]
        self.live_bytes += reserved_bytes(buffer)
        first, second = self.policy(buffer)
        heapq.heappush(self.live, (-first, -second, number))
        self.ending.setdefault(buffer.last_step, []).append(number)

    def _pop_victim(self, step: int) -> int:
        """The worst buffer that the step does not touch, else one that it reads, else one that it writes."""
        kept: list[tuple[int, int, int]] = []
        candidates: list[tuple[int, tuple[int, int, int]]] = []
        while self.live:
            entry = heapq.heappop(self.live)
            number = entry[2]
            if self.buffers[number].last_step < step or self.residence.levels[number] != self.level:
                continue
            kept.append(entry)
            candidates.append((self.residence.closeness(number, step), entry))
            if candidates[-1][0] == 0:
                break
        _, chosen = min(candidates)
        for entry in kept:
            if entry is not chosen:
                heapq.heappush(self.live, entry)
        return chosen[2]
