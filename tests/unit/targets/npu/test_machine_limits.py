"""What a machine's file says of power and of the start of transfers is what a simulation reckons with."""

# mypy: disable-error-code="operator"

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.support.models import small_net

import tilewright as tw
from tilewright.hardware.machine_file import machine_document, machine_from, machine_text
from tilewright.hardware.presets import load_preset


def machine_file(folder: Path, **changes: Any) -> str:
    """The file of an stcp920 with other values."""
    machine = machine_from({**machine_document(load_preset("stcp920")), **changes}, "changed")
    path = folder / "changed.yaml"
    path.write_text(machine_text(machine))
    return str(path)


def overheads(**changes: float) -> dict[str, float]:
    return {"kernel_launch_ns": 5000.0, "barrier_ns": 1000.0, **changes}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("overlap", ["none", "tiles"])
def test_each_transfer_takes_its_start(tmp_path: Path, overlap: str) -> None:
    options = f"{{overlap={overlap}}}"
    fast = tw.simulate(small_net(), machine_file(tmp_path) + options, recipe="graphturbo")
    slow_file = machine_file(tmp_path, overheads=overheads(copy_setup_ns=3e6))
    slow = tw.simulate(small_net(), slow_file + options, recipe="graphturbo")
    transfers = [run for run in slow.code.timeline().runs if run.size_bytes]
    assert len(transfers) > 10
    if overlap == "none":
        # One after another, each later by what all before it took.
        assert slow.time_s - fast.time_s == pytest.approx(3e-3 * len(transfers), rel=1e-6)
    assert all(run.end_s - run.start_s >= 3e-3 for run in transfers)
    assert slow.energy_by_j["DDR"] == pytest.approx(fast.energy_by_j["DDR"])


def test_an_engines_energy_is_that_of_its_bytes_not_of_its_time(tmp_path: Path) -> None:
    document = machine_document(load_preset("stcp920"))
    units = [{**u, "pj_per_byte": 5.0} if u["name"] == "DMA" else u for u in document["units"]]
    fast = tw.simulate(small_net(), machine_file(tmp_path, units=units), recipe="graphturbo")
    given = machine_file(tmp_path, units=units, overheads=overheads(copy_setup_ns=1000.0))
    slow = tw.simulate(small_net(), given, recipe="graphturbo")
    moved = slow.bytes["main_read"] + slow.bytes["main_written"]
    num_clusters = load_preset("stcp920").num_clusters
    assert fast.energy_by_j["DMA"] == pytest.approx(5e-12 * moved * num_clusters)
    assert slow.energy_by_j["DMA"] == pytest.approx(fast.energy_by_j["DMA"])


def shown(result: tw.SimulationResult) -> str:
    return " ".join(" ".join(row) for table in result.tables() for row in table.rows)


def test_power_above_what_the_machine_can_draw_is_flagged(tmp_path: Path) -> None:
    within = tw.simulate(small_net(), recipe="graphturbo")
    assert within.power_w == pytest.approx(within.energy_j / within.time_s)
    assert (within.max_power_w, within.exceeds_power) == (160, False)
    assert f"{within.power_w:.3g} W of at most 160 W" in shown(within)
    limit_w = 0.9 * within.power_w
    above = tw.simulate(small_net(), machine_file(tmp_path, max_power_w=limit_w), recipe="graphturbo")
    assert above.power_w == pytest.approx(within.power_w)
    assert above.exceeds_power
    assert above.most_energy_by == "static"
    assert f"W, ABOVE the {limit_w:.3g} W that the machine can draw: static takes most, 40 W" in shown(above)
    document = above.to_json()
    assert document["exceeds_power"] is True
    assert document["power_w"] == above.power_w


def test_without_a_limit_power_is_only_said(tmp_path: Path) -> None:
    document = machine_document(load_preset("stcp920"))
    del document["max_power_w"]
    document["sources"].pop("max_power_w")
    path = tmp_path / "open.yaml"
    path.write_text(machine_text(machine_from(document, "open")))
    result = tw.simulate(small_net(), str(path), recipe="graphturbo")
    assert (result.max_power_w, result.exceeds_power) == (None, False)
    assert dataclasses.replace(result, max_power_w=result.power_w / 2).exceeds_power
