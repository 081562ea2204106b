"""Timeloop's files: read as ours, written so that reading gives the same, and refused with file and path."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tilewright.cost.nest_analysis import evaluate
from tilewright.errors import MachineError, UsageError
from tilewright.hardware.machine import TensorKind
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.presets import load_preset
from tilewright.mapping.base import LevelLoops, Loop, Mapping, MappingProblem, MappingSolution
from tilewright.mapping.problem import Operand, Problem, convolution, layer
from tilewright.mapping.random import Random
from tilewright.mapping.timeloop import (
    dump,
    load_architecture,
    load_mapping,
    load_problem,
    read_document,
    sections_of,
)
from tilewright.planning import Budget

TREE = """
architecture:
  version: 0.3
  subtree:
  - name: System
    attributes: {technology: 45nm, word-bits: 32}
    local:
    - name: DRAM
      class: DRAM
      attributes: {block-size: 64, bandwidth: 20.0, word-bits: 8}
    subtree:
    - name: Chip
      local:
      - name: GlobalBuffer
        class: storage
        subclass: smartbuffer_SRAM
        attributes: {memory_depth: 512, block-size: 8, n_banks: 4, read_bandwidth: 16, word-bits: 8}
      - name: NoC
        class: XY_NoC
        attributes: {datawidth: 16}
      subtree:
      - name: PE[0..15]
        local:
        - name: Weights[0..3]
          class: SRAM
          attributes: {sizeKB: 2, width: 64, block-size: 1}
        - name: Registers
          class: regfile
          attributes: {entries: 64, instances: 256, cluster-size: 16, multiple-buffering: 2, word-bits: 8}
        - name: MACC[0..31]
          class: intmac
          attributes: {datawidth: 16}
"""
LIST = """
architecture:
  version: 0.4
  nodes:
  - !Container
    name: system
  - !Component
    name: DRAM
    class: DRAM
    attributes: {type: LPDDR4, width: 64, datawidth: 8}
  - !Component
    name: glb
    class: smartbuffer_SRAM
    attributes: {depth: 1024, width: 64, datawidth: 8, read_bandwidth: 16, write_bandwidth: 4}
    constraints:
      dataspace: {keep: [Inputs, Outputs], bypass: [Weights]}
  - !Container
    name: column
    spatial: {meshX: 14}
    constraints: {spatial: {permutation: [N, C], factors: [N=1]}}
  - !Container
    name: PE
    spatial: {meshY: 12}
  - !Parallel
    nodes:
    - !Component
      name: ifmap_spad
      class: smartbuffer_RF
      attributes: {depth: 12, width: 16, datawidth: 8}
      constraints: {dataspace: {keep: [Inputs]}}
    - !Component
      name: weights_spad
      class: smartbuffer_RF
      attributes: {depth: 96, width: 16, datawidth: 8}
      constraints: {dataspace: {keep: [Weights]}}
  - !Component
    name: mac
    class: intmac
    attributes: {multiplier_width: 8, adder_width: 16, datawidth: 8}
"""
FLAT = """
arch:
  arithmetic: {instances: 8, word-bits: 8}
  storage:
  - {name: Registers, entries: 1, instances: 8, meshX: 8, word-bits: 8, cluster-size: 4}
  - {name: Buffer, entries: 64, instances: 2, word-bits: 24, num-banks: 2}
  - {name: DRAM, technology: DRAM, instances: 1, word-bits: 8, block-size: 64, bandwidth: 20.0}
mapspace:
  constraints:
  - {target: Registers, type: datatype, keep: [Weights], bypass: [Inputs, Outputs]}
  - {target: Buffer, type: temporal, factors: R=0}
"""
CONVOLUTION = """
problem:
  shape:
    name: cnn
    dimensions: [C, M, R, S, N, P, Q]
    coefficients:
    - {name: Wstride, default: 1}
    - {name: Hstride, default: 1}
    - {name: Wdilation, default: 1}
    data-spaces:
    - name: Weights
      projection: [[[C]], [[M]], [R], S]
    - name: Inputs
      projection: [[[N]], [[C]], [[R, Wdilation], [P, Wstride]], [[S], [Q, Hstride]]]
    - name: Outputs
      projection: [[[N]], [[M]], [[Q]], [[P]]]
      read-write: True
  instance: {C: 4, M: 6, R: 3, S: 2, N: 1, P: 8, Q: 9, Wstride: 2, Hstride: 3}
