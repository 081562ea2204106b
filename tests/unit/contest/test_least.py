"""Lower bounds of subgraphs: true for any granularity and order, whatever is resident and retained."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from tests.support.contest_problems import random_problem

from tilewright.bit_sets import bits
from tilewright.contest.least import least_time, least_time_of_set
from tilewright.contest.pricer import ContestPricer
from tilewright.contest.problem import ContestProblem, read_problem
from tilewright.contest.rules import Step, time_of
from tilewright.joint.space import connected_sets

DATA = Path(__file__).parents[2] / "data" / "graph-scheduling"


def random_times(problem: ContestProblem, seed: int, count: int) -> list[tuple[float, float]]:
    """Times of subgraphs at any granularities and orders, beside what is said to be the least."""
    rng = random.Random(seed)
    pricer = ContestPricer(problem, is_exhaustive=True)
    sets = connected_sets(pricer, [1 << i for i in range(pricer.num_layers)], 1 << 20)
    assert sets is not None
    found = []
    for _ in range(count):
        layers = rng.choice(sets)
        subgraph, blocks = pricer.subgraph(layers), list(pricer.blocks(layers))
        if subgraph is None or not blocks:
            continue
        block = rng.choice(blocks)
        w, h, k = (rng.randint(1, side) for side in problem.native)
        num_tiles = -(-subgraph.width // w) * -(-subgraph.height // h)
        if subgraph.least_depth:
            k = min(k, subgraph.least_depth)
        if num_tiles * -(-subgraph.depth // k) > 2_000:
            continue
        tensors = [{problem.operators[i].output for i in bits(m)} for m in (block.resident, block.keeps)]
        order = rng.sample(range(num_tiles), num_tiles)
        step = Step(subgraph.operators, (w, h, k), tuple(tensors[1]), tuple(order))
        time, _ = time_of(problem, subgraph, step, tensors[0])
        found.append((least_time_of_set(problem, subgraph), time))
        found.append((least_time(problem, subgraph, *tensors), time))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_no_granularity_and_order_beats_the_bound(seed: int) -> None:
    problem = random_problem(seed, 4)
    found = random_times(replace(problem, capacity=2 * problem.capacity), seed, 60)
    assert any(time < inf for _, time in found)
    for least, time in found:
        assert least <= time * (1 + 1e-12)


def test_products_of_long_sums_stream_their_operands_for_every_tile() -> None:
    pricer = ContestPricer(read_problem(DATA / "mlsys-2026-1.json"))
    subgraph = pricer.subgraph(0b100)
    assert subgraph is not None
    moved = 2 * 4 * 512 * 512 + 512 * 512  # four rows and four columns of tiles, and the result
    assert least_time_of_set(pricer.problem, subgraph) == pytest.approx(moved / pricer.problem.bandwidth)
