"""Multicasts along one axis at a time: what Timeloop 4 counts where an axis is a level that keeps nothing."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.hardware.machine import Level, Machine, TensorKind, Unit
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Operand, Problem
from tilewright.mapping.base import MappingProblem
from tilewright.mapping.check import check_solution

PER_AXIS = CostOptions(multicasts_per_axis=True)
COLUMNS, ROWS = Loop("P", 4), Loop("R", 3)


def window(step: int = 1) -> Problem:
    """Four outputs of a window of three."""
    return Problem(
        "window",
        (("P", 4), ("R", 3)),
        (
            Operand("Weights", TensorKind.WEIGHT, ((("R", 1),),)),
            Operand("Inputs", TensorKind.INPUT, ((("P", step), ("R", 1)),)),
            Operand("Outputs", TensorKind.OUTPUT, ((("P", 1),),)),
        ),
    )


def array(*between: Level, fan_out: int) -> Machine:
    """Elements with a word of each tensor, fed by main memory or by what lies between."""
    element = Level(name="Element", capacity_bytes=3, num_instances_per_parent=fan_out)
    unit = Unit(name="mac", kind="mac", macs_per_cycle={"int8": 1})
    return Machine(name="array", levels=(element, *between, Level(name="Memory")), units=(unit,))


def reads(
    problem: Problem, machine: Machine, cost_options: CostOptions, *loops: LevelLoops
) -> dict[str, int]:
    """Words that main memory delivers, by tensor."""
    cost = evaluate(problem, machine, Mapping(loops), cost_options)
    return {name: tensor.reads for name, tensor in cost.levels[0].tensors.items()}


@pytest.mark.parametrize(
    ("step", "together", "apart"),
    [
        (1, 6, 12),  # positions 0 to 5: a diagonal of elements wants the same one
        (2, 9, 12),  # positions 0 to 8
        (3, 12, 12),  # windows that do not overlap
    ],
)
def test_equal_tiles_on_a_diagonal_are_sent_once_or_to_each_column(
    step: int, together: int, apart: int
) -> None:
    spread = LevelLoops("Memory", (), (COLUMNS, ROWS)), LevelLoops("Element")
    machine = array(fan_out=12)
    assert reads(window(step), machine, TIMELOOP, *spread) == {"Weights": 3, "Inputs": together, "Outputs": 0}
    # A row has one weight, which goes to four columns; no two elements of a column have one input.
    assert reads(window(step), machine, PER_AXIS, *spread) == {"Weights": 3, "Inputs": apart, "Outputs": 0}


def test_one_dim_along_an_axis_is_counted_as_before() -> None:
    spread = LevelLoops("Memory", (ROWS,), (COLUMNS,)), LevelLoops("Element")
    machine = array(fan_out=4)
    counted = [reads(window(), machine, options, *spread) for options in (TIMELOOP, PER_AXIS)]
    assert counted[0] == counted[1]


def test_axes_are_counted_as_levels_that_keep_nothing() -> None:
    column = Level(name="Column", capacity_bytes=4, num_instances_per_parent=4, holds=(TensorKind.OUTPUT,))
    in_levels = (
        LevelLoops("Memory", (), (COLUMNS,)),
        LevelLoops("Column", (), (ROWS,)),
        LevelLoops("Element"),
    )
    by_levels = reads(window(), array(column, fan_out=3), TIMELOOP, *in_levels)
    spread = LevelLoops("Memory", (), (COLUMNS, ROWS)), LevelLoops("Element")
    by_axes = reads(window(), array(fan_out=12), PER_AXIS, *spread)
    assert [by_levels[name] for name in ("Weights", "Inputs")] == [
        by_axes[name] for name in ("Weights", "Inputs")
    ]


@pytest.mark.parametrize("mapper", ["exact", "cosa", "random"])
def test_bounds_hold_with_multicasts_along_axes(mapper: str) -> None:
    machine = load_preset("eyeriss")
    (layer,) = tw.map(
        "3_7_8_8_1", machine, mapper=mapper, objective="energy", multicasts_per_axis=True
    ).layers
    task = MappingProblem(layer.problem, machine, "energy", PER_AXIS)
    assert check_solution(task, layer.solution) == ()
    assert layer.solution.quality.bound <= layer.solution.quality.cost
    assert layer.energy_pj == evaluate(layer.problem, machine, layer.solution.mapping, PER_AXIS).energy_pj
    assert layer.energy_pj >= evaluate(layer.problem, machine, layer.solution.mapping).energy_pj
