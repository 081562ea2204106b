"""Graphs as plans change them: siblings merged, sums of products in parts; and bounds of their plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.ir.graph import Graph
from tilewright.planning import Bound, Quality, Rule, Space
from tilewright.program import Program
from tilewright.records import dataclass
from tilewright.schedule.space import SAME_MERGES, SAME_SUMS, WHOLE_SUMS, WITHOUT_MERGES

_INSTEAD = {SAME_MERGES: WITHOUT_MERGES, SAME_SUMS: WHOLE_SUMS}
"""Rules of schedules of a rewritten graph, and those of the graph before that do not hold for them."""


@dataclass(frozen=True, slots=True, eq=False)
class Rewritten:
    """What a graph became by merging siblings or splitting sums: lines say what changed, rules of which
    schedules bounds are then. Where it was priced, layers that changed, each as a kernel, `saved` so much."""

    graph: Graph
    remarks: tuple[str, ...]
    rules: tuple[Rule, ...]
    saved: float = 0.0

    def stated(self, program: Program, plain: Quality) -> Program:
        """A program of this graph: what is proven of it is of plans that rewrite the network so. A bound of
        all schedules is one of those of the graph before, too, of which one has the quality `plain`."""
        quality = program.schedule.quality
        of_all = min((b.value for b in plain.bounds if not b.space.rules), default=0.0)
        bounds = [
            replace(b, space=Space(b.space.of, (*self._kept(b), *self.rules)))
            if b.space.rules
            else replace(b, value=min(b.value, of_all))
            for b in quality.bounds
        ]
        schedule = replace(program.schedule, quality=replace(quality, bounds=tuple(bounds)))
        return replace(program, schedule=schedule, remarks=(*program.remarks, *self.remarks))

    def _kept(self, bound: Bound) -> Iterator[Rule]:
        gone = [_INSTEAD[rule] for rule in self.rules]
        return (rule for rule in bound.space.rules if rule not in gone)
