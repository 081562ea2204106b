"""One subgraph after another, siblings merged into one kernel wherever the cost model says that it pays.

Horizontal fusion of XLA and TensorRT, `CombineParallelConv2D` of TVM; IOS's operator merge alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.planning import Budget, Provenance, option
from tilewright.progress import checkpoint
from tilewright.schedule.base import Schedule, ScheduleProblem, Stage, build_schedule, single
from tilewright.schedule.merge import merge_sets, merge_stage


@dataclass(frozen=True, slots=True)
class HorizontalFusion:
    """The order of the graph, in which operators of one input become one kernel where that costs less."""

    min_gain: float = option(0.0, "Share of the time of separate kernels that a merge must save.")
    name: ClassVar[str] = "horizontal-fusion"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """Each set of siblings is tried as a whole, and without its members in turn while that saves more.

        A merged stage stands where the first of its subgraphs did.
        """
        chosen: dict[int, Stage] = {}
        gone: set[int] = set()
        num_asked = 0
        for siblings in merge_sets(problem.partition, pads_kernels=problem.pads_kernels):
            merging = _Merging(problem, self.min_gain)
            for ids in merging.sets(sorted(siblings)):
                chosen[ids[0]] = merge_stage(ids)
                gone.update(ids[1:])
            num_asked += merging.num_asked
        stages = tuple(
            chosen.get(s.id) or single(s.id) for s in problem.partition.subgraphs if s.id not in gone
        )
        note = f"{len(chosen)} merges of {len(chosen) + len(gone)} subgraphs"
        return build_schedule(problem, stages, Provenance(self.name, num_evaluations=num_asked, note=note))


@dataclass(slots=True)
class _Merging:
    """Which of a set of siblings merge, by what kernels cost."""

    problem: ScheduleProblem
    min_gain: float
    num_asked: int = 0

    def sets(self, siblings: Sequence[int]) -> Iterator[Sequence[int]]:
        """Disjoint sets that pay: the best of the nested sets that leave out members one at a time, then the
        best of the rest."""
        rest = list(siblings)
        while len(rest) > 1:
            checkpoint()
            best = self._best(rest)
            if best is None:
                return
            yield best
            rest = [i for i in rest if i not in best]

    def _best(self, siblings: Sequence[int]) -> list[int] | None:
        members = list(siblings)
        best: tuple[float, list[int]] | None = None
        while len(members) > 1:
            saved = self._saved(members)
            if best is None or saved > best[0]:
                best = (saved, list(members))
            if len(members) == 2:
                break
            without = [[i for i in members if i != left_out] for left_out in members]
            members = max(without, key=self._saved)
        separate = 0.0 if best is None else sum(map(self._alone, best[1]))
        return best[1] if best is not None and best[0] > self.min_gain * separate else None

    def _saved(self, members: Sequence[int]) -> float:
        self.num_asked += 1
        merged = self.problem.merged_kernel(members)
        return sum(map(self._alone, members)) - merged.cost(self.problem.objective)

    def _alone(self, subgraph_id: int) -> float:
        return self.problem.kernel(subgraph_id).cost(self.problem.objective)
