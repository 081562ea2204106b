"""The joint search against every plan of tiny graphs, its checker against planted faults."""

from __future__ import annotations

from math import inf, isclose

import pytest
from tests.support.contest_problems import random_problem

from tilewright.contest.pricer import ContestPricer
from tilewright.joint.base import Block, Plan, State
from tilewright.joint.check import check_plan, check_potentials
from tilewright.joint.planner import JointAnswer, solve
from tilewright.joint.repair import one_by_one
from tilewright.planning import Budget


def cheapest(pricer: ContestPricer) -> float:
    """The least cost over all sequences of blocks, by relaxing every transition until nothing changes."""
    blocks = [b for layers in range(1, 1 << pricer.num_layers) for b in pricer.blocks(layers)]
    prices = [pricer.price(b) for b in blocks]
    costs = {(0, 0): 0.0}
    changed = True
    while changed:
        changed = False
        for (stored, kept), cost in list(costs.items()):
            for block, price in zip(blocks, prices, strict=True):
                if block.resident != kept or block.reads & ~(stored | kept) or price == inf:
                    continue
                after = (stored | block.stores, block.keeps)
                if cost + price < costs.get(after, inf):
                    costs[after] = cost + price
                    changed = True
    return min(cost for (stored, _), cost in costs.items() if not pricer.goal & ~stored)


def answer_of(seed: int, most: int = 4) -> tuple[ContestPricer, JointAnswer]:
    pricer = ContestPricer(random_problem(seed, most))
    return pricer, solve(pricer, Budget(1000), unit="")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(12))
def test_no_plan_costs_less(seed: int) -> None:
    pricer, answer = answer_of(seed)
    assert isclose(answer.plan.cost, cheapest(pricer), rel_tol=1e-12)
    assert not check_plan(pricer, answer.plan)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(12))
def test_certificates_prove_the_cost(seed: int) -> None:
    pricer, answer = answer_of(seed)
    certificate = answer.certificate
    if certificate is None:  # the bound of any plan is reached
        assert answer.quality.optimal_among == pricer.bound.space
        return

    def potential(stored: int, kept: int) -> float:
        return certificate.potential(State(stored, kept))

    assert not check_potentials(pricer, potential, answer.plan.cost)
    too_high = check_potentials(pricer, lambda s, k: potential(s, k) * 1.01, answer.plan.cost * 1.01)
    assert too_high


def test_answers_repeat() -> None:
    first, second = (answer_of(5, 5)[1] for _ in range(2))
    assert first.plan == second.plan


def test_more_effort_costs_no_more() -> None:
    pricer = ContestPricer(random_problem(6, 6))
    costs = [solve(pricer, Budget(trials), unit="").plan.cost for trials in (0, 1, 5, 50)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] <= one_by_one(pricer).cost


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        (lambda blocks: blocks[::-1], "order"),
        (lambda blocks: blocks[:-1], "goal"),
        (lambda blocks: [blocks[0]._replace(stores=0), *blocks[1:]], "space"),
        (lambda blocks: [blocks[0]._replace(reads=0b100), *blocks[1:]], "reads"),
        (lambda blocks: [blocks[0]._replace(keeps=1, stores=0), *blocks[1:]], "residents"),
        (lambda blocks: [blocks[0]._replace(stores=0b11), *blocks[1:]], "results"),
        (lambda blocks: [*blocks, blocks[-1]], "cost"),
    ],
)
def test_planted_faults_are_found(fault, rule: str) -> None:  # type: ignore[no-untyped-def]
    pricer = ContestPricer(random_problem(19, 5))
    plan = one_by_one(pricer)
    assert not check_plan(pricer, plan)
    assert len(plan.blocks) > 1
    broken: list[Block] = list(fault(list(plan.blocks)))
    assert rule in {violation.rule for violation in check_plan(pricer, Plan(plan.cost, tuple(broken)))}
