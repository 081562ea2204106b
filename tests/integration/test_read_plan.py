"""`examples/read_plan.py`: reads what `simulate --json` prints, and finds what is damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.support.cli import tilewright
from tests.support.models import small_net

import tilewright as tw
from tilewright.cli.schemas import violations

READER = Path(__file__).parents[2] / "examples" / "read_plan.py"

Plan = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> Plan:
    """A plan with slices, values in several levels and results that are written in place of operands."""
    result = tw.simulate(tw.zoo.build("squeezenet1_1", image=64, batch=4), recipe="graphturbo")
    found: Plan = json.loads(json.dumps(result.to_json()))
    return found


def read(document: Plan, folder: Path) -> tuple[int, str, str]:
    path = folder / "plan.json"
    path.write_text(json.dumps(document))
    run = subprocess.run([sys.executable, "-I", READER, path], capture_output=True, text=True, check=False)
    return run.returncode, run.stdout, run.stderr


def test_a_plan_that_the_verb_prints_is_in_order(tmp_path: Path) -> None:
    onnx.save(small_net(), tmp_path / "net.onnx")
    printed = tilewright("simulate", tmp_path / "net.onnx", "--recipe", "graphturbo", "--json").document
    assert violations(printed) == []
    code, said, wrong = read(printed, tmp_path)
    plan = printed["plan"]
    assert (code, wrong) == (0, "")
    assert said == f"{len(plan['steps'])} steps, {len(plan['buffers'])} buffers, 0 problems\n"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", ["core-groups{number=4}", "core-pipeline{stages=4}"])
def test_steps_name_their_group_of_cores(order: str, tmp_path: Path) -> None:
    model = tw.zoo.build("squeezenet1_1", image=64, batch=4)
    result = tw.simulate(
        model, "stcp920{resident_weights=true}", partition="layerwise", schedule=order
    ).to_json()
    code, _, wrong = read(result, tmp_path)
    assert (code, wrong) == (0, "")
    steps = result["plan"]["steps"]
    assert {(s["cores"]["first_core"], s["cores"]["num_cores"]) for s in steps} == {
        (c, 2) for c in (0, 2, 4, 6)
    }
    weights = [weight for step in steps for weight in step["weights"]]
    assert any(weight["resident_in"] == "L1" for weight in weights)
    assert all(weight["fetch_s"] is None for weight in weights if weight["resident_in"] == "L1")


def over_another(plan: Plan) -> None:
    """A buffer that lies alone is moved to where another one is live."""
    for b in plan["buffers"]:
        for other in plan["buffers"]:
            is_beside = other["offset_bytes"] >= b["offset_bytes"] + b["size_bytes"] and b["size_bytes"]
            is_live = b["first_step"] <= other["first_step"] < b["last_step"]
            if other["level"] == b["level"] and is_beside and is_live:
                other["offset_bytes"] = b["offset_bytes"]
                return
    raise AssertionError("no two buffers are live together")


def behind_its_level(plan: Plan) -> None:
    plan["buffers"][0]["offset_bytes"] = 1 << 50


def read_too_early(plan: Plan) -> None:
    step = next(s for s in plan["steps"] if any(r["buffer"] is not None for r in s["reads"]))
    step["start_s"] = step["end_s"] = 0.0


def read_too_late(plan: Plan) -> None:
    buffer = next(b for b in plan["buffers"] if b["last_step"] - b["first_step"] > 1)
    buffer["last_step"] -= 1


def read_of_more(plan: Plan) -> None:
    read = next(r for s in plan["steps"] for r in s["reads"] if r["buffer"] is not None)
    read["region"][0][1] += 1


def read_from_nowhere(plan: Plan) -> None:
    read = next(r for s in plan["steps"] for r in s["reads"] if r["buffer"] is not None)
    read["buffer"] = None


def never_written(plan: Plan) -> None:
    plan["steps"][-1]["writes"] = []


def place_taken_too_early(plan: Plan) -> None:
    step = next(s for s in plan["steps"] if s["after"])
    plan["steps"][step["after"][0]]["end_s"] = step["start_s"] + 1.0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (over_another, "is made over"),
        (behind_its_level, "ends behind"),
        (read_too_early, "before it is made"),
        (read_too_late, "is there in other steps only"),
        (read_of_more, "reads more than"),
        (read_from_nowhere, "from nowhere"),
        (never_written, "not every buffer is written"),
        (place_taken_too_early, "has ended, whose place it takes"),
    ],
)
def test_what_is_damaged_is_said(
    document: Plan, damage: Callable[[Plan], None], said: str, tmp_path: Path
) -> None:
    assert read(document, tmp_path)[0] == 0
    damaged = deepcopy(document)
    damage(damaged["plan"])
    code, _, wrong = read(damaged, tmp_path)
    assert code == 1
    assert said in wrong
