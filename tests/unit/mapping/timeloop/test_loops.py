"""Timeloop's mappings read as ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.timeloop import LIST, MAPPING, PROCESSED, PRODUCT, TWO_LEVELS, written

from tilewright.cost.count import Cost
from tilewright.cost.nest_analysis import evaluate
from tilewright.errors import MachineError
from tilewright.hardware.machine_file import parse_machine
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Problem, convolution
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


def test_levels_may_be_numbers_from_the_innermost(tmp_path: Path) -> None:
    problem = load_problem(written(tmp_path, PRODUCT, "product.yaml"))
    machine = parse_machine(TWO_LEVELS)
    named = load_mapping(written(tmp_path, MAPPING), problem, machine)
    text = MAPPING.replace("target: Memory", "target: 1").replace("target: Buffer", "target: 0")
    assert load_mapping(written(tmp_path, text, "numbers.yaml"), problem, machine) == named
    high = text.replace("target: 1", "target: 2")
    with pytest.raises(MachineError, match=r"target: there is no memory 2; there are 2\.$"):
        load_mapping(written(tmp_path, high, "high.yaml"), problem, machine)


def test_numbers_are_no_names_where_memories_were_left_out(tmp_path: Path) -> None:
    """They count memories that the machine has not."""
    path = written(tmp_path, PROCESSED)
    problem = load_problem(path)
    text = REFERENCE.replace("target: shared_glb", "target: 5")
    maps = written(tmp_path, text, "map.yaml")
    machine = load_architecture(path, maps, problems=[problem])
    with pytest.raises(
        MachineError, match=r"mapping\[5\].target: numbers also count .* give the memory's name"
    ):
        load_mapping(maps, problem, machine)


FANS = """
name: fans
levels:
  - {name: Inner, capacity_bytes: 4 KiB, num_instances_per_parent: 6}
  - {name: Middle, capacity_bytes: 4 KiB, num_instances_per_parent: 4}
  - {name: Outer}
