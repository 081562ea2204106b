"""Dims that a search takes as one: which they are, and that mappings of them cost what they cost."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.support.mappings import all_mappings
from tests.unit.mapping.test_exact import small

from tilewright.cost.nest_analysis import evaluate
from tilewright.errors import InfeasibleMapping
from tilewright.loops.problem import Problem, convolution, layer
from tilewright.mapping.base import MappingProblem
from tilewright.mapping.constraints import Constraints, parse_constraints
from tilewright.mapping.exact.joined import Joined


def joined_dims(problem: Problem) -> dict[str, int]:
    return Joined.of(MappingProblem(problem, small())).task.problem.extents


def test_pixels_under_a_window_of_one_are_one_dim() -> None:
    assert joined_dims(layer("1_14_64_32_1")) == {"P Q": 196, "C": 64, "K": 32}
    assert joined_dims(convolution({"N": 2, "P": 3, "C": 4})) == {"P N": 6, "C": 4}


def test_what_slides_or_steps_stays_alone() -> None:
    assert joined_dims(layer("3_14_64_32_1")) == {"R": 3, "S": 3, "P": 14, "Q": 14, "C": 64, "K": 32}
    # Between rows that a stride skips lie words that a tile of both holds.
    assert joined_dims(layer("1_14_64_32_2")) == {"P": 14, "Q": 14, "C": 64, "K": 32}
    assert joined_dims(convolution({"R": 3, "P": 4, "Q": 4, "N": 2})) == {"R": 3, "P": 4, "Q N": 8}


def test_constraints_speak_of_dims_by_name() -> None:
    given = Constraints.of(parse_constraints(["Memory.spatial.P=2"], small()))
    task = MappingProblem(layer("1_4_2_2_1"), small(), constraints=given)
    assert Joined.of(task).task.problem.extents == {"P": 4, "Q": 4, "C": 2, "K": 2}


@pytest.mark.parametrize("extents", [{"P": 6, "Q": 2}, {"P": 2, "Q": 2, "K": 2}, {"N": 3, "P": 2, "C": 2}])
def test_a_mapping_costs_what_that_of_its_parts_costs(extents: dict[str, int]) -> None:
    problem = convolution(extents)
    joined = Joined.of(MappingProblem(problem, small()))
    num_legal = 0
    for mapping in all_mappings(joined.task.problem, small()):
        parted = joined.parted(mapping)
        assert parted.factors() == {dim: extent for dim, extent in problem.dims if extent > 1}
        with suppress(InfeasibleMapping):
            cost = evaluate(joined.task.problem, small(), mapping)
            num_legal += 1
            own = evaluate(problem, small(), parted)
            assert (own.cycles, own.energy_pj) == (cost.cycles, pytest.approx(cost.energy_pj, rel=1e-12))
    assert num_legal > 20
