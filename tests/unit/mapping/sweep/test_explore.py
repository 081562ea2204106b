"""Sweeps: the same result here, in processes of which one is killed, and after a kill from a journal."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.models import small_net

import tilewright as tw
from tilewright.errors import UsageError
from tilewright.hardware.presets import find_machine
from tilewright.mapping.sweep import crews as sweep_crews
from tilewright.mapping.sweep import explore
from tilewright.mapping.sweep.answered import TaskSettings
from tilewright.mapping.sweep.journal import Journal
from tilewright.mapping.sweep.tasks import answer_of
from tilewright.mapping.sweep.workers import Processes

pytestmark = pytest.mark.sampled(8)

LAYERS = ["1_1_4_4_1", "3_4_8_8_1"]
SWEEP = ["levels.GlobalBuffer.capacity=4KiB,64KiB", "levels.AccumulationBuffer.capacity=2,192"]


def document(**settings: Any) -> dict[str, Any]:
    """A sweep's document without the time it took."""
    found = tw.map(LAYERS, sweep=SWEEP, mapper="cosa", **settings).to_json()
    for variant in found["variants"]:
        if variant["total"] is not None:
            variant["total"]["seconds"] = 0.0
    return found


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return document()


def test_workloads_components_and_layers_add_up(plain: dict[str, Any]) -> None:
    refused, mapped = plain["variants"][0], plain["variants"][1]
    assert "AccumulationBuffer" in refused["error"]
    assert (refused["total"], refused["is_best"], refused["mean_cycles"]) == (None, False, None)
    total = mapped["total"]
    assert [w["name"] for w in mapped["workloads"]] == LAYERS
    assert sum(w["cycles"] for w in mapped["workloads"]) == total["cycles"]
    assert sum(c["energy_pJ"] for c in mapped["components"]) == pytest.approx(total["energy_pJ"])
    assert sum(c["area_mm2"] or 0 for c in mapped["components"]) == pytest.approx(mapped["area_mm2"])
    first, second = (w["cycles"] for w in mapped["workloads"])
    assert mapped["mean_cycles"] == pytest.approx((first * second) ** 0.5)
    for layer, name in zip(mapped["layers"], LAYERS, strict=True):
        machine = find_machine("simba-cosa-repo")
        levels = [
            level.model_copy(update={"capacity_bytes": 4096}) if level.name == "GlobalBuffer" else level
            for level in machine.levels
        ]
        machine = machine.model_copy(update={"levels": tuple(levels)})
        (alone,) = tw.map(name, machine, mapper="cosa").to_json()["layers"]
        assert (layer["name"], layer["num_times"]) == (name, 1)
        for key in ("cycles", "bound_cycles", "utilization", "status", "mapping"):
            assert layer[key] == alone[key]


def test_a_larger_buffer_is_more_area_and_is_on_the_front_only_where_it_brings_something(
    plain: dict[str, Any],
) -> None:
    _, small, _, large = plain["variants"]
    assert small["area_mm2"] < large["area_mm2"]
    brings_something = any(small[key] > large[key] for key in ("mean_cycles", "mean_energy_pJ"))
    assert large["is_best"] is brings_something
    assert small["is_best"]


def test_models_are_workloads_with_what_streams_through_them() -> None:
    model = tw.load(small_net())
    found = tw.map([model, LAYERS[0]], sweep=["levels.DRAM.read_pj=6400"], mapper="cosa")
    (variant,) = found.variants
    assert [w.name for w in variant.workloads] == [model.name, LAYERS[0]]
    alone = tw.map(model, mapper="cosa").total
    assert variant.workloads[0].cycles == alone.cycles
    assert variant.workloads[0].streamed_cycles == alone.streamed_cycles > 0
    assert variant.workloads[1].streamed_cycles == 0
    assert sum(layer.num_times for layer in variant.layers) == 4


