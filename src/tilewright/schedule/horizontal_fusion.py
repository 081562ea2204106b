"""One subgraph after another, siblings merged into one kernel wherever the cost model says that it pays.

Horizontal fusion of XLA and TensorRT, `CombineParallelConv2D` of TVM; IOS's operator merge alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tilewright.errors import Outclassed
from tilewright.planning import Budget, Provenance, option
from tilewright.planning.budget import Meter
from tilewright.progress import checkpoint
from tilewright.schedule.base import Schedule, ScheduleProblem, Stage, build_schedule, single
from tilewright.schedule.merge import merge_sets, merge_stage
from tilewright.text.formatting import counted


@dataclass(frozen=True, slots=True)
class HorizontalFusion:
    """The order of the graph, in which operators of one input become one kernel where that costs less."""

    # Readers of a part of a wider result, and estimates, may be off by as much.
    min_gain: float = option(0.03, "Share of the time of separate kernels that a merge must save.")
    name: ClassVar[str] = "horizontal-fusion"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """Siblings are tried together, and without members that are better left out.

        A stage that merges stands where the first of its subgraphs did. Where whole schedules are priced,
        because stages overlap, a merge must save time of the whole.
        """
        fusion = _Fusion(problem, self.min_gain, budget.start())
        for siblings in merge_sets(problem.partition, pads_kernels=problem.pads_kernels):
            checkpoint()
            fusion.merge(sorted(siblings))
        merged = sum(map(len, fusion.chosen.values()))
        provenance = Provenance(
            self.name,
            num_evaluations=1 + fusion.meter.num_evaluations,
            note=f"{counted(len(fusion.chosen), 'merge')} of {counted(merged, 'subgraph')}",
        )
        return build_schedule(problem, fusion.stages(), provenance, cut_off=fusion.meter.cut_off)


@dataclass(slots=True)
class _Fusion:
    """What is merged so far, by the first subgraph of each merge."""

    problem: ScheduleProblem
    min_gain: float
    meter: Meter
    chosen: dict[int, Sequence[int]] = field(default_factory=dict)
    cost: float | None = None  # of the whole, where that is priced

    def merge(self, siblings: Sequence[int]) -> None:
        """Merge disjoint subsets of siblings as long as one pays."""
        rest = list(siblings)
        while len(rest) > 1:
            saved = {ids: self._saved(ids) for ids in self._nested(rest) if self.meter.spend()}
            best = max(saved, key=lambda ids: (saved[ids], len(ids)), default=())
            if not best or not self._pays(best, saved[best]):
                # Alone a kernel may gain nothing that does gain where stages overlap.
                whole = tuple(rest)
                best = whole if best != whole and whole in saved and self._pays_in_whole(whole) else ()
            if not best:
                return
            self.chosen[best[0]] = best
            rest = [i for i in rest if i not in best]

    def stages(self, candidate: Sequence[int] = ()) -> tuple[Stage, ...]:
        """The order of the graph with what is merged, and a candidate."""
        merges = {**self.chosen, **({candidate[0]: candidate} if candidate else {})}
        gone = {i for ids in merges.values() for i in ids[1:]}
        return tuple(
            merge_stage(merges[s.id]) if s.id in merges else single(s.id)
            for s in self.problem.partition.subgraphs
            if s.id not in gone
        )

    def _nested(self, siblings: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """All siblings, then without the one whose absence saves most, and so on to two."""
        members = tuple(siblings)
        while True:
            yield members
            if len(members) == 2:
                return
            fewer = [tuple(i for i in members if i != left_out) for left_out in members]
            members = max(fewer, key=self._saved)

    def _saved(self, members: Sequence[int]) -> float:
        """By how much the kernel costs less than separate ones, each alone on the machine."""
        objective = self.problem.objective
        return self._separate(members) - self.problem.merged_kernel(members).cost(objective)

    def _separate(self, members: Sequence[int]) -> float:
        return sum(self.problem.kernel(i).cost(self.problem.objective) for i in members)

    def _pays(self, members: Sequence[int], saved: float) -> bool:
        if self.problem.price is not None:
            return self._pays_in_whole(members)
        return saved > self.min_gain * self._separate(members)

    def _pays_in_whole(self, members: Sequence[int]) -> bool:
        """Whether the whole schedule costs less with this merge; if so, that is its cost from now on."""
        if self.problem.price is None or not self.meter.spend():
            return False
        objective = self.problem.objective
        if self.cost is None:
            self.cost = self.problem.estimate(self.stages()).cost(objective)
        try:
            cost = self.problem.estimate(self.stages(members)).cost(objective)
        except Outclassed:
            return False
        if self.cost - cost <= self.min_gain * self._separate(members):
            return False
        self.cost = cost
        return True
