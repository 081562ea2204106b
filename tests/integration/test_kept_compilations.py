"""Compilations that are kept: the same request gives the same model at once, any other is compiled."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.support.models import feed_for, small_net

import tilewright as tw
from tilewright.api import cache, kept
from tilewright.api.kept import compile_or_reuse
from tilewright.artifact import StoredModel
from tilewright.compiled import CompiledModel
from tilewright.options import Options
from tilewright.target_ref import TargetRef
from tilewright.targets import TARGETS, find_target, runs_steps

pytestmark = pytest.mark.sampled(8)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "cache" / "models"


def compiled(**settings: Any) -> CompiledModel:
    options = Options(**{"threads": 1, **settings})  # type: ignore[arg-type]
    return compile_or_reuse(tw.load(small_net()), options)


def is_reused(model: CompiledModel) -> bool:
    return "reuse" in model.phase_s


def test_the_same_request_is_not_compiled_again(tmp_path: Path) -> None:
    first, second = compiled(), compiled()
    assert not is_reused(first)
    assert is_reused(second)
    feed = feed_for(small_net())
    for a, b in zip(first.run(None, feed), second.run(None, feed), strict=True):
        assert a.tobytes() == b.tobytes()
    assert second.explain().to_json() == first.explain().to_json()
    assert second.remarks == first.remarks
    written = [model.save(tmp_path / f"{n}.tw").read_bytes() for n, model in enumerate((first, second))]
    assert written[0] == written[1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mask", [0o002, 0o000, 0o077])
def test_what_is_kept_is_the_users_alone_whatever_the_umask(surroundings: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        compiled()
        assert is_reused(compiled())
    finally:
        os.umask(before)
    (file,) = surroundings.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert cache.verify().ok


def test_what_is_checked_is_what_is_read(surroundings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that takes the place of a file between a look at it and its use leads nowhere."""
    compiled()
    outside = surroundings.parent.parent / "outside"
    outside.write_bytes(b"of another program")
    os.utime(outside, (1, 1))
    read = kept.read_kept

    def swapped(path: Path, *arguments: Any) -> StoredModel:
        path.unlink()
        path.symlink_to(outside)
        return read(path, *arguments)

    monkeypatch.setattr(kept, "read_kept", swapped)
    assert is_reused(compiled())
    assert outside.stat().st_mtime == 1
    assert not is_reused(compiled())  # now it is seen
    assert outside.read_bytes() == b"of another program"


REUSES_ALONE = """
import sys, numpy as np, tilewright as tw
from tilewright.api.kept import compile_or_reuse
compiled = compile_or_reuse(tw.load(sys.argv[1]), tw.Options(threads=1))
compiled.run(None, {i.name: np.zeros(i.shape, i.dtype.numpy) for i in compiled.get_inputs()})
assert "reuse" in compiled.phase_s
heavy = {f"tilewright.{name}" for name in ("hardware.machine", "targets.cpu.lower", "targets.cpu.target")}
assert not sys.modules.keys() & heavy, sys.modules.keys() & heavy
"""


def test_what_is_kept_starts_without_what_generates_code(tmp_path: Path) -> None:
    onnx.save(small_net(), tmp_path / "small.onnx")
    compiled()
    subprocess.run([sys.executable, "-c", REUSES_ALONE, str(tmp_path / "small.onnx")], check=True)


@pytest.mark.parametrize("name", [*TARGETS.built_in_names(), "stcp920"])
def test_whether_a_target_runs_steps_is_known_without_it(name: str) -> None:
    assert runs_steps(TargetRef.parse(name)) == find_target(TargetRef.parse(name)).runs_steps


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "settings",
    [{"threads": 2}, {"accuracy": "strict"}, {"effort": 0}, {"partition": "layerwise"}, {"no_cache": True}],
)
def test_another_request_is_compiled(settings: dict[str, Any]) -> None:
    compiled()
    assert not is_reused(compiled(**settings))


@pytest.mark.parametrize("settings", [{"partition": "graphturbo{alpha=1.25}"}, {"target": "interpreter"}])
def test_what_a_digest_cannot_tell_is_not_kept(settings: dict[str, Any], surroundings: Path) -> None:
    compiled(**settings)
    assert not surroundings.exists()


def test_another_package_or_machine_compiles_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled()
    monkeypatch.setattr(kept, "_package_digest", lambda: "another")
    assert not is_reused(compiled())


def test_what_others_may_have_written_is_compiled_anew(
    surroundings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled()
    (path,) = surroundings.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert not is_reused(compiled())
    assert is_reused(compiled())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    assert not is_reused(compiled())
    path.chmod(0o666)
    assert not is_reused(compiled())


def test_those_used_longest_ago_go_first(surroundings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled()
    (oldest,) = surroundings.iterdir()
    os.utime(oldest, (1, 1))
    monkeypatch.setattr(kept, "MAX_KEPT_BYTES", oldest.stat().st_size + 1000)
    compiled(effort=0)
    assert len(list(surroundings.iterdir())) == 1
    assert not oldest.exists()


def test_the_verbs_of_the_cache_know_compilations(surroundings: Path) -> None:
    compiled()
    compiled(threads=2)
    old, new = sorted(surroundings.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    size = old.stat().st_size
    listed = cache.contents()
    assert (listed.num_compilations, listed.compilations_bytes) == (2, size + new.stat().st_size)
    pruned = cache.prune(cache.Pruning(max_bytes=listed.total_bytes + listed.compilations_bytes - 1))
    assert (pruned.removed_bytes, pruned.removed_compilations_bytes) == (0, size)
    assert list(surroundings.iterdir()) == [new], "that which was used last stays"
    new.write_bytes(new.read_bytes()[:-1] + b"?")
    assert cache.verify().damaged == (new.name,)
    assert not new.exists()
    assert cache.verify().ok


def test_a_compilation_that_others_may_write_is_not_used(surroundings: Path) -> None:
    compiled()
    (path,) = surroundings.iterdir()
    path.chmod(0o666)
    assert [file.path for file in cache.verify().unsafe] == [path]
    assert not is_reused(compiled())
