"""Constraints as texts and as classes, and what is refused of them."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.hardware.machine import TensorKind
from tilewright.hardware.presets import load_preset
from tilewright.mapping.base import MappingProblem
from tilewright.mapping.check import check_mapping
from tilewright.mapping.constraints import Constraints, FixedSpatial, Stationary, parse_constraints

LAYER = "3_14_4_4_1"


@pytest.mark.parametrize("kind", ["weight", "input", "output"])
def test_a_tensor_that_is_stationary_stays_at_every_level(kind: str) -> None:
    machine = load_preset("simba-cosa-repo")
    (layer,) = tw.map("1_4_8_8_1", machine, constraints=[f"{kind}-stationary"]).layers
    constraints = Constraints.of(parse_constraints([f"{kind}-stationary"], machine))
    assert {s.level for s in constraints.stationary} == {level.name for level in machine.levels[1:]}
    task = MappingProblem(layer.problem, machine, constraints=constraints)
    assert check_mapping(task, layer.solution.mapping) == ()


def test_rows_are_stationary_as_on_eyeriss() -> None:
    (layer,) = tw.map("3_7_4_4_1", "eyeriss", constraints=["row-stationary@GlobalBuffer"]).layers
    inside = [x for x in layer.mapping if x.level in ("InputSpad", "WeightSpad", "PsumSpad")]
    loops = [loop for x in inside for loop in (*x.temporal, *x.spatial)]
    assert {loop.dim: loop.factor for loop in loops if loop.dim in "RSP"} == {"S": 3}
    (spread,) = (x.spatial for x in layer.mapping if x.level == "GlobalBuffer")
    assert {loop.dim for loop in spread} <= set("RPCK")


def test_classes_and_texts_are_the_same() -> None:
    texts = ["weight-stationary@DRAM", "GlobalBuffer.spatial.K=4"]
    classes = [Stationary("DRAM", TensorKind.WEIGHT), FixedSpatial("GlobalBuffer", "K", 4)]
    found = [tw.map(LAYER, constraints=given).layers[0].mapping for given in (texts, classes)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["stationary"], "constraint 'stationary': expected weight-, input- or output-stationary"),
        (["weight-stationary@L9"], "there is no level 'L9'"),
        (["row-stationary"], "name the level that feeds the elements"),
        (["DRAM.spatial.K=0"], "'0' is no positive number"),
        (["DRAM.order=K,K"], "expected"),
        (["DRAM.spatial.Z=2"], "nothing that is mapped has the dim 'Z'"),
        (["DRAM.spatial.K=2", "DRAM.spatial.K=4"], "DRAM.spatial.K=4 contradicts DRAM.spatial.K=2"),
        (["DRAM.spatial.K=2", "DRAM.spatial=C"], "DRAM.spatial.K=2 contradicts DRAM.spatial=C"),
        (["DRAM.order=K,*", "weight-stationary@DRAM"], "weight-stationary@DRAM contradicts DRAM.order=K,*"),
        ([7], "constraints: expected texts such as weight-stationary, found a int"),
    ],
)
def test_what_makes_no_sense_is_one_line(texts: list[object], said: str) -> None:
    with pytest.raises(UsageError) as error:
        tw.map(LAYER, constraints=texts)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_nothing_keeps_is_said_with_the_constraint() -> None:
    with pytest.raises(InfeasibleMapping, match=r"no mapping that keeps AccumulationBuffer.tile.P=14"):
        tw.map(LAYER, constraints=["AccumulationBuffer.tile.P=14", "AccumulationBuffer.tile.Q=14"])
    with pytest.raises(InfeasibleMapping, match="the outermost level holds all of every tensor"):
        tw.map(LAYER, constraints=["DRAM.tile.K=1"])


def test_other_mappers_and_gpus_keep_none() -> None:
    with pytest.raises(UsageError, match="is kept by the mapper exact on machines without threads"):
        tw.map(LAYER, mapper="cosa", constraints=["weight-stationary"])
