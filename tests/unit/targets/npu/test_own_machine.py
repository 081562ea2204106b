"""A machine whose parts have names of its own: results speak of them, and units are counted below levels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.models import small_net

import tilewright as tw
from tilewright.errors import MachineError, UsageError
from tilewright.mapping.cases import Case

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


ARRAY = MINE.replace("name: Scratch,", "name: Scratch, axes: [{dims: [C], size: 16}, {dims: [K], size: 16}],")


def test_map_and_simulate_keep_to_the_dataflow_alike(tmp_path: Path) -> None:
    """Three input channels fill three of sixteen rows, twenty output channels ten of sixteen columns at best,
    or all of them padded; a depthwise layer runs on the unit that takes it."""
    path = machine_file(tmp_path, ARRAY)
    mapped = tw.map("3_8_3_20_1", path, mapper="exact{pads=false}").layers[0]
    assert mapped.compute_cycles == 3 * 3 * 8 * 8 * 2
    mixed = tw.map(["3_8_16_16_1", "G=32,P=8,Q=8,R=3,S=3"], path)
    assert [x.compute_cycles for x in mixed.layers] == [3 * 3 * 8 * 8, 3 * 3 * 8 * 8 * 2]
    found = tw.simulate(small_net(), path + "{dtype=int8}", recipe="graphturbo", mappings=True)
    alone = tw.map(small_net(), path)
    assert found.mappings is not None
    on_array = {level.level: level for level in found.mappings.levels}["Array"]
    cycles = sum(x.cycles for x in alone.layers if not x.problem.is_depthwise)
    assert on_array.mapped_s == pytest.approx(cycles / 800e6, rel=0.05)
    assert None not in (on_array.simulated_s, on_array.mapped_s)
    assert (on_array.simulated_s or 0.0) >= 0.99 * (on_array.mapped_s or 1.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ARRAY.replace("16}]", "8}]"), r"levels\[1\]\.axes: sizes multiply to 128, but one 'Scratch' feeds"),
        (ARRAY.replace("dims: [K]", "dims: [K, C]"), r"levels\[1\]\.axes: C is listed twice"),
        (MINE.replace("Regs, cap", "Regs, axes: [{dims: [C], size: 1}], cap"), r"levels\[0\]\.axes: .* unit"),
    ],
)  # fmt: skip
def test_axes_that_do_not_fit_are_refused_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(MachineError, match=expected):
        tw.map("3_8_3_20_1", machine_file(tmp_path, text))


def test_what_the_dataflow_cannot_run_is_refused(tmp_path: Path) -> None:
    path = machine_file(tmp_path, ARRAY.replace("macs_per_cycle: {int8: 16}, ops", "ops"))
    with pytest.raises(MachineError, match=r"Array does not run depthwise.*runs: \[contraction, depthwise\]"):
        tw.map("G=32,P=8,Q=8,R=3,S=3", path)
    with pytest.raises(UsageError, match="mapper cosa: keeps no dataflow"):
        tw.map("3_8_3_20_1", path, mapper="cosa")


def test_layers_take_together_what_parts_take(tmp_path: Path) -> None:
    found = tw.simulate(small_net(), machine_file(tmp_path) + "{dtype=int8}", recipe="graphturbo")
    static_j = found.energy_by_j["static"]
    assert sum(found.energy_by_layer_j.values()) == pytest.approx(sum(found.energy_by_j.values()) - static_j)
    assert all(joules >= 0 for joules in found.energy_by_layer_j.values())
    several = tw.simulate(small_net(), "stcp920", recipe="graphturbo")
    parts_j = {part: joules for part, joules in several.energy_by_j.items() if part != "static"}
    assert sum(several.energy_by_layer_j.values()) == pytest.approx(sum(parts_j.values()))


def test_a_mapping_is_counted_and_swept_on_the_unit_that_runs_its_layer(tmp_path: Path) -> None:
    path = machine_file(tmp_path, ARRAY)
    depthwise = "G=32,P=8,Q=8,R=3,S=3"
    found = tw.map(["3_8_16_16_1", depthwise], path, export_timeloop=tmp_path / "files")
    cases = [Case(x.name, x.problem, x.solution.mapping) for x in found.layers]
    again = tw.map((), path, evaluate=cases, verify=True)
    assert [case.cost for case in again.cases] == [layer.cost for layer in found.layers]
    files = [(tmp_path / "files" / x.name / "arch.yaml").read_text() for x in found.layers]
    assert "Regs" in files[0]
    assert "Regs" not in files[1]
    sweep = ["levels.Scratch.capacity=64KiB"]
    (variant,) = tw.map(depthwise, path, sweep=sweep).variants
    assert variant.layers[0].cycles == found.layers[1].cycles
    with pytest.raises(
        UsageError, match=r"sweep: depthwise layers run on Lanes.*others on Array; sweep them"
    ):
        tw.map(["3_8_16_16_1", depthwise], path, sweep=sweep)


def test_a_mapper_that_keeps_no_dataflow_is_refused_for_each_part(tmp_path: Path) -> None:
    lanes = "macs_per_cycle: {int8: 16}, axes: [{dims: [P], size: 16}]"
    text = MINE.replace("macs_per_cycle: {int8: 16}", f"runs: [depthwise], {lanes}")
    path = machine_file(tmp_path, text.replace("level: Regs,", "level: Regs, runs: [contraction],"))
    with pytest.raises(UsageError, match="mapper cosa: keeps no dataflow"):
        tw.map(["3_8_3_20_1", "G=32,P=8,Q=8,R=3,S=3"], path, mapper="cosa")


def test_a_dataflow_leaves_a_mapping_however_little_time_there_is(tmp_path: Path) -> None:
    found = tw.map("3_56_64_96_1", machine_file(tmp_path, ARRAY), budget="0.001s", verify=True).layers[0]
    assert found.cycles >= found.bound_cycles
