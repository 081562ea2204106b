"""The script for a GPU, end to end on the emulated one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import cuda
from benchmarks.command import Parser
from benchmarks.cuda import Collector, Recorded
from tests.support.cuda import needs_fibers

from tilewright.targets.cuda.device import KernelCode
from tilewright.targets.cuda.emulated.device import EmulatedDevice

pytestmark = needs_fibers


def rows(tmp_path: Path, *asked: str) -> tuple[int, list[dict[str, Any]]]:
    """What a run of the script returns, and its rows."""
    parser = Parser()
    cuda.options(parser)
    output = tmp_path / "rows.jsonl"
    common = ["--device", "emulated", "--samples", "1", "--output", str(output)]
    status = cuda.main(parser.parse_args([*common, *asked]))
    return status, [json.loads(line) for line in output.read_text().splitlines()]


def test_values_are_right_and_latencies_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = rows(tmp_path, "--sections", "values", "--only", "softmax")
    assert status == 0
    assert found[0]["isa"] == "sm_80"
    assert [row["accuracy"] for row in found[1:]] == list(cuda.ACCURACIES)
    assert all(row["right"] for row in found[1:])
    assert "values: softmax, default, error" in capsys.readouterr().out
    _, found = rows(tmp_path, "--sections", "latencies", "--only", "join")
    assert {row.get("branches") for row in found if row["section"] == "latencies"} == {1, 2, 4, 8, None}


def test_a_section_that_fails_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(run: cuda.Run) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setitem(cuda.SECTIONS, "values", fails)
    asked = ("--sections", "values,latencies", "--only", "join 8")
    status, found = rows(tmp_path, *asked)
    assert status == 1
    assert [row["section"] for row in found] == ["device", "values", "latencies", "latencies"]
    assert found[1]["error"] == "RuntimeError: no luck"


def test_kernels_assembled_before_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = KernelCode("define ptx_kernel void @k() {\n  ret void\n}\n")
    collector = Collector()
    collector.load([text])
    assert list(collector.texts) == [text.text]
    taken: list[KernelCode] = []
    device = EmulatedDevice()
    monkeypatch.setattr(device, "load", lambda modules: taken.extend(modules))
    (tmp_path / cuda._file_of(text.text, "sm_80")).write_bytes(b"cubin")
    Recorded(device, tmp_path).load([text])
    assert taken[0].images == {"sm_80.cubin": b"cubin"}
