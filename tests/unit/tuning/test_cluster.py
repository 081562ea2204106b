"""Batches on several machines: any arrival order, deaths and drifts give the results of a single machine."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.support.fake_contestants import fake

from tilewright.errors import UsageError
from tilewright.system.ray_cluster import check_address
from tilewright.system.worker_process import NoWorker
from tilewright.tuning.cluster import (
    BatchResult,
    ClusterMeasuringPool,
    MachineDied,
    measured_batch,
)
from tilewright.tuning.workers import Failed, Measured, MeasureRequest, MeasureResult, Samples

X = np.array([1.0], np.float32)
PLAIN = fake(run_ns=500.0)


def request(run_ns: float, does: str = "double") -> MeasureRequest:
    return MeasureRequest(fake(does, run_ns=run_ns), {"x": X}, {"y": 2 * X}, 1e-6, PLAIN)


REQUESTS = [request(1000.0 + number) for number in range(11)]


@dataclass
class OneMachine:
    """Measures here, by what the codes say; `calibrations` are the times of the baseline alone."""

    calibrations: list[float] = field(default_factory=list)

    def measure(self, requests: Sequence[MeasureRequest]) -> list[MeasureResult]:
        return [self._measured(one) for one in requests]

    def _measured(self, one: MeasureRequest) -> MeasureResult:
        facts = one.candidate.facts
        if facts["does"] == "crash":
            return Failed("crashed", "SIGSEGV")
        if one.baseline is None:
            return Measured(Samples((self.calibrations.pop(0) if self.calibrations else 500.0,)))
        return Measured(Samples((facts["run_ns"],)), Samples((500.0,)))

    def close(self) -> None:
        pass


Fate = Callable[[int, Sequence[MeasureRequest]], MachineDied | list[float] | None]


@dataclass
class FakeFleet:
    """Machines that answer in a random order; `fate` says that one dies or drifts with a batch."""

    num_machines: int
    seed: int = 0
    fate: Fate = lambda machine, batch: None
    comes_back: bool = False
    running: dict[int, list[MeasureRequest]] = field(default_factory=dict)
    asked: list[list[float]] = field(default_factory=list)
    was_abandoned: bool = False

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.there = list(range(self.num_machines))

    def machines(self) -> Sequence[int]:
        return tuple(self.there)

    def submit(self, machine: int, requests: Sequence[MeasureRequest]) -> None:
        assert machine not in self.running, "a machine measures one batch at a time"
        self.running[machine] = list(requests)
        self.asked.append([r.candidate.facts["run_ns"] for r in requests])

    def wait(self) -> Sequence[tuple[int, BatchResult | MachineDied]]:
        ready = self.rng.sample(sorted(self.running), self.rng.randint(1, len(self.running)))
        return [(machine, self._said(machine)) for machine in ready]

    def _said(self, machine: int) -> BatchResult | MachineDied:
        batch = self.running.pop(machine)
        fate = self.fate(machine, batch)
        if isinstance(fate, MachineDied):
            self.there.remove(machine)
            if self.comes_back:
                self.there.append(max([machine, *self.there]) + 1)
            return fate
        return measured_batch(OneMachine(fate or []), batch)

    def abandon(self) -> None:
        self.was_abandoned = True
        self.running.clear()

    def close(self) -> None:
        self.there.clear()


ALONE = OneMachine().measure(REQUESTS)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_machines", [1, 3, 20])
def test_results_do_not_depend_on_arrival_order(seed: int, num_machines: int) -> None:
    fleet = FakeFleet(num_machines, seed)
    with ClusterMeasuringPool(fleet) as pool:
        assert list(pool.measure(iter(REQUESTS))) == ALONE
        assert list(pool.measure([])) == []
    assert sorted(fleet.asked) == [
        [1000.0 + n for n in range(at, min(at + 2, 11))] for at in range(0, 11, 2)
    ], "batches are of requests that follow each other, whoever measures them"


def test_requests_are_taken_when_a_machine_is_free_for_them() -> None:
    taken: list[int] = []

    def requests() -> object:
        for number, one in enumerate(REQUESTS):
            taken.append(number)
            yield one

    results = ClusterMeasuringPool(FakeFleet(2)).measure(requests())  # type: ignore[arg-type]
    next(results)
    assert len(taken) <= 8


def test_a_machine_that_dies_loses_its_batch_and_nothing_else() -> None:
    fleet = FakeFleet(3, fate=lambda machine, batch: MachineDied("power") if machine == 1 else None)
    pool = ClusterMeasuringPool(fleet)
    assert list(pool.measure(REQUESTS)) == ALONE
    assert (pool.report.num_deaths, pool.report.num_measured_again) == (1, 2)
    assert pool.num_machines == 2
    measured = [run_ns for batch in fleet.asked for run_ns in batch]
    assert len(measured) == len(REQUESTS) + 2


def test_a_request_that_ends_every_machine_is_told_from_its_neighbours() -> None:
    def fate(machine: int, batch: Sequence[MeasureRequest]) -> MachineDied | None:
        return MachineDied("killed") if any(r.candidate.facts["run_ns"] == 1004.0 for r in batch) else None

    pool = ClusterMeasuringPool(FakeFleet(2, fate=fate, comes_back=True))
    results = list(pool.measure(REQUESTS))
    assert results[4] == Failed("crashed", "3 machines ended with it, the last: killed")
    assert results[:4] + results[5:] == ALONE[:4] + ALONE[5:]


def test_without_machines_nothing_is_measured() -> None:
    pool = ClusterMeasuringPool(FakeFleet(2, fate=lambda machine, batch: MachineDied("gone")))
    with pytest.raises(NoWorker, match="no machine"):
        list(pool.measure(REQUESTS))


def test_a_batch_of_a_machine_that_drifted_is_measured_again() -> None:
    drifts = {(0, 1000.0): [500.0, 600.0], (1, 1002.0): [700.0, 500.0]}

    def fate(machine: int, batch: Sequence[MeasureRequest]) -> list[float] | None:
        return drifts.pop((machine, batch[0].candidate.facts["run_ns"]), None)

    fleet = FakeFleet(2, fate=fate)
    pool = ClusterMeasuringPool(fleet)
    assert list(pool.measure(REQUESTS)) == ALONE
    assert (pool.report.num_drifted, pool.report.num_measured_again) == (2, 4)
    assert fleet.asked.count([1000.0, 1001.0]) == 2


def test_where_all_machines_drift_the_results_say_so() -> None:
    pool = ClusterMeasuringPool(FakeFleet(2, fate=lambda machine, batch: [500.0, 700.0]))
    results = list(pool.measure([*REQUESTS[:3], request(7.0, "crash")]))
    assert [isinstance(r, Measured) and r.is_disturbed for r in results] == [True, True, True, False]
    assert results[3] == Failed("crashed", "SIGSEGV")
    assert pool.report.num_drifted == 2 * 3


def test_who_stops_asking_abandons_what_is_measured() -> None:
    fleet = FakeFleet(3)
    results = ClusterMeasuringPool(fleet).measure(REQUESTS)
    next(results)
    results.close()  # type: ignore[attr-defined]  # a generator
    assert fleet.was_abandoned or not fleet.running


def test_a_calibration_that_does_not_run_says_nothing() -> None:
    alone = MeasureRequest(fake("crash"), {"x": X}, {"y": X}, 1e-6)
    said = measured_batch(OneMachine(), [alone])
    assert (said.before_ns, said.after_ns, said.drift) == (None, None, 0.0)
    assert said.results == (Failed("crashed", "SIGSEGV"),)


@pytest.mark.parametrize("workers", ["", "spark", "ray:", "ray://", "ray://a b", "xray", "ray://h/x"])
def test_an_address_that_is_none_is_told(workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert check_address("ray") == "ray"
    assert check_address("ray://head:10001") == "ray://head:10001"
    with pytest.raises(UsageError, match="expected ray, or ray://HOST:10001"):
        check_address(workers)


def test_without_ray_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'tilewright\[cluster\]'"):
        check_address("ray")
