"""Doctor finds what is broken, says so, and goes on looking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.cli import Result, tilewright
from tests.support.models import small_net
from tests.support.other_processor import on_processor
from tests.support.processors import machine_as, processors_here

import tilewright as tw
from tilewright.api import doctor as checks
from tilewright.targets.cpu.runtime.executable import CpuExecutable
from tilewright.targets.llvm.cache import ObjectCache


def broken(result: Result) -> list[dict[str, Any]]:
    found = result.document
    assert found["ok"] is not any(not c["ok"] for c in found["checks"])
    assert result.code == (0 if found["ok"] else 1)
    return [c for c in found["checks"] if not c["ok"]]


def doctor(folder: Path) -> Result:
    return tilewright("doctor", "--cache", folder, "--json")


def test_code_that_computes_something_else_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: CpuExecutable, feed: object) -> dict[str, object]:
        return {o.name: np.zeros(o.shape, o.dtype.numpy) for o in self.outputs}

    monkeypatch.setattr(CpuExecutable, "run", wrong)
    (check,) = broken(doctor(tmp_path))
    assert check["name"] == "generated code"
    assert "wrong" in check["found"]


def test_a_check_that_breaks_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise OSError("no such device")

    monkeypatch.setattr("tilewright.hardware.probe.probe_host", gone)
    found = tilewright("doctor", "--cache", tmp_path).out
    assert found.count("no such device") == 2, "processor and cores; the others were still looked at"
    assert "compiles and runs" in found


def test_a_package_that_is_missing_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = checks._version
    monkeypatch.setattr(checks, "_version", lambda name: None if name == "onnx" else installed(name))
    (check,) = broken(doctor(tmp_path))
    assert check["advice"] == "pip install onnx"


def test_an_optional_package_that_is_missing_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = checks._version
    monkeypatch.setattr(checks, "_version", lambda name: None if name == "openvino" else installed(name))
    result = doctor(tmp_path)
    assert broken(result) == []
    (check,) = [c for c in result.document["checks"] if c["name"] == "openvino"]
    assert "pip install 'tilewright[peers]'" in check["advice"]


def test_damaged_kernels_are_counted_and_removed(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    for number in range(3):
        cache.put(f"{number:064x}", b"code")
    victim = next(p for p in tmp_path.rglob("*2") if p.is_file())
    victim.write_bytes(b"x")
    health = [c for c in doctor(tmp_path).document["checks"] if c["name"] == "cache health"]
    assert [c["found"] for c in health] == ["2 whole, 1 damaged"]
    assert not victim.exists()


def test_a_file_where_the_cache_should_be_is_found(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    (check,) = broken(doctor(tmp_path / "cache"))
    assert check["name"] == "cache"
    assert "TILEWRIGHT_CACHE" in check["advice"]


@pytest.mark.parametrize(
    ("processor", "found"),
    [
        ("avx2", "avx2, 256-bit vectors"),
        ("avx512", "avx512, 512-bit vectors"),
        ("amx", "avx512+amx, 512-bit vectors, tiles of bfloat16 and int8"),
    ],
)
def test_the_instruction_set_is_named_with_the_units_that_it_adds(
    processor: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if processor not in processors_here():
        pytest.skip(f"this processor cannot be taken for one with {processor}")
    instructions = machine_as(processor).instructions
    monkeypatch.setattr("tilewright.hardware.host.host_instructions", lambda: instructions)
    (check,) = [c for c in doctor(tmp_path).document["checks"] if c["name"] == "instruction set"]
    assert check["found"] == found
    name = found.split(",", 1)[0]
    assert f", {name} (there is code for " in tilewright("targets", "cpu").out


@pytest.mark.skipif("amx" not in processors_here(), reason="this processor has no vectors of AVX-512")
def test_an_artifact_for_the_matrix_unit_says_so(tmp_path: Path) -> None:
    with on_processor("amx"):
        tw.compile(small_net(), threads=1, no_cache=True).save(tmp_path / "small.tw")
    assert tilewright("inspect", tmp_path / "small.tw", "--json").document["isas"] == ["avx512+amx"]
    assert "avx512+amx" in tilewright("inspect", tmp_path / "small.tw").out
