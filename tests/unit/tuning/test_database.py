"""Findings survive, damage is a miss or a fresh start with one warning, and processes may share the file."""

from __future__ import annotations

import logging
import multiprocessing
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.cost.base import Measurement
from tilewright.planning import Budget
from tilewright.tuning import (
    Failure,
    FailureReason,
    Observation,
    PlanContext,
    Provenance,
    TunedPlan,
    TuningDatabase,
    store,
)
from tilewright.tuning.observation import Source

FORM = {"kernels": [{"nodes": [0, 1], "blocking": {"rows": 4}}]}
CONTEXT = PlanContext("1.0", "avx512", "32K", "llvm", "fast", 2, processor="a processor")
ELSEWHERE = replace(CONTEXT, num_threads=1)
PLAN = TunedPlan({"site": FORM}, 1000.0, 900.0, is_complete=True, budget=Budget.parse("30s"))


def seen(
    candidate: object = FORM, time_ns: float = 80.0, site: str = "group", **facts: object
) -> Observation:
    assert isinstance(candidate, dict)
    samples = [time_ns, time_ns * 1.1, time_ns * 1.2]
    return Observation(site, candidate, Measurement.of(samples, "3 runs"), 100.0, 1.7e9, **facts)  # type: ignore[arg-type]


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    return TuningDatabase.in_folder(tmp_path / "cache")


def same(a: TunedPlan | None, b: TunedPlan | None) -> bool:
    return a is not None and b is not None and all(getattr(a, n) == getattr(b, n) for n in a.__slots__)


def test_findings_are_read_back_by_another_reader(database: TuningDatabase) -> None:
    database.record(CONTEXT, [seen(), seen({"rows": 8}, 99.0), seen(site="other")])
    database.store_plan(CONTEXT, "model", PLAN)
    again = TuningDatabase(database.path)
    assert again.observations(CONTEXT, "group") == (seen(), seen({"rows": 8}, 99.0))
    assert same(again.plan(CONTEXT, "model"), PLAN)
    assert again.observations(ELSEWHERE, "group") == ()
    assert again.plan(CONTEXT, "another") is None


@pytest.mark.parametrize(
    ("last", "wanted", "satisfied"),
    [
        ("30s", "30s", True),
        ("30s", "10s", True),
        ("30s", "31s", False),
        ("30s", "5trials", False),
        ("50trials", "50trials", True),
        ("50trials", "51trials", False),
        ("50trials", "1s", False),
    ],
)
def test_a_plan_satisfies_budgets_up_to_its_own(last: str, wanted: str, satisfied: bool) -> None:
    plan = TunedPlan({}, 0.0, 0.0, is_complete=False, budget=Budget.parse(last))
    assert plan.satisfies(Budget.parse(wanted)) == satisfied
    assert replace(plan, is_complete=True).satisfies(Budget.parse(wanted))


def test_it_counts_and_forgets(database: TuningDatabase) -> None:
    assert database.clear() == 0
    database.record(CONTEXT, [seen()])
    database.store_plan(CONTEXT, "model", PLAN)
    held = database.summary()
    assert (held.num_plans, held.num_trials) == (1, 1)
    assert held.size_bytes > 0
    assert database.clear() == 2
    assert database.plan(CONTEXT, "model") is None


def test_without_a_folder_nothing_is_remembered() -> None:
    database = TuningDatabase.in_folder(None)
    database.store_plan(CONTEXT, "model", PLAN)
    assert database.plan(CONTEXT, "model") is None
    assert database.summary().num_plans == 0


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE {table} SET body = replace(body, '9', '1')",
        "UPDATE {table} SET body = 'x'",
        "UPDATE {table} SET digest = ''",
        "UPDATE {table} SET body = NULL || 'x', digest = 'y'",
    ],
)
def test_a_damaged_row_is_a_miss_and_verify_removes_it(database: TuningDatabase, change: str) -> None:
    database.record(CONTEXT, [seen(time_ns=99.0)])
    database.store_plan(CONTEXT, "model", PLAN)
    assert database.path is not None
    with sqlite3.connect(database.path) as connection:
        for table in ("plans", "observations"):
            connection.execute(change.format(table=table).replace("NULL ||", "'' ||"))
    connection.close()
    assert database.observations(CONTEXT, "group") == ()
    assert database.plan(CONTEXT, "model") is None
    assert database.verify() == 2
    assert database.summary().num_trials == 0


