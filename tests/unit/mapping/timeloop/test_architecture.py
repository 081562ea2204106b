"""Timeloop's architectures read as machines."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.support.timeloop import FLAT, LIST, PROCESSED, PRODUCT, TREE, written

from tilewright.errors import MachineError
from tilewright.hardware.machine import TensorKind
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import Mapping
from tilewright.loops.problem import layer
from tilewright.mapping.timeloop import dump, load_architecture, load_problem


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


def test_an_exported_preset_is_the_preset(tmp_path: Path) -> None:
    preset = load_preset("simba-cosa-repo")
    texts = dump(layer("1_1_1_1_1"), preset, Mapping(()))
    maps = written(tmp_path, texts["map.yaml"], "map.yaml")
    machine = load_architecture(written(tmp_path, texts["arch.yaml"]), maps)
    assert (machine.levels, machine.units) == (preset.levels, preset.units)


def test_what_the_front_end_hands_on(tmp_path: Path) -> None:
    machine = load_architecture(written(tmp_path, PROCESSED))
    psums, weights, inputs, buffer, dram = machine.levels
    assert [level.name for level in (psums, weights, inputs)] == ["psum_spad", "weights_spad", "ifmap_spad"]
    # Fan-outs of two memories that keep nothing are one, of what feeds them.
    assert [level.num_instances_per_parent for level in machine.levels] == [1, 1, 168, 1, 1]
    assert "Left out, as they keep nothing: inter_PE_column_spatial, inter_PE_spatial." in machine.description
    assert "constraints on loops" in machine.description
    sizes = [(level.capacity_bytes, level.words_per_access) for level in machine.levels]
    assert sizes == [(32, 1), (384, 2), (24, 2), (131072, 8), (None, 8)]
    # Of the table the dearest entry of an action; a write's where there is no update.
    assert (buffer.read_pj, buffer.write_pj, machine.units[0].mac_pj) == (18.183829, 14.137929, 0.207692)
    assert dram.read_pj == 512.0


def test_energies_of_a_table_of_version_0_2(tmp_path: Path) -> None:
    table = """
ERT:
  version: 0.2
  tables:
    chip.Buffer: {read: [{arguments: {a: 1}, energy: 3}, {arguments: {a: 0}, energy: 2}], write: {energy: 4}}
    chip.MAC: {mac_random: {energy: 0.5}, idle: {energy: 9}}
"""
    machine = load_architecture(written(tmp_path, FLAT), written(tmp_path, table, "ERT.yaml"))
    buffer = machine.level("Buffer")
    assert (buffer.read_pj, buffer.write_pj, machine.units[0].mac_pj) == (3.0, 4.0, 0.5)
    update = table.replace("write: {energy: 4}", "write: {energy: 4}, update: {energy: 5}")
    with pytest.raises(MachineError, match=r"a write costs 4.0 pJ and an update 5.0 pJ"):
        load_architecture(written(tmp_path, FLAT), written(tmp_path, update, "ERT.yaml"))


@pytest.mark.parametrize(
    ("version", "attributes", "expected"),
    [
        # What of a width of 128 bits is left beside words of 8: words since version 0.3, instances before.
        ("0.2", "width: 128", (1, 16)),
        ("0.3", "width: 128", (16, 1)),
        ("'0.4'", "width: 128", (16, 1)),
        ("0.3", "width: 128, block-size: 4", (4, 4)),
        ("0.2", "width: 128, cluster-size: 4", (4, 4)),
        ("0.3", "width: 128, cluster-size: 4, block_size: 4", (4, 4)),
        ("0.3", "width: 8, cluster-size: 64", (1, 64)),
        ("0.3", "block-size: 4", (4, 1)),
    ],
)
def test_words_and_instances_of_one_access(
    version: str, attributes: str, expected: tuple[int, int], tmp_path: Path
) -> None:
    text = f"""
architecture:
  version: {version}
  subtree:
  - name: system
    local:
    - {{name: DRAM, class: DRAM}}
    - {{name: Buffer, class: SRAM, attributes: {{entries: 64, word-bits: 8, {attributes}}}}}
    - {{name: mac, class: intmac}}
"""
    buffer = load_architecture(written(tmp_path, text)).level("Buffer")
    assert (buffer.words_per_access, buffer.num_instances_per_access) == expected


def test_a_buffer_of_two_halves_costs_as_a_whole_one(tmp_path: Path) -> None:
    flat = FLAT.replace("entries: 64,", "entries: 64, multiple-buffering: 2,")
    half, whole = (load_architecture(written(tmp_path, text)).level("Buffer") for text in (flat, FLAT))
    assert (half.capacity_bytes, whole.capacity_bytes) == (96, 192)
    assert half.read_pj == whole.read_pj


def test_constraints_may_be_chosen_by_name(tmp_path: Path) -> None:
    text = FLAT.replace("  constraints:", "  constraints: some\n  constraints_some:")
    assert (
        load_architecture(written(tmp_path, text)).levels == load_architecture(written(tmp_path, FLAT)).levels
    )
    text = FLAT.replace("  constraints:", "  constraints: others\n  constraints_some:")
    with pytest.raises(MachineError, match=r"mapspace.constraints: there is no constraints_others"):
        load_architecture(written(tmp_path, text))


def test_a_memory_may_be_named_by_its_number(tmp_path: Path) -> None:
    text = FLAT.replace("target: Registers", "target: 0")
    assert (
        load_architecture(written(tmp_path, text)).levels == load_architecture(written(tmp_path, FLAT)).levels
    )
