"""Caches that another user, an accident or an attacker has changed, and what meets them.

`python -m tests.hostile.caches 500` damages that many copies of a cache, each in one to three ways, lets a
compilation, an artifact's record, tuning and `cache verify` meet them, and says what came out. A finding is:
a result that is wrong, code loaded or a record used that was not written here, a hang, an error, damage that
nobody is told of, or anything changed outside the cache.
"""

# mypy: disable-error-code="assignment, return-value, var-annotated"

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import resource
import shutil
import signal
import socket
import sqlite3
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import binding as llvm
from tests.support.cli import tilewright
from tests.support.models import small_net
from tests.support.recording import CONTEXT, batch

import tilewright as tw
from tilewright import private_files
from tilewright.private_files import (
    DATABASE,
    KEY_NAME,
    LOOPS,
    OBJECTS,
    BadRecord,
    PrivateFolder,
    Records,
    key_mark,
    keys,
)
from tilewright.tuning import TuningDatabase

MAX_SECONDS = 60.0
"""For one cache, on a machine that does other things too: one takes well under a second alone."""
FOREIGN_UID = 65534
MARKER = "executed"


@dataclass(frozen=True, slots=True)
class Filled:
    """A whole cache, and what is right."""

    folder: Path
    model: tw.Model
    feed: dict[str, np.ndarray]
    results: list[np.ndarray]
    images: frozenset[bytes]
    records: dict[tuple[str, ...], bytes]


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One copy: the cache, the state folder with the key, and a folder outside that nobody may touch."""

    folder: Path
    cache: Path
    state: Path
    outside: Path
    filled: Filled


@dataclass(frozen=True, slots=True)
class Damage:
    """What was done. `is_told`: `cache verify` must end with an error; `is_warned`: its next use warns."""

    how: str
    is_told: bool
    is_warned: bool


def fill(folder: Path) -> Filled:
    """A cache with kernels, loops and findings of tuning."""
    model = tw.load(small_net(channels=24, size=12))
    rng = np.random.default_rng(0)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in model.graph.inputs}
    cache = folder / "cache"
    with _surroundings(folder), _images() as images:
        tuned = tw.tune(model, threads=1, budget="4trials", cache_dir=cache)
        tuned.model.save(folder / "model.tw")
        tw.open(folder / "model.tw").run(None, feed)
        compiled = tw.compile(model, threads=1, cache_dir=cache)
        results = compiled.run(None, feed)
        for number in range(3):
            name = hashlib.sha256(str(number).encode()).hexdigest()
            Records(PrivateFolder(cache), LOOPS).put(name, b"loop %d" % number)
        with sqlite3.connect(cache / DATABASE) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        records = {}
        for path in sorted(p for kind in (OBJECTS, LOOPS) for p in (cache / kind).rglob("*")):
            kind, *below, name = path.relative_to(cache).parts
            if path.is_file():
                content = Records(PrivateFolder(cache), kind).verified(name, *below)
                records[kind, *below, name] = content
    return Filled(folder, model, feed, results, frozenset(images), records)


# Damage to one file or folder. Each says whether it must be told.

Change = Callable[[random.Random, Path, Sandbox], tuple[bool, bool]]
TOLD, SILENT = (True, True), (False, False)


def _a_link_to_its_copy(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    path.rename(box.outside / f"copy{rng.randrange(10**9)}")
    path.symlink_to(max(box.outside.iterdir(), key=lambda p: p.name.startswith("copy")))
    return TOLD


def _a_link_outside(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    _gone(path)
    path.symlink_to(box.outside / "folder" if rng.random() < 0.5 else box.outside / "secret")
    return TOLD


def _a_dangling_link(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    _gone(path)
    path.symlink_to(box.outside / "nothing")
    return TOLD


def _another_owner(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    if os.geteuid() != 0:
        return _writable_by_all(rng, path, box)
    os.chown(path, FOREIGN_UID, FOREIGN_UID)
    return TOLD


def _writable_by_group(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o020)
    return TOLD


def _writable_by_all(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    path.chmod(0o777)
    return TOLD


def _a_pipe(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    _gone(path)
    os.mkfifo(path)
    return TOLD


def _a_socket(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    _gone(path)
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    return TOLD


def _a_device(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    _gone(path)
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero: it never ends
    except OSError:
        return _a_pipe(rng, path, box)
    return TOLD


def _a_folder(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    _gone(path)
    path.mkdir(0o700)
    (path / "inner").write_bytes(b"x")
    return TOLD


def _a_file(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    _gone(path)
    path.write_bytes(b"x")
    return TOLD


def _huge(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    os.truncate(path, rng.choice((private_files.MAX_RECORD_BYTES + 1, 1 << 40)))
    return TOLD


def _lost(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    _gone(path)
    return SILENT


def _truncated(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    os.truncate(path, rng.randrange(path.stat().st_size))
    return _by_content(path)


def _flipped(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return _by_content(path)


def _of_another_name(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    """A whole record of this user's, under a name, or of a kind, that it was not made for."""
    others = [parts for parts in box.filled.records if parts[-1] != path.name or parts[0] not in path.parts]
    path.write_bytes((box.filled.folder / "cache").joinpath(*rng.choice(others)).read_bytes())
    return _by_content(path)


