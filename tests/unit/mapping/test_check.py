"""The checker: silent on what mappers answer, and it names every way to be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.cost.options import CostOptions
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import convolution, layer
from tilewright.mapping import MAPPERS
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.check import check_mapping, check_solution
from tilewright.planning import Budget

TASK = MappingProblem(convolution({"R": 3, "P": 8, "K": 4, "C": 2}), load_preset("simba-cosa-repo"))
GOOD = Mapping(
    (
        LevelLoops("DRAM", (Loop("K", 4),)),
        LevelLoops("GlobalBuffer", (Loop("C", 2), Loop("R", 3)), (Loop("P", 8),)),
    )
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mapper", ["cosa", "cosa-paper", "exact", "hybrid", "paper", "random"])
@pytest.mark.parametrize("text", ["3_14_64_64_1", "1_7_96_32_2"])
def test_what_mappers_answer_is_valid(mapper: str, text: str) -> None:
    for cost_options in (
        (CostOptions(), CostOptions(double_buffered=True))
        if mapper in ("exact", "random")
        else (CostOptions(),)
    ):
        task = MappingProblem(layer(text), load_preset("simba-cosa-repo"), "edp", cost_options)
        answer = MAPPERS.get(mapper).solve(task, Budget())
        assert isinstance(answer, MappingSolution)
        assert check_solution(task, answer) == ()


def with_level(name: str, temporal: tuple[Loop, ...] = (), spatial: tuple[Loop, ...] = ()) -> Mapping:
    order = ["DRAM", "GlobalBuffer", "InputBuffer", "WeightBuffer", "AccumulationBuffer", "Registers"]
    levels = {loops.level: loops for loops in GOOD.levels} | {name: LevelLoops(name, temporal, spatial)}
    return Mapping(tuple(levels[n] for n in order if n in levels))


@pytest.mark.parametrize(
    ("mapping", "kind", "said"),
    [
        (Mapping((LevelLoops("DRAN"),)), "level", "'DRAN'"),
        (Mapping(tuple(reversed(GOOD.levels))), "level", "from the outside in"),
        (Mapping((*GOOD.levels, *GOOD.levels)), "level", "each once"),
        (with_level("DRAM", (Loop("K", 2),)), "cover", "K runs 2 of 4"),
        (with_level("DRAM", (Loop("K", 4), Loop("Z", 2))), "dim", "'Z'"),
        (with_level("DRAM", (Loop("K", 4), Loop("N", 0))), "factor", "0 times"),
        (with_level("DRAM", spatial=(Loop("K", 4),)), "instances", "DRAM feeds 1"),
        (with_level("InputBuffer", spatial=(Loop("K", 16),)), "instances", "ask for 16"),
        (
            with_level("Registers", (Loop("K", 2),)),
            "capacity",
            "Registers has 1 words for weight, a tile has 2",
        ),
    ],
)
def test_each_mistake_is_named(mapping: Mapping, kind: str, said: str) -> None:
    assert check_mapping(TASK, GOOD) == ()
    found = check_mapping(TASK, mapping)
    assert kind in {violation.rule for violation in found}
    assert any(said in violation.message for violation in found)


def test_a_cost_below_its_own_bound_is_a_mistake() -> None:
    answer = MAPPERS.get("cosa").solve(TASK, Budget())
    assert isinstance(answer, MappingSolution)
    fewer = replace(answer.cost, cycles=answer.bound_cycles - 1)
    quality = replace(answer.quality, cost=float(fewer.cycles), bounds=())
    assert rules(replace(answer, cost=fewer, quality=quality)) == ["bound"]
    assert rules(replace(answer, cost=replace(answer.cost, energy_pj=answer.bound_energy_pj * 0.99))) == [
        "bound"
    ]


def test_what_is_said_of_a_mapping_is_held_against_its_cost() -> None:
    answer = MAPPERS.get("cosa").solve(TASK, Budget())
    assert isinstance(answer, MappingSolution)
    (bound, *others) = answer.quality.bounds
    above = replace(answer.quality, bounds=(replace(bound, value=answer.quality.cost + 1), *others))
    assert rules(replace(answer, quality=above)) == ["bound"]
    assert rules(replace(answer, quality=replace(answer.quality, cost=answer.quality.cost + 1))) == ["cost"]
    more_units = replace(answer.cost, num_units_used=answer.cost.num_units_used + 1)
    assert rules(replace(answer, cost=more_units)) == ["work"]


def rules(answer: MappingSolution) -> list[str]:
    return [violation.rule for violation in check_solution(TASK, answer)]
