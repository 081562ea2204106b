"""Whatever happens to the files of a cache, the next compilation gives a model that computes the same."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.support.models import small_net

import tilewright as tw
from tilewright.targets.llvm.cache import ObjectCache
from tilewright.tuning import TuningDatabase

MODEL = tw.load(small_net(channels=24, size=12))
FEED = {
    v.name: np.random.default_rng(0).standard_normal(v.shape).astype(np.float32) for v in MODEL.graph.inputs
}
Damage = Callable[[random.Random, Sequence[Path]], None]


def truncated(rng: random.Random, files: Sequence[Path]) -> None:
    whole = files[0].read_bytes()
    files[0].write_bytes(whole[: rng.randrange(max(1, len(whole)))])


def emptied(rng: random.Random, files: Sequence[Path]) -> None:
    files[0].write_bytes(b"")


def flipped(rng: random.Random, files: Sequence[Path]) -> None:
    """Between one bit and some in every page."""
    data = bytearray(files[0].read_bytes())
    for _ in range(rng.choice((1, 8, 1 + len(data) // 200)) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    files[0].write_bytes(data)


def scribbled(rng: random.Random, files: Sequence[Path]) -> None:
    data = bytearray(files[0].read_bytes())
    start = rng.randrange(max(1, len(data)))
    data[start : start + rng.randrange(1, 5000)] = rng.randbytes(rng.randrange(1, 5000))
    files[0].write_bytes(data)


def swapped(rng: random.Random, files: Sequence[Path]) -> None:
    first, second = files[0].read_bytes(), files[-1].read_bytes()
    files[0].write_bytes(second)
    files[-1].write_bytes(first)


def lost(rng: random.Random, files: Sequence[Path]) -> None:
    files[0].unlink()


def a_folder_instead(rng: random.Random, files: Sequence[Path]) -> None:
    files[0].unlink()
    files[0].mkdir()


def a_link_to_nothing(rng: random.Random, files: Sequence[Path]) -> None:
    files[0].unlink()
    files[0].symlink_to("nothing")


def a_file_for_its_folder(rng: random.Random, files: Sequence[Path]) -> None:
    folder = files[0].parent
    if folder.name not in ("objects", "cache"):
        shutil.rmtree(folder)
        folder.write_bytes(b"?")


DAMAGES: tuple[Damage, ...] = (
    truncated,
    emptied,
    flipped,
    scribbled,
    swapped,
    lost,
    a_folder_instead,
    a_link_to_nothing,
    a_file_for_its_folder,
)


_CANNOT_BE_MADE_ANEW = (a_folder_instead, a_file_for_its_folder)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the kernels of a tuned model, and what tuning found."""
    folder = tmp_path_factory.mktemp("filled") / "cache"
    tw.tune(MODEL, threads=1, budget="6trials", cache_dir=folder)
    assert len(ObjectCache(folder).entries()) > 5
    assert TuningDatabase.in_folder(folder).summary().num_plans == 1
    return folder


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    return tw.compile(MODEL, threads=1, no_cache=True).run(None, FEED)


def files_of(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def check(folder: Path, expected: Sequence[np.ndarray]) -> None:
    compiled = tw.compile(MODEL, threads=1, cache_dir=folder)
    for got, right in zip(compiled.run(None, FEED), expected, strict=True):
        np.testing.assert_allclose(got, right, atol=1e-4 * np.abs(right).max())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_one_kind_of_damage_to_every_file(
    damage: Damage, filled: Path, expected: list[np.ndarray], tmp_path: Path
) -> None:
    rng = random.Random(damage.__name__)
    folder = shutil.copytree(filled, tmp_path / "cache")
    files = files_of(folder)
    rng.shuffle(files)
    for file, other in zip(files, [*files[1:], files[0]], strict=True):
        if file.is_file() and other.is_file():
            damage(rng, (file, other))
    check(folder, expected)
    if damage not in _CANNOT_BE_MADE_ANEW:
        tw.compile(MODEL, threads=1, cache_dir=folder, frozen=True)  # an error if a kernel were missing
        cache = ObjectCache(folder)
        cache.verify()
        assert cache.verify().damaged == ()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(24))
def test_several_kinds_of_damage_to_some_files(
    seed: int, filled: Path, expected: list[np.ndarray], tmp_path: Path
) -> None:
    rng = random.Random(seed)
    folder = shutil.copytree(filled, tmp_path / "cache")
    database = folder / "tuning.db"
    for number in range(rng.randint(1, 8)):
        files = [p for p in files_of(folder) if p.is_file()]
        first = database if number == 0 and seed % 2 and database.is_file() else rng.choice(files)
        rng.choice(DAMAGES)(rng, (first, rng.choice(files)))
    check(folder, expected)
    if seed % 3 == 0:
        tuned = tw.tune(MODEL, threads=1, budget="1trial", cache_dir=folder)
        assert tuned.tuning is not None
        check(folder, expected)
