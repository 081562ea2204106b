"""Many processes keep findings in one database, and lose the batch in flight at most, however they end."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.models import small_net
from tests.support.recording import BATCH, CONTEXT, batch, kept

import tilewright as tw
from tilewright.tuning import TuningDatabase

pytestmark = pytest.mark.sampled(2)

ROOT = Path(__file__).parents[2]
NOBODY = 65534


def writer(path: Path, number: int, num_batches: int, *more: int) -> subprocess.Popen[bytes]:
    arguments = [str(path), *map(str, (number, num_batches, *more))]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.recording", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_eight_processes_lose_nothing(tmp_path: Path) -> None:
    """They begin at the same time, so that they make the file together too."""
    path, num_batches = tmp_path / "tuning.db", 10
    processes = [writer(path, number, num_batches) for number in range(8)]
    for process in processes:
        said, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, b"")
        assert len(said.split()) == 1 + num_batches
    database = TuningDatabase(path)
    assert kept(database) == {(w, b): BATCH for w in range(8) for b in range(num_batches)}
    assert database.verify() == 0
    assert os.listdir(tmp_path) == ["tuning.db"], "no log stays behind, and nothing was set aside"


def check_one_kill(path: Path, number: int, after_s: float) -> None:
    """Kill a writer so long after it began: what it said is whole, and at most one batch more is there."""
    with writer(path, number, 1_000_000) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after_s)
        process.kill()
        said = [int(line) for line in process.stdout.read().splitlines() if line]
    there = {b: count for (w, b), count in kept(TuningDatabase(path)).items() if w == number}
    assert set(there.values()) <= {BATCH}, "a batch is there as a whole or not at all"
    assert set(said) <= set(there)
    assert len(there) <= len(said) + 1


def check_kills(path: Path, num_kills: int) -> None:
    rng = random.Random(num_kills)
    for number in range(num_kills):
        check_one_kill(path, number, rng.choice((0.0, 0.01, 0.1)) * rng.random())
    database = TuningDatabase(path)
    assert database.verify() == 0
    assert database.record(CONTEXT, batch(num_kills, 0)), "who comes after a killed one may write"
    assert [name for name in os.listdir(path.parent) if "damaged" in name] == []


def test_a_killed_process_loses_the_batch_in_flight_at_most(tmp_path: Path) -> None:
    check_kills(tmp_path / "tuning.db", 3)


@pytest.mark.slow
def test_fifty_killed_processes_lose_the_batch_in_flight_at_most(tmp_path: Path) -> None:
    check_kills(tmp_path / "tuning.db", 50)


TUNE = """
import sys
import tilewright as tw
from pathlib import Path
from tilewright.tuning import TuningDatabase

record = TuningDatabase.record

def told(self, context, batch, *rest, **more):
    kept = record(self, context, batch, *rest, **more)
    if kept:
        print(len(list(self.all_observations())), flush=True)
    return kept

TuningDatabase.record = told
print("begun", flush=True)
tw.tune(sys.argv[1], threads=1, budget="60s", cache_dir=Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_search_killed_at_fifty_moments_goes_on_where_it_was(tmp_path: Path) -> None:
    """After each kill the findings are whole, none that was told of is missing, and the model compiles."""
    model, cache = tmp_path / "small.onnx", tmp_path / "cache"
    model.write_bytes(small_net(channels=32, size=16).SerializeToString())
    rng = random.Random(0)
    num_told = 0
    for number in range(50):
        command = [sys.executable, "-c", TUNE, str(model), str(cache)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            process.stdout.readline()
            num_awaited = rng.randrange(4)
            told = [int(process.stdout.readline() or 0) for _ in range(num_awaited)]
            time.sleep(rng.random() * (1 if num_awaited else 3))
            process.kill()
            told += [int(line) for line in process.stdout.read().splitlines()]
        database = TuningDatabase.in_folder(cache)
        num_there = len(list(database.all_observations()))
        num_told = max(num_told, *told) if told else num_told
        assert num_there >= num_told
        assert database.verify() == 0
        if number % 10 == 9:
            tw.compile(str(model), threads=1, cache_dir=cache).close()
    assert num_told > 0


def test_a_disk_that_fills_up_is_one_warning_and_loses_nothing_that_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    with writer(path, 0, 40, 100_000) as process:
        said, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert errors.count(b"cannot use the tuning database") == 1, errors
    numbers = [int(line) for line in said.splitlines()[1:]]
    assert 0 < len(numbers) < 40
    database = TuningDatabase(path)
    assert set(kept(database)) >= {(0, number) for number in numbers}
    assert database.verify() == 0
    assert database.record(CONTEXT, batch(1, 0))


READ_ONLY = """
import os, sys
from pathlib import Path
from tests.support.recording import CONTEXT, batch, kept
from tilewright.tuning import TuningDatabase

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({nobody})
    os.setuid({nobody})
database = TuningDatabase(Path(sys.argv[1]))
print(len(kept(database)), database.record(CONTEXT, batch(9, 0)), len(kept(TuningDatabase(database.path))))
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", [0o500, 0o700])
def test_a_folder_that_cannot_be_written_still_serves(
    tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user than root, who writes to read-only folders."""
    folder, state = tmp_path / "cache", tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    database = TuningDatabase.in_folder(folder)
    for number in range(3):
        assert database.record(CONTEXT, batch(0, number))
    for path in (folder, state, *folder.iterdir(), *state.rglob("*")):
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
    for above in (tmp_path, *tmp_path.parents):
        if above.stat().st_uid == os.geteuid() and not above.stat().st_mode & stat.S_IXOTH:
            above.chmod(above.stat().st_mode | 0o055)
    folder.chmod(mode)
    command = [sys.executable, "-c", READ_ONLY.format(nobody=NOBODY), str(folder / "tuning.db")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    folder.chmod(0o700)
    assert ran.returncode == 0, ran.stderr
    is_writable = mode == 0o700
    assert ran.stdout.split() == ["3", str(is_writable), "4" if is_writable else "3"], ran.stderr
    assert ran.stderr.count("cannot use the tuning database") == (0 if is_writable else 1)
