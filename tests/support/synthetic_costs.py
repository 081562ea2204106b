"""Stage costs from operator numbers alone, for tests and for counting what a search does."""

from __future__ import annotations

from collections.abc import Hashable

from tilewright.schedule.ios.costs import Bounds
from tilewright.schedule.ios.graph import StageGraph
from tilewright.schedule.ios.stages import StageChoice

_NUM_LANES = 4
_STAGE_NS = 2.0
_HASH_FACTOR = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: Fibonacci hashing
_WORD = 2**64


class SyntheticCosts:
    """Operator i takes 1 + (7 i + 3) mod 11; a stage 2 + the longest group, or a fourth of all of it.

    Then up to `noise` of that more, by the set of operators.
    """

    def __init__(self, graph: StageGraph, noise: float = 0.0) -> None:
        self._graph = graph
        self._noise = noise
        times = [float(1 + (7 * i + 3) % 11) for i in range(graph.num_operators)]
        areas = tuple(time / _NUM_LANES for time in times)
        self.bounds = Bounds(_STAGE_NS, tuple(times), (areas,), in_order=True)

    def signature(self, choice: StageChoice) -> Hashable:
        """No two sets of operators are alike."""
        return choice

    def bound_ns(self, choice: StageChoice) -> float:
        """By operators."""
        return self.bounds.stage_bound_ns(self._graph, choice)

    def with_cores(self, choice: StageChoice) -> tuple[StageChoice, ...]:
        """None: cores make no difference."""
        return ()

    def cost_ns(self, choice: StageChoice) -> float:
        """By the rule; whole without noise. A merged stage costs as its operators side by side."""
        bound = self.bounds.stage_bound_ns(self._graph, choice) - _STAGE_NS
        whole = _STAGE_NS - (-bound // 1)
        if not self._noise:
            return whole
        share = choice.mask * _HASH_FACTOR % _WORD / _WORD
        return whole * (1 + self._noise * share)
