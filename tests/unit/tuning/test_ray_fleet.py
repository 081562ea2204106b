"""Who of a cluster is given up when nobody answers, told with a Ray of the test's own."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.tuning.cluster import MachineDied
from tilewright.tuning.ray_fleet import RayFleet


class RayError(Exception):
    pass


class GetTimeoutError(RayError):
    pass


class SilentRay:
    """Nobody answers; `waited_s` says how long they were asked for."""

    exceptions = SimpleNamespace(RayError=RayError, GetTimeoutError=GetTimeoutError)

    def __init__(self) -> None:
        self.waited_s: list[float] = []
        self.killed: list[str] = []

    def wait(self, futures: list[str], *, num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        self.waited_s.append(timeout)
        return [], futures

    def get(self, future: str, *, timeout: float) -> Any:
        raise GetTimeoutError

    def kill(self, actor: str) -> None:
        self.killed.append(actor)

    def nodes(self) -> list[dict[str, Any]]:
        return []


def fleet_of(ray: SilentRay, deadlines_s: dict[int, float]) -> RayFleet:
    fleet = RayFleet.__new__(RayFleet)
    fleet._ray, fleet._numbers = ray, itertools.count(len(deadlines_s))
    fleet._actors = {machine: f"actor {machine}" for machine in deadlines_s}
    fleet._nodes = dict.fromkeys(deadlines_s, "node")
    fleet._restarts = {}
    fleet.pids = dict.fromkeys(deadlines_s, 1)
    fleet.running = {f"future {machine}": (machine, at_s) for machine, at_s in deadlines_s.items()}
    return fleet


def test_the_machine_whose_time_is_over_is_given_up_and_no_other() -> None:
    ray, now_s = SilentRay(), time.monotonic()
    fleet = fleet_of(ray, {0: now_s + 1000.0, 1: now_s + 5.0, 2: now_s + 500.0})
    assert fleet.wait() == [(1, MachineDied("it gave no answer in time"))]
    assert ray.killed == ["actor 1"]
    assert fleet.machines() == (0, 2)
    assert ray.waited_s == [pytest.approx(5.0, abs=2.0)]


def test_time_counts_from_when_a_batch_was_given_out() -> None:
    ray, now_s = SilentRay(), time.monotonic()
    fleet = fleet_of(ray, {0: now_s - 1.0})
    fleet.wait()
    assert ray.waited_s == [0.0]