def test_a_killed_process_changes_nothing(plain: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    crews: list[Processes] = []

    def crew(num_workers: int, limit_s: float, module: str) -> Processes:
        crews.append(Processes(num_workers, limit_s, module))
        return crews[-1]

    def kill_the_first() -> None:
        while not crews or not crews[0].started:
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(crews[0].started[0].pid, signal.SIGKILL)

    monkeypatch.setattr(sweep_crews, "Processes", crew)
    killer = threading.Thread(target=kill_the_first)
    killer.start()
    assert document(workers="2") == plain
    killer.join()
    assert len(crews[0].started) == 3, "another process took its place"


def test_an_interrupt_leaves_no_process_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    crews: list[Processes] = []

    def crew(num_workers: int, limit_s: float, module: str) -> Processes:
        crews.append(Processes(num_workers, limit_s, module))
        return crews[-1]

    def stop(_what: str, num_done: int, _total: int) -> None:
        if num_done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(sweep_crews, "Processes", crew)
    journal = tmp_path / "sweep.jsonl"
    with pytest.raises(KeyboardInterrupt):
        document(workers="2", journal=journal, progress=stop)
    for worker in crews[0].started:
        with pytest.raises(ProcessLookupError):
            os.kill(worker.pid, 0)
    assert len(journal.read_bytes().splitlines()) == 2, "what was answered is kept"


def test_what_a_journal_has_is_not_searched_again(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "sweep.jsonl"
    assert document(journal=journal) == plain
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == 8
    journal.write_bytes(b"".join(lines[:3]) + lines[3][:-40])  # as a kill leaves it
    solve, solved = cast(Any, explore).solve_text, list[str]()

    def counted(text: str) -> Any:
        solved.append(text)
        return solve(text)

    monkeypatch.setattr(explore, "solve_text", counted)
    said: list[str] = []
    assert document(journal=journal, progress=lambda what, *_: said.append(what)) == plain
    assert len(solved) == 5
    assert said[3] == "3 of 8 layers mapped"
    assert said[-1] == "8 of 8 layers mapped"
    assert document(journal=journal) == plain
    assert len(solved) == 5
    assert len(journal.read_bytes().splitlines()) == 9, "the line that was cut short stays"
    document(journal=journal, objective="energy")
    assert len(solved) == 13, "another objective is another question"


@pytest.mark.parametrize("text", ["cycles,energy\n1,2\n", '{"a": 1}\n', "[]\n"])
def test_another_file_is_no_journal(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"results.csv: line 1 is no answer of a sweep; name another file"):
        document(journal=path)
    assert path.read_text() == text


def test_a_journal_that_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in ((tmp_path / "pipe", "not a regular file"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError, match=f"^journal {path}: {why}"):
            document(journal=path)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="the system has no device that is full")
def test_a_disk_that_is_full_ends_a_sweep_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    with Journal(path, answer_of) as journal, open("/dev/full", "ab", buffering=0) as full:
        journal._file.close()
        journal._file = full
        with pytest.raises(UsageError, match=rf"^journal {path}: cannot be written \(No space left"):
            journal.add("key", "{}", layer="layer")


@pytest.mark.parametrize("workers", ["0", "many", "-1", "1e3", "ray://", "99999"])
def test_workers_are_a_number_or_a_cluster(workers: str) -> None:
    with pytest.raises(UsageError, match="workers"):
        document(workers=workers)


def test_workers_are_for_sweeps() -> None:
    with pytest.raises(UsageError, match="--workers is for --sweep"):
        tw.map(LAYERS, workers="2")


def test_a_journal_is_lines_that_people_can_read(tmp_path: Path) -> None:
    journal = tmp_path / "sweep.jsonl"
    document(journal=journal)
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    assert {row["layer"] for row in rows} == set(LAYERS)
    assert len({row["machine"] for row in rows}) == 4
    assert len({row["task"] for row in rows}) == 8
    assert TaskSettings() == TaskSettings(None, None)