"""
PRODUCT = """
problem:
  shape:
    name: product
    dimensions: [I, J, K]
    data_spaces:
    - {name: A, projection: [[[I]], [[K]]]}
    - {name: B, projection: [[[K]], [[J]]]}
    - {name: Z, projection: [[[I]], [[J]]], read_write: true}
  instance: {I: 4, J: 6, K: 8}
"""


def written(folder: Path, text: str, name: str = "one.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# --- architectures ---


def test_a_tree_of_version_0_3(tmp_path: Path) -> None:
    machine = load_architecture(written(tmp_path, TREE, "simple.arch.yaml"))
    registers, weights, buffer, dram = machine.levels
    assert machine.name == "simple"
    assert [level.name for level in machine.levels] == ["Registers", "Weights", "GlobalBuffer", "DRAM"]
    assert [machine.num_instances(level) for level in machine.levels] == [256, 64, 1, 1]
    # 512 rows of 8 words; 2 KiB of words of 16 bits; 64 entries for two buffers.
    assert (buffer.capacity_bytes, weights.capacity_bytes, registers.capacity_bytes) == (4096, 2048, 32)
    assert (buffer.words_per_access, buffer.word_bits, weights.word_bits) == (8, 8, 16)
    # Words of 16 bits where a component says nothing, whatever is said around it.
    # A bank of 64 bits for words of 16 serves 4 instances; no width: the registers' own number.
    assert (weights.num_instances_per_access, registers.num_instances_per_access) == (4, 16)
    # In words per cycle, and of a common bandwidth each way has half.
    assert (dram.read_bytes_per_cycle, dram.write_bytes_per_cycle) == (10.0, 10.0)
    assert (buffer.read_bytes_per_cycle, buffer.write_bytes_per_cycle) == (16.0, None)
    assert dram.capacity_bytes is None
    (unit,) = machine.units
    assert (machine.num_units(unit), unit.macs_per_cycle, unit.mac_pj) == (512, {"int16": 1}, 1.0)


def test_a_list_of_version_0_4(tmp_path: Path) -> None:
    machine = load_architecture(written(tmp_path, LIST))
    weights, inputs, buffer, dram = machine.levels
    assert [level.name for level in machine.levels] == ["weights_spad", "ifmap_spad", "glb", "DRAM"]
    assert [machine.num_instances(level) for level in machine.levels] == [168, 168, 1, 1]
    assert set(buffer.holds) == {TensorKind.INPUT, TensorKind.OUTPUT}
    assert (weights.holds, inputs.holds) == ((TensorKind.WEIGHT,), (TensorKind.INPUT,))
    # A width of 64 bits is 8 words here, and the depth counts rows.
    assert (buffer.words_per_access, buffer.capacity_bytes) == (8, 8192)
    assert (weights.words_per_access, weights.capacity_bytes) == (2, 192)
    assert (dram.words_per_access, dram.capacity_bytes) == (8, None)
    assert "constraints on loops" in machine.description
    assert "constraints on loops" not in load_architecture(written(tmp_path, TREE)).description


def test_a_flat_list_with_its_constraints(tmp_path: Path) -> None:
    machine = load_architecture(written(tmp_path, FLAT))
    registers, buffer, dram = machine.levels
    assert [machine.num_instances(level) for level in machine.levels] == [8, 2, 1]
    assert (registers.holds, set(buffer.holds)) == ((TensorKind.WEIGHT,), set(TensorKind))
    assert (buffer.capacity_bytes, buffer.word_bits) == (192, 24)
    assert dram.read_bytes_per_cycle == 10.0
    assert "constraints on loops" in machine.description


def test_energies_are_those_of_timeloops_table_or_given(tmp_path: Path) -> None:
    """The preset's energies were read from Timeloop's output; the file has no energies."""
    preset = load_preset("simba-cosa-repo")
    document = yaml.safe_load(dump(layer("1_1_1_1_1"), preset, Mapping(()))["arch.yaml"])
    memories = document["arch"]["storage"]
    for memory in memories:
        del memory["vector-access-energy"]
    del document["arch"]["arithmetic"]["energy"]
    machine = load_architecture(written(tmp_path, yaml.safe_dump(document)))
    for ours, theirs in zip(machine.levels, preset.levels, strict=True):
        assert ours.read_pj == pytest.approx(theirs.read_pj, rel=1e-9)
        assert ours.write_pj == pytest.approx(theirs.write_pj, rel=1e-9)
    assert machine.units[0].mac_pj == preset.units[0].mac_pj
    memories[-1]["vector-access-energy"] = 12.5
    document["arch"]["arithmetic"]["energy"] = 3
    machine = load_architecture(written(tmp_path, yaml.safe_dump(document)))
    assert (machine.outermost.read_pj, machine.units[0].mac_pj) == (12.5, 3.0)


def test_names_of_tensors_may_be_the_problems(tmp_path: Path) -> None:
    product = load_problem(written(tmp_path, PRODUCT, "product.yaml"))
    constraints = "constraints: [{target: Buffer, type: bypass, bypass: [A], keep: [B, Z]}]\n"
    flat = written(tmp_path, FLAT.split("mapspace")[0] + constraints)
    machine = load_architecture(flat, problems=[product])
    assert set(machine.level("Buffer").holds) == {TensorKind.INPUT, TensorKind.OUTPUT}
    with pytest.raises(MachineError, match=r"bypass: what 'A' holds is unknown"):
        load_architecture(flat)


# --- problems ---


def test_a_shape_with_coefficients(tmp_path: Path) -> None:
    problem = load_problem(written(tmp_path, CONVOLUTION, "layer.yaml"))
    assert problem.extents == {"C": 4, "M": 6, "R": 3, "S": 2, "N": 1, "P": 8, "Q": 9}
    words = {o.name: problem.num_words(o) for o in problem.operands}
    # Inputs: (8 - 1) * 2 + 3 rows of (9 - 1) * 3 + 2 for each of 4 channels.
    assert words == {"Weights": 4 * 6 * 3 * 2, "Inputs": 4 * 17 * 26, "Outputs": 6 * 8 * 9}
    assert [o.kind for o in problem.operands] == [TensorKind.WEIGHT, TensorKind.INPUT, TensorKind.OUTPUT]


def test_a_layer_of_the_built_in_shape(tmp_path: Path) -> None:
    text = "problem: {shape: cnn-layer, R: 3, S: 3, P: 7, Q: 7, C: 8, K: 4, N: 1, Wstride: 2, Hstride: 2}"
    expected = convolution(
        {"R": 3, "S": 3, "P": 7, "Q": 7, "C": 8, "K": 4, "N": 1}, stride=(2, 2), name="one"
    )
    assert load_problem(written(tmp_path, text)) == expected


def test_tensors_without_telling_names(tmp_path: Path) -> None:
    problem = load_problem(written(tmp_path, PRODUCT))
    kinds = {o.name: o.kind for o in problem.operands}
    assert kinds == {"A": TensorKind.WEIGHT, "B": TensorKind.INPUT, "Z": TensorKind.OUTPUT}


# --- mappings ---

MAPPING = """
mapping:
- {target: Buffer, type: bypass, keep: [A, B, Z], bypass: []}
- {target: Memory, type: temporal, factors: I=0 J=2 K=1, permutation: JIK}
- {target: Memory, type: spatial, factors: "I1 J1 K2", permutation: KIJ, split: 1}
- {target: Buffer, factors: ["K = 4", "J=3"], permutation: [J, K]}
"""
TWO_LEVELS = """
name: two levels
levels:
  - {name: Buffer, capacity_bytes: 4096, num_instances_per_parent: 2}
  - {name: Memory}
