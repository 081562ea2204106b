"""Rates measured on this machine: kept once, used where they may be, never trusted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.models import small_net

from tilewright.api.doctor import _rates
from tilewright.api.kept import _place
from tilewright.api.models import load
from tilewright.hardware import probe
from tilewright.hardware.calibration import Calibration, in_steps, keep_calibration, kept_calibration
from tilewright.hardware.rates import PROFILE, MatrixRates, processor_rates
from tilewright.options import Options
from tilewright.private_files import CALIBRATIONS
from tilewright.targets.cpu.isa import host_isa, isa_by_name, isa_of
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.cpu.tune.context import context_on, host_fingerprints

UNMEASURED = processor_rates(probe.processor_facts().name)
FOUND = Calibration(replace(PROFILE, memory_bytes_per_cycle=3.0), MatrixRates(), 1.0, 8e9, 2, 2)


def clear() -> None:
    probe.host_calibration.cache_clear()
    host_isa.cache_clear()
    isa_by_name.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("TILEWRIGHT_NO_CACHE", raising=False)
    clear()
    yield tmp_path / "cache"
    clear()


@pytest.fixture
def kept(folder: Path) -> Path:
    assert keep_calibration(FOUND, probe.machine_facts())
    clear()
    (record,) = (folder / CALIBRATIONS).iterdir()
    return record


def test_a_record_is_what_was_kept_and_only_of_this_machine(kept: Path) -> None:
    assert probe.host_calibration() == FOUND
    assert kept_calibration("another machine") is None


def test_estimates_use_it_for_this_host_and_its_processors_profile_elsewhere(kept: Path) -> None:
    target = CpuTarget()
    assert target.isa(Options()).rates == host_isa().rates == FOUND.rates
    assert target.isa(Options()).fmas_per_cycle == 1.0
    name = host_isa().vectors
    for other in (target.isa(Options(isa=name)), target.isa(Options(frozen=True)), isa_by_name(name)):
        assert other.rates == UNMEASURED


def test_what_is_kept_and_measured_depends_on_it(folder: Path) -> None:
    def keys() -> tuple[object, ...]:
        clear()
        place = _place(load(small_net()), Options())
        assert place is not None
        return place.name, context_on(host_isa(), "default", 1).key

    before = keys()
    keep_calibration(FOUND, probe.machine_facts())
    after = keys()
    assert not set(before) & set(after)
    assert {
        context_on(isa, "default", 1).fingerprint for isa in (host_isa(), isa_of(CpuTarget().machine))
    } <= (host_fingerprints())
    assert keys() == after


@pytest.mark.parametrize("damage", ["cut", "flipped", "other name", "no number"])
def test_a_record_that_is_damaged_or_forged_is_not_used_and_said_once(
    kept: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = kept.read_bytes()
    if damage == "cut":
        kept.write_bytes(content[:40])
    elif damage == "flipped":
        kept.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    elif damage == "other name":
        kept.write_bytes(b"")
    else:
        forged = json.loads(FOUND.to_json())
        forged["rates"]["memory_bytes_per_cycle"] = -1
        assert Calibration.from_json(json.dumps(forged)) is None
        kept.write_text(json.dumps(forged))
    assert probe.host_calibration() is None
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1
    assert host_isa().rates == UNMEASURED


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_cores", 3),
        ("num_cores", 1.0),
        ("fmas_per_s", float("nan")),
        ("fmas_per_s", 10**400),
        ("fmas_per_cycle", 0),
        ("more", 1),
    ],
)
def test_numbers_that_no_machine_has_are_no_record(key: str, value: float) -> None:
    document = {**json.loads(FOUND.to_json()), key: value}
    assert Calibration.from_json(json.dumps(document)) is None
    assert Calibration.from_json("[" * 100_000) is None
    assert Calibration.from_json(FOUND.to_json()) == FOUND


def test_processes_that_calibrate_at_once_leave_one_whole_record(folder: Path) -> None:
    records = [replace(FOUND, fmas_per_s=float(n)) for n in range(1, 9)]
    threads = [
        threading.Thread(target=keep_calibration, args=(record, probe.machine_facts())) for record in records
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert probe.host_calibration() in records
    assert len(list((folder / CALIBRATIONS).iterdir())) == 1


def test_virtual_cores_of_one_physical_core_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    for core, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        place = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(siblings + "\n")
    assert probe.num_threads_default(tmp_path) == 2
    assert probe.physical_cores(tmp_path / "nothing") == 4


def test_the_number_of_threads_follows_what_was_measured(folder: Path) -> None:
    allowed = probe.affinity_cores()
    keep_calibration(replace(FOUND, num_threads=allowed, num_cores=1), probe.machine_facts())
    clear()
    assert probe.num_threads_default() == 1


def test_measured_rates_are_kept_in_steps() -> None:
    assert [in_steps(1.06 * rate) == in_steps(rate) for rate in (2.0, 8.0, 64.0)] == [True] * 3
    assert all(abs(in_steps(rate) / rate - 1) < 0.1 for rate in (0.7, 3.3, 19.0, 66.0, 5.4e9))


def test_measuring_gives_what_a_core_can_have(folder: Path) -> None:
    from tilewright.targets.cpu.tune.calibrate import calibrated_host

    found = calibrated_host()
    assert Calibration.from_json(found.to_json()) == found
    rates = found.rates
    assert rates.memory_bytes_per_cycle <= rates.cold_bytes_per_cycle * 1.2
    assert rates.memory_bytes_per_cycle < rates.private_bytes_per_cycle
    assert found.fmas_per_cycle in (1.0, 2.0)


@pytest.mark.parametrize(
    ("place", "reason"), [("file/cache", "set TILEWRIGHT_CACHE to a folder"), ("", "as nothing is")]
)
def test_rates_that_cannot_be_kept_are_told_and_not_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, reason: str
) -> None:
    (tmp_path / "file").write_text("no folder")
    if place:
        monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / place))
    else:
        monkeypatch.setenv("TILEWRIGHT_NO_CACHE", "1")
    monkeypatch.setattr("tilewright.targets.cpu.tune.calibrate.calibrated_host", lambda: FOUND)
    (check,) = _rates(True)
    assert (check.name, check.ok) == ("estimates", False)
    assert "which are not used" in check.found
    assert reason in check.advice
    assert host_isa().rates == UNMEASURED
