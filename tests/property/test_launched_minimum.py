"""The joint search on machines that launch kernels against all plans of a small space: kernels, their slices
and lanes, stages of groups of kernels, and merges, of every graph of a generator."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from math import inf

import pytest
from tests.support.graphs import GraphBuilder
from tests.support.launched_kernels import planner_of, pricer_of

from tilewright.bit_sets import bits
from tilewright.compiler import plan_optimised
from tilewright.ir.graph import Graph, Value
from tilewright.joint.launched.content import Content, Kernel, Numbered
from tilewright.joint.launched.moves import Moves, _splits, side_by_side
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.options import Options
from tilewright.partition.merge_siblings import merge_sets
from tilewright.partition.split import WHOLE
from tilewright.planner import Planner
from tilewright.planning import UNLIMITED, Budget, Provenance
from tilewright.schedule.base import build_schedule, single
from tilewright.schedule.merge import merge_stage
from tilewright.target_ref import TargetRef

MACHINES = ("v100", "k80")


def network(seed: int, most: int) -> Graph:
    """A chain, fork or diamond of convolutions, pools and sums of up to so many layers."""
    rng = random.Random(seed)
    b = GraphBuilder()
    channels, side = rng.choice((8, 32, 64)), rng.choice((7, 14, 28))
    values = [b.input(rng.choice((1, 2)), channels, side, side)]
    num_layers = rng.randint(2, most)
    while sum(1 for v in values if v.producer is not None) < num_layers:
        x = rng.choice(values[-3:])
        kind = rng.randrange(4)
        if kind < 2:
            values.append(convolution(b, x, channels))
        elif kind == 2:
            values.append(b.op("MaxPool", x, kernel_shape=(1, 1)))
        else:
            values.append(b.op("Add", x, rng.choice(values)))
    return b.finish(*(v for v in values if v.producer is not None and not v.users))


def convolution(b: GraphBuilder, x: Value, channels: int) -> Value:
    weights = b.constant(channels, channels, 1, 1)
    attributes = {"kernel_shape": (1, 1), "pads": (0, 0, 0, 0), "strides": (1, 1)}
    return b.op("Conv", x, weights, shape=tuple(x.shape), **attributes)


class AllPlans:
    """Every plan of a graph: the least cost of each set of its layers that is stored."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        numbered = Numbered(planner.graph)
        self.pricer: LaunchedPricer = pricer_of(planner, numbered)
        self.moves = Moves(self.pricer, 4)
        self.layers = [sum(1 << node for node in layer) for layer in self.moves.layers]

    def least(self) -> float:
        """The cost of the cheapest plan of this graph."""
        blocks = {nodes: self._least_of(nodes) for nodes in self._sets()}
        everything = (1 << len(self.pricer.numbered.nodes)) - 1
        known = {0: 0.0}
        for stored in sorted((sum(chosen) for chosen in self._subsets()), key=lambda s: (s.bit_count(), s)):
            costs = (
                known[stored & ~nodes] + cost
                for nodes, cost in blocks.items()
                if not nodes & ~stored and stored & ~nodes in known and self._reads(nodes) | stored == stored
            )
            cost = min(costs, default=inf)
            if cost < inf and stored:
                known[stored] = cost
        return known[everything]

    def _subsets(self) -> Iterator[tuple[int, ...]]:
        for size in range(1, len(self.layers) + 1):
            yield from itertools.combinations(self.layers, size)

    def _sets(self) -> Iterator[int]:
        """Sets of layers that no path leaves and enters again."""
        for chosen in self._subsets():
            nodes, behind = sum(chosen), 0
            for node in range(self.pricer.num_layers):
                if not nodes >> node & 1 and self.pricer.predecessors(node) & (nodes | behind):
                    behind |= 1 << node
            if not any(self.pricer.predecessors(node) & behind for node in bits(nodes)):
                yield nodes

    def _reads(self, nodes: int) -> int:
        found = 0
        for node in bits(nodes):
            found |= self.pricer.predecessors(node)
        return found & ~nodes

    def _parts(self, nodes: int) -> list[int]:
        found: list[int] = []
        for mask in self.layers:
            if mask & nodes:
                met = [p for p in found if any(self.pricer.neighbours(node) & p for node in bits(mask))]
                found = [*(p for p in found if p not in met), mask | sum(met)]
        return found

    def _least_of(self, nodes: int) -> float:
        return min(map(self.pricer.cost, dict.fromkeys(self._ways(nodes))))

    def _ways(self, nodes: int) -> Iterator[Content]:
        parts = self._parts(nodes)
        if len(parts) > 1:
            for groups in itertools.product(*map(self._rows, parts)):
                yield side_by_side(groups)
        yield self.moves.fused(nodes)
        laned = self.moves.laned(self.moves.fused(nodes), Budget(UNLIMITED).start())
        if laned is not None:
            yield laned
        shapes = {value.shape for value in self.pricer.numbered.outputs(nodes)}
        if len(shapes) == 1:
            for split in _splits(WHOLE, next(iter(shapes))):
                yield self.moves.fused(nodes, split)

    def _rows(self, nodes: int) -> Iterator[list[Kernel]]:
        """The kernels of a group, one after another, in every way to cut it."""
        yield [self.moves.fused(nodes).kernels[0]]
        for first in self._sets():
            if first != nodes and not first & ~nodes and not self._reads(first) & nodes:
                rest = nodes & ~first
                if len(self._parts(first)) == 1 and self._may_end(rest):
                    for row in self._rows(rest):
                        yield [self.moves.fused(first).kernels[0], *row]

    def _may_end(self, nodes: int) -> bool:
        return nodes in set(self._sets())


def merged_graphs(planner: Planner) -> Iterator[Planner]:
    """The graph under every choice of one set of siblings that become one operator."""
    partition = planner.partition("layerwise")
    for siblings in merge_sets(partition, pads_kernels=True):
        for size in range(2, len(siblings) + 1):
            for chosen in itertools.combinations(sorted(siblings), size):
                stages = [
                    merge_stage(chosen) if s.id == chosen[0] else single(s.id)
                    for s in partition.subgraphs
                    if s.id not in chosen[1:]
                ]
                problem = planner.schedule_problem(partition, planner.backend.default_recipe)
                schedule = build_schedule(problem, tuple(stages), Provenance("all"))
                graph = planner.merged(schedule, planner.backend.default_recipe).partition.graph
                yield planner_of(graph, planner.options.target.name)


def minimum_and_joint(seed: int, most: int, machine: str) -> tuple[float, float]:
    graph = network(seed, most)
    planner = planner_of(graph, machine)
    least = min(AllPlans(other).least() for other in (planner, *merged_graphs(planner)))
    joint = plan_optimised(graph, Options(target=TargetRef.parse(machine), plan="joint"))
    return least, joint.program.schedule.quality.cost


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(12))
def test_no_plan_of_a_small_graph_is_cheaper_than_the_joint_one(seed: int) -> None:
    least, joint = minimum_and_joint(seed, 3, "v100")
    assert joint <= least * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_no_plan_of_five_layers_is_cheaper_than_the_joint_one(machine: str) -> None:
    for seed in range(100, 140):
        least, joint = minimum_and_joint(seed, 5, machine)
        assert joint <= least * (1 + 1e-9), seed