def test_observations_are_read_back_as_they_were_recorded(database: TuningDatabase) -> None:
    whole = seen(
        features={"flop": 1e9, "bytes": 3.0},
        feature_set="cpu-nests-1",
        provenance=Provenance(host="node2", calibrated_at_s=1.7e9),
    )
    assert database.record(CONTEXT, [whole], names={"group": "conv + relu"})
    again = TuningDatabase(database.path)
    assert again.observations(CONTEXT, "group") == (whole,)
    assert again.observations(ELSEWHERE, "group") == ()
    assert again.contexts() == {CONTEXT.key: CONTEXT}
    assert again.subjects("site") == {"group": "conv + relu"}
    assert list(again.all_observations("cpu-nests-1")) == [(CONTEXT, whole)]
    assert list(again.all_observations("cpu-nests-2")) == []


def test_the_best_is_the_fastest_beside_its_baseline_that_never_failed(database: TuningDatabase) -> None:
    slow, fast, wrong = (seen({"rows": n}, time_ns) for n, time_ns in ((1, 90.0), (2, 80.0), (4, 20.0)))
    failure = Failure("group", {"rows": 4}, FailureReason.WRONG_VALUES, "off by 3", 1.7e9)
    database.record(CONTEXT, [slow, wrong, fast, failure])
    assert database.best(CONTEXT, "group") == fast
    assert database.observations(CONTEXT, "group") == (fast, slow)
    assert database.failures(CONTEXT, "group") == (failure,)
    assert database.best(CONTEXT, "another") is None
    database.record(CONTEXT, [seen({"rows": 2}, 95.0)])
    assert database.best(CONTEXT, "group") == slow, "a later observation replaces the earlier"


def test_what_was_seen_elsewhere_is_a_hint_and_never_the_best(database: TuningDatabase) -> None:
    imported = seen({"rows": 8}, 10.0, provenance=Provenance(Source.IMPORTED, "elsewhere"))
    other = seen({"rows": 2}, 50.0)
    database.record(CONTEXT, [imported, seen({"rows": 4}, 99.0)])
    database.record(ELSEWHERE, [other, seen({"rows": 4}, 1.0), seen({"rows": 8}, 70.0)])
    assert database.best(CONTEXT, "group") == seen({"rows": 4}, 99.0)
    assert database.hints(CONTEXT, "group") == (imported, other)
    trusted = seen({"rows": 8}, 10.0, provenance=Provenance(Source.TRUSTED, "elsewhere"))
    database.record(CONTEXT, [trusted])
    assert database.best(CONTEXT, "group") == trusted


def test_a_context_is_known_by_all_but_the_name_of_the_processor() -> None:
    other = replace(CONTEXT, processor="another")
    assert other.key == CONTEXT.key
    assert other.fingerprint != CONTEXT.fingerprint
    assert ELSEWHERE.fingerprint == CONTEXT.fingerprint, "options are no machine"
    changes = [{"num_threads": 3}, {"machine": "avx2"}, {"surroundings": "a plan"}, {"format_version": 4}]
    assert len({CONTEXT.key, *(replace(CONTEXT, **change).key for change in changes)}) == 5  # type: ignore[arg-type]
    assert PlanContext.from_json(CONTEXT.to_json()) == CONTEXT


@pytest.mark.parametrize(
    "change",
    [
        {"candidate": []},
        {"candidate": {}},
        {"candidate": {"a": "x" * 300_000}},
        {"measured": None},
        {"measured": {"median_ns": 1, "low_ns": 2, "high_ns": 3, "count": 1, "context": ""}},
        {"measured": {"median_ns": 2, "low_ns": -1, "high_ns": 3, "count": 1, "context": ""}},
        {"measured": {"median_ns": 2, "low_ns": 1, "high_ns": 1e300, "count": 1, "context": ""}},
        {"measured": {"median_ns": 2, "low_ns": 1, "high_ns": 3, "count": True, "context": ""}},
        {"baseline_ns": 0},
        {"baseline_ns": float("nan")},
        {"baseline_ns": "100"},
        {"measured_at_s": -1},
        {"features": {"a": float("inf")}},
        {"features": {"a": "1"}},
        {"features": {str(n): 1 for n in range(2000)}},
        {"feature_set": 1},
        {"source": "myself"},
        {"source": ["measured"]},
        {"host": None},
        {"calibrated_at_s": "now"},
    ],
)
def test_an_observation_of_other_types_or_sizes_is_none(change: dict[str, object]) -> None:
    document = seen().to_json()
    assert Observation.from_json("group", document) == seen()
    assert Observation.from_json("group", {**document, **change}) is None


