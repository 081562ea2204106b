"""Candidates measured by the processes of a Ray cluster on this machine, of which one is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.fake_contestants import MODULE, fake
from tests.support.models import small_net

import tilewright as tw
from tilewright.errors import UsageError
from tilewright.tuning import TuningDatabase
from tilewright.tuning.cluster import ClusterMeasuringPool
from tilewright.tuning.ray_fleet import Measuring, RayFleet
from tilewright.tuning.runners import Wanted
from tilewright.tuning.workers import Effort, Failed, Measured, MeasureRequest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'tilewright[cluster]'")
pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = str(Path(__file__).resolve().parents[2])
X = np.array([1.0, 2.0], np.float32)
EFFORT = Effort(min_rounds=2, max_rounds=2, seconds=10, num_warm_up=0)
HERE = Measuring(MODULE, f"{MODULE}:greeting", Wanted("1", "", "this machine"))
PLAIN = fake(run_ns=4000.0)


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One machine with three processes that measure, as three machines would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


def request(run_ns: float, does: str = "double", marker: Path | None = None) -> MeasureRequest:
    code = fake(does, run_ns=run_ns, marker=marker)
    return MeasureRequest(code, {"x": X}, {"y": 2 * X}, 1e-6, PLAIN, EFFORT, 30.0)


def times(results: list[Measured | Failed]) -> list[float | str]:
    return [r.reason if isinstance(r, Failed) else r.candidate.whole_ns[0] for r in results]


def test_results_come_in_order_with_failures_told(tmp_path: Path) -> None:
    requests = [request(1000.0 + n) for n in range(5)]
    requests[1:1] = [request(0.0, "crash", tmp_path / "a"), request(0.0, "triple")]
    with ClusterMeasuringPool(RayFleet("ray", HERE, num_per_machine=2)) as pool:
        assert pool.num_machines == 2
        expected = [1000.0, "crashed", "wrong-values", *(1000.0 + n for n in range(1, 5))]
        assert times(list(pool.measure(iter(requests)))) == expected
        assert times(list(pool.measure(requests[3:5]))) == [1001.0, 1002.0], "it can be asked again"
        assert pool.report.num_deaths == 0


def test_a_killed_process_loses_its_batch_only() -> None:
    """Each of three processes has a batch; one is killed in the midst of its own."""
    fleet = RayFleet("ray", HERE, num_per_machine=3)
    requests = [request(1000.0 + n, "slow") for n in range(12)]
    with ClusterMeasuringPool(fleet) as pool:
        victim = fleet.pids[1]

        def kill_when_busy() -> None:
            while len(fleet.running) < 3:
                time.sleep(0.01)
            time.sleep(0.3)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill_when_busy)
        killer.start()
        results = list(pool.measure(requests))
        killer.join()
        assert times(results) == [1000.0 + n for n in range(12)]
        assert (pool.report.num_deaths, pool.report.num_measured_again) == (1, 2)
        assert pool.num_machines == 3, "another process took its place"
        assert victim not in fleet.pids.values()


def test_machines_of_another_fingerprint_are_left_out() -> None:
    elsewhere = Measuring(MODULE, f"{MODULE}:greeting", Wanted("1", "", "another machine"))
    with pytest.raises(UsageError, match="no machine of the cluster can measure"):
        RayFleet("ray", elsewhere)


def test_who_stops_asking_leaves_no_measurement_behind() -> None:
    fleet = RayFleet("ray", HERE, num_per_machine=2)
    with ClusterMeasuringPool(fleet) as pool:
        results = pool.measure([request(1000.0 + n, "slow") for n in range(8)])
        assert times([next(results)]) == [1000.0]
        results.close()  # type: ignore[attr-defined]  # a generator
        assert not fleet.running
        assert times(list(pool.measure([request(7.0)]))) == [7.0]


def test_a_model_is_tuned_by_a_cluster(tmp_path: Path) -> None:
    model, cache = tw.load(small_net(channels=24, size=12)), tmp_path / "cache"
    tuned = tw.tune(model, threads=1, budget="6trials", cache_dir=cache, workers="ray", search="evolutionary")
    assert tuned.tuning.num_trials > 0
    database = TuningDatabase.in_folder(cache)
    observations = list(database.all_observations())
    assert observations
    assert {seen.provenance.host for _, seen in observations} == {"ray"}
    assert tw.compile(model, threads=1, cache_dir=cache).tuning is not None
