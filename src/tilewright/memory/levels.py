"""Level by level, from the inside out: what does not fit moves to the next, what stays gets its offset."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

from tilewright.errors import UsageError
from tilewright.memory.base import Buffer, LevelUse, MemoryPlan, MemoryProblem
from tilewright.memory.bound import PLACEMENTS, lower_bound_bytes, spill_bound_bytes
from tilewright.memory.packing import Packer, Packing
from tilewright.memory.spill import Policy, Residence, longest_liveness
from tilewright.planning import Bound, Budget, Infeasible, Meter, Provenance, Quality


def place_levels(
    problem: MemoryProblem,
    budget: Budget,
    packer: Packer,
    policy: Policy = longest_liveness,
    *,
    name: str | None = None,
    seed: int = 0,
    without: Collection[str] = (),
    most_bytes: Sequence[int] = (),
) -> MemoryPlan | Infeasible:
    """The plan in which a packer finds the offsets and a policy says what leaves a level that is too small.

    `name` is the planner's, the packer's by default. `without` are levels that nothing may live in,
    `most_bytes` what levels may hold, from the innermost on, where that is less than they could.

    Raises:
        UsageError: `without` names no level of the problem, or more levels are limited than there are.
    """
    levels = _Levels(problem, budget.start(), packer, policy, without, most_bytes)
    return levels.solve(name or packer.name, seed)


class _Levels:
    def __init__(
        self,
        problem: MemoryProblem,
        meter: Meter,
        packer: Packer,
        policy: Policy,
        without: Collection[str],
        most_bytes: Sequence[int],
    ) -> None:
        names = [level.name for level in problem.levels]
        for name in without:
            if name not in names:
                raise UsageError(f"without={name}: there is no such level; levels: {', '.join(names)}.")
        self.problem, self.meter, self.packer, self.policy = problem, meter, packer, policy
        if len(most_bytes) > len(names):
            raise UsageError(f"most_bytes: limits {len(most_bytes)} levels, there are {', '.join(names)}.")
        self.capacities = [0 if level.name in without else level.capacity_bytes for level in problem.levels]
        for number, most in enumerate(most_bytes):
            own = self.capacities[number]
            self.capacities[number] = most if own is None else min(own, most)
        self.residence = Residence(problem)

    def solve(self, name: str, seed: int) -> MemoryPlan | Infeasible:
        offsets: dict[str, int] = {}
        notes: list[str] = []
        for level in range(len(self.problem.levels)):
            packing = self._pack(level)
            if isinstance(packing, Infeasible):
                return packing
            offsets.update(packing.offsets)
            if packing.note and packing.note not in notes:
                notes.append(packing.note)
        offsets = {b.name: offsets[b.name] for b in self.problem.buffers}
        levels = {b.name: home for b, home in zip(self.problem.buffers, self.residence.levels, strict=True)}
        provenance = Provenance(name, seed, self.meter.num_evaluations, "; ".join(notes))
        return measured(self.problem, levels, offsets, provenance, cut_off=self.meter.cut_off)

    def _pack(self, level: int) -> Packing | Infeasible:
        """Offsets within a level. While there are none that fit, one more buffer leaves."""
        capacity_bytes = self.capacities[level]
        is_outermost = level == len(self.problem.levels) - 1
        if capacity_bytes is not None and not is_outermost:
            self.residence.spill(level, capacity_bytes, self.policy)
        while True:
            numbers = self.residence.numbers_in(level)
            here = [self.problem.buffers[n] for n in numbers]
            packing = self.packer.pack_level(here, capacity_bytes, self.meter)
            peak_bytes = _peak_bytes(here, packing.offsets)
            if capacity_bytes is None or peak_bytes <= capacity_bytes:
                return packing
            if is_outermost:
                return self._too_small(level, here, peak_bytes, capacity_bytes)
            highest = max(here, key=lambda b: (packing.offsets[b.name] + b.size_bytes, -b.first_step))
            self.residence.levels[self._victim(numbers, highest)] += 1

    def _victim(self, numbers: Sequence[int], highest: Buffer) -> int:
        """Of what is live at the fullest step in the life of the buffer that lies highest."""
        buffers = self.problem.buffers
        change: dict[int, int] = {}
        for buffer in (buffers[n] for n in numbers):
            first = max(buffer.first_step, highest.first_step)
            last = min(buffer.last_step, highest.last_step)
            if first <= last:
                change[first] = change.get(first, 0) + buffer.size_bytes
                change[last + 1] = change.get(last + 1, 0) - buffer.size_bytes
        live = most = 0
        fullest = highest.first_step
        for step in sorted(change):
            live += change[step]
            if live > most:
                most, fullest = live, step
        at_fullest = [n for n in numbers if buffers[n].first_step <= fullest <= buffers[n].last_step]
        return self.residence.victim_at(fullest, at_fullest, self.policy)

    def _too_small(
        self, level: int, here: Sequence[Buffer], peak_bytes: int, capacity_bytes: int
    ) -> Infeasible:
        largest = sorted(here, key=lambda b: -b.size_bytes)[:3]
        return Infeasible(
            self.problem.levels[level].name,
            peak_bytes,
            capacity_bytes,
            tuple(f"{b.name} ({b.size_bytes} bytes)" for b in largest),
            self.problem.remedies,
        )


def measured(
    problem: MemoryProblem,
    levels: dict[str, int],
    offsets: dict[str, int],
    provenance: Provenance,
    *,
    cut_off: bool = False,
) -> MemoryPlan:
    """The plan that puts each buffer, by name, at an offset of a level, with what that uses and costs."""
    in_place_of = _in_place_of(problem, levels, offsets)
    uses = tuple(_use(problem, level, levels, offsets, in_place_of) for level in range(len(problem.levels)))
    if len(uses) == 1:
        cost_bytes, bound_bytes, source = uses[0].peak_bytes, uses[0].lower_bound_bytes, "live bytes"
    else:
        cost_bytes = sum(b.size_bytes for b in problem.buffers if levels[b.name] > b.level)
        bound_bytes = spill_bound_bytes(problem) if cost_bytes else 0
        source = "live bytes beyond the capacities"
    bound = Bound(bound_bytes, PLACEMENTS, source)
    quality = Quality.of(cost_bytes, bound, unit="bytes", cut_off=cut_off)
    return MemoryPlan(levels, offsets, in_place_of, uses, quality, provenance)


def _use(
    problem: MemoryProblem,
    level: int,
    levels: dict[str, int],
    offsets: dict[str, int],
    in_place_of: dict[str, str],
) -> LevelUse:
    here: list[Buffer] = []
    spilled: list[Buffer] = []
    for buffer in problem.buffers:
        home = levels[buffer.name]
        if home == level:
            here.append(buffer)
        elif buffer.level <= level < home:
            spilled.append(buffer)
    return LevelUse(
        problem.levels[level],
        len(here),
        max(live_bytes(here, in_place_of), default=0),
        _peak_bytes(here, offsets),
        lower_bound_bytes(here),
        len(spilled),
        sum(b.size_bytes for b in spilled),
    )


def live_bytes(buffers: Sequence[Buffer], in_place_of: Collection[str], num_steps: int = 0) -> list[int]:
    """Bytes that buffers of one level take at each step, what lies in place of another counted once.

    There are as many steps as the buffers live for, or `num_steps` if that is more.
    """
    change = [0] * (max((b.last_step + 2 for b in buffers), default=1) + num_steps)
    for buffer in buffers:
        # At its first step a place that is reused still counts for the buffer that leaves it, no smaller.
        change[buffer.first_step + (buffer.name in in_place_of)] += buffer.size_bytes
        change[buffer.last_step + 1] -= buffer.size_bytes
    return list(accumulate(change))


def _peak_bytes(buffers: Sequence[Buffer], offsets: dict[str, int]) -> int:
    """End of the highest buffer."""
    return max((offsets[b.name] + b.size_bytes for b in buffers), default=0)


def _in_place_of(problem: MemoryProblem, levels: dict[str, int], offsets: dict[str, int]) -> dict[str, str]:
    """For each buffer that lies in place of an operand, the first such operand."""
    in_place_of: dict[str, str] = {}
    for buffer in problem.buffers:
        here = (levels[buffer.name], offsets[buffer.name])
        for name in buffer.may_reuse:
            if (
                name in problem.by_name
                and (levels[name], offsets[name]) == here
                and buffer.fits_in_place_of(problem.by_name[name])
            ):
                in_place_of[buffer.name] = name
                break
    return in_place_of
