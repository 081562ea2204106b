"""Artifacts of a GPU: PTX for each compute capability, picked by the device; forged ones are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.artifacts import Change, refusal, rewritten, same
from tests.support.cuda import EMULATED, compiled, needs_fibers
from tests.support.cuda_driver import FakeDriver, install
from tests.support.models import small_net

import tilewright as tw
from tilewright.errors import UsageError
from tilewright.targets.cuda import assembler, code, devices
from tilewright.targets.cuda.device import DeviceError

MODEL = small_net(8, 6)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, compiled without a GPU for two of them."""
    return tw.compile(MODEL, target="cuda", isa="sm_80,sm_90").save(tmp_path_factory.mktemp("a") / "m.tw")


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[FakeDriver], FakeDriver]]:
    """Puts a driver in the place of the real one."""
    yield lambda fake: install(monkeypatch, fake)
    devices.open_device.cache_clear()


def loaded(fake: FakeDriver) -> set[str]:
    """What kernels that were loaded are for."""
    texts = [data.decode() for (data,) in fake.loaded]
    return {line for text in texts for line in text.splitlines() if line.startswith(".target")}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("capability", "isa"), [((9, 0), "sm_90"), ((8, 9), "sm_80"), ((12, 0), "sm_90")])
def test_the_newest_code_that_the_gpu_runs_is_loaded(path: Path, on: Any, capability: Any, isa: str) -> None:
    fake = on(FakeDriver(capability))
    found = tw.open(path)
    assert isinstance(found, tw.CompiledModel)
    assert not found.remarks
    found.load()
    assert loaded(fake) == {f".target {isa}"}
    assert len(fake.named("cuGraphLaunch")) == 0
    assert tw.inspect(path).isas == ("sm_90", "sm_80")


def test_what_no_code_fits_is_generated_again_and_one_line_says_so(path: Path, on: Any, caplog: Any) -> None:
    alone = tw.open(path, isa="sm_90").save(path.with_name("sm_90.tw"))
    fake = on(FakeDriver((8, 0)))
    with caplog.at_level(logging.WARNING, "tilewright"):
        found = tw.open(alone)
    found.load()
    assert loaded(fake) == {".target sm_80"}
    (line,) = found.remarks
    assert "its code is for sm_90, and NVIDIA Fake has compute capability 8.0; generated again here" in line
    with pytest.raises(UsageError, match=r"capability 8.0, so --isa sm_90 cannot be had here; leave it out"):
        tw.open(path, isa="sm_90")


def test_without_a_gpu_an_artifact_opens_and_loading_says_what_is_missing(path: Path, on: Any) -> None:
    fake = on(FakeDriver())

    def missing(flags: int) -> None:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    fake.cuInit = missing
    found = tw.open(path)
    assert found.get_outputs()
    with pytest.raises(DeviceError, match=r"no driver of NVIDIA is found .*: run where there is one"):
        found.load()


@needs_fibers
def test_values_are_those_of_the_program(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = {"image": np.random.default_rng(1).standard_normal((1, 3, 6, 6)).astype(np.float32)}
    emulated = devices.open_device("emulated", None)
    monkeypatch.setattr(code, "open_device", lambda *_: emulated)
    assert same(tw.open(path).run(None, feed), compiled(MODEL).run(None, feed))


def _part(manifest: dict[str, Any], members: dict[str, bytes]) -> str:
    return next(name for name in sorted(members) if name.startswith("code/0/kernels/"))


def _without(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
    del members[_part(manifest, members)]


def _swapped(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
    first, second = sorted(n for n in members if n.startswith("code/0/kernels/"))[:2]
    members[first] = members[second]


def _changed(old: bytes, new: bytes) -> Change:
    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        name = _part(manifest, members)
        assert old in members[name]
        members[name] = members[name].replace(old, new)

    return change


def _facts(old: bytes, new: bytes) -> Change:
    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        assert old in members["code/0/facts.json"]
        members["code/0/facts.json"] = members["code/0/facts.json"].replace(old, new, 1)

    return change


def _made_for(**fields: Any) -> Change:
    return lambda manifest, members: manifest["native"][0].update(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without, "is missing"),
        (_swapped, "does not have the kernel"),
        (_changed(b".target sm_90", b".target sm_75"), "is for sm_75, where the manifest says sm_90"),
        (_changed(b".target", b"//target"), "is no PTX, where"),
        (_facts(b'"tw_loops_', b'"tw_loopz_'), "symbols: are not the kernels of the program"),
        (_facts(b"false", b"true"), "cubin"),
        (_facts(b"false", b"0"), "has_cubins"),
        (_made_for(isa="sm_13"), "unknown compute capability 'sm_13'"),
        (_made_for(isa=90), "expected a text"),
        (_made_for(isa="sm_80"), "is for sm_90, where the manifest says sm_80"),
    ],
)
def test_a_forged_artifact_is_refused(
    path: Path, tmp_path: Path, on: Any, change: Change, message: str
) -> None:
    on(FakeDriver())
    assert message in refusal(rewritten(path, tmp_path / "m.tw", change), trust=True)


def test_code_that_nobody_signed_or_of_another_version_is_generated_again(
    path: Path, tmp_path: Path, on: Any
) -> None:
    fake = on(FakeDriver((8, 6)))
    unsigned = tw.open(rewritten(path, tmp_path / "m.tw", lambda *_: None))
    unsigned.load()
    assert "its code is not signed" in unsigned.remarks[0]
    assert loaded(fake) == {".target sm_86"}
    older = tw.open(rewritten(path, tmp_path / "o.tw", _older), trust=True)
    assert "its kernels are of tilewright 0.0.1, not" in older.remarks[0]


def _older(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
    for made_for in manifest["native"]:
        made_for["generator"] = "0.0.1"


def test_asking_for_what_is_no_gpu_is_one_line(path: Path) -> None:
    with pytest.raises(UsageError, match="unknown compute capability 'avx2': give sm_80, "):
        tw.compile(MODEL, target="cuda", isa="avx2")
    with pytest.raises(UsageError, match="the emulated GPU runs no PTX; leave out --isa sm_80"):
        tw.compile(MODEL, target=EMULATED, isa="sm_80")
    with pytest.raises(UsageError, match=r"holds code for sm_90, sm_80, not for sm_89; compile the model"):
        tw.open(path, isa="sm_89")


def test_cubins_are_kept_where_they_are_asked_for(tmp_path: Path, on: Any) -> None:
    if assembler.tool_path("ptxas") is None:
        pytest.skip("needs ptxas: pip install 'tilewright[cuda-check]'")
    found = tw.compile(MODEL, target="cuda{cubins=true}", isa="sm_90").save(tmp_path / "m.tw")
    fake = on(FakeDriver())
    tw.open(found).load()
    assert {data[:4] for (data,) in fake.loaded} == {b"\x7fELF"}