def test_a_file_of_a_later_version_is_left_alone(
    database: TuningDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    database.store_plan(CONTEXT, "model", PLAN)
    assert database.path is not None
    with sqlite3.connect(database.path) as connection:
        connection.execute("PRAGMA user_version = 4")
        connection.execute("CREATE TABLE more (x)")
    connection.close()
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        assert database.plan(CONTEXT, "model") is None
        assert not database.store_plan(CONTEXT, "model", PLAN)
    assert [r.message.count("later version") for r in caplog.records] == [1]
    with sqlite3.connect(database.path) as connection:
        assert connection.execute("SELECT count(*) FROM plans").fetchone() == (1,)
    connection.close()


def test_a_file_that_is_no_database_is_set_aside_with_one_warning(
    database: TuningDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    assert database.path is not None
    database.path.parent.mkdir()
    database.path.write_bytes(b"no database at all" * 100)
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        assert database.plan(CONTEXT, "model") is None
        database.store_plan(CONTEXT, "model", PLAN)
    assert same(database.plan(CONTEXT, "model"), PLAN)
    assert [r.message.count("damaged") > 0 for r in caplog.records] == [True]
    assert database.path.with_name("tuning.db.damaged").read_bytes().startswith(b"no database")


def test_a_link_that_takes_the_place_of_the_file_is_not_written_through(
    database: TuningDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert database.path is not None
    database.store_plan(CONTEXT, "model", PLAN)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE others (name)")
    connection.close()
    before = other.read_bytes()

    def swapped(path: Path) -> sqlite3.Connection:
        path.unlink(missing_ok=True)
        path.symlink_to(other)
        return sqlite3.connect(path, isolation_level=None)

    monkeypatch.setattr(store, "_opened", swapped)
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        database.record(CONTEXT, [seen()])
    assert caplog.records
    assert all("tuning.db" in r.message and "is a symbolic link" in r.message for r in caplog.records)
    assert other.read_bytes() == before


def test_a_truncated_or_scribbled_file_never_raises(database: TuningDatabase) -> None:
    database.record(CONTEXT, [seen(site=f"site{i}") for i in range(200)])
    assert database.path is not None
    with sqlite3.connect(database.path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    whole = database.path.read_bytes()
    for at in range(0, len(whole), len(whole) // 23):
        scribbled = whole[:at] + b"\xff" * 64 + whole[at + 64 :]
        for content in (whole[:at], scribbled):
            database.path.write_bytes(content)
            TuningDatabase(database.path).observations(CONTEXT, "site7")
            TuningDatabase(database.path).record(CONTEXT, [seen(site="site7")])
            assert TuningDatabase(database.path).observations(CONTEXT, "site7") in ((), (seen(site="site7"),))


def test_a_disk_that_cannot_be_written_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    database = TuningDatabase.in_folder(tmp_path / "file")
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        database.store_plan(CONTEXT, "model", PLAN)
        database.record(CONTEXT, [seen()])
    assert len(caplog.records) == 1


def _write_many(path: str, writer: int) -> None:
    database = TuningDatabase(Path(path))
    for i in range(10):
        database.record(CONTEXT, [seen(site=f"site{writer}.{i}")])
        database.store_plan(CONTEXT, "model", PLAN)


def test_processes_share_it(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    writers = [
        multiprocessing.get_context("spawn").Process(target=_write_many, args=(str(path), n))
        for n in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    database = TuningDatabase(path)
    assert database.summary().num_trials == 40
    assert same(database.plan(CONTEXT, "model"), PLAN)
