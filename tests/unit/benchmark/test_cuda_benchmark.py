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

from tilewright.targets.cuda import assembler
from tilewright.targets.cuda.device import GraphNode, Join, KernelCode
from tilewright.targets.cuda.emulated.device import EmulatedDevice
from tilewright.zoo.builder import Builder

pytestmark = [needs_fibers, pytest.mark.sampled(2)]
FORMS = tuple(cuda.forms())


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


def test_every_part_runs_end_to_end_with_values_that_were_computed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a convolution, and a network of two branches, whose stages are measured beside their kernels."""
    b = Builder("branches", seed=0)
    x = b.input("x", (1, 16, 6, 6))
    for number in range(2):
        b.output(b.conv(x, 16, 3, padding=1, name=f"conv{number}"), f"y{number}")
    network = b.finish()
    monkeypatch.setattr(cuda, "build", lambda name: network)
    monkeypatch.setattr(cuda, "NETWORKS", ("branches",))
    monkeypatch.setattr(cuda, "CONVOLUTIONS", ((16, 16, 4, 1, 1),))
    monkeypatch.setattr(cuda, "forms", lambda: [("softmax", dict(FORMS)["softmax"])])
    monkeypatch.setattr(assembler, "assembled", lambda ptx, isa: (b"cubin", ""))
    cuda.prepare(tmp_path / "kept", "sm_80", "")
    monkeypatch.setattr(cuda, "expected_of", lambda model: pytest.fail("it was computed before"))
    status, found = rows(tmp_path, "--prepared", str(tmp_path / "kept"))
    assert status == 0
    assert not [row for row in found if "error" in row and isinstance(row["error"], str)]
    sections = {row["section"] for row in found}
    assert sections == {"device", *cuda.SECTIONS} - {"tools"}
    assert [row["plan"] for row in found if row["section"] == "networks"] == list(cuda.PLANS)
    measured = [row for row in found if row["section"] == "stages"]
    assert max(row["num_groups"] for row in measured) == 2
    assert all(row["estimate_us"] > 0 and row["times_us"] and row["one_by_one_us"] for row in measured)


def test_copies_of_a_stage_follow_each_other() -> None:
    nodes = [GraphNode("a", Join()), GraphNode("b", Join()), GraphNode("c", Join(), (0,))]
    assert [node.after for node in cuda.chained(nodes, 2)] == [(), (), (0,), (1, 2), (1, 2), (3,)]


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
