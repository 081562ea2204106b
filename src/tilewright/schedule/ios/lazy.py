"""Lazy shortest paths: the cheapest schedule of a block whose transitions can be listed.

Every stage counts with what it costs at least until it is priced. Only stages on a shortest path are priced,
then the path is searched again (Dellin and Srinivasa, ICAPS 2016); when one is priced from end to end,
nothing costs less. Bounds meet costs of the same stages, so there is no heuristic that could be too low.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from tilewright.progress import checkpoint
from tilewright.records import dataclass
from tilewright.schedule.ios.block import Block, BlockAnswer, Stop
from tilewright.schedule.ios.stages import StageChoice

if TYPE_CHECKING:
    from tilewright.schedule.ios.transitions import Transitions

_ROUNDING = 1e-12  # of costs that are sums of floats
_PATHS_PER_PRUNING = 16
_VISITS_PER_TRANSITION = 4000  # so much faster than a search that walks them one by one


@dataclass(slots=True)
class LazyPaths:
    """One search over listed transitions; `incumbent` is the best schedule known."""

    block: Block
    incumbent: BlockAnswer
    transitions: Transitions
    stop: Stop
    _choices: dict[int, StageChoice] = field(init=False, default_factory=dict)
    _num_transitions: int = field(init=False)
    _num_visits: int = field(init=False, default=0)
    _bound_ns: float = field(init=False)
    _path: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._num_transitions = self.transitions.num_transitions
        self._bound_ns, self._path = self._shortest()

    def run(self, max_paths: int | None = None) -> BlockAnswer:
        """The cheapest schedule, or the best known with its bound where the effort, or so many paths, end."""
        num_paths = 0
        while self._bound_ns < self.incumbent.cost_ns * (1 - _ROUNDING):
            checkpoint()
            if num_paths == max_paths or self.stop.is_due(self.effort):
                return self.best_known()
            num_paths += 1
            self._price(self._path)
            if num_paths % _PATHS_PER_PRUNING == 0:
                self.transitions.prune(self.incumbent.cost_ns)
            bound_ns, self._path = self._shortest()
            self._bound_ns = max(self._bound_ns, bound_ns)
        return self._answer(self.incumbent.cost_ns, is_closed=True)

    @property
    def effort(self) -> int:
        """What it did, in transitions of a search that walks them one by one."""
        return self._num_visits // _VISITS_PER_TRANSITION

    def _shortest(self) -> tuple[float, list[int]]:
        self._num_visits += self.transitions.num_transitions
        return self.transitions.shortest()

    def best_known(self) -> BlockAnswer:
        """Where the search stands."""
        return self._answer(min(self._bound_ns, self.incumbent.cost_ns), is_closed=False)

    def _answer(self, bound_ns: float, *, is_closed: bool) -> BlockAnswer:
        best = self.incumbent
        num_states = self.transitions.num_states
        return BlockAnswer(best.cost_ns, bound_ns, best.stages, is_closed, num_states, self._num_transitions)

    def _price(self, path: list[int]) -> None:
        """Price the stages of a path, as long as it may be the best one."""
        values = self.transitions.values
        for stage in path:
            if stage not in self._choices:
                values[stage] = self._priced(stage)
                if sum(values[other] for other in path) >= self.incumbent.cost_ns:
                    return
        cost_ns = float(sum(values[stage] for stage in path))
        if cost_ns < self.incumbent.cost_ns:
            stages = tuple(self._choices[stage] for stage in path)
            self.incumbent = BlockAnswer(cost_ns, 0.0, stages, is_closed=False)

    def _priced(self, stage: int) -> float:
        """The cost of the cheapest way to run the operators of a stage."""
        ways = self.block.ways(int(self.transitions.masks[stage]))
        while True:
            least = min(ways, key=lambda way: way.ns)
            if least.is_known:
                self._choices[stage] = least.choice
                return least.ns
            self.block.cost_ns(least)
