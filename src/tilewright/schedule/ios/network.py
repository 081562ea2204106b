"""A whole network: its blocks one after another, each with a schedule at once and then searched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tilewright.schedule.ios.beam import beam, one_by_one
from tilewright.schedule.ios.block import Block, BlockAnswer, Rules, Stop
from tilewright.schedule.ios.blocks import blocks
from tilewright.schedule.ios.costs import AskedCosts
from tilewright.schedule.ios.dynamic import dynamic
from tilewright.schedule.ios.graph import StageGraph
from tilewright.schedule.ios.lazy import LazyPaths
from tilewright.schedule.ios.search import AStar
from tilewright.schedule.ios.settle import joined, settled
from tilewright.schedule.ios.stages import StageChoice

SearchKind = Literal["lazy", "a-star", "dynamic", "beam"]
"""Lazy shortest paths, lazy A*, the paper's dynamic programme, or no more than the beam that seeds them."""
_MAX_LISTED = 16_000_000  # transitions of a block, of 8 bytes each
_LISTED_PER_TRANSITION = 8  # for the effort of one that a search walks
_ROUNDING = 1e-12  # of costs that are sums of floats


@dataclass(frozen=True, slots=True)
class NetworkAnswer:
    """The best schedule known, what any within the same rules costs at least, and how the search ended.

    `apart_ns` is the cost of the best schedule known in which no stage crosses the border of two blocks, and
    `is_closed`: none such costs less. `bound_ns` is about such schedules, too, unless one that crosses
    borders costs less: then it `crosses_blocks`. `holds`: no stage cost less than its bound.
    """

    stages: tuple[StageChoice, ...]
    cost_ns: float
    bound_ns: float
    apart_ns: float
    is_closed: bool
    holds: bool
    was_cut_off: bool
    blocks: tuple[BlockAnswer, ...]
    crosses_blocks: bool = False

    @property
    def gap(self) -> float:
        """How far above its bound the cost lies."""
        return self.cost_ns / self.bound_ns - 1 if self.bound_ns else float("inf")

    def text(self, unit: str) -> str:
        """The outcome in words."""
        if self.is_closed and self.holds:
            if self.cost_ns < self.apart_ns * (1 - _ROUNDING):
                joined = (
                    f"stages across blocks save {1 - self.cost_ns / self.apart_ns:.1%} of the least without"
                )
                return f"{joined}, {self.apart_ns:g} {unit}"
            return f"the least of its search space is {self.apart_ns:g} {unit}"
        if self.cost_ns == float("inf"):
            return f"at least {self.bound_ns:g} {unit} in its search space, where no schedule was priced"
        words = "estimated to be " if not self.holds else ""
        return f"at least {self.bound_ns:g} {unit} {words}in its search space, gap {self.gap:.1%}"


@dataclass(slots=True)
class BlockNetwork:
    """The blocks of a network under rules, with one memory of stage costs for all."""

    graph: StageGraph
    costs: AskedCosts
    rules: Rules
    max_block_size: int
    merge_sets: Sequence[int] = ()
    blocks: tuple[Block, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.blocks = tuple(
            self._block(span.start, span.stop) for span in blocks(self.graph, self.max_block_size)
        )

    def _block(self, start: int, stop: int) -> Block:
        keep = (1 << (stop - start)) - 1
        merge_sets = [mask >> start & keep for mask in self.merge_sets]
        return Block(self.graph.slice(start, stop), self.costs, self.rules, merge_sets, start)

    def solve(self, kind: SearchKind, beam_width: int, stop: Stop) -> NetworkAnswer:
        """A schedule of every block, then the search in one after the other.

        Where there is a deadline, an interrupt ends the search as the deadline does.
        """
        answers: list[BlockAnswer] = []
        searches: list[LazyPaths | None] = []
        for number, block in enumerate(self.blocks):
            stop.share(len(self.blocks) - number)
            lazy = _lazy(block, stop) if kind == "lazy" else None
            searches.append(lazy)
            answers.append(beam(block, beam_width, stop) if lazy is None else lazy.run(1))
        if kind != "beam":
            left = [number for number, answer in enumerate(answers) if not answer.is_closed]
            for place, number in enumerate(left):
                stop.share(len(left) - place)
                answers[number] = self._searched(
                    kind, self.blocks[number], searches[number], answers[number], stop
                )
        stages: list[StageChoice] = []
        starts: list[int] = []
        for block, answer in zip(self.blocks, answers, strict=True):
            starts.append(len(stages))
            stages += (choice.shifted(block.offset) for choice in answer.stages)
        apart_ns = sum(answer.cost_ns for answer in answers)
        bound_ns = sum(answer.bound_ns for answer in answers)
        cost_ns, crosses_blocks = apart_ns, False
        stop.share(1)
        if not stop.is_due(0):
            whole = self._block(0, self.graph.num_operators)
            stages = joined(whole, stages, starts, stop)
            crosses_blocks = sum(map(self.costs.cost_ns, stages)) < apart_ns * (1 - _ROUNDING)
            if crosses_blocks:
                bound_ns = min(bound_ns, whole.rest_ns(self.graph.everything))
            stages = settled(self.graph, stages, self.costs, self.rules.least_gain)
            cost_ns = sum(map(self.costs.cost_ns, stages))
        return NetworkAnswer(
            tuple(stages),
            cost_ns,
            bound_ns,
            apart_ns,
            all(answer.is_closed for answer in answers),
            self.costs.num_violations == 0,
            stop.meter.cut_off,
            tuple(answers),
            crosses_blocks,
        )

    def _searched(
        self, kind: SearchKind, block: Block, lazy: LazyPaths | None, seed: BlockAnswer, stop: Stop
    ) -> BlockAnswer:
        search = lazy or AStar(block, seed, stop)
        try:
            answer = search.run() if kind != "dynamic" else dynamic(block, stop) or seed
        except KeyboardInterrupt:
            if stop.meter.left_s is None:
                raise
            stop.interrupt()
            answer = search.best_known()
        stop.num_transitions += answer.num_transitions if lazy is None else lazy.effort
        return answer


def _lazy(block: Block, stop: Stop) -> LazyPaths | None:
    """The search of a block whose transitions can be listed."""
    if stop.is_due(0):
        return None
    transitions = block.transitions(min(_MAX_LISTED, _LISTED_PER_TRANSITION * stop.max_transitions))
    return None if transitions is None else LazyPaths(block, one_by_one(block), transitions, stop)
