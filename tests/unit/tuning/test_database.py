"""Findings survive, damage is a miss or a fresh start with one warning, and processes may share the file."""

from __future__ import annotations

import logging
import multiprocessing
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.planning import Budget
from tilewright.tuning import Candidate, Choice, Trial, TunedPlan, TuningDatabase

DIRECT = Candidate.of({"8f": Choice.of("contraction", rows=8)})
FAST = Candidate.of({"8f": Choice.of("winograd", tile=4)})
TRIAL = Trial(FAST, 80.0, 100.0)
PLAN = TunedPlan({"site": FAST}, 1000.0, 900.0, is_complete=True, budget=Budget.parse("30s"))


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    return TuningDatabase.in_folder(tmp_path / "cache")


def same(a: TunedPlan | None, b: TunedPlan | None) -> bool:
    return a is not None and b is not None and all(getattr(a, n) == getattr(b, n) for n in a.__slots__)


def test_findings_are_read_back_by_another_reader(database: TuningDatabase) -> None:
    database.record("context", [("site", TRIAL), ("site", Trial(DIRECT, 99.0, 100.0)), ("other", TRIAL)])
    database.store_plan("context", "model", PLAN)
    again = TuningDatabase(database.path)
    assert set(again.trials("context", "site")) == {TRIAL, Trial(DIRECT, 99.0, 100.0)}
    assert same(again.plan("context", "model"), PLAN)
    assert again.trials("elsewhere", "site") == ()
    assert again.plan("context", "another") is None


def test_a_later_finding_replaces_the_earlier(database: TuningDatabase) -> None:
    later = Trial(FAST, 120.0, 100.0)
    database.record("context", [("site", TRIAL)])
    database.record("context", [("site", later)])
    assert database.trials("context", "site") == (later,)


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
    database.record("context", [("site", TRIAL)])
    database.store_plan("context", "model", PLAN)
    held = database.summary()
    assert (held.num_plans, held.num_trials) == (1, 1)
    assert held.size_bytes > 0
    assert database.clear() == 2
    assert database.plan("context", "model") is None


def test_without_a_folder_nothing_is_remembered() -> None:
    database = TuningDatabase.in_folder(None)
    database.store_plan("context", "model", PLAN)
    assert database.plan("context", "model") is None
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
    database.record("context", [("site", Trial(FAST, 99.0, 100.0))])
    database.store_plan("context", "model", PLAN)
    assert database.path is not None
    with sqlite3.connect(database.path) as connection:
        for table in ("plans", "trials"):
            connection.execute(change.format(table=table).replace("NULL ||", "'' ||"))
    connection.close()
    assert database.trials("context", "site") == ()
    assert database.plan("context", "model") is None
    assert database.verify() == 2
    assert database.summary().num_trials == 0


def test_rows_of_another_version_are_not_read_and_not_called_damaged(database: TuningDatabase) -> None:
    database.store_plan("context", "model", PLAN)  # a file and its key
    choice, body = '{"template": "winograd", "tile": 4}', '{"time_ns": 80.0, "plain_ns": 100.0}'
    row = ("context", "site", choice, body)
    assert database.path is not None
    with sqlite3.connect(database.path) as connection:
        digest = database._digest("trials", *row)
        connection.execute("INSERT INTO trials VALUES (?, ?, ?, ?, ?)", (*row, digest))
    connection.close()
    assert database.trials("context", "site") == ()
    assert database.verify() == 0
    assert (database.summary().num_plans, database.summary().num_trials) == (1, 0)


def test_a_file_that_is_no_database_is_set_aside_with_one_warning(
    database: TuningDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    assert database.path is not None
    database.path.parent.mkdir()
    database.path.write_bytes(b"no database at all" * 100)
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        assert database.plan("context", "model") is None
        database.store_plan("context", "model", PLAN)
    assert same(database.plan("context", "model"), PLAN)
    assert [r.message.count("damaged") > 0 for r in caplog.records] == [True]
    assert database.path.with_name("tuning.db.damaged").read_bytes().startswith(b"no database")


def test_a_truncated_or_scribbled_file_never_raises(database: TuningDatabase) -> None:
    database.record("context", [(f"site{i}", TRIAL) for i in range(200)])
    assert database.path is not None
    with sqlite3.connect(database.path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    whole = database.path.read_bytes()
    for at in range(0, len(whole), len(whole) // 23):
        scribbled = whole[:at] + b"\xff" * 64 + whole[at + 64 :]
        for content in (whole[:at], scribbled):
            database.path.write_bytes(content)
            TuningDatabase(database.path).trials("context", "site7")
            TuningDatabase(database.path).record("context", [("site7", TRIAL)])
            assert set(TuningDatabase(database.path).trials("context", "site7")) <= {TRIAL}


def test_a_disk_that_cannot_be_written_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    database = TuningDatabase.in_folder(tmp_path / "file")
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        database.store_plan("context", "model", PLAN)
        database.record("context", [("site", TRIAL)])
    assert len(caplog.records) == 1


def _write_many(path: str, writer: int) -> None:
    database = TuningDatabase(Path(path))
    for i in range(10):
        database.record("context", [(f"site{writer}.{i}", TRIAL)])
        database.store_plan("context", "model", PLAN)


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
    assert same(database.plan("context", "model"), PLAN)