def _forged(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    """Code of the attacker's choice in a record as whole as it can be made without the key."""
    parts = path.relative_to(box.cache).parts if path.is_relative_to(box.cache) else (KEY_NAME,)
    kind, content = parts[0], box.filled.records.get(parts, b"")
    content = content + bytes(16) if kind == OBJECTS else _pickle(box)
    key = rng.randbytes(32)
    raw = keys.sealed(content, key, kind, path.name)
    if rng.random() < 0.7:  # with the mark of the true key, which is no secret
        true_key = (box.filled.folder / "state" / "tilewright" / KEY_NAME).read_bytes()
        raw = raw.replace(key_mark(key), key_mark(true_key), 1)
    elif rng.random() < 0.5:  # as versions without a key wrote
        raw = b"TILEWRIGHT-OBJ1\n" + hashlib.sha256(path.name.encode() + content).digest() + content
    path.write_bytes(raw)
    return _by_content(path)


def _a_pickle(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    path.write_bytes(_pickle(box))
    return _by_content(path)


def _pickle(box: Sandbox) -> bytes:
    """Runs a command when it is unpickled."""
    return f"cos\nsystem\n(S'touch {box.outside}/{MARKER}'\ntR.".encode()


def _readable_by_all(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    path.chmod(0o644)
    return TOLD if path.name == KEY_NAME else SILENT


def _a_folder_above_for_all(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    box.folder.chmod(0o777)
    return TOLD


_ENDLESS = (
    "CREATE VIEW plans AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT i AS context, i AS model, i AS body, i AS digest FROM n"
)


def _rows(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    """Rows, tables and indices that SQLite takes for whole."""
    statement, is_told = rng.choice(
        (
            ("UPDATE plans SET body = replace(body, '1', '9')", True),
            ("UPDATE observations SET body = '{}'", True),
            ("UPDATE plans SET model = 'x'", True),
            ("UPDATE plans SET digest = upper(digest)", True),
            ("UPDATE observations SET candidate = zeroblob(100000)", True),
            ("UPDATE plans SET body = body || hex(zeroblob(1000000))", True),
            ("DROP TABLE plans", False),
            ("CREATE TABLE more (x)", False),
            (f"DROP TABLE plans; {_ENDLESS}", False),
            ("CREATE TRIGGER t AFTER INSERT ON observations BEGIN DELETE FROM plans; END", False),
        )
    )
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(statement)
        return is_told, False
    return SILENT


def _scribbled(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    data = bytearray(path.read_bytes())
    start = rng.randrange(len(data))
    data[start : start + 200] = rng.randbytes(200)
    path.write_bytes(data)
    return SILENT


def _beside(rng: random.Random, path: Path, box: Sandbox) -> tuple[bool, bool]:
    """A file of SQLite's beside the database, which is there only while it is open."""
    beside = path.with_name(path.name + rng.choice(("-wal", "-shm")))
    beside.write_bytes(rng.randbytes(4096))
    beside.chmod(0o600)
    return rng.choice((_a_link_outside, _a_pipe, _another_owner, _writable_by_all, _a_folder, _huge))(
        rng, beside, box
    )


_ANYWHERE: tuple[Change, ...] = (
    _a_link_to_its_copy,
    _a_link_outside,
    _a_dangling_link,
    _another_owner,
    _writable_by_group,
    _writable_by_all,
    _a_pipe,
    _a_socket,
    _a_device,
    _lost,
)
_TO_FILES: tuple[Change, ...] = (*_ANYWHERE, _a_folder, _huge)
_TO_RECORDS: tuple[Change, ...] = (
    *_TO_FILES,
    *(_truncated, _flipped, _of_another_name, _forged, _a_pickle) * 2,
    _readable_by_all,
)
_TO_KEYS: tuple[Change, ...] = (*_TO_FILES, _truncated, _forged, _readable_by_all)
_TO_FOLDERS: tuple[Change, ...] = (*_ANYWHERE, _a_file)
_TO_DATABASES: tuple[Change, ...] = (*_TO_FILES, *(_rows,) * 6, *(_scribbled,) * 2, *(_beside,) * 5)


def _gone(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _by_content(path: Path) -> tuple[bool, bool]:
    """A record that says it is of another key or version is no damage to be told of."""
    if path.name == KEY_NAME:
        size = path.stat().st_size
        return TOLD if size > private_files.KEY_BYTES else SILENT
    folder = path.parent
    while folder.name not in (OBJECTS, LOOPS):
        folder = folder.parent
    key = (folder.parent.with_name("state") / "tilewright" / KEY_NAME).read_bytes()
    try:
        keys.opened_record(path.read_bytes(), key, folder.name, path.name)
    except BadRecord as problem:
        return SILENT if problem.is_stale else TOLD
    return SILENT


def damage(rng: random.Random, box: Sandbox) -> Damage | None:
    """Change one thing; None if it is not there any more."""
    cache, key = box.cache, box.state / "tilewright" / KEY_NAME
    records = [cache.joinpath(*parts) for parts in box.filled.records]
    loops = [p for p in records if p.is_relative_to(cache / LOOPS)]
    places: tuple[tuple[Sequence[Path], Sequence[Change]], ...] = (
        (records, _TO_RECORDS),
        (records, _TO_RECORDS),
        (loops, _TO_RECORDS),
        ([cache / DATABASE], _TO_DATABASES),
        ([cache / DATABASE], _TO_DATABASES),
        ([key], _TO_KEYS),
        (sorted({p.parent for p in records} | {cache / OBJECTS}), _TO_FOLDERS),
        ([cache, key.parent], _TO_FOLDERS),
        ([cache], (_a_folder_above_for_all,)),
    )
    paths, changes = rng.choice(places)
    path, change = rng.choice(paths), rng.choice(changes)
    if not path.exists() or path.is_symlink() or any(p.is_symlink() for p in path.parents):
        return None
    wants_file = path.suffix in (".db", ".key") or path in records
    if wants_file != stat.S_ISREG(path.stat().st_mode):
        return None
    if not key.is_file() and change in (_truncated, _flipped, _of_another_name, _forged, _a_pickle):
        return None
    with contextlib.suppress(ValueError):  # an empty file cannot be cut
        is_told, is_warned = change(rng, path, box)
        return Damage(f"{path.relative_to(box.folder)}: {change.__name__.strip('_')}", is_told, is_warned)
    return None


# What meets a damaged cache.


@contextlib.contextmanager
def _surroundings(folder: Path) -> Iterator[None]:
    """The user's folders are those of a sandbox."""
    wanted = {"TILEWRIGHT_CACHE": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _images() -> Iterator[set[bytes]]:
    """Digests of all objects that reach the loader."""
    seen: set[bytes] = set()
    original = llvm.JITLibraryBuilder.add_object_img

    def add(self: llvm.JITLibraryBuilder, data: bytes) -> llvm.JITLibraryBuilder:
        seen.add(hashlib.sha256(bytes(data)).digest())
        return original(self, data)

    llvm.JITLibraryBuilder.add_object_img = add
    try:
        yield seen
    finally:
        llvm.JITLibraryBuilder.add_object_img = original


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    logger, handler = logging.getLogger("tilewright"), _Warnings()
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield handler.said
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


class _OutOfTime(BaseException):
    """Not an Exception: nothing that reads a cache may catch it."""


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) and status.st_size < 1 << 20 else b""
        found[str(path)] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
    return found


def _use(box: Sandbox, findings: list[str]) -> None:
    """Compile and run, ask for every record and finding."""
    with _images() as images:
        compiled = tw.compile(box.filled.model, threads=1, cache_dir=box.cache)
        results = compiled.run(None, box.filled.feed)
    for got, right in zip(results, box.filled.results, strict=True):
        if not np.allclose(got, right, atol=1e-4 * np.abs(right).max()):
            findings.append("a result is wrong")
    if foreign := {image for image in images if image not in box.filled.images}:
        findings.append(f"{len(foreign)} objects loaded that were not compiled here")
    folder = PrivateFolder(box.cache)
    for (kind, *below, name), right in box.filled.records.items():
        try:
            if Records(folder, kind).get(name, *below) not in (None, right):
                findings.append(f"a record of {kind} that was not written here is used")
        except OSError:
            continue
    database = TuningDatabase.in_folder(box.cache)
    database.observations(CONTEXT, "site")
    database.record(CONTEXT, batch(0, 0))


def _verify(box: Sandbox) -> int:
    return tilewright("cache", "verify", "--cache", box.cache, "--json").code


def try_seed(seed: int, filled: Filled, folder: Path) -> tuple[str, list[str]]:
    """What was done to the cache of a seed, and the findings."""
    rng = random.Random(seed)
    home = folder / f"cache{seed}"
    home.mkdir(mode=0o700)
    for name in ("cache", "state"):
        shutil.copytree(filled.folder / name, home / name)
    box = Sandbox(home, home / "cache", home / "state", home / "outside", filled)
    (box.outside / "folder").mkdir(parents=True)
    (box.outside / "secret").write_bytes(b"secret")
    (box.outside / "folder" / ("0" * 64)).write_bytes(b"precious")
    wanted, done = rng.choice((1, 1, 1, 2, 3)), []
    for _ in range(20 * wanted):
        if len(done) < wanted and (found := damage(rng, box)) is not None:
            done.append(found)
    last = done[-1]  # of the others, it may have undone the traces
    before, findings = _snapshot(box.outside), []
    try:
        with _surroundings(home), _listening() as said, _alarm():
            if rng.random() < 0.5:
                if (_verify(box) != 0) < last.is_told:
                    findings.append("cache verify calls it fine")
                said.clear()
                _use(box, findings)
            else:
                if seed % 10 == 0 and last.is_warned:
                    doctor = tilewright("doctor", "--cache", box.cache, "--json")
                    if doctor.code == 0:
                        findings.append("doctor calls it fine")
                else:
                    _use(box, findings)
                    if last.is_warned and not said:
                        findings.append("used without a warning")
            _verify(box)
            if any(not line.isprintable() for line in said):
                findings.append("a warning of more than one line")
    except _OutOfTime:
        findings.append(f"more than {MAX_SECONDS} s")
    except Exception as error:
        findings.append(f"{type(error).__name__}: {str(error)[:200]}")
    if _snapshot(box.outside) != before:
        findings.append("something outside the cache was changed")
    home.chmod(0o700)
    shutil.rmtree(home)
    return f"seed {seed}: {'; '.join(d.how for d in done)}", findings


def main() -> int:
    """Try many caches, and say what came out."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    kinds: Counter[str] = Counter()
    num_findings, slowest = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        filled = fill(Path(folder) / "filled")
        for seed in range(first, first + count):
            start = time.perf_counter()
            how, findings = try_seed(seed, filled, Path(folder))
            slowest = max(slowest, time.perf_counter() - start)
            kinds.update(part.rpartition(": ")[2] for part in how.partition(": ")[2].split("; "))
            num_findings += bool(findings)
            if findings:
                print(f"{how}: {findings}", flush=True)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{count} caches, {num_findings} with findings; slowest {slowest:.1f} s; peak {peak_mib} MiB")
    print(", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items())))
    return 1 if num_findings else 0


if __name__ == "__main__":
    sys.exit(main())
