"""Variants of a machine: energies of accesses follow a buffer's size."""

from __future__ import annotations

import pytest

from tilewright.hardware.components import SOURCE, access_scale
from tilewright.hardware.presets import load_preset
from tilewright.hardware.variants import parse_axis, variants


def swept(*texts: str) -> list[tuple[float | None, float | None, str | None]]:
    """Of each variant of Eyeriss: capacity and energy of its global buffer, and where the energy is from."""
    machine = load_preset("eyeriss")
    found: list[tuple[float | None, float | None, str | None]] = []
    for variant in variants(machine, [parse_axis(text, machine) for text in texts]):
        number = next(n for n, x in enumerate(variant.machine.levels) if x.name == "GlobalBuffer")
        level = variant.machine.levels[number]
        found.append(
            (level.capacity_bytes, level.read_pj, variant.machine.source_of(f"levels[{number}].read_pj"))
        )
    return found


def test_a_larger_buffer_costs_more_for_each_access() -> None:
    (small, small_pj, source), (same, same_pj, _), (large, large_pj, _) = swept(
        "levels.GlobalBuffer.capacity_bytes=54000,108000,1000000"
    )
    machine = load_preset("eyeriss")
    assert same_pj == machine.level("GlobalBuffer").read_pj
    assert small_pj is not None
    assert same_pj is not None
    assert large_pj is not None
    assert small_pj < same_pj < large_pj
    assert large_pj / small_pj == pytest.approx(access_scale(54000, 1_000_000))
    assert source == SOURCE
    assert (small, same, large) == (54000, 108000, 1000000)


def test_an_energy_that_is_swept_is_taken_as_it_is() -> None:
    ((_, energy_pj, source),) = swept(
        "levels.GlobalBuffer.capacity_bytes=54000", "levels.GlobalBuffer.read_pj=7"
    )
    assert energy_pj == 7
    assert source == "assumed: swept"


@pytest.mark.parametrize(
    ("from_bytes", "to_bytes", "scale"),
    [(8 << 10, 32 << 10, 2.0), (32 << 10, 1 << 20, 5.0), (8 << 10, 2 << 10, 0.5), (64, 64, 1.0)],
)
def test_the_scale_is_that_of_the_published_energies(from_bytes: int, to_bytes: int, scale: float) -> None:
    assert access_scale(from_bytes, to_bytes) == pytest.approx(scale)
