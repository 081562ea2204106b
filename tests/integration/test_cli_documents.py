"""Every kind of `--json` document is printed by a verb in the shape that `tilewright schema` says."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import helper
from tests.support.cli import tilewright
from tests.support.models import F32, model, small_net

import tilewright as tw
from tilewright.cli.schemas import KINDS, report_schema, violations

DATA = Path(__file__).parents[1] / "data"
CASES = DATA / "mapping" / "timeloop_examples.json"
CONTEST = DATA / "graph-scheduling" / "mlsys-2026-2.json"

COMMANDS: dict[str, tuple[object, ...]] = {
    "doctor": ("doctor",),
    "zoo": ("zoo", "list"),
    "zoo-build": ("zoo", "build", "bert_tiny"),
    "targets": ("targets",),
    "planners": ("planners",),
    "machine-description": ("targets", "eyeriss"),
    "host": ("targets", "host"),
    "inspect": ("inspect", "small.tw"),
    "quantize": ("quantize", "small.onnx", "--method", "weights", "-o", "quantized.onnx"),
    "check": ("check", "small.onnx"),
    "explain": ("explain", "small.tw"),
    "compile": ("compile", "small.onnx", "-o", "again.tw", "--error", "--dump-after", "dead-code"),
    "compile-shapes": ("compile", "open.onnx", "-o", "open.tw", "--shapes", "x:1|2x4"),
    "tune": ("tune", "small.onnx", "--budget", "2trials"),
    "cache": ("cache", "ls"),
    "cache-verify": ("cache", "verify"),
    "cache-export": ("cache", "export", "kernels.zip"),
    "cache-import": ("cache", "import", "kernels.zip"),
    "cache-prune": ("cache", "prune", "--max-size", "0B"),
    "cache-forget": ("cache", "forget"),
    "trust": ("trust", "ls"),
    "trust-key": ("trust", "key"),
    "trust-add": ("trust", "add", "0f" * 32, "--name", "build"),
    "trust-rm": ("trust", "rm", "0f0f0f0f"),
    "run": ("run", "small.tw", "--random"),
    "bench": ("bench", "small.tw", "--duration", "0.05", "--warmup", "0", "--no-advice"),
    "profile": ("profile", "small.tw", "--duration", "0.05", "--threads", "1"),
    "export": ("export", "small.tw"),
    "export-stages": ("export", "small.onnx", "--to", "stages"),
    "plan": ("plan", "small.onnx", "-t", "cpu,stcp920", "--schedule", "sequential,depth-first{split=true}"),
    "map": ("map", "small.onnx", "--mapper", "cosa", "--noc"),
    "map-chains": ("map", "small.onnx", "--fuse"),
    "map-evaluate": ("map", "--evaluate", CASES, "--noc"),
    "map-sweep": ("map", "1_1_4_4_1", "--sweep", "levels.AccumulationBuffer.capacity_bytes=2,192"),
    "simulate-sweep": ("simulate", "small.onnx", "--sweep", "target=a310", "--recipe", "graphturbo"),
    "schedule": ("simulate", CONTEST, "--recipe", "joint", "--budget", "3trials"),
    "compare": ("compare", "small.tw", "--layers"),
    "compare-schedules": ("compare-schedules", "small.onnx", "--schedule", "sequential", "--duration", "0"),
    "diff": ("diff", "small.onnx", "small.tw"),
    "view": ("view", "small.tw"),
    "bisect": ("bisect", "small.tw"),
    "reduce": ("reduce", "small.onnx", "--command", "false {}"),
}
"""A command for each kind; demonstrations, reproductions and simulations take longer and have tests of their
own."""
ELSEWHERE = {"demo", "generate", "learn", "reproduce", "simulate"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    onnx.save(small_net(), folder / "small.onnx")
    values = [helper.make_tensor_value_info(name, F32, ["rows", 4]) for name in ("x", "y")]
    relu = helper.make_node("Relu", ["x"], ["y"], "relu")
    onnx.save(model([relu], values[:1], values[1:], []), folder / "open.onnx")
    tw.compile(small_net(), threads=1, cache_dir=folder / "cache").save(folder / "small.tw")
    return folder


@pytest.mark.usefixtures("known_limits", "short_bursts")
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_verb_prints_what_its_schema_says(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    if not kind.startswith("map"):  # which keep compiled loops in the cache of all tests
        monkeypatch.setenv("TILEWRIGHT_CACHE", str(folder / "cache"))
    if kind.startswith("trust"):
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        tilewright("trust", "add", "0f" * 32)
    result = tilewright(*COMMANDS[kind], "--json")
    document = json.loads(result.out)
    assert document["kind"] == kind
    assert violations(document) == []
    assert violations({**document, "surprise": 1}) != []
    for key in document.keys() - {"kind"}:
        assert violations({k: v for k, v in document.items() if k != key}) != [], key


def test_every_kind_has_a_command() -> None:
    assert set(COMMANDS) | ELSEWHERE == set(KINDS)


def test_schemas_describe_keys_and_name_units() -> None:
    layer = report_schema("map")["$defs"]["MappedLayer"]["properties"]
    assert layer["energy_pJ"]["unit"] == "pJ"
    assert layer["cycles"]["unit"] == "cycles"
    assert layer["padding"]["description"] == "Iterations beyond the operator's own, as a share of those."
    kernel = report_schema("profile")["$defs"]["KernelTime"]["properties"]
    assert {name: kernel[name]["unit"] for name in ("median_ns", "constant_bytes", "gflop_per_s")} == {
        "median_ns": "ns",
        "constant_bytes": "B",
        "gflop_per_s": "Gflop/s",
    }
    assert "unit" not in kernel["share"]
