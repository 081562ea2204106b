"""Artifacts of described machines: the machine travels in the file, and nothing is read but the file."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.artifacts import Parts
from tests.support.models import feed_for, small_net

import tilewright as tw
from tilewright.cost.base import Estimate
from tilewright.hardware.presets import load_preset, preset_text
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target
from tilewright.targets.npu.costs import estimate_of


def saved(tmp_path: Path, target: str) -> tuple[tw.CompiledModel, Path]:
    compiled = tw.compile(small_net(), target=target)
    return compiled, compiled.save(tmp_path / "m.tw")


def simulation(compiled: tw.CompiledModel) -> tuple[Estimate, int]:
    """What was simulated: time, energy and bound, and how many steps."""
    found = compiled.load().planned.simulation  # type: ignore[attr-defined]  # of the accelerator
    return estimate_of(found), len(found.steps)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["stcp920", "stcp920{overlap=none}", "a310"])
def test_what_is_opened_is_what_was_compiled(target: str, tmp_path: Path) -> None:
    compiled, path = saved(tmp_path, target)
    opened = tw.open(path)
    feed = feed_for(small_net())
    assert [a.tobytes() for a in opened.run(None, feed)] == [a.tobytes() for a in compiled.run(None, feed)]
    assert simulation(opened) == simulation(compiled)
    assert opened.schedule.quality == compiled.schedule.quality
    assert opened.cost == compiled.cost is not None
    assert str(opened.explain()) == str(compiled.explain())
    assert opened.facts.machine == compiled.facts.machine == load_preset(target.partition("{")[0])
    assert opened.save(tmp_path / "again.tw").read_bytes() == path.read_bytes()


def test_a_file_may_be_gone_or_changed(tmp_path: Path) -> None:
    chip = tmp_path / "chip.yaml"
    chip.write_text(preset_text("stcp920-paper"))
    compiled, path = saved(tmp_path, str(chip))
    for change in (lambda: chip.write_text(preset_text("stcp920")), chip.unlink):
        change()
        opened = tw.open(path)
        assert opened.facts.machine == compiled.facts.machine
        assert simulation(opened) == simulation(compiled)


def test_what_is_compiled_is_what_the_file_said_then(tmp_path: Path) -> None:
    chip = tmp_path / "chip.yaml"
    chip.write_text(preset_text("stcp920-paper"))
    compiled = tw.compile(small_net(), target=str(chip))
    chip.unlink()
    assert tw.open(compiled.save(tmp_path / "m.tw")).facts.machine == load_preset("stcp920-paper")


def refusal(parts: Parts, path: Path) -> str:
    parts.write(path)
    with pytest.raises(tw.ArtifactCorrupt) as caught:
        tw.open(path).load()
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def without(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The document without a key and what says where it is from."""
    kept = {key: value for key, value in document.items() if key != name}
    return {**kept, "sources": {k: v for k, v in document["sources"].items() if not k.startswith(name)}}


DAMAGES = {
    "expected the description of a machine": lambda machine: [machine],
    "machine: levels: is missing": lambda machine: without(machine, "levels"),
    "machine.json: machine: clock_hz: ": lambda machine: {**machine, "clock_hz": -1},
    "clock_hz `clock_hz: N GHz` (is missing": lambda machine: without(machine, "clock_hz"),
    "num_cores_per_cluster: ": lambda machine: {**machine, "num_cores_per_cluster": 10**30},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("words", DAMAGES)
def test_a_description_that_is_none_is_one_line(words: str, tmp_path: Path) -> None:
    parts = Parts.of(saved(tmp_path, "stcp920")[1])
    machine = json.loads(parts.members["machine.json"])
    parts.members["machine.json"] = json.dumps(DAMAGES[words](machine)).encode()
    assert words in refusal(parts, tmp_path / "bad.tw")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["stcp920", "/etc/chip.yaml", "chip.yaml"])
def test_no_machine_is_looked_for_outside(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts.of(saved(tmp_path, "stcp920")[1])
    monkeypatch.chdir(tmp_path)
    Path("chip.yaml").write_text(preset_text("stcp920"))
    del parts.members["machine.json"]
    parts.manifest["target"] = target
    assert "member 'machine.json' is missing" in refusal(parts, tmp_path / "bad.tw")


def test_a_target_of_the_host_has_no_machine_in_its_artifact(tmp_path: Path) -> None:
    parts = Parts.of(saved(tmp_path, "stcp920")[1])
    parts.manifest["target"] = "interpreter"
    assert "which target 'interpreter' does not need" in refusal(parts, tmp_path / "bad.tw")


@pytest.mark.parametrize("target", ["interpreter", "null"])
def test_a_plan_in_slices_is_refused_where_whole_subgraphs_run(target: str, tmp_path: Path) -> None:
    options = {"partition": "graphturbo{capacity_bytes=4096}", "schedule": "depth-first"}
    compiled = tw.compile(small_net(), target="stcp920", **options)
    assert max(i.index for i in compiled.schedule.instances()) > 0
    parts = Parts.of(compiled.save(tmp_path / "m.tw"))
    del parts.members["machine.json"]
    parts.manifest["target"] = target
    assert "is split, which the problem does not allow" in refusal(parts, tmp_path / "bad.tw")


@pytest.mark.parametrize("target", ["cpu", "interpreter", "null"])
def test_a_program_in_slices_is_no_program_of_targets_that_run_whole_subgraphs(target: str) -> None:
    options = {"partition": "graphturbo{capacity_bytes=4096}", "schedule": "depth-first"}
    program = tw.compile(small_net(), target="stcp920", **options).program
    with pytest.raises(tw.InternalError, match=r"subgraph 0 (is split|runs in slices)"):
        find_target(TargetRef.parse(target)).backend(program.graph, tw.Options()).generate(program)
