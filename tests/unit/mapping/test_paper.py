"""GraphTurbo's rule: its tiles are the largest that fit, its mappings legal, and never better than proven."""

from __future__ import annotations

import pytest
from tests.unit.mapping.test_cosa import LAYERS, problem_of

from tilewright.cost.bound import objective_bound
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import Loop
from tilewright.loops.problem import Operand, Problem, convolution, layer
from tilewright.mapping import MAPPERS
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.check import check_solution
from tilewright.mapping.factors import divisors
from tilewright.mapping.paper import Paper
from tilewright.planning import Budget

TWO_LEVELS = """
name: two
levels:
  - {{name: Buffer, capacity_bytes: {capacity}}}
  - {{name: Memory}}
units:
  - {{name: mac, kind: mac, macs_per_cycle: {{int8: 1}}}}
"""


def answer(problem: Problem, text: str, name: str = "paper") -> MappingSolution:
    task = MappingProblem(problem, parse_machine(text), "energy")
    solution = MAPPERS.get(name).solve(task, Budget())
    assert isinstance(solution, MappingSolution)
    assert not check_solution(task, solution)
    return solution


@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_legal_on_the_layers_of_cosa_and_never_below_a_bound(number: int) -> None:
    task = MappingProblem(problem_of(LAYERS[number]), load_preset("simba-cosa-repo"))
    solution = Paper().solve(task, Budget())
    assert isinstance(solution, MappingSolution)
    assert not check_solution(task, solution)
    assert solution.cost.cycles >= objective_bound(task.problem, task.machine, "latency")


@pytest.mark.parametrize("text", ["1_7_512_2048_1", "1_1_2048_1000_1"])
def test_never_better_than_what_exact_proves(text: str) -> None:
    task = MappingProblem(layer(text), load_preset("simba-cosa-repo"), "energy")
    paper, exact = (MAPPERS.get(name).solve(task, Budget()) for name in ("paper", "exact"))
    assert isinstance(paper, MappingSolution)
    assert isinstance(exact, MappingSolution)
    assert paper.quality.cost >= exact.quality.bound


def test_the_two_outermost_loops_have_the_largest_divisors_that_fit() -> None:
    # 8 x 8 of 16-fold sums: a tile of n x m takes 16 n + 16 m + n m words; 4 x 4 takes 144, 4 x 8 takes 224.
    product = convolution({"N": 8, "K": 8, "C": 16})
    outer, inner = answer(product, TWO_LEVELS.format(capacity=144)).mapping.levels
    assert outer.temporal == (Loop("N", 2), Loop("K", 2))
    assert inner.temporal == (Loop("N", 4), Loop("K", 4), Loop("C", 16))


def test_loops_further_in_are_cut_where_the_outermost_ones_are_not_enough() -> None:
    # One of each takes 33 words with all 16 of the sum.
    product = convolution({"N": 8, "K": 8, "C": 16})
    outer, inner = answer(product, TWO_LEVELS.format(capacity=20)).mapping.levels
    assert outer.temporal == (Loop("N", 8), Loop("K", 8), Loop("C", 2))
    assert inner.temporal == (Loop("C", 8),)


def test_what_does_not_fit_at_all_is_said() -> None:
    with pytest.raises(InfeasibleMapping, match="Buffer"):
        Paper().solve(
            MappingProblem(convolution({"N": 8}), parse_machine(TWO_LEVELS.format(capacity=2))), Budget()
        )


@pytest.mark.parametrize("name", ["exact", "cosa", "cosa-paper", "hybrid", "paper", "random"])
def test_copies_of_a_word_take_their_place_in_the_innermost_level(name: str) -> None:
    product = convolution({"N": 8, "K": 8, "C": 8})
    weights, *others = product.operands
    copied = Operand(weights.name, weights.kind, weights.axes, copies=4)
    text = TWO_LEVELS.format(capacity=64)
    solution = answer(Problem("copied", product.dims, (copied, *others)), text, name)
    inner = solution.cost.levels[-1].tensors
    assert inner["Weights"].tile_words % 4 == 0
    assert sum(t.tile_words for t in inner.values()) <= 64


def test_divisors_are_all_of_them() -> None:
    assert divisors(36) == [n for n in range(1, 37) if 36 % n == 0]
