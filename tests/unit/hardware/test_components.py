"""What parts of a chip take: areas that grow with sizes, by tables whose points they go through."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.hardware.components import (
    ENERGY_SOURCE,
    buffer_um2,
    components_of,
    multiplication_pj,
    multiplier_um2,
    with_energies,
)
from tilewright.hardware.presets import load_preset, preset_names
from tilewright.hardware.variants import parse_axis, variants


@pytest.mark.parametrize(
    ("capacity_bytes", "um2"),
    [(56, 387.3), (256, 1240.6), (4096, 17301.4), (9984, 45478.8), (19968, 90957.6)],
)
def test_a_buffer_has_the_area_of_the_published_macros(capacity_bytes: int, um2: float) -> None:
    assert buffer_um2(capacity_bytes) == pytest.approx(um2, rel=1e-4)


def test_few_bits_are_flip_flops_and_areas_never_fall() -> None:
    assert buffer_um2(2) == pytest.approx(2 * buffer_um2(1))
    areas = [buffer_um2(size) for size in range(1, 20_000)]
    assert all(small <= large for small, large in pairwise(areas))


def test_multipliers_are_those_of_the_table_and_their_adders() -> None:
    assert multiplier_um2("int8") == multiplier_um2("uint8") == 282 + 137
    assert multiplier_um2("float16") == multiplier_um2("bfloat16") == 1640 + 1360
    assert multiplier_um2("int8") < multiplier_um2("int16") < multiplier_um2("float16")


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_components_that_lie_on_the_chip(name: str) -> None:
    machine = load_preset(name)
    units, *levels = components_of(machine)
    assert units.area_mm2 > 0
    assert machine.outermost.name not in {level.name for level in levels}
    assert all(level.area_mm2 > 0 and level.source.startswith("public:") for level in levels)


def test_instances_count() -> None:
    machine = load_preset("eyeriss")
    axis = parse_axis("levels.PsumSpad.num_instances_per_parent=84,168", machine)
    half, whole = (components_of(variant.machine) for variant in variants(machine, [axis]))
    for few, many in zip(half[:-1], whole[:-1], strict=True):
        assert many.area_mm2 == pytest.approx(2 * few.area_mm2)
        assert many.num_instances == 2 * few.num_instances
    assert half[-1] == whole[-1], "there is one global buffer"


def test_a_machine_without_energies_gets_those_of_the_tables() -> None:
    machine = load_preset("eyeriss")
    assert with_energies(machine) is machine
    bare = machine.model_copy(
        update={
            "levels": tuple(
                level.model_copy(update={"read_pj": None, "write_pj": None}) for level in machine.levels
            ),
            "units": tuple(unit.model_copy(update={"mac_pj": None}) for unit in machine.units),
            "energy_source": None,
        }
    )
    filled = with_energies(bare)
    assert filled.energy_source == ENERGY_SOURCE
    pj = {level.name: (level.read_pj or 0.0) / level.words_per_access for level in filled.levels}
    assert pj["InputSpad"] < pj["WeightSpad"] < pj["GlobalBuffer"] < pj["DRAM"] == 1300 * 16 / 64
    assert filled.mac_pj == multiplication_pj("int16")
    assert multiplication_pj("int8") < filled.mac_pj < multiplication_pj("float32")
    assert machine.model_validate_json(filled.model_dump_json(exclude_defaults=True)) == filled


def test_a_sweep_of_a_machine_without_energies_says_where_they_are_from(tmp_path: Path) -> None:
    path = tmp_path / "bare.yaml"
    levels = "{name: Buffer, capacity_bytes: 8192, num_instances_per_parent: 4}, {name: Memory}"
    unit = "{name: mac, kind: mac, macs_per_cycle: {int8: 1}}"
    path.write_text(f"name: bare\nlevels: [{levels}]\nunits: [{unit}]\n")
    found = tw.map("1_4_4_4_1", path, mapper="paper", sweep=["levels.Buffer.capacity=8KiB,32KiB"])
    assert ENERGY_SOURCE in found.energy_source
    small, large = found.variants
    assert small.mean_energy_pj is not None
    assert large.mean_energy_pj is not None
    assert 0 < small.mean_energy_pj < large.mean_energy_pj
