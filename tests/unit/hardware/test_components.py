"""What parts of a chip take: areas that grow with sizes, by tables whose points they go through."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tilewright.hardware.components import buffer_um2, components_of, multiplier_um2
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
