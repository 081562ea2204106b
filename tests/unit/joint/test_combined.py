"""The cheapest path through blocks of several plans: held against every choice of them."""

from __future__ import annotations

import random
from itertools import combinations
from math import inf

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.bit_sets import bits
from tilewright.compiler import plan_optimised
from tilewright.ir.graph import Graph
from tilewright.joint.launched.combined import KnownBlocks, combined
from tilewright.joint.launched.content import Content, Numbered
from tilewright.options import Options
from tilewright.target_ref import TargetRef


def diamonds() -> Graph:
    """Two, one behind the other."""
    b = GraphBuilder()
    x = b.input(8, 8)
    for _ in range(2):
        x = b.op("Relu", x, shape=(8, 8))
        x = b.op("Add", b.op("Exp", x, shape=(8, 8)), b.op("Tanh", x, shape=(8, 8)), shape=(8, 8))
    return b.finish(x)


def least(known: KnownBlocks, costs: dict[int, float]) -> float:
    """Of all sets of blocks that hold every node once and can run in some order."""
    best = inf
    for count in range(1, known.num_layers + 1):
        for chosen in combinations(costs, count):
            if (
                sum(chosen) != (1 << known.num_layers) - 1
                or sum(map(int.bit_count, chosen)) != known.num_layers
            ):
                continue
            left, done = list(chosen), 0
            while ready := [m for m in left if all(not known.predecessors(i) & ~done & ~m for i in bits(m))]:
                done |= ready[0]
                left.remove(ready[0])
            if not left:
                best = min(best, sum(costs[m] for m in chosen))
    return best


@pytest.mark.parametrize("seed", range(4))
def test_the_path_is_the_cheapest_of_all_choices_of_blocks(seed: int) -> None:
    numbered, rng = Numbered(diamonds()), random.Random(seed)
    nodes = range(len(numbered.nodes))
    sets = [[i] for i in nodes] + [sorted(rng.sample(nodes, rng.randint(2, 4))) for _ in range(6)]
    priced = [
        (Content.of_kernel([[i] for i in members]), rng.uniform(1, 3) * len(members) ** 0.5)
        for members in sets
    ]
    found = combined(numbered, priced)
    assert found is not None
    known = KnownBlocks(numbered, priced)
    costs = {mask: cost for mask, (cost, _) in known.cheapest.items()}
    assert sum(costs[content.mask] for content in found) == pytest.approx(least(known, costs))


@pytest.mark.parametrize("target", ["cpu", "cuda{device=emulated}"])
def test_a_joint_plan_by_estimates_is_no_worse_than_any_recipe(target: str) -> None:
    """On targets whose stages add up; on the processor it is raced besides."""
    options = Options(target=TargetRef.parse(target), plan="joint", threads=1, no_cache=True)
    planned = plan_optimised(diamonds(), options)
    tried = [a.cost for a in planned.attempts if a.cost is not None]
    path = [a.cost for a in planned.attempts if a.what.startswith("joint, ") and a.cost is not None]
    assert path == [pytest.approx(min(tried), rel=1e-9)]
    assert target == "cpu" or planned.program.schedule.quality.cost == min(tried)