units: [{name: mac, kind: mac, macs_per_cycle: {int8: 1}}]
"""


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


# --- there and back ---

ODD = Problem(
    "odd",
    (("oc", 12), ("step", 5), ("x", 9), ("w", 3)),
    (
        Operand("Filter", TensorKind.WEIGHT, ((("oc", 1),), (("w", 1),))),
        Operand("In", TensorKind.INPUT, ((("x", 4), ("w", 7), ("step", 1)),)),
        Operand("Out", TensorKind.OUTPUT, ((("oc", 1),), (("x", 1),), (("step", 1),))),
    ),
)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "problem",
    [layer("3_14_16_512_2"), convolution({"G": 4, "P": 9, "R": 3}, dilation=(2, 1)), convolution({})],
    ids=["conv", "groups", "one"],
)
@pytest.mark.parametrize("name", ["simba-cosa-repo", "two levels"])
def test_what_is_written_reads_the_same(name: str, problem: Problem, seed: int, tmp_path: Path) -> None:
    machine = parse_machine(TWO_LEVELS) if name == "two levels" else load_preset(name)
    found = Random(num_valid=1, seed=seed).solve(MappingProblem(problem, machine), Budget())
    assert isinstance(found, MappingSolution)
    for file, text in dump(problem, machine, found.mapping).items():
        written(tmp_path, text, file)
        assert sections_of(text)
    again = load_problem(tmp_path / "problem.yaml")
    assert (again.dims, again.operands) == (problem.dims, problem.operands)
    described = load_architecture(tmp_path / "arch.yaml", tmp_path / "map.yaml", problems=[again])
    assert load_mapping(tmp_path / "map.yaml", again, described) == found.mapping
    for ours, theirs in zip(machine.levels, described.levels, strict=True):
        for key in ("name", "capacity_bytes", "word_bits", "words_per_access", "num_instances_per_parent"):
            assert getattr(ours, key) == getattr(theirs, key)
        assert set(ours.holds) == set(theirs.holds)
    if name != "two levels":  # which has no energies, where Timeloop's files then mean its table
        cost = evaluate(again, described, found.mapping)
        assert cost == found.cost


def test_dims_get_a_letter_each(tmp_path: Path) -> None:
    """Timeloop's permutations name dims by one letter, so others are renamed, and a comment says how."""
    machine = load_preset("simba-cosa-repo")
    found = Random(num_valid=1).solve(MappingProblem(ODD, machine), Budget())
    assert isinstance(found, MappingSolution)
    texts = dump(ODD, machine, found.mapping)
    again = load_problem(written(tmp_path, texts["problem.yaml"]))
    letters = dict(zip(again.extents, ODD.extents, strict=True))
    assert all(len(letter) == 1 for letter in letters)
    assert all(f"# {a} is {b}:" in texts["problem.yaml"] for a, b in letters.items() if a != b)
    mapping = load_mapping(written(tmp_path, texts["map.yaml"]), again, machine)
    renamed = tuple(
        LevelLoops(
            loops.level,
            tuple(Loop(letters[x.dim], x.factor) for x in loops.temporal),
            tuple(Loop(letters[x.dim], x.factor) for x in loops.spatial),
        )
        for loops in mapping.levels
    )
    assert Mapping(renamed) == found.mapping
    assert evaluate(again, machine, mapping) == evaluate(ODD, machine, found.mapping)


