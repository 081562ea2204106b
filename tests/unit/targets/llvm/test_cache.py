"""The object cache: whole entries or none, bounded, and never a reason to fail."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import stat
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from tilewright.errors import UsageError
from tilewright.private_files import HEADER_BYTES, PrivateFolder, default_cache_directory
from tilewright.targets.llvm.cache import ObjectCache

SOURCE = Path(__file__).parents[4] / "src"
OVERHEAD_BYTES = HEADER_BYTES


def key_of(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


def entry_file(cache: ObjectCache, key: str) -> Path:
    path = cache._path(key)
    assert path is not None
    return path


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "cache")


def test_what_is_put_is_what_is_got(cache: ObjectCache) -> None:
    for data in (b"", b"x", os.urandom(100_000)):
        assert cache.get(key_of(data)) is None
        assert cache.put(key_of(data), data)
        assert cache.get(key_of(data)) == data
        assert ObjectCache(cache.directory).get(key_of(data)) == data


def test_every_bit_flip_and_truncation_is_a_miss_and_removes_the_entry(
    cache: ObjectCache, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(1)
    key, data = key_of("kernel"), rng.randbytes(200)
    cache.put(key, data)
    path = entry_file(cache, key)
    whole = path.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    damaged += [whole + b"\0", b"\0" * len(whole)]
    for raw in damaged:
        path.write_bytes(raw)
        assert cache.get(key) is None
        assert not path.exists()
    assert len(damaged) > 1000
    mark_bits = 64  # an entry with another mark is of another key, which is no damage to be told of
    assert len(caplog.records) == len(damaged) - mark_bits
    assert "is damaged: removed" in caplog.records[0].getMessage()
    path.write_bytes(whole)
    assert cache.get(key) == data


def test_an_entry_under_another_key_is_damaged(cache: ObjectCache) -> None:
    cache.put(key_of(1), b"one")
    other = entry_file(cache, key_of(2))
    other.parent.mkdir(parents=True, exist_ok=True)
    entry_file(cache, key_of(1)).rename(other)
    assert cache.get(key_of(2)) is None


@pytest.mark.parametrize(
    "key", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "/x", "0" * 64 + "\n"]
)
def test_keys_that_are_no_digest_are_refused(cache: ObjectCache, key: str) -> None:
    with pytest.raises(UsageError, match="not a SHA-256"):
        cache.get(key)


def test_verify_removes_the_damaged_and_counts_the_whole(cache: ObjectCache) -> None:
    keys = [key_of(i) for i in range(6)]
    for key in keys:
        cache.put(key, b"data" + key.encode())
    bad = sorted((keys[1], keys[4]))
    for key in bad:
        entry_file(cache, key).write_bytes(b"garbage")
    check = cache.verify()
    assert (check.num_whole, check.damaged) == (4, tuple(bad))
    assert {entry.key for entry in cache.entries()} == set(keys) - set(bad)
    assert cache.verify().damaged == ()


def set_age(cache: ObjectCache, key: str, seconds: float) -> None:
    when = time.time() - seconds
    os.utime(entry_file(cache, key), (when, when))


def test_prune_removes_the_least_recently_used_first(cache: ObjectCache) -> None:
    keys = [key_of(i) for i in range(5)]
    for age, key in zip((50, 40, 30, 20, 10), keys, strict=True):
        cache.put(key, bytes(100))
        set_age(cache, key, age)
    assert cache.get(keys[0]) is not None  # now the youngest
    size = 100 + OVERHEAD_BYTES
    assert cache.prune(2 * size) == 3 * size
    assert {entry.key for entry in cache.entries()} == {keys[0], keys[4]}


def test_an_entry_from_the_future_goes_first(cache: ObjectCache) -> None:
    for age, name in ((100, "old"), (-1e6, "future"), (1, "new")):
        cache.put(key_of(name), bytes(100))
        set_age(cache, key_of(name), age)
    cache.prune(2 * (100 + OVERHEAD_BYTES))
    assert {entry.key for entry in cache.entries()} == {key_of("old"), key_of("new")}


def test_the_size_cap_holds_after_every_put(tmp_path: Path) -> None:
    cap = 10_000
    cache = ObjectCache(tmp_path, max_bytes=cap)
    rng = random.Random(2)
    for i in range(200):
        cache.put(key_of(i), rng.randbytes(rng.randint(1, 900)))
        assert sum(entry.size_bytes for entry in cache.entries()) <= cap
    assert len(cache.entries()) > 5
    assert cache.get(key_of(199)) is not None


def test_an_object_larger_than_the_cap_is_not_stored(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, max_bytes=1000)
    assert not cache.put(key_of(1), bytes(1001))
    assert cache.entries() == ()
    assert not ObjectCache(tmp_path, max_bytes=0).put(key_of(1), b"")


def test_prune_removes_leftovers_of_killed_writers_but_not_of_running_ones(cache: ObjectCache) -> None:
    cache.put(key_of(1), b"x")
    folder = entry_file(cache, key_of(1)).parent
    old, young = folder / ".put-old", folder / ".put-young"
    old.write_bytes(b"partial")
    young.write_bytes(b"partial")
    os.utime(old, (time.time() - 86400,) * 2)
    cache.prune()
    assert not old.exists()
    assert young.exists()
    assert [entry.key for entry in cache.entries()] == [key_of(1)]


def test_clear_leaves_nothing(cache: ObjectCache) -> None:
    for i in range(3):
        cache.put(key_of(i), b"abc")
    assert cache.clear() == 3 * (3 + OVERHEAD_BYTES)
    assert cache.entries() == ()
    assert cache.put(key_of(1), b"again")


def test_a_cache_that_cannot_be_written_warns_once_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for error_number in (28, 30, 13):  # ENOSPC, EROFS, EACCES
        caplog.clear()
        cache = ObjectCache(tmp_path / str(error_number))

        def full(*_: object, number: int = error_number, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(PrivateFolder, "write", full)
            assert not any(cache.put(key_of(i), b"data") for i in range(5))
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert os.strerror(error_number) in caplog.records[0].getMessage()
        assert cache.get(key_of(0)) is None


def test_a_failed_write_leaves_no_temporary_file(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        assert not cache.put(key_of(1), b"data")
    assert list(entry_file(cache, key_of(1)).parent.iterdir()) == []


def test_a_path_that_is_no_directory_is_only_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a directory")
    cache = ObjectCache(tmp_path / "file")
    assert cache.get(key_of(1)) is None
    assert not cache.put(key_of(1), b"data")
    assert not cache.put(key_of(2), b"data")
    assert cache.entries() == ()
    assert cache.prune() == 0
    assert 1 <= len(caplog.records) <= 2  # one for reading, one for writing


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes to read-only directories")
def test_a_read_only_directory_still_serves(cache: ObjectCache) -> None:
    cache.put(key_of(1), b"data")
    folder = entry_file(cache, key_of(1)).parent
    folder.chmod(0o500)
    try:
        assert cache.get(key_of(1)) == b"data"
        assert not cache.put(key_of(1), b"other")
    finally:
        folder.chmod(0o700)


def test_without_a_directory_nothing_is_cached_and_nothing_fails() -> None:
    cache = ObjectCache(None)
    assert not cache.put(key_of(1), b"data")
    assert cache.get(key_of(1)) is None
    assert (cache.entries(), cache.prune(), cache.verify().num_whole) == ((), 0, 0)


def test_new_directories_are_private(cache: ObjectCache) -> None:
    cache.put(key_of(1), b"data")
    path = entry_file(cache, key_of(1))
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TILEWRIGHT_CACHE": "/a/b", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/tilewright"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/tilewright"),
        ({"HOME": "/h"}, "/h/.cache/tilewright"),
        ({"HOME": "nowhere"}, None),
    ],
)
def test_the_default_directory_follows_the_environment(
    environment: dict[str, str], expected: str | None
) -> None:
    found = default_cache_directory(environment)
    assert (None if found is None else found.as_posix()) == expected


def test_the_environment_is_read_at_the_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    assert default_cache_directory() == tmp_path


def test_no_home_means_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert default_cache_directory({}) is None


def test_an_exported_archive_imports_elsewhere(cache: ObjectCache, tmp_path: Path) -> None:
    contents = {key_of(i): os.urandom(50 * i) for i in range(5)}
    for key, data in contents.items():
        cache.put(key, data)
    first, second = tmp_path / "a.zip", tmp_path / "b.zip"
    assert cache.export_to(first) == 5
    cache.export_to(second)
    assert first.read_bytes() == second.read_bytes()
    other = ObjectCache(tmp_path / "other")
    assert other.import_from(first).num_imported == 5
    assert {key: other.get(key) for key in contents} == contents


def test_import_refuses_foreign_names_damage_and_bombs(tmp_path: Path) -> None:
    source = ObjectCache(tmp_path / "source")
    for name in ("good", "bad", "misplaced"):
        source.put(key_of(name), b"payload of " + name.encode())
    source.export_to(tmp_path / "all.zip")
    with zipfile.ZipFile(tmp_path / "all.zip") as file:
        raw = {name: file.read(f"objects/{key_of(name)}") for name in ("good", "bad", "misplaced")}
    members = {
        f"objects/{key_of('good')}": raw["good"],
        f"objects/{key_of('bad')}": raw["bad"][:-1] + b"?",
        f"objects/{key_of('elsewhere')}": raw["misplaced"],
        f"objects/../../{key_of('good')}": raw["good"],
        f"/objects/{key_of('good')}": raw["good"],
        "../escape": b"x",
        f"objects/{key_of('bomb')}": bytes(5_000_000),
    }
    archive = tmp_path / "mixed.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    target = ObjectCache(tmp_path / "target", max_bytes=1_000_000)
    result = target.import_from(archive)
    assert result.num_imported == 1
    assert set(result.refused) == set(members) - {f"objects/{key_of('good')}"}
    assert [entry.key for entry in target.entries()] == [key_of("good")]
    assert not (tmp_path / "escape").exists()


def test_an_archive_that_is_none_is_one_clear_error(cache: ObjectCache, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"no zip")
    with pytest.raises(UsageError, match=r"Cannot read cache archive .*x\.zip"):
        cache.import_from(tmp_path / "x.zip")
    with pytest.raises(UsageError, match="Cannot write cache archive"):
        cache.export_to(tmp_path / "missing" / "y.zip")


WORKER = """
import hashlib, random, sys
from tilewright.targets.llvm.cache import ObjectCache
cache, seed = ObjectCache(sys.argv[1], max_bytes=int(sys.argv[2])), int(sys.argv[3])
rng = random.Random(seed)
for _ in range(150):
    number = rng.randrange(40)
    key = hashlib.sha256(str(number).encode()).hexdigest()
    data = random.Random(number).randbytes(1000 + 10 * number)
    found = cache.get(key)
    assert found is None or found == data
    cache.put(key, data)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("max_bytes", [1 << 30, 20_000])
def test_processes_that_share_a_cache_see_whole_entries(tmp_path: Path, max_bytes: int) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), str(max_bytes), str(seed)],
            env={"PYTHONPATH": str(SOURCE)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(4)
    ]
    for process in processes:
        errors = process.communicate(timeout=60)[1]
        assert (process.returncode, errors) == (0, "")
    cache = ObjectCache(tmp_path, max_bytes=max_bytes)
    check = cache.verify()
    assert check.damaged == ()
    assert check.num_whole == 40 if max_bytes > 1 << 20 else check.num_whole > 0
    assert not list(tmp_path.rglob(".put-*"))


def test_threads_that_put_the_same_entry_leave_one(cache: ObjectCache) -> None:
    key, data = key_of(1), os.urandom(5000)
    threads = [threading.Thread(target=lambda: [cache.put(key, data) for _ in range(30)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [entry.key for entry in cache.entries()] == [key]
    assert cache.get(key) == data
