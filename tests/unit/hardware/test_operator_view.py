"""What of a machine one operator uses: one of several memories, the fastest unit, single multipliers."""

from __future__ import annotations

import pytest
from tests.support.processors import machine_as, processors_here

from tilewright.errors import MachineError
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.operator_view import fastest_multipliers, operator_view
from tilewright.hardware.presets import load_preset, preset_names

TWO = """
name: two
clock_hz: 1 GHz
num_clusters: 2
num_cores_per_cluster: 4
levels:
  - {name: Scratch, per: core, num_instances_per_parent: 4, capacity_bytes: 1 KiB}
  - {name: Shared, per: cluster, capacity_bytes: 8 KiB, word_bits: 16}
  - {name: DRAM, per: cluster, num_instances_per_parent: 2}
units:
  - {name: vector, kind: vector, macs_per_cycle: {int8: 16}, ops_per_cycle: {int8: 16}}
  - {name: array, kind: matrix, macs_per_cycle: {int8: 64, float16: 32}, num_per_instance: 2}
"""


def two(old: str = "", new: str = "") -> str:
    assert old in TWO
    return TWO.replace(old, new)


def test_one_of_several_memories_and_the_lanes_of_the_fastest_unit() -> None:
    view = operator_view(parse_machine(TWO))
    assert [view.machine.num_instances(level) for level in view.machine.levels] == [4, 1, 1]
    (unit,) = view.machine.units
    assert (unit.kind, unit.num_per_instance, dict(unit.macs_per_cycle)) == ("mac", 128, {"int8": 1.0})
    assert (
        view.note
        == "one of 2 DRAM with 512 multiply-accumulates of int8 per cycle by array (64 per cycle each)"
    )


def test_words_of_inputs_say_the_element_type() -> None:
    text = two("capacity_bytes: 1 KiB}", "capacity_bytes: 1 KiB, word_bits: 16}")
    (unit,) = operator_view(parse_machine(text)).machine.units
    assert (unit.num_per_instance, dict(unit.macs_per_cycle)) == (64, {"float16": 1.0})


def test_levels_inside_the_one_that_the_unit_reads_are_left_out() -> None:
    text = two("kind: matrix,", "kind: matrix, level: Shared,")
    # Beside each Shared stand 2 arrays of 32 with float16, its words' width; each of 8 Scratches has a vector
    # unit of 16. Together 128 of either: the first that is fastest stays.
    view = operator_view(parse_machine(text))
    assert [level.name for level in view.machine.levels] == ["Scratch", "Shared", "DRAM"]
    text = text.replace("num_per_instance: 2", "num_per_instance: 4")
    view = operator_view(parse_machine(text))
    assert [level.name for level in view.machine.levels] == ["Shared", "DRAM"]
    assert view.machine.units[0].num_per_instance == 4 * 32


def test_a_machine_of_single_multipliers_stays_itself() -> None:
    machine = load_preset("simba-cosa-repo")
    assert operator_view(machine).machine is machine


SINGLE = """
name: single
levels: [{name: Buffer, capacity_bytes: 64}, {name: DRAM}]
units:
  - {name: vector, kind: vector, level: DRAM, macs_per_cycle: {int8: 1}, ops_per_cycle: {int8: 1}, mac_pj: 7}
  - {name: array, kind: mac, num_per_instance: 3, macs_per_cycle: {int8: 1}, mac_pj: 2}
energy_source: made up
"""


def test_the_energy_of_a_multiplication_is_that_of_the_unit_mapped_onto() -> None:
    """Also where the machine would do as it is but for another unit's energy, which is listed first."""
    machine = parse_machine(SINGLE)
    assert machine.mac_pj == 7
    view = operator_view(machine).machine
    assert (view.mac_pj, view.units[0].name) == (2, "array")
    free = parse_machine(SINGLE.replace("{int8: 1}, mac_pj: 2", "{int8: 1}"))
    assert operator_view(free).machine.mac_pj == 0
    alike = parse_machine(SINGLE.replace("mac_pj: 7", "mac_pj: 2"))
    assert operator_view(alike).machine is alike


def test_a_unit_that_takes_elements_as_wide_as_words_is_mapped_onto_before_a_faster_one() -> None:
    """A processor with a matrix unit of bfloat16 computes operators of float32 on its vectors."""
    (machine,) = (machine_as(name) for name in processors_here()[-1:])
    assert [unit.name for unit in machine.units][:1] == ["vector"]
    assert fastest_multipliers(machine)[0].name == "vector"
    text = SINGLE.replace("{int8: 1}, ops", "{float32: 1}, ops").replace(
        "{name: DRAM}", "{name: DRAM, word_bits: 32}"
    )
    text = text.replace("capacity_bytes: 64", "capacity_bytes: 64, word_bits: 32")
    assert fastest_multipliers(parse_machine(text))[0].name == "vector"
    assert fastest_multipliers(parse_machine(text.replace("float32", "float16")))[0].name == "array"


@pytest.mark.parametrize(("rate", "lanes"), [("0.5", 1), ("1.4", 4), ("2", 6)])
def test_units_together_have_the_lanes_of_their_whole_rate(rate: str, lanes: int) -> None:
    """Three of 1.4 per cycle are four lanes: fractions are lost once, not for each unit."""
    text = SINGLE.replace("3, macs_per_cycle: {int8: 1}", f"3, macs_per_cycle: {{int8: {rate}}}")
    assert operator_view(parse_machine(text)).machine.units[0].num_per_instance == lanes


@pytest.mark.parametrize("name", preset_names())
def test_a_view_is_a_machine_with_one_memory(name: str) -> None:
    machine = load_preset(name)
    view = operator_view(machine).machine
    assert view.outermost.num_instances_per_parent == 1
    assert type(view).model_validate(view.model_dump()) == view
    assert view.num_units(view.units[0]) * machine.outermost.num_instances_per_parent <= sum(
        machine.num_units(u) * max(u.macs_per_cycle.values(), default=0) for u in machine.units
    )


def test_what_cannot_be_mapped_onto_says_so() -> None:
    text = two("macs_per_cycle: {int8: 64, float16: 32}", "ops_per_cycle: {int8: 1}")
    text = text.replace("macs_per_cycle: {int8: 16}, ", "")
    with pytest.raises(
        MachineError, match=r"machine 'two': units: none multiplies .* give one macs_per_cycle"
    ):
        operator_view(parse_machine(text))
    with pytest.raises(MachineError, match=r"levels\[2\].holds: .* 'DRAM' must hold weight; add it"):
        operator_view(parse_machine(two("name: DRAM,", "name: DRAM, holds: [input, output],")))


def test_one_of_several_memories_has_its_part_of_static_power() -> None:
    view = operator_view(parse_machine(two("clock_hz: 1 GHz", "clock_hz: 1 GHz\nstatic_power_w: 8")))
    assert view.machine.static_power_w == 4