def test_an_extent_that_the_mapping_pads_is_written_as_padded(tmp_path: Path) -> None:
    machine = parse_machine(TWO_LEVELS)
    prime = convolution({"K": 13, "C": 3})
    buffer = LevelLoops("Buffer", (Loop("K", 7),))
    mapping = Mapping((LevelLoops("Memory", (Loop("C", 3),), (Loop("K", 2),)), buffer))
    texts = dump(prime, machine, mapping)
    assert "# K is 13 in the layer; the mapping pads it to 14." in texts["problem.yaml"]
    again = load_problem(written(tmp_path, texts["problem.yaml"]))
    assert again.extents == prime.extents | {"K": 14}
    assert load_mapping(written(tmp_path, texts["map.yaml"]), again, machine) == mapping
    ours, theirs = evaluate(prime, machine, mapping), evaluate(again, machine, mapping)
    assert (ours.cycles, ours.levels) == (theirs.cycles, theirs.levels)


def test_two_loops_of_a_dim_at_one_level_are_one_or_an_error() -> None:
    machine = parse_machine(TWO_LEVELS)
    problem = convolution({"K": 8, "C": 3})

    def text(*loops: Loop) -> str:
        return dump(problem, machine, Mapping((LevelLoops("Memory", loops),)))["map.yaml"]

    assert "K=8" in text(Loop("K", 2), Loop("K", 4), Loop("C", 3))
    with pytest.raises(UsageError, match="level Memory: two separate loops of K"):
        text(Loop("K", 2), Loop("C", 3), Loop("K", 4))


