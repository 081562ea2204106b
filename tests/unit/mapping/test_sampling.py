"""Random tilings: equally likely, and legal exactly when the cost model says so."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import comb, prod

import numpy as np
import pytest

from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.options import CostOptions
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Machine
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.presets import load_preset
from tilewright.loops.problem import Problem, convolution, layer
from tilewright.mapping import sampling
from tilewright.mapping.base import MappingProblem
from tilewright.mapping.sampling import Tilings, num_tilings

SHARED = """
name: shared
levels:
  - {name: Inner, capacity_bytes: 24, holds: [input, output], num_instances_per_parent: 4}
  - name: Outer
    capacity_bytes: 300
    shares: [{holds: [weight], capacity_bytes: 100}]
  - {name: Memory}
units: [{name: mac, kind: mac, num_per_instance: 2, macs_per_cycle: {int8: 1}}]
"""


def machine(name: str) -> Machine:
    return load_preset(name) if name == "simba-cosa-repo" else parse_machine(SHARED)


@pytest.mark.parametrize("table_limit", [50_000, 0])
def test_every_spread_of_primes_is_equally_likely(table_limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_TABLE_LIMIT", table_limit)
    tilings = Tilings(MappingProblem(convolution({"K": 8}), machine("shared")))
    slots = len(tilings.slots)
    assert slots == 5  # units of Inner, Inners of Outer, and three temporal ones
    drawn = tilings.draw(np.random.default_rng(1), 30_000)
    row = tilings.dims.index("K")
    seen = Counter(tuple(int(x) for x in one) for one in drawn[:, row])
    every = {f for f in product((1, 2, 4, 8), repeat=slots) if prod(f) == 8}
    assert set(seen) == every
    assert num_tilings(MappingProblem(convolution({"K": 8}), machine("shared"))) == len(every) == comb(7, 4)
    expected = 30_000 / len(every)
    assert max(abs(n - expected) for n in seen.values()) < 5 * expected**0.5


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["simba-cosa-repo", "shared"])
@pytest.mark.parametrize("cost_options", [CostOptions(), CostOptions(double_buffered=True)])
@pytest.mark.parametrize(
    "problem",
    [layer("3_8_4_8_2"), convolution({"N": 6, "K": 10}), convolution({"G": 4, "P": 9, "R": 3})],
    ids=["conv", "small", "groups"],
)
def test_legal_is_what_the_cost_model_accepts(name: str, cost_options: CostOptions, problem: Problem) -> None:
    asked = MappingProblem(problem, machine(name), cost_options=cost_options)
    tilings = Tilings(asked)
    drawn = tilings.draw(np.random.default_rng(7), 400)
    legal = tilings.legal(drawn)
    for factors, says in zip(drawn, legal, strict=True):
        orders = [tilings.loops(factors, place) for place, _ in tilings.temporal_slots()]
        mapping = tilings.mapping(factors, orders)
        assert mapping.factors() == {dim: extent for dim, extent in problem.dims if extent > 1}
        try:
            evaluate(problem, asked.machine, mapping, cost_options)
            fits = True
        except InfeasibleMapping:
            fits = False
        assert fits == says
    assert 0 < legal.sum() < len(legal)


def test_skipped_pixels_never_reject_what_fits() -> None:
    problem = convolution({"P": 16, "R": 1, "C": 4}, stride=(4, 1))
    asked = MappingProblem(problem, machine("shared"), cost_options=CostOptions(skips_pixels=True))
    tilings = Tilings(asked)
    drawn = tilings.draw(np.random.default_rng(7), 300)
    num_legal = 0
    for factors in drawn[~tilings.legal(drawn)]:
        orders = [tilings.loops(factors, place) for place, _ in tilings.temporal_slots()]
        with pytest.raises(InfeasibleMapping):
            evaluate(problem, asked.machine, tilings.mapping(factors, orders), asked.cost_options)
        num_legal += 1
    assert num_legal > 0
