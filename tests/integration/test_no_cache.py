"""`--no-cache` leaves nothing behind: no kernel, no key, no record, no lock."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from tests.support.cli import tilewright
from tests.support.models import small_net

import tilewright as tw


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who never ran anything, in a folder with a model and an artifact that somebody else made."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    onnx.save(small_net(), tmp_path / "m.onnx")
    tw.compile(small_net(), threads=1, cache_dir=tmp_path / "theirs").save(tmp_path / "m.tw")
    monkeypatch.setenv("HOME", str(home))
    for name in ("TILEWRIGHT_CACHE", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return home


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "command",
    [
        "compile m.onnx -o made.tw --threads 1",
        "run m.onnx --random --threads 1",
        "run m.tw --random",
        pytest.param("tune m.onnx --budget 1s --threads 1", marks=pytest.mark.slow),
        pytest.param("bench m.tw --duration 0.2 --threads 1 --no-advice", marks=pytest.mark.slow),
    ],
)
def test_no_cache_writes_nothing_but_what_is_asked_for(home: Path, command: str) -> None:
    before = set(home.parent.iterdir())
    result = tilewright(*command.split(), "--no-cache")
    assert result.code == 0, result.err
    assert list(home.rglob("*")) == []
    assert {path.name for path in set(home.parent.iterdir()) - before} <= {"made.tw"}


def test_the_same_without_the_flag_keeps_kernels(home: Path) -> None:
    assert tilewright("run", "m.onnx", "--random", "--threads", "1").code == 0
    assert (home / ".cache" / "tilewright" / "objects").is_dir()


def test_an_artifact_is_signed_only_with_a_key_that_is_there(home: Path) -> None:
    """A key is kept between runs too, so that none is made where nothing is to be kept."""
    compile_it = ("compile", "m.onnx", "-o", "made.tw", "--threads", "1", "--no-cache")
    assert "is not signed: there is no key yet" in tilewright(*compile_it).err
    assert tilewright("inspect", "made.tw", "--json").document["signed_by"] is None
    assert tilewright("trust", "key").code == 0
    assert "not signed" not in tilewright(*compile_it).err
    assert tilewright("inspect", "made.tw", "--json").document["is_trusted"]
