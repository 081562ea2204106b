"""A machine whose parts have names of its own: results speak of them, and units are counted below levels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.models import small_net

import tilewright as tw
from tilewright.errors import MachineError

MINE = """
name: mine
clock_hz: 800 MHz
levels:
  - {name: Regs, capacity_bytes: 64, num_instances_per_parent: 256, read_pj: 0.05}
  - {name: Scratch, capacity_bytes: 64 KiB, per: core, read_bytes_per_cycle: 64, read_pj: 20}
  - {name: Lake, read_bytes_per_s: 12.8 GB/s, read_pj: 6400, words_per_access: 64}
units:
  - {name: Array, kind: matrix, level: Regs, macs_per_cycle: {int8: 1}, mac_pj: 0.25}
  - {name: Lanes, kind: vector, level: Scratch, macs_per_cycle: {int8: 16}, ops_per_cycle: {int8: 16}}
  - {name: Pump, kind: mover, level: Scratch, between: [Scratch, Lake], bytes_per_s: 10 GB/s}
energy_source: "the test's own"
"""
STRANGERS = ("LB", "GB", "DDR", "DMA", "MTE", "local", "shared", "engine of")


def machine_file(folder: Path, text: str = MINE) -> str:
    path = folder / "mine.yaml"
    path.write_text(text)
    return str(path)


def test_results_speak_of_levels_and_engines_by_their_own_names(tmp_path: Path) -> None:
    found = tw.simulate(small_net(), machine_file(tmp_path) + "{dtype=int8}", recipe="graphturbo")
    timeline = found.code.timeline()
    assert {x.name for x in timeline.plan.levels} == {"Scratch", "Lake"} == set(found.buffers)
    assert {b.level for b in timeline.plan.buffers} <= {"Scratch", "Lake"}
    assert "Pump" in timeline.units
    assert {r.unit for r in timeline.runs} <= set(timeline.units) == set(found.utilization)
    texts = [v for v in json.dumps(found.to_json()).split('"') if v in STRANGERS or v.startswith("engine of")]
    assert not texts


def test_an_engine_that_nothing_passes_is_refused(tmp_path: Path) -> None:
    path = machine_file(tmp_path, MINE.replace("[Scratch, Lake]", "[Regs, Lake]"))
    with pytest.raises(
        MachineError, match=r"units\[2\]\.between.*'Regs' and 'Lake'; write \[Scratch, Lake\]"
    ):
        tw.simulate(small_net(), path + "{dtype=int8}", recipe="graphturbo")
