"""The long hostile run in small: its parts run, and it tells what dies, hangs or answers wrongly."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.hostile import hunt, models
from tests.hostile.models import hostile_model, try_model

ROOT = Path(__file__).parents[2]


@pytest.mark.sampled(0)
def test_a_short_run_finds_nothing() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.hostile.hunt",
        "--models",
        "100",
        "--only",
        "models",
        "--seed",
        "5000",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "models: 40 " in done.stdout
    assert "0 findings" in done.stdout


@pytest.mark.slow
def test_many_hostile_models_find_nothing() -> None:
    assert hunt.hunt_models(20_000, 500).findings == []


def test_equal_seeds_are_equal_models() -> None:
    for seed in range(30, 34):
        first, second = hostile_model(seed)[0], hostile_model(seed)[0]
        assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


def relu() -> bytes:
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", info[:1], info[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(proto.SerializeToString())


def test_wrong_answers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx import ModelProto

    model = ModelProto.FromString(relu())
    assert try_model(model, [], 1) == ("ran", "")
    real = models.run_hostile
    monkeypatch.setattr(models, "run_hostile", lambda *a, **k: {n: v + 1 for n, v in real(*a, **k).items()})
    outcome, problem = try_model(model, [], 1)
    assert outcome == "ran"
    assert "differs in 4 of 4 elements between guard pages" in problem


def test_untyped_errors_are_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(seed: int) -> tuple[str, str]:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr(models, "try_seed", broken)
    monkeypatch.setattr(hunt.resource, "setrlimit", lambda *_: None)
    hunt.run_batch(0, 1)
    assert "ZeroDivisionError: by design" in capsys.readouterr().out


def test_children_that_die_or_hang_are_findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each costs its own model alone: the next seeds are tried in a new child."""
    script = tmp_path / "child.py"
    script.write_text(
        "import json, os, sys, time\n"
        "for seed in range(int(sys.argv[1]), int(sys.argv[2])):\n"
        "    print(json.dumps({'seed': seed}), flush=True)\n"
        "    if seed == 1: os.abort()\n"
        "    if seed == 3: time.sleep(600)\n"
        "    print(json.dumps({'seed': seed, 'outcome': 'ran', 'problem': '', 'seconds': 0.1}), flush=True)\n"
    )
    popen = subprocess.Popen

    def started(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return popen([sys.executable, str(script), *command[-2:]], **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(hunt.subprocess, "Popen", started)
    monkeypatch.setattr(hunt, "MODEL_TIMEOUT_S", 2)
    report = hunt.hunt_models(0, 6)
    assert report.tried == 6
    assert report.outcomes == {"ran": 4, "died": 2}
    assert [text.split()[0] for text in report.findings] == ["1", "3"]


def test_findings_of_other_hunts_are_read() -> None:
    assert hunt._findings_of('noise\n{"models": 3, "found": ["a", "b"]}') == ["a", "b"]
    assert hunt._findings_of('{"trying": 1}\n{"trying": 2}\n{"findings": ["c"]}\n') == ["c"]
    assert hunt._findings_of('{\n "artifacts": 3,\n "found": ["d"]\n}\n') == ["d"]
    assert hunt._findings_of("3 models, nothing") == []
    assert np.isfinite(hunt.MODEL_TIMEOUT_S)
