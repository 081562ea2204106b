"""Fills of outputs as Timeloop 4 counts them: the first one of each place is none."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

import tilewright as tw
from tilewright.cost.base import Objective
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.options import CostOptions
from tilewright.hardware.machine import TensorKind
from tilewright.hardware.presets import load_preset
from tilewright.mapping.base import MappingProblem
from tilewright.mapping.check import check_solution

LAYERS = ["1_7_16_8_1", "3_7_8_8_2"]
OPTION = CostOptions(elides_first_fills=True)


@pytest.mark.parametrize("machine_name", ["simba-cosa-repo", "eyeriss"])
def test_fills_of_outputs_are_less_by_the_partition_and_nothing_else_changes(machine_name: str) -> None:
    machine = load_preset(machine_name)
    for layer in tw.map(LAYERS, machine, mapper="random").layers:
        before = layer.solution.cost
        after = evaluate(layer.problem, machine, layer.solution.mapping, OPTION)
        for was, now in zip(before.levels, after.levels, strict=True):
            for operand in layer.problem.operands:
                if operand.name not in was.tensors:
                    continue
                old, new = was.tensors[operand.name], now.tensors[operand.name]
                spared = old.partition_words if operand.kind is TensorKind.OUTPUT and old.fills else 0
                assert new.fills == old.fills - spared
                assert (old.energy_pj - old.fill_energy_pj) == pytest.approx(
                    new.energy_pj - new.fill_energy_pj
                )
                same = {x: getattr(old, x) for x in ("fills", "energy_pj", "fill_energy_pj")}
                assert replace(new, **same) == old
                assert (new.energy_pj < old.energy_pj) is (spared > 0)
        assert after.energy_pj < before.energy_pj
        assert after.cycles <= before.cycles


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mapper", ["exact", "cosa", "paper", "random"])
@pytest.mark.parametrize("objective", get_args(Objective))
def test_bounds_hold_with_them_left_out(mapper: str, objective: Objective) -> None:
    machine = load_preset("simba-cosa-repo")
    (layer,) = tw.map(LAYERS[0], machine, mapper=mapper, objective=objective, elides_first_fills=True).layers
    task = MappingProblem(layer.problem, machine, objective, OPTION)
    assert check_solution(task, layer.solution) == ()
    assert layer.solution.quality.bound <= layer.solution.quality.cost
    (drawing,) = tw.map(LAYERS[0], machine, mapper="cosa", elides_first_fills=True).drawn()
    assert all(tensor.moved_words >= tensor.least_words for x in drawing.levels for tensor in x.tensors)
