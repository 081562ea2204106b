"""Timeloop's constraints on loops: kept by the search or refused, never dropped."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from tests.support.timeloop import FLAT, LIST, written

import tilewright as tw
from tilewright.cost.base import Objective
from tilewright.errors import InfeasibleMapping, MachineError, UsageError
from tilewright.mapping.constraints import FixedSpatial, LoopOrder
from tilewright.mapping.timeloop import load_architecture, load_constraints

FREE = FLAT.replace("  - {target: Buffer, type: temporal, factors: R=0}\n", "")
LAYER = "K=8,C=8,P=4"


def constrained(folder: Path, directive: str) -> str:
    return str(written(folder, f"{FREE}  - {directive}\n", "arch.yaml"))


@pytest.mark.parametrize("objective", get_args(Objective))
def test_fixed_spatial_factors_are_those_of_the_answer(tmp_path: Path, objective: Objective) -> None:
    free = tw.map(LAYER, str(written(tmp_path, FREE, "free.yaml")), objective=objective).layers[0]
    path = constrained(tmp_path, "{target: DRAM, type: spatial, factors: P=2 K=1 C=1}")
    (layer,) = tw.map(LAYER, path, objective=objective).layers
    spatial = {
        loop.dim: loop.factor for level in layer.mapping if level.level == "DRAM" for loop in level.spatial
    }
    assert spatial == {"P": 2}
    assert layer.solution.quality.cost >= free.solution.quality.bound


def test_constraints_beside_a_problem_count_too(tmp_path: Path) -> None:
    machine = load_architecture(written(tmp_path, FREE))
    text = "problem: {R: 1}\nconstraints: [{target: DRAM, type: spatial, factors: K2}]\n"
    assert load_constraints([written(tmp_path, text, "layer.yaml")], machine) == (
        FixedSpatial("DRAM", "K", 2),
    )


@pytest.mark.parametrize(
    ("directive", "said"),
    [
        (
            "{target: DRAM, type: temporal, factors: K=4}",
            "a temporal factor of 4 for K is not kept by a search unless the .* at Registers is given, too",
        ),
        ("{target: DRAM, type: spatial, factors: K=2, min: 3}", "a constraint on this is not kept"),
    ],
)
def test_other_constraints_are_refused_unless_they_are_to_be_ignored(
    tmp_path: Path, directive: str, said: str
) -> None:
    path = constrained(tmp_path, directive)
    with pytest.raises(MachineError, match=said) as error:
        tw.map(LAYER, path)
    assert "\n" not in str(error.value)
    assert "--ignore-constraints" in str(error.value)
    assert tw.map(LAYER, path, ignore_constraints=True).layers


@pytest.mark.parametrize("second", [" K=4", "}\n  - {target: DRAM, type: spatial, factors: K=4"])
def test_factors_that_contradict_each_other_are_refused(tmp_path: Path, second: str) -> None:
    path = constrained(tmp_path, f"{{target: DRAM, type: spatial, factors: K=2{second}}}")
    with pytest.raises(
        MachineError, match=r"DRAM.spatial.K=4 contradicts DRAM.spatial.K=2; remove one of them"
    ):
        tw.map(LAYER, path)


def test_a_dim_that_nothing_has_is_refused(tmp_path: Path) -> None:
    path = constrained(tmp_path, "{target: DRAM, type: spatial, factors: Z=2}")
    with pytest.raises(
        UsageError, match=r"DRAM.spatial.Z=2: .* has the dim 'Z'; give one of R, .*--ignore-constr"
    ):
        tw.map(LAYER, path)
    path = constrained(tmp_path, "{target: DRAM, type: spatial, factors: G=2}")
    assert tw.map(LAYER, path).layers  # of one group


@pytest.mark.parametrize(
    ("permutation", "order"),
    [("PCK", ("*", "K", "C", "P")), ("[C, P]", ("*", "P", "C")), ("K C", ("*", "C", "K"))],
)
def test_orders_of_temporal_loops_are_kept(tmp_path: Path, permutation: str, order: tuple[str, ...]) -> None:
    directive = f"{{target: DRAM, type: temporal, permutation: {permutation}, factors: R=1 S=1 Q=1}}"
    path = constrained(tmp_path, directive)
    machine = load_architecture(path)
    assert load_constraints([path], machine)[-1] == LoopOrder("DRAM", order)
    (layer,) = tw.map(LAYER, path, objective="energy").layers
    loops = [loop.dim for level in layer.mapping if level.level == "DRAM" for loop in level.temporal]
    assert [order.index(dim) for dim in loops if dim in order] == sorted(
        order.index(dim) for dim in loops if dim in order
    )
    assert not set(loops) & set("RSQ")


def test_dims_that_have_no_loop_at_a_level_have_none(tmp_path: Path) -> None:
    path = constrained(tmp_path, "{target: Buffer, type: temporal, factors: P=1 C=1}")
    (layer,) = tw.map(LAYER, path).layers
    (loops,) = (level.temporal for level in layer.mapping if level.level == "Buffer")
    assert not {loop.dim for loop in loops} & {"P", "C"}


def test_temporal_factors_are_kept_where_those_inside_are_known(tmp_path: Path) -> None:
    listed = [f"{{target: {name}, type: spatial, factors: K=1 C=1}}" for name in ("Registers", "Buffer")]
    listed += [
        "{target: Registers, type: temporal, factors: K=1 C=1}",
        "{target: Buffer, type: temporal, factors: K=1 C=2}",
        "{target: DRAM, type: spatial, factors: K=2 C=1}",
        "{target: DRAM, type: temporal, factors: K=4}",
    ]
    path = constrained(tmp_path, "\n  - ".join(listed))
    (layer,) = tw.map(LAYER, path).layers
    loops = {
        (level.level, kind, loop.dim): loop.factor
        for level in layer.mapping
        for kind, loops in (("temporal", level.temporal), ("spatial", level.spatial))
        for loop in loops
        if loop.dim in "KC"
    }
    assert loops == {
        ("DRAM", "temporal", "K"): 4,
        ("DRAM", "temporal", "C"): 4,
        ("DRAM", "spatial", "K"): 2,
        ("Buffer", "temporal", "C"): 2,
    }


def test_a_factor_of_0_is_the_whole_dim(tmp_path: Path) -> None:
    path = constrained(tmp_path, "{target: DRAM, type: temporal, factors: C=0}")
    (layer,) = tw.map(LAYER, path).layers
    loops = {
        level.level: [loop for loop in (*level.temporal, *level.spatial) if loop.dim == "C"]
        for level in layer.mapping
    }
    assert {name: [loop.factor for loop in listed] for name, listed in loops.items() if listed} == {
        "DRAM": [8]
    }
    path = constrained(tmp_path, "{target: DRAM, type: spatial, factors: P=0}")
    (layer,) = tw.map("K=2,C=8,P=2", path).layers
    spread = [loop for level in layer.mapping if level.level == "DRAM" for loop in level.spatial]
    assert [(loop.dim, loop.factor) for loop in spread if loop.dim == "P"] == [("P", 2)]


def test_constraints_of_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="constraints on loops of nodes are not kept"):
        tw.map("1_2_2_2_1", str(written(tmp_path, LIST)))


def test_factors_that_nothing_can_have_and_other_mappers_are_said(tmp_path: Path) -> None:
    path = constrained(tmp_path, "{target: DRAM, type: spatial, factors: K=3}")
    with pytest.raises(InfeasibleMapping, match=r"level DRAM: spatial factors K=3 do not divide"):
        tw.map(LAYER, path)
    with pytest.raises(UsageError, match=r"constraints: DRAM.spatial.K=3 is kept by the mapper exact"):
        tw.map(LAYER, path, mapper="random")
