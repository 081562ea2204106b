"""A sweep mapped by the processes of a Ray cluster on this machine, of which one is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_plan_sweep import network

import tilewright as tw
from tilewright.mapping.sweep import ray_workers
from tilewright.mapping.sweep.ray_workers import RayCrew

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'tilewright[cluster]'")
pytestmark = pytest.mark.filterwarnings("ignore")

LAYERS = ["1_1_4_4_1", "3_14_16_16_1", "1_14_64_32_1"]
SWEEP = ["levels.GlobalBuffer.capacity=4KiB,16KiB,64KiB", "levels.WeightBuffer.capacity=1KiB,16KiB"]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One machine with two processors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


def document(**settings: Any) -> dict[str, Any]:
    found = tw.map(LAYERS, sweep=SWEEP, mapper="cosa", **settings).to_json()
    for variant in found["variants"]:
        variant["total"]["seconds"] = 0.0
    return found


@pytest.mark.parametrize("num_killed", [1, 2])
def test_killed_processes_change_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, num_killed: int
) -> None:
    crews: list[RayCrew] = []

    class Watched(RayCrew):
        def __init__(self, *asked: Any) -> None:
            super().__init__(*asked)
            crews.append(self)

    def kill(_what: str, done: int, _total: int) -> None:
        if done == 4:
            deadline_s = time.monotonic() + 60
            while len(crews[0].started) < 2 and time.monotonic() < deadline_s:
                time.sleep(0.05)
            for worker in crews[0].started[:num_killed]:
                os.kill(worker.pid, signal.SIGKILL)

    monkeypatch.setattr(ray_workers, "RayCrew", Watched)
    journal = tmp_path / "sweep.jsonl"
    assert document(workers="ray", journal=journal, progress=kill) == document()
    assert len(journal.read_bytes().splitlines()) == 18
    assert crews[0].num_workers == 2
    assert len(crews[0].started) == 2 + num_killed, "other processes took their places"


def test_a_cluster_that_is_left_is_left_whole() -> None:
    done = threading.Event()

    def stop(_what: str, num_done: int, _total: int) -> None:
        if num_done == 2:
            done.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        document(workers="ray", progress=stop)
    assert done.is_set()
    deadline_s = time.monotonic() + 60
    while ray.available_resources().get("CPU", 0) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert ray.available_resources()["CPU"] == 2


def test_plans_of_networks_are_made_on_a_cluster(tmp_path: Path) -> None:
    models = [network(tmp_path / "small.onnx", 8), network(tmp_path / "large.onnx", 16)]
    journal = tmp_path / "plans.jsonl"
    told: list[int] = []

    def told_so_far(_what: str, num_done: int, _total: int) -> None:
        told.append(num_done)

    def figures(**settings: Any) -> list[tuple[Any, ...]]:
        sweep = ["target=a310", "batch=1,2"]
        found = tw.simulate_sweep(models, sweep=sweep, recipe="joint", budget="5trials", **settings)
        return [(m.values, p.network, p.time_s, p.recipe, m.is_best) for m in found.machines for p in m.plans]

    assert figures(workers="ray", journal=journal, progress=told_so_far) == figures()
    assert told == list(range(5)), "rows come as they end"
    assert len(journal.read_bytes().splitlines()) == 4