units: [{name: MAC, kind: mac, num_per_instance: 5, macs_per_cycle: {int8: 1}}]
"""


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("Outer Inner x Middle", r"mapping\[2\].target: where inter_x_spatial .* list the levels from"),
        ("Outer x Inner", "inter_x_spatial may be below Middle or Outer; list a directive of each"),
        ("x Outer Inner", "inter_x_spatial keeps nothing; list it between the levels"),
        ("Outer x Inner x", r"mapping\[3\]: a second directive for the spatial loops of inter_x_spatial"),
    ],
)
def test_where_a_fan_out_belongs_must_be_clear(listed: str, message: str, tmp_path: Path) -> None:
    directives = [
        "{target: inter_x_spatial, type: spatial, factors: K3}"
        if name == "x"
        else f"{{target: {name}, type: temporal, factors: {'C3' if name == 'Outer' else 'C1'}}}"
        for name in listed.split()
    ]
    text = "mapping:\n" + "".join(f"- {one}\n" for one in directives)
    with pytest.raises(MachineError, match=message):
        load_mapping(written(tmp_path, text), convolution({"K": 3, "C": 3}), parse_machine(FANS))


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


def printed(cost: Cost, problem: Problem) -> dict[tuple[str, str], tuple[int, ...]]:
    """Counts as Timeloop 4 has them, which leaves out the first fill of each partial sum."""
    output = problem.output.name
    return {
        (level.level, tensor): (
            c.tile_words,
            c.partition_words,
            c.num_instances,
            c.reads,
            max(0, c.fills - c.partition_words) if tensor == output else c.fills,
            c.updates,
        )
        for level in cost.levels
        for tensor, c in level.tensors.items()
    }


def test_a_result_of_timeloop_4_for_a_row_stationary_machine(tmp_path: Path) -> None:
    """Counts that Timeloop 4 printed for its Eyeriss-like design.

    From Accelergy-Project/timeloop-accelergy-exercises 67b75f2, example_designs/eyeriss_like/ref_outputs.
    What `shared_glb` reads of inputs differs, as docs/timeloop.md says: two fan-outs became one.
    """
    path = written(tmp_path, PROCESSED)
    problem = load_problem(path)
    maps = written(tmp_path, REFERENCE, "map.yaml")
    machine = load_architecture(path, maps, problems=[problem])
    cost = evaluate(problem, machine, load_mapping(maps, problem, machine))
    found = printed(cost, problem)
    inputs = found.pop(("shared_glb", "Inputs"))
    assert (*inputs[:3], inputs[4]) == (9831, 151875, 1, 157296)
    # Of 14 columns and 3 rows of inputs, with a stride of 2, 29 differ.
    assert inputs[3] == 1354752 * 29 // (14 * 3)
    assert found == {
        ("psum_spad", "Outputs"): (8, 28672, 126, 57344, 0, 86016),
        ("weights_spad", "Weights"): (24, 96, 126, 86016, 1536, 0),
        ("ifmap_spad", "Inputs"): (3, 1745, 126, 86016, 10752, 0),
        ("shared_glb", "Outputs"): (6272, 401408, 1, 0, 0, 401408),
        ("DRAM", "Weights"): (864, 864, 1, 13824, 0, 0),
        ("DRAM", "Inputs"): (151875, 151875, 1, 157296, 0, 0),
        ("DRAM", "Outputs"): (401408, 401408, 1, 0, 0, 401408),
    }
    assert (cost.cycles, cost.num_units_used, cost.utilization) == (86016, 126, 0.75)
    assert cost.mac_energy_pj == pytest.approx(2250969.22)


SIMBA = """
architecture:
  version: 0.4
  nodes:
  - !Container {name: System, attributes: {datawidth: 8, technology: 45nm}}
  - !Component {name: DRAM, class: DRAM, attributes: {type: LPDDR4, width: 64, datawidth: 8}}
  - !Component
    name: GlobalBuffer
    class: smartbuffer_SRAM
    attributes: {depth: 2048, width: 256, datawidth: 8}
    constraints: {dataspace: {keep: [Inputs, Outputs], bypass: [Weights]}}
  - !Container {name: PE, spatial: {meshX: 16}}
  - !Component
    name: PEInputBuffer
    class: storage
    subclass: smartbuffer_RF
    attributes: {depth: 8192, width: 64, datawidth: 8}
    constraints: {dataspace: {keep: [Inputs], bypass: [Weights, Outputs]}}
  - !Container {name: distributed_buffers, spatial: {meshY: 4}}
  - !Parallel
    nodes:
    - !Component
      name: PEWeightBuffer
      class: storage
      attributes: {depth: 4096, width: 64, datawidth: 8}
      constraints: {dataspace: {keep: [Weights], bypass: [Inputs, Outputs]}}
    - !Component
      name: PEAccuBuffer
      class: storage
      attributes: {depth: 128, width: 24, datawidth: 24}
      constraints: {dataspace: {keep: [Outputs], bypass: [Inputs, Weights]}}
    - !Nothing {constraints: {dataspace: {keep: [Inputs]}}}
  - !Container {name: reg_mac, spatial: {meshY: 4}}
  - !Component
    name: PEWeightRegs
    class: storage
    attributes: {depth: 1, width: 512, cluster_size: 64, datawidth: 8}
    constraints: {dataspace: {keep: [Weights], bypass: [Inputs, Outputs]}}
  - !Component {name: mac, class: intmac, attributes: {multiplier_width: 8, adder_width: 16}}
ERT:
  version: '0.4'
  tables:
  - {name: "top.DRAM[1..1]", actions: [{name: write, energy: 512.0}, {name: read, energy: 512.0}]}
  - {name: "top.GlobalBuffer[1..1]", actions: [{name: write, energy: 66.310888}, {name: read, energy: 51.870888}]}
  - {name: "top.PEInputBuffer[1..16]", actions: [{name: write, energy: 241.503552}, {name: read, energy: 242.079552}]}
  - {name: "top.PEWeightBuffer[1..64]", actions: [{name: write, energy: 120.78787}, {name: read, energy: 121.36387}]}
  - {name: "top.PEAccuBuffer[1..64]", actions: [{name: write, energy: 2.875058}, {name: read, energy: 3.091057}]}
  - {name: "top.PEWeightRegs[1..256]", actions: [{name: write, energy: 0.080139}, {name: read, energy: 0.259899}]}
  - {name: "top.mac[1..256]", actions: [{name: compute, energy: 0.315}]}
