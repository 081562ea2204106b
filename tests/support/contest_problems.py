"""Random problems of the contest for tests."""

from __future__ import annotations

import random

from tilewright.contest.problem import ContestProblem, parse_problem


def random_problem(seed: int, most: int = 5) -> ContestProblem:
    """A connected graph of few operators."""
    rng = random.Random(seed)
    sides = rng.sample([32, 64, 96, 128, 256], rng.randint(1, 2))
    widths: list[int] = []
    heights: list[int] = []

    def tensor(width: int, height: int) -> int:
        widths.append(width)
        heights.append(height)
        return len(widths) - 1

    tensor(rng.choice(sides), rng.choice(sides))
    inputs, outputs, kinds = [], [], []
    for _ in range(rng.randint(1, most)):
        t = rng.randrange(len(widths)) if rng.random() < 0.5 else len(widths) - 1
        if rng.random() < 0.5:
            fitting = [u for u in range(len(widths)) if heights[u] == widths[t]]
            other = (
                rng.choice(fitting)
                if fitting and rng.random() < 0.5
                else tensor(rng.choice(sides), widths[t])
            )
            inputs.append([t, other])
            outputs.append([tensor(widths[other], heights[t])])
            kinds.append("MatMul")
        else:
            alike = [u for u in range(len(widths)) if (widths[u], heights[u]) == (widths[t], heights[t])]
            inputs.append(list(dict.fromkeys([t, rng.choice(alike)])))
            outputs.append([tensor(widths[t], heights[t])])
            kinds.append("Pointwise")
    return parse_problem(
        {
            "widths": widths,
            "heights": heights,
            "inputs": inputs,
            "outputs": outputs,
            "base_costs": [rng.choice([50, 300, 1000, 2000]) for _ in inputs],
            "op_types": kinds,
            "fast_memory_capacity": rng.choice([20_000, 40_000, 90_000, 300_000]),
            "slow_memory_bandwidth": rng.choice([10, 20, 50]),
            "native_granularity": [128, 128],
        },
        f"seed {seed}",
    )
