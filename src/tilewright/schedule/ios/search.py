"""Lazy A*: the cheapest schedule of a block, for as few stage costs as bounds allow.

Edges wait in the queue with what their stage costs at least, and only one that is first there is priced.
When the empty state comes first, its cost is the least, and all that still waits is the proof.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from tilewright.progress import checkpoint
from tilewright.schedule.ios.block import Block, BlockAnswer, Stop, Way
from tilewright.schedule.ios.stages import StageChoice

_ROUNDING = 1e-12  # of costs that are sums of floats
_POPS_PER_CHECK = 64
_TRANSITIONS_PER_CHECK = 4096
_NEVER = float("inf")

Entry = tuple[float, int, int, int, Way | None, int]
"""Bound, operators left, serial number, state reached, way there, state before; no way: the cost is known."""


@dataclass(slots=True)
class AStar:
    """One search; `incumbent` is a schedule that is known."""

    block: Block
    incumbent: BlockAnswer
    stop: Stop
    num_transitions: int = field(init=False, default=0)
    _heap: list[Entry] = field(init=False, default_factory=list)
    _reached_ns: dict[int, float] = field(init=False, default_factory=dict)
    _came: dict[int, tuple[int, Way]] = field(init=False, default_factory=dict)
    _closed: set[int] = field(init=False, default_factory=set)
    _serial: int = field(init=False, default=0)
    _bound_ns: float = field(init=False, default=0.0)

    def run(self) -> BlockAnswer:
        """The cheapest schedule, or the best known with its bound where the effort ends before."""
        block, everything = self.block, self.block.graph.everything
        self._bound_ns = block.rest_ns(everything)
        self._reached_ns[everything] = 0.0
        self._push(self._bound_ns, everything)
        pops = 0
        while self._heap:
            self._bound_ns = max(self._bound_ns, self._heap[0][0])
            if self._bound_ns >= self.incumbent.cost_ns * (1 - _ROUNDING):
                break
            pops += 1
            if pops % _POPS_PER_CHECK == 0:
                checkpoint()
            if self.stop.is_due(self.num_transitions):
                return self.best_known()
            _, _, _, state, way, before = heapq.heappop(self._heap)
            if state in self._closed:
                continue
            if way is not None:
                # Not even its bound may lead to the state more cheaply than what is known by now.
                if self._reached_ns[before] + way.ns < self._reached_ns.get(state, _NEVER):
                    self._relax(state, way, before, self._reached_ns[before] + block.cost_ns(way))
            elif state:
                self._closed.add(state)
                self._expand(state)
        return self._answer(self.incumbent.cost_ns, is_closed=True)

    def best_known(self) -> BlockAnswer:
        """Where the search stands: the incumbent, and what the first in the queue costs at least."""
        return self._answer(min(self._bound_ns, self.incumbent.cost_ns), is_closed=False)

    def _answer(self, bound_ns: float, *, is_closed: bool) -> BlockAnswer:
        best = self.incumbent
        num_states = best.num_states + len(self._closed)
        num_transitions = best.num_transitions + self.num_transitions
        return BlockAnswer(best.cost_ns, bound_ns, best.stages, is_closed, num_states, num_transitions)

    def _relax(self, state: int, way: Way, before: int, reached_ns: float) -> None:
        """A state is reached: by the cheapest way so far?"""
        if reached_ns >= self._reached_ns.get(state, _NEVER):
            return
        bound_ns = reached_ns + self.block.rest_ns(state)
        if bound_ns >= self.incumbent.cost_ns:
            return
        self._reached_ns[state] = reached_ns
        self._came[state] = before, way
        if not state:
            self.incumbent = BlockAnswer(reached_ns, 0.0, self._way_back(), is_closed=False)
        self._push(bound_ns, state)

    def _push(self, bound_ns: float, state: int, way: Way | None = None, before: int = 0) -> None:
        """Among equal bounds those nearer to the end go first, then the older ones."""
        self._serial += 1
        heapq.heappush(self._heap, (bound_ns, state.bit_count(), self._serial, state, way, before))

    def _expand(self, state: int) -> None:
        block, closed = self.block, self._closed
        start_ns, limit_ns = self._reached_ns[state], self.incumbent.cost_ns
        num_transitions = self.num_transitions
        for mask in block.endings(state):
            num_transitions += 1
            if num_transitions % _TRANSITIONS_PER_CHECK == 0 and self.stop.is_due(num_transitions):
                # The state stands for what is left out.
                closed.discard(state)
                self._push(start_ns + block.rest_ns(state), state)
                break
            rest = state ^ mask
            if rest in closed:
                continue
            for way in block.ways(mask):
                bound_ns = start_ns + way.ns + block.rest_ns(rest)
                if bound_ns >= limit_ns:
                    continue
                if way.is_known:
                    self._relax(rest, way, state, start_ns + way.ns)
                    limit_ns = self.incumbent.cost_ns
                else:
                    self._push(bound_ns, rest, way, state)
        self.num_transitions = num_transitions

    def _way_back(self) -> tuple[StageChoice, ...]:
        """The stages from the empty state on, in the order in which they run."""
        stages: list[StageChoice] = []
        state = 0
        while state in self._came:
            state, way = self._came[state]
            stages.append(way.choice)
        return tuple(stages)
