"""What parts of a chip take: areas that grow with sizes, by tables whose points they go through."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.hardware.components import (
    ENERGY_SOURCE,
    LIBRARY,
    buffer_um2,
    components_of,
    multiplication_pj,
    multiplier_um2,
    with_energies,
)
from tilewright.hardware.machine_file import machine_text, parse_machine
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


NAMED = """
name: named
clock_hz: 1 GHz
technology_nm: 45
levels:
  - {name: Spad, capacity_bytes: 32, num_instances_per_parent: 168, word_bits: 16}
  - {name: Store, capacity_bytes: 8 KiB, word_bits: 16, words_per_access: 4}
  - {name: Memory, component: lpddr4, word_bits: 16, words_per_access: 4}
units: [{name: Mac, kind: mac, macs_per_cycle: {int16: 1}}]
"""


def test_a_machine_with_a_node_takes_what_it_leaves_out_from_the_library() -> None:
    machine = parse_machine(NAMED)
    assert machine.level("Store").read_pj == 10.0
    assert machine.level("Memory").read_pj == 64 * 8
    assert machine.mac_pj == multiplication_pj("int16")
    assert all(LIBRARY in (machine.source_of(f"levels[{n}].read_pj") or "") for n in range(3))
    assert machine.static_power_w == pytest.approx(sum(c.leakage_w for c in components_of(machine)))
    assert parse_machine(machine_text(machine)) == machine
    given = parse_machine(NAMED.replace("8 KiB,", "8 KiB, read_pj: 3, source: ours,"))
    assert given.level("Store").read_pj == 3
    newer = parse_machine(NAMED.replace("_nm: 45", "_nm: 7"))
    assert newer.level("Store").read_pj == pytest.approx(7.5)
    assert newer.level("Memory").read_pj == machine.level("Memory").read_pj
    mine, theirs = (sum(c.area_mm2 for c in components_of(m)) for m in (newer, machine))
    assert mine == pytest.approx(theirs * 0.059)


def test_what_the_library_gives_follows_what_is_swept() -> None:
    machine = parse_machine(NAMED)
    axes = [parse_axis(text, machine) for text in ("technology_nm=45,7", "levels.Store.capacity=8KiB,32KiB")]
    found = [v.machine.level("Store").read_pj for v in variants(machine, axes)]
    assert found == pytest.approx([10.0, 20.0, 7.5, 8.5])


# pJ of Accelergy's Eyeriss at 40 nm (its exercises, 04_eyeriss_like, ERT_summary), random accesses.
ACCELERGY = {"mac": 2.2, "ifmap_spad": 0.237, "psum_spad": 0.251, "weights_spad": 1.586,
             "weights_glb": 8.422, "shared_glb": 56.092}  # fmt: skip
DEVIATIONS = {"mac": -0.62, "ifmap_spad": 0.0, "psum_spad": 0.15, "weights_spad": 0.0, "weights_glb": 0.17,
              "shared_glb": -0.44}  # fmt: skip


def test_the_library_beside_accelergy_is_as_the_page_says() -> None:
    """The table of docs/mapping.md: registers by construction, the rest by other sources."""
    levels = [
        f"{{name: {name}, capacity_bytes: {size}, component: {kind}, word_bits: {bits}}}"
        for name, size, kind, bits in (
            ("ifmap_spad", 24, "register-file", 16), ("psum_spad", 32, "register-file", 16),
            ("weights_spad", 384, "register-file", 16), ("weights_glb", 8192, "sram", 64),
            ("shared_glb", 102400, "sram", 64), ("Memory", 1 << 30, "lpddr4", 64),
        )
    ]  # fmt: skip
    text = f"name: eyeriss_like\ntechnology_nm: 40\nlevels: [{', '.join(levels)}]\n"
    machine = parse_machine(f"{text}units: [{{name: mac, kind: mac, macs_per_cycle: {{int16: 1}}}}]\n")
    ours = {"mac": machine.mac_pj, **{level.name: level.read_pj for level in machine.levels}}
    page = (Path(__file__).parents[3] / "docs" / "mapping.md").read_text()
    for name, theirs in ACCELERGY.items():
        deviation = (ours[name] or 0.0) / theirs - 1
        assert deviation == pytest.approx(DEVIATIONS[name], abs=0.01), name
        assert f"| `{name}` | {ours[name]:.2f} | {theirs:.2f} | {deviation:+.0%} |" in page


def test_what_the_library_gave_follows_a_sweep_and_citations_that_look_like_its_own_do_no_harm() -> None:
    cited = NAMED.replace("name: Spad,", "name: Spad, source: 'derived: component library, by hand',")
    machine = parse_machine(cited)
    (newer,) = variants(machine, [parse_axis("technology_nm=7", machine)])
    assert newer.machine.level("Store").read_pj == pytest.approx(7.5)
    assert newer.machine.level("Spad").capacity_bytes == 32
    assert "at 45 nm" in (machine.energy_source or "")
    assert "at 7 nm" in (newer.machine.energy_source or "")