"""  # noqa: E501  # a table
SIMBA_MAPPING = """
mapping:
- {target: PEAccuBuffer, type: temporal, factors: M2 P7, permutation: PM}
- {target: PEWeightBuffer, type: temporal, factors: R3 P4 S3, permutation: SPR}
- {target: inter_distributed_buffers_spatial, type: spatial, factors: M4, permutation: M, split: 0}
- {target: PEInputBuffer, type: temporal, factors: Q4, permutation: Q}
- {target: inter_PE_spatial, type: spatial, factors: C3 M4, permutation: MC, split: 2}
- {target: GlobalBuffer, type: temporal, factors: P4, permutation: P}
- {target: DRAM, type: temporal, factors: Q28, permutation: Q}
"""


def test_a_result_of_timeloop_4_for_a_simba_like_machine(tmp_path: Path) -> None:
    """Every count and energy that Timeloop 4 printed, energies less those of fills that it leaves out.

    From Accelergy-Project/timeloop-accelergy-exercises 67b75f2, example_designs/simba_like/ref_outputs.
    """
    problem = load_problem(written(tmp_path, PROCESSED))
    machine = load_architecture(written(tmp_path, SIMBA, "simba.yaml"), problems=[problem])
    mapping = load_mapping(written(tmp_path, SIMBA_MAPPING, "map.yaml"), problem, machine)
    cost = evaluate(problem, machine, mapping)
    assert printed(cost, problem) == {
        ("PEWeightRegs", "Weights"): (1, 18, 48, 225792, 32256, 0),
        ("PEAccuBuffer", "Outputs"): (14, 25088, 48, 200704, 50176, 225792),
        ("PEWeightBuffer", "Weights"): (18, 18, 48, 32256, 18, 0),
        ("PEInputBuffer", "Inputs"): (513, 50625, 12, 225792, 56700, 0),
        ("GlobalBuffer", "Inputs"): (6075, 151875, 1, 170100, 151875, 0),
        ("GlobalBuffer", "Outputs"): (14336, 401408, 1, 802816, 0, 1204224),
        ("DRAM", "Weights"): (864, 864, 1, 864, 0, 0),
        ("DRAM", "Inputs"): (151875, 151875, 1, 151875, 0, 0),
        ("DRAM", "Outputs"): (401408, 401408, 1, 0, 0, 401408),
    }
    assert (cost.cycles, cost.num_units_used, cost.utilization) == (225792, 48, 0.1875)
    energies = {(level.level, t): c.energy_pj for level in cost.levels for t, c in level.tensors.items()}
    energies["PEAccuBuffer", "Outputs"] -= 48 * 25088 * 2.875058
    energies["GlobalBuffer", "Outputs"] -= 401408 // 32 * 66.310888
    assert energies == pytest.approx(
        {
            ("PEWeightRegs", "Weights"): 245072.31,
            ("PEAccuBuffer", "Outputs"): 67862952.49,
            ("PEWeightBuffer", "Weights"): 23505671.40,
            ("PEInputBuffer", "Inputs"): 102530765.43,
            ("GlobalBuffer", "Inputs"): 590523.43,
            ("GlobalBuffer", "Outputs"): 3796748.18,
            ("DRAM", "Weights"): 55296.0,
            ("DRAM", "Inputs"): 9720320.0,
            ("DRAM", "Outputs"): 25690112.0,
        },
        abs=0.006,  # printed with two digits
    )
    assert cost.mac_energy_pj == pytest.approx(3413975.04)
