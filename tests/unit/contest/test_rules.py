"""The contest's rules: the worked answers of its text, and schedules that an independent evaluator judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilewright.contest.problem import ContestProblem, parse_problem
from tilewright.contest.rules import InvalidSchedule, Step, latencies_of

DATA = Path(__file__).parents[2] / "data" / "graph-scheduling"


def pointwise(size: int, inputs: list[list[int]], costs: list[float], capacity: int) -> ContestProblem:
    """Square tensors; operator i makes tensor i + 1."""
    count = len(inputs) + 1
    return parse_problem(
        {
            "widths": [size] * count,
            "heights": [size] * count,
            "inputs": inputs,
            "outputs": [[i + 1] for i in range(len(inputs))],
            "base_costs": costs,
            "op_types": ["Pointwise"] * len(inputs),
            "fast_memory_capacity": capacity,
            "slow_memory_bandwidth": 10,
            "native_granularity": [128, 128],
        },
        "example",
    )


def products(inputs: list[list[int]], outputs: list[int], cost: float, capacity: int) -> ContestProblem:
    """Products of square tensors of 128."""
    count = max(outputs) + 1
    return parse_problem(
        {
            "widths": [128] * count,
            "heights": [128] * count,
            "inputs": inputs,
            "outputs": [[t] for t in outputs],
            "base_costs": [cost] * len(inputs),
            "op_types": ["MatMul"] * len(inputs),
            "fast_memory_capacity": capacity,
            "slow_memory_bandwidth": 10,
            "native_granularity": [128, 128],
        },
        "example",
    )


CHAIN = pointwise(128, [[0], [1]], [1000, 100], 35_000)
LARGE_CHAIN = pointwise(256, [[0], [1]], [1000, 100], 35_000)
DIAMOND = pointwise(128, [[0], [1], [1, 2]], [1500] * 3, 50_000)
PRODUCT = products([[0, 1]], [2], 1500, 25_000)
TWO_PRODUCTS = products([[0, 1], [3, 2]], [3, 4], 2000, 45_000)
WHOLE = (128, 128, 1)


@pytest.mark.parametrize(
    ("problem", "steps", "expected"),
    [
        (CHAIN, [Step((0,), WHOLE), Step((1,), WHOLE)], [3276.8, 3276.8]),
        (CHAIN, [Step((0, 1), WHOLE)], [3276.8]),
        (CHAIN, [Step((0, 1), (64, 64, 1))], [4400.0]),
        (LARGE_CHAIN, [Step((0,), WHOLE), Step((1,), WHOLE)], [13107.2, 13107.2]),
        (LARGE_CHAIN, [Step((0, 1), WHOLE)], [13107.2]),
        (DIAMOND, [Step((0,), WHOLE), Step((1,), WHOLE), Step((2,), WHOLE)], [3276.8, 3276.8, 4915.2]),
        (DIAMOND, [Step((0, 1), WHOLE, (2,)), Step((0, 2), WHOLE)], [3000, 3276.8]),
        (DIAMOND, [Step((0,), WHOLE, (1,)), Step((1, 2), WHOLE)], [1638.4, 3000]),
        (PRODUCT, [Step((0,), (64, 64, 128))], [7096]),
        (PRODUCT, [Step((0,), (64, 64, 128), (), (0, 1, 3, 2))], [6548]),
        (TWO_PRODUCTS, [Step((0, 1), (128, 128, 32))], [6915.2]),
    ],
)
def test_worked_answers(problem: ContestProblem, steps: list[Step], expected: list[float]) -> None:
    assert latencies_of(problem, steps) == pytest.approx(expected, rel=1e-12)


def test_two_products_with_a_whole_sum_do_not_fit() -> None:
    with pytest.raises(InvalidSchedule, match="needs 65536 elements of fast memory, which has 45000"):
        latencies_of(TWO_PRODUCTS, [Step((0, 1), (128, 128, 128))])


@pytest.mark.parametrize(
    ("problem", "steps", "message"),
    [
        (CHAIN, [Step((0,), WHOLE)], "operator 1 is in no step"),
        (CHAIN, [Step((1,), WHOLE), Step((0,), WHOLE)], "tensor 1 is neither in slow memory nor resident"),
        (CHAIN, [Step((0, 0), WHOLE)], "names an operator twice"),
        (CHAIN, [Step((0, 7), WHOLE)], "operators that there are not"),
        (CHAIN, [Step((0, 1), (256, 128, 1))], "w=256 is not from 1 to the native 128"),
        (CHAIN, [Step((0, 1), WHOLE, (0,))], "retains tensors that it does not make"),
        (CHAIN, [Step((0, 1), WHOLE, (2,))], "output of the graph, but not in slow memory"),
        (CHAIN, [Step((0, 1), (64, 64, 1), (), (0, 1, 2, 2))], "no permutation of 4 tiles"),
        (TWO_PRODUCTS, [Step((0, 1), (128, 128, 256))], "k=256 is not from 1 to the native 128"),
    ],
)
def test_broken_rules_are_named(problem: ContestProblem, steps: list[Step], message: str) -> None:
    with pytest.raises(InvalidSchedule, match=message):
        latencies_of(problem, steps)


def _steps(solution: dict[str, Any]) -> list[Step]:
    return [
        Step(tuple(operators), tuple(granularity), tuple(retained), None if order is None else tuple(order))
        for operators, granularity, retained, order in zip(
            solution["subgraphs"],
            solution["granularities"],
            solution["tensors_to_retain"],
            solution["traversal_orders"],
            strict=True,
        )
    ]


def test_schedules_take_what_an_independent_evaluator_says() -> None:
    num_valid = 0
    for line in (DATA / "judged.jsonl").read_text().splitlines():
        row = json.loads(line)
        problem = parse_problem(row["problem"], f"seed {row['seed']}")
        if row["latencies"] is None:
            with pytest.raises(InvalidSchedule):
                latencies_of(problem, _steps(row["solution"]))
        else:
            num_valid += 1
            assert latencies_of(problem, _steps(row["solution"])) == pytest.approx(
                row["latencies"], rel=1e-9
            ), row["seed"]
    assert num_valid == 240
