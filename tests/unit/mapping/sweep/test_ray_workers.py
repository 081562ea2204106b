"""Processes of a cluster, told with a Ray of the test's own: which of them may work, and how one is lost."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.mapping.sweep.ray_workers import Answering, RayWorker
from tilewright.mapping.sweep.workers import LAYERS
from tilewright.system.worker_process import NoWorker, WorkerDied
from tilewright.version import __version__


class RayError(Exception):
    pass


@dataclass
class StandIn:
    """Calls what it is asked for at once; raises what a call is set to raise."""

    raises: dict[str, Exception] = field(default_factory=dict)
    killed: list[Any] = field(default_factory=list)
    exceptions: Any = field(default_factory=lambda: SimpleNamespace(RayError=RayError))

    def get(self, call: tuple[str, Any], timeout: float) -> Any:
        name, value = call
        if name in self.raises:
            raise self.raises[name]
        return value

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


def actor_of(version: str = __version__) -> Any:
    """An actor whose calls are names with their results."""
    return SimpleNamespace(
        hello=SimpleNamespace(remote=lambda: ("hello", (7, version))),
        answer=SimpleNamespace(remote=lambda task: ("answer", Answering(LAYERS).answer(task))),
    )


def test_a_task_goes_there_and_its_answer_comes_back() -> None:
    worker = RayWorker(StandIn(), actor_of(), 10.0)
    assert worker.pid == 7
    assert "KeyError" in json.loads(worker.ask("{}"))["failed"], "errors travel as texts"


def test_another_version_does_not_work_here() -> None:
    ray, actor = StandIn(), actor_of("0.0.0")
    with pytest.raises(NoWorker, match=f"the cluster has tilewright 0.0.0, this machine {__version__}"):
        RayWorker(ray, actor, 10.0)
    assert ray.killed == [actor]


def test_a_process_that_does_not_come_up_is_none() -> None:
    ray = StandIn({"hello": RayError("trace\nModuleNotFoundError: No module named 'tilewright'\n")})
    with pytest.raises(NoWorker, match="did not come up: ModuleNotFoundError: No module named 'tilewright'"):
        RayWorker(ray, actor_of(), 10.0)
    assert len(ray.killed) == 1


def test_a_process_that_is_killed_loses_its_task() -> None:
    worker = RayWorker(StandIn({"answer": RayError("The actor died\nbecause of SIGKILL")}), actor_of(), 10.0)
    with pytest.raises(WorkerDied, match="because of SIGKILL"):
        worker.ask("{}")