def test_what_timeloop_cannot_say_is_a_comment() -> None:
    machine = load_preset("simba-cosa-repo")
    buffer = machine.level("GlobalBuffer").model_copy(update={"write_pj": 3.0})
    levels = tuple(buffer if level.name == buffer.name else level for level in machine.levels)
    text = dump(layer("1_1_1_1_1"), machine.model_copy(update={"levels": levels}), Mapping(()))["arch.yaml"]
    assert text.startswith("# A write to GlobalBuffer costs 3.0 pJ")


# --- refusals ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mapping: []", {"mapping"}),
        ("version: 1\n'arch' : {}\nproblem:\n  shape: x\n", {"arch", "problem"}),
        (TWO_LEVELS, set()),
        ("description: |\n  arch: a word in a text\n", set()),
        ("mapping: [", {"mapping"}),
    ],
)
def test_what_is_timeloops_shows_in_its_lines(text: str, expected: set[str]) -> None:
    assert sections_of(text) == expected


def _loaded(kind: str, path: Path) -> object:
    if kind == "mapping":
        problem = load_problem(written(path.parent, PRODUCT, "product.yaml"))
        return load_mapping(path, problem, parse_machine(TWO_LEVELS))
    return load_architecture(path) if kind == "architecture" else load_problem(path)


