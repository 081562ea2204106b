"""Findings travel as they are, count as hints unless trusted, and a file made to do harm does none."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.tuning.test_database import CONTEXT, ELSEWHERE, PLAN, same, seen

from tilewright.errors import UsageError
from tilewright.tuning import Failure, FailureReason, TuningDatabase
from tilewright.tuning.contents import Unwanted, contents, prune
from tilewright.tuning.exchange import export_findings, import_findings, is_findings

FAILURE = Failure("group", {"rows": 3}, FailureReason.HUNG, "20 s", 1.7e9)
TRUSTED = frozenset({CONTEXT.fingerprint})
OTHER_MACHINE = replace(CONTEXT, processor="another")


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    """Findings of two contexts of one machine."""
    made = TuningDatabase.in_folder(tmp_path / "from")
    made.record(CONTEXT, [seen({"rows": n}, 100.0 - n) for n in range(1, 9)], {"group": "conv + relu"})
    made.record(CONTEXT, [FAILURE])
    made.record(ELSEWHERE, [seen({"rows": 1}, 50.0)])
    made.store_plan(CONTEXT, "model", replace(PLAN, model="a network", tuned_at_s=1.7e9))
    return made


@pytest.fixture
def target(tmp_path: Path) -> TuningDatabase:
    return TuningDatabase.in_folder(tmp_path / "to")


@pytest.fixture
def file(database: TuningDatabase, tmp_path: Path) -> Path:
    path = tmp_path / "findings.jsonl"
    assert export_findings(database, path) == 8 + 1 + 1 + 1
    assert is_findings(path)
    return path


def test_equal_databases_give_equal_files(database: TuningDatabase, file: Path, tmp_path: Path) -> None:
    export_findings(database, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == file.read_bytes()


def test_what_is_imported_is_a_hint(target: TuningDatabase, file: Path) -> None:
    found = import_findings(target, file)
    assert (found.num_hints, found.num_trusted, found.num_left_out, found.refused) == (9, 0, 2, [])
    assert target.best(CONTEXT, "group") is None
    assert target.plan(CONTEXT, "model") is None
    assert target.failures(CONTEXT, "group") == ()
    assert [hint.candidate["rows"] for hint in target.hints(CONTEXT, "group")] == [1, 8, 7, 6, 5, 4, 3, 2]
    assert target.subjects("site") == {"group": "conv + relu"}
    here = seen({"rows": 8}, 120.0)
    target.record(CONTEXT, [here])
    assert target.best(CONTEXT, "group") == here, "measured here, it counts"


def test_what_is_trusted_counts_on_a_machine_like_this_one_only(
    target: TuningDatabase, file: Path, database: TuningDatabase
) -> None:
    found = import_findings(target, file, trusted=TRUSTED)
    assert (found.num_hints, found.num_trusted, found.num_left_out) == (0, 11, 0)
    best = target.best(CONTEXT, "group")
    assert best is not None
    assert best.candidate == {"rows": 8}
    assert best.provenance.host == CONTEXT.processor
    assert target.failures(CONTEXT, "group") == (FAILURE,)
    stored = target.plan(CONTEXT, "model")
    assert same(stored, database.plan(CONTEXT, "model"))
    elsewhere = import_findings(target, file, trusted=frozenset({OTHER_MACHINE.fingerprint}))
    assert (elsewhere.num_hints, elsewhere.num_trusted, elsewhere.num_known) == (0, 0, 9)


def test_a_hint_becomes_trusted_and_a_measurement_stays(target: TuningDatabase, file: Path) -> None:
    import_findings(target, file)
    mine = seen({"rows": 8}, 300.0)
    target.record(CONTEXT, [mine])
    found = import_findings(target, file, trusted=TRUSTED)
    assert (found.num_trusted, found.num_known) == (10, 1)
    assert mine in target.observations(CONTEXT, "group")


def test_a_trusted_failure_does_not_unmake_what_was_measured_here(target: TuningDatabase, file: Path) -> None:
    mine = seen(FAILURE.candidate, 2.0)
    target.record(CONTEXT, [mine])
    found = import_findings(target, file, trusted=TRUSTED)
    assert (found.num_trusted, found.num_known) == (9, 2)
    assert target.best(CONTEXT, "group") == mine


def test_contents_are_by_model_site_and_machine(database: TuningDatabase) -> None:
    listed = contents(database, now_s=1.7e9 + 60)
    (model,) = listed.models
    assert (model.name, model.search, model.num_changed, model.age_s) == ("a network", "reformer", 1, 60.0)
    sites = {site.context: site for site in listed.sites}
    here = sites[CONTEXT.key]
    assert (here.name, here.num_observations, here.num_failures) == ("conv + relu", 8, 1)
    assert here.best_ratio == pytest.approx(0.92)
    assert {m.key: m.num_observations for m in listed.machines} == {CONTEXT.key: 8, ELSEWHERE.key: 1}
    assert sum(m.size_bytes for m in listed.machines) == sum(
        x.size_bytes for x in (*listed.models, *listed.sites)
    )


def test_what_could_not_be_removed_is_not_counted(
    database: TuningDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database.store, "write", lambda *_, **__: False)
    assert prune(database, Unwanted(failures=True)) == 0
    assert database.clear() == 0


@pytest.mark.parametrize(
    ("unwanted", "num_removed"),
    [
        (Unwanted(), 0),
        (Unwanted(older_than_s=1e9), 0),
        (Unwanted(older_than_s=60.0), 11),
        (Unwanted(failures=True), 1),
        (Unwanted(imported=True), 0),
        (Unwanted(model="a network"), 1),
        (Unwanted(model="a netw"), 0),
        (Unwanted(site="gro"), 10),
        (Unwanted(usable=TRUSTED), 0),
        (Unwanted(usable=frozenset()), 11),
    ],
)
def test_only_what_is_named_is_removed(
    unwanted: Unwanted, num_removed: int, database: TuningDatabase
) -> None:
    assert prune(database, unwanted, now_s=1.8e9) == num_removed
    held = database.summary()
    assert held.num_plans + held.num_trials + held.num_failures == 11 - num_removed
    assert set(database.contexts()) == {m.key for m in contents(database).machines}


def sealed(lines: list[Any], path: Path) -> Path:
    """A file of these lines with a checksum that holds."""
    text = b"".join(
        (line if isinstance(line, bytes) else json.dumps(line, separators=(",", ":")).encode()) + b"\n"
        for line in lines
    )
    end = {"end": len(lines), "sha256": hashlib.sha256(text).hexdigest()}
    path.write_bytes(text + json.dumps(end).encode() + b"\n")
    return path


Forge = Callable[[list[Any]], list[Any]]


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (lambda lines: lines[1:], "holds no findings"),
        (lambda lines: [{**lines[0], "format": 2}, *lines[1:]], "format 2"),
        (lambda lines: [], "holds no findings"),
        (lambda lines: [b"\xff\xfe", *lines], "holds no findings"),
        (lambda lines: [lines[0], *[b"[]"] * 2000], "MAX_REFUSED"),
    ],
)
def test_what_is_no_such_file_is_refused(
    forge: Forge, message: str, file: Path, target: TuningDatabase
) -> None:
    lines = [json.loads(line) for line in file.read_bytes().splitlines()[:-1]]
    with pytest.raises(UsageError, match=message):
        import_findings(target, sealed(forge(lines), file))
    assert target.summary().num_trials == 0


def test_a_file_that_was_cut_off_or_changed_is_refused_whole(file: Path, target: TuningDatabase) -> None:
    whole = file.read_bytes()
    rng = random.Random(0)
    for _ in range(30):
        at = rng.randrange(len(whole))
        flipped = bytes([whole[at] ^ 1 << rng.randrange(8)])
        for bad in (whole[:at], whole[:at] + flipped + whole[at + 1 :]):
            file.write_bytes(bad)
            with pytest.raises(UsageError):
                import_findings(target, file, trusted=TRUSTED)
    assert target.summary().num_trials == 0


@pytest.mark.parametrize(
    "bad",
    [
        b"no JSON",
        b"[" * 100_000,
        b'{"context":"x","site":"group","observation":{}}',
        b'{"observation":NaN}',
        {"context": CONTEXT.key, "site": "group"},
        {"context": CONTEXT.key, "site": "group", "observation": []},
        {"context": CONTEXT.key, "site": "\ud800", "observation": seen().to_json()},
        {"context": CONTEXT.key, "site": "x" * 1000, "observation": seen().to_json()},
        {"context": CONTEXT.key, "site": ["group"], "observation": seen().to_json()},
        {"context": CONTEXT.key, "model": "m", "plan": {"forms": {"a": {"b": 1}}}},
        {"context": CONTEXT.key, "model": "m", "plan": {**PLAN.to_json(), "plain_ns": 10**400}},
        {"context": CONTEXT.key, "model": "m", "plan": {**PLAN.to_json(), "forms": {"a": 3}}},
        {"context": CONTEXT.key, "model": "m", "plan": {**PLAN.to_json(), "tuned_at_s": -1}},
        {"context": CONTEXT.key, "site": "group", "failure": {**FAILURE.to_json(), "reason": "mood"}},
        {"context": CONTEXT.key, "facts": {**CONTEXT.to_json(), "num_threads": 4}},
        {"context": CONTEXT.key, "facts": {"key": 1}},
        {"site": "group", "name": 7},
        {"site": "group", "name": "\ud800"},
        b'{"context":"%s","site":"group","observation":{"baseline_ns":1e999}}' % CONTEXT.key.encode(),
    ],
    ids=str,
)
def test_a_bad_line_is_refused_and_the_others_are_taken(bad: Any, file: Path, target: TuningDatabase) -> None:
    lines: list[Any] = file.read_bytes().splitlines()[:-1]
    found = import_findings(target, sealed([*lines, bad], file), trusted=TRUSTED)
    assert [text.partition(":")[0] for text in found.refused] == [f"line {len(lines) + 1}"]
    assert found.num_trusted == 11
    assert target.verify() == 0, "all that was stored can be read"


def test_a_pipe_or_a_folder_is_no_file_of_findings(tmp_path: Path, target: TuningDatabase) -> None:
    assert not is_findings(tmp_path)
    with pytest.raises(UsageError, match="cannot be read"):
        import_findings(target, tmp_path)
