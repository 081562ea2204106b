"""Timeloop's mappings read as ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.timeloop import LIST, MAPPING, PROCESSED, PRODUCT, TWO_LEVELS, written

from tilewright.cost.nest_analysis import evaluate
from tilewright.hardware.machine_file import parse_machine
from tilewright.mapping.base import LevelLoops, Loop, Mapping
from tilewright.mapping.problem import convolution
from tilewright.mapping.timeloop import load_architecture, load_mapping, load_problem


def test_a_mapping_with_what_is_left(tmp_path: Path) -> None:
    problem = load_problem(written(tmp_path, PRODUCT, "product.yaml"))
    mapping = load_mapping(written(tmp_path, MAPPING), problem, parse_machine(TWO_LEVELS))
    assert mapping == Mapping(
        (
            # The permutation runs outwards, our loops inwards; of I the buffer leaves all 4.
            LevelLoops("Memory", (Loop("I", 4), Loop("J", 2)), (Loop("K", 2),)),
            LevelLoops("Buffer", (Loop("K", 4), Loop("J", 3))),
        )
    )


def test_fan_outs_of_version_0_4_belong_to_what_feeds_them(tmp_path: Path) -> None:
    machine = load_architecture(written(tmp_path, LIST, "arch.yaml"))
    text = """
mapping:
- {target: weights_spad, type: temporal, factors: R3}
- {target: inter_PE_spatial, type: spatial, factors: C2 K3}
- {target: inter_PE_spatial, type: temporal, factors: C1 K1}
- {target: inter_column_spatial, type: spatial, factors: C2}
- {target: glb, type: temporal, factors: K4}
- {target: DRAM, type: temporal, factors: S3}
"""
    problem = convolution({"R": 3, "S": 3, "C": 4, "K": 12})
    mapping = load_mapping(written(tmp_path, text), problem, machine)
    spatial = {loops.level: {x.dim: x.factor for x in loops.spatial} for loops in mapping.levels}
    assert spatial == {"DRAM": {}, "glb": {"C": 4, "K": 3}, "ifmap_spad": {}, "weights_spad": {}}
    assert mapping.factors() == {"R": 3, "S": 3, "C": 4, "K": 12}


@pytest.mark.parametrize(
    ("factors", "permutation"),
    [
        ("K4 J3", "JK"),
        ("'K=4,J=3 # K12'", "J K"),
        ("'J 3 K = 4'", "'J,K'"),
        ("[K=4, J=3]", "[J, K]"),
        ("K4 J3 I1", "JKI"),
    ],
)
def test_ways_to_write_loops(factors: str, permutation: str, tmp_path: Path) -> None:
    problem = load_problem(written(tmp_path, PRODUCT, "product.yaml"))
    text = f"""
mapping:
- {{target: Memory, type: temporal, factors: I4 J2 K2}}
- {{target: Buffer, type: temporal, factors: {factors}, permutation: {permutation}}}
"""
    mapping = load_mapping(written(tmp_path, text), problem, parse_machine(TWO_LEVELS))
    assert mapping.levels[1] == LevelLoops("Buffer", (Loop("K", 4), Loop("J", 3)))


REFERENCE = """
mapping:
- {target: psum_spad, type: datatype, keep: [Outputs], bypass: [Weights, Inputs]}
- {target: weights_spad, type: datatype, keep: [Weights], bypass: [Inputs, Outputs]}
- {target: ifmap_spad, type: datatype, keep: [Inputs], bypass: [Weights, Outputs]}
- {target: inter_PE_spatial, type: datatype, keep: [], bypass: [Weights, Inputs, Outputs]}
- {target: inter_PE_column_spatial, type: datatype, keep: [], bypass: [Weights, Inputs, Outputs]}
- {target: shared_glb, type: datatype, keep: [Inputs, Outputs], bypass: [Weights]}
- {target: psum_spad, type: temporal, factors: C1 M8 R1 S1 N1 P1 Q1, permutation: MCRSNPQ}
- {target: weights_spad, type: temporal, factors: C1 M1 R3 S1 N1 P1 Q1, permutation: RCMSNPQ}
- {target: ifmap_spad, type: temporal, factors: C1 M1 R1 S1 N1 P1 Q1, permutation: CMRSNPQ}
- {target: inter_PE_spatial, type: spatial, factors: C3 M1 R1 S3 N1 P1 Q1, permutation: SCMRNPQ, split: 0}
- {target: inter_PE_spatial, type: temporal, factors: C1 M1 R1 S1 N1 P1 Q1, permutation: SCMRNPQ}
- {target: inter_PE_column_spatial, type: spatial, factors: C1 M1 R1 S1 N1 P1 Q14, permutation: QCMRSNP}
- {target: shared_glb, type: temporal, factors: C1 M1 R1 S1 N1 P14 Q4, permutation: QPCMRSN}
- {target: DRAM, type: temporal, factors: C1 M4 R1 S1 N1 P8 Q2, permutation: MQPCRSN}
"""


def test_a_result_of_timeloop_4(tmp_path: Path) -> None:
    """Counts that Timeloop 4 printed for its Eyeriss-like design.

    From Accelergy-Project/timeloop-accelergy-exercises 67b75f2, example_designs/eyeriss_like/ref_outputs.
    Left out are the two that docs/timeloop.md says differ: fills of outputs, and reads of inputs where two
    fan-outs became one.
    """
    path = written(tmp_path, PROCESSED)
    problem = load_problem(path)
    maps = written(tmp_path, REFERENCE, "map.yaml")
    machine = load_architecture(path, maps, problems=[problem])
    cost = evaluate(problem, machine, load_mapping(maps, problem, machine))
    found = {
        (level.level, tensor): (c.tile_words, c.num_instances, c.reads, c.updates)
        for level in cost.levels
        for tensor, c in level.tensors.items()
    }
    fills = {(level.level, t): c.fills for level in cost.levels for t, c in level.tensors.items()}
    assert (cost.cycles, cost.num_units_used) == (86016, 126)
    assert cost.mac_energy_pj == pytest.approx(2250969.22)
    glb_inputs = found.pop(("shared_glb", "Inputs"))
    assert (glb_inputs[0], fills["shared_glb", "Inputs"]) == (9831, 157296)
    assert found == {
        ("psum_spad", "Outputs"): (8, 126, 57344, 86016),
        ("weights_spad", "Weights"): (24, 126, 86016, 0),
        ("ifmap_spad", "Inputs"): (3, 126, 86016, 0),
        ("shared_glb", "Outputs"): (6272, 1, 0, 401408),
        ("DRAM", "Weights"): (864, 1, 13824, 0),
        ("DRAM", "Inputs"): (151875, 1, 157296, 0),
        ("DRAM", "Outputs"): (401408, 1, 0, 401408),
    }
    assert (fills["weights_spad", "Weights"], fills["ifmap_spad", "Inputs"]) == (1536, 10752)