@pytest.mark.parametrize(
    ("kind", "text", "old", "new", "message"),
    [
        ("architecture", TREE, "memory_depth", "memory_deth", "attributes.memory_deth: unknown key"),
        ("architecture", TREE, "memory_depth: 512", "memory_depth: 0", "memory_depth: 0 is not between 1"),
        ("architecture", TREE, "memory_depth: 512", "memory_depth: 2**9", "a whole number, found '2\\*\\*9'"),
        ("architecture", TREE, "memory_depth: 512, ", "", "GlobalBuffer has no size"),
        ("architecture", TREE, "width: 64", "width: 60", "60 bits is no multiple of its words of 16 bits"),
        (
            "architecture",
            TREE,
            "instances: 256",
            "instances: 250",
            "250 of Registers cannot be spread evenly",
        ),
        ("architecture", TREE, "class: intmac", "class: XY_NoC", "there is no compute unit"),
        ("architecture", TREE, "class: XY_NoC", "class: gizmo", "the class 'gizmo' is neither a memory"),
        ("architecture", TREE, "read_bandwidth: 16", "shared_bandwidth: 16", "give read_bandwidth and write"),
        ("architecture", TREE, "[0..15]", "[15..0]", "'PE\\[15..0\\]' counts down"),
        (
            "architecture",
            TREE,
            "subtree:\n      - name: PE",
            "subtre:\n      - name: PE",
            "did you mean subtree",
        ),
        ("architecture", TREE, "  - name: System", "  - name: Other\n  - name: System", "a second branch"),
        ("architecture", TREE, "name: Registers", "name: DRAM", "the name 'DRAM' is given twice"),
        (
            "architecture",
            TREE,
            "multiple-buffering: 2",
            "multiple-buffering: 0.5",
            "not between 1 and the 64",
        ),
        ("architecture", LIST, "!Parallel", "!!python/object:os.system", "could not determine a constructor"),
        ("architecture", LIST, "!Parallel", "!Fancy", "the tag !Fancy is unknown"),
        ("architecture", LIST, "{meshX: 14}", "{meshZ: 14}", "spatial.meshZ: unknown key of spatial"),
        (
            "architecture",
            LIST,
            "    attributes: {type",
            "    constraints: {dataspace: {bypass: [Inputs, Weights, Outputs]}}\n    attributes: {type",
            "DRAM is the outermost memory and must keep every tensor",
        ),
        (
            "architecture",
            LIST,
            "name: glb",
            "nam: glb",
            "nodes\\[2\\].nam: unknown key of a node; did you mean",
        ),
        ("architecture", LIST, "architecture:", "architecure:", "unknown section; did you mean architecture"),
        ("architecture", FLAT, "instances: 2,", "", "instances is missing"),
        ("architecture", FLAT, "target: Registers", "target: Register", "there is no memory 'Register'"),
        ("architecture", FLAT, "arch:", "problem:", "there is no architecture section"),
        ("problem", CONVOLUTION, "[[M]]", "[[K]]", "'K' is neither a dimension nor a coefficient"),
        ("problem", CONVOLUTION, "M: 6, ", "", "the extent of M is missing"),
        ("problem", CONVOLUTION, "M: 6", "M: -6", "instance.M: -6 is not between 1"),
        ("problem", CONVOLUTION, "M: 6", "MM: 6", "instance.MM: unknown key of this instance"),
        (
            "problem",
            CONVOLUTION,
            "read-write: True",
            "read-write: False",
            "exactly one data space is written",
        ),
        ("problem", CONVOLUTION, "[R, Wdilation]", "[R, P]", "exactly one dimension, not 2"),
        ("problem", CONVOLUTION, "[R, Wdilation]", "[P, Wdilation]", "a dim occurs twice in one axis"),
        ("problem", CONVOLUTION, "Hstride: 3}", "Hstride: 3, densities: {A: 0.5}}", "sparse data is not"),
        ("problem", CONVOLUTION, "[C, M, R", "[C, C, R", "the dim C is given twice"),
        ("problem", CONVOLUTION, "coefficients", "coeficients", "did you mean coefficients"),
        ("problem", CONVOLUTION, "problem:", "mapping:", "there is no problem section"),
        ("mapping", MAPPING, "target: Buffer, factors", "target: Buf, factors", "there is no level 'Buf'"),
        ("mapping", MAPPING, "K = 4", "K <= 4", "'K <= 4' is no factor such as C=4"),
        ("mapping", MAPPING, "K = 4", "K = 3", "factors of K multiply to 6, its extent is 8"),
        ("mapping", MAPPING, "K = 4", "L = 4", "there is no dim 'L'; the problem has I, J, K"),
        ("mapping", MAPPING, "K = 4", "K = 99999999999999999999", "the factor of K is too large"),
        ("mapping", MAPPING, '"I1', '"I0', "a second factor of 0 for I"),
        ("mapping", MAPPING, "[J, K]", "[J, J]", "the dim J is named twice"),
        ("mapping", MAPPING, "JIK", "JIX", "there is no dim 'X'"),
        ("mapping", MAPPING, "keep: [A, B, Z], bypass: []", "bypass: [A]", "Buffer keeps A; load"),
        ("mapping", MAPPING, "type: spatial", "type: sideways", "'sideways' is none of temporal"),
        ("mapping", MAPPING, "type: spatial", "type: temporal", "a second directive for the temporal loops"),
        ("mapping", MAPPING, "split: 1", "splits: 1", "unknown key of a directive; did you mean split"),
        ("mapping", "mapping: &a [*a]", "", "", "aliases are not allowed"),
        ("mapping", "mapping: {a: 1}", "", "", "expected a list, found keys and values"),
        ("mapping", "[", "", "", "line 1"),
    ],
)
def test_every_mistake_is_one_line_with_file_and_path(
    kind: str, text: str, old: str, new: str, message: str, tmp_path: Path
) -> None:
    assert old in text
    path = written(tmp_path, text.replace(old, new, 1))
    with pytest.raises(MachineError, match=message) as caught:
        _loaded(kind, path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_timeloop_file(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be read"):
        read_document(tmp_path / "missing.yaml")
    with pytest.raises(MachineError, match="unknown section"):
        read_document(written(tmp_path, TWO_LEVELS))
