"""A scheduler that asks what things cost: which subgraphs run in slices, says the machine's own model.

Layers whose values overflow the cores' buffers are cheaper slice by slice through several of them; others are
not, for slices read weights again. Every candidate here is a whole schedule that `problem.estimate` prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.partition.base import Subgraph
from tilewright.partition.split import WHOLE, Split
from tilewright.planning import Budget, Provenance, option
from tilewright.schedule.base import Group, Instance, Schedule, ScheduleProblem, Stage, build_schedule, single
from tilewright.schedule.instance_orders import demand_of
from tilewright.schedule.instances import Kind, instance_graph
from tilewright.schedule.orders import depth_first


@dataclass(frozen=True, slots=True)
class PricedSlices:
    """Slices of the first axis by coordinate descent: all subgraphs alike, then each of them on its own."""

    max_slices: int = option(8, "Into how many slices a subgraph is split at most.")
    name: ClassVar[str] = "priced-slices"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """The cheapest that the budget finds; whole subgraphs in their order are the first candidate."""
        meter, subgraphs = budget.start(), problem.partition.subgraphs
        choices = [self._choices(s) if problem.allows_slices else [WHOLE] for s in subgraphs]
        splits, stages = (WHOLE,) * len(subgraphs), tuple(single(s.id) for s in subgraphs)
        cost = problem.estimate(stages, splits).cost(problem.objective)
        alike = [tuple(c[min(n, len(c) - 1)] for c in choices) for n in range(max(map(len, choices)))]
        is_better = True
        while is_better:
            is_better = False
            moves = alike or ((*splits[:i], c, *splits[i + 1 :]) for i, cs in enumerate(choices) for c in cs)
            for candidate in moves:
                if candidate != splits and meter.spend():
                    order = _depth_first(problem, candidate)
                    price = problem.estimate(order, candidate).cost(problem.objective)
                    if price < cost:
                        splits, stages, cost, is_better = candidate, order, price, True
            is_better, alike = is_better or bool(alike), []
        provenance = Provenance(self.name, num_evaluations=meter.num_evaluations)
        return build_schedule(problem, stages, provenance, splits, cut_off=meter.cut_off)

    def _choices(self, subgraph: Subgraph) -> list[Split]:
        extents = [v.shape[0] if v.shape else 1 for v in subgraph.outputs]
        factors = (f for f in range(2, self.max_slices + 1) if all(e % f == 0 for e in extents))
        return [WHOLE, *(Split(0, f) for f in factors)]


def _depth_first(problem: ScheduleProblem, splits: tuple[Split, ...]) -> tuple[Stage, ...]:
    graph = instance_graph(problem.partition, splits, problem.maps)
    nodes = (graph.nodes[place] for place in depth_first(demand_of(graph)))
    instances = (Instance(n.subgraph_id, n.index) for n in nodes if n.kind is Kind.INSTANCE)
    return tuple(Stage((Group((instance,)),)) for instance in instances)
