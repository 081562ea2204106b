"""The target of docs/guides/add_target.md, built from that page and installed, is one like any other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx.parser
import pytest
from tests.support.models import small_net
from tests.support.plugin_package import build_wheel, files_of_page, install

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "add_target.md"
IMPORTS = """
import json
import numpy as np
import tilewright as tw
from tests.support.models import feed_for, small_net
"""
DETERMINANT = """<ir_version: 9, opset_import: ["": 18]>
g (float[4,3,3] x) => (float[4] y) { d = Det(x) y = Relu(d) }"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages, with two models in it."""
    folder = tmp_path_factory.mktemp("site")
    install(build_wheel(files_of_page(GUIDE), tmp_path_factory.mktemp("wheel")), folder)
    onnx.save(small_net(), folder / "small.onnx")
    onnx.save(onnx.parser.parse_model(DETERMINANT), folder / "det.onnx")
    return folder


def run(site: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(site), str(ROOT / "src"), str(ROOT)))
    env = {**os.environ, "PYTHONPATH": path, "TILEWRIGHT_CACHE": str(site / "cache")}
    return subprocess.run(
        (sys.executable, *command), cwd=site, env=env, capture_output=True, text=True, timeout=300
    )


def told(site: Path, code: str) -> Any:
    """What Python code prints as JSON in a fresh process."""
    result = run(site, "-c", f"{IMPORTS}\n{code}")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_its_files_are_formatted_as_ours(site: Path) -> None:
    (site / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for verb in (("check", "--ignore", "I001"), ("format", "--check")):
        result = run(site, "-m", "ruff", *verb, "tw_numpy")
        assert result.returncode == 0, result.stdout + result.stderr


def test_it_compiles_and_computes_what_the_interpreter_does(site: Path) -> None:
    found = told(
        site,
        """
model = tw.load("small.onnx")
feed = feed_for(small_net())
expected = tw.compile(model, "interpreter").run(None, feed)
plans = [{}, {"partition": "none"}, {"partition": "random", "schedule": "random"}]
compiled = [tw.compile(model, "numpy{call_us=5}", **plan) for plan in plans]
same = [
    all(np.array_equal(a, b) for a, b in zip(expected, c.run(None, feed), strict=True)) for c in compiled
]
quality = compiled[0].schedule.quality
report = compiled[0].report().to_json()
print(json.dumps({
    "same": same, "target": compiled[0].target, "cost": quality.cost, "bound": quality.bound,
    "unit": quality.unit, "kernels": len(compiled[0].kernels), "report": report,
}))
""",
    )
    assert found["same"] == [True, True, True]
    assert found["unit"] == "ns"
    assert found["cost"] >= found["bound"] > 0
    assert found["cost"] > 5000 * found["kernels"] > 0, "each kernel is a call, as the option says"
    assert json.dumps(found["report"]).count("numpy") > 0


def test_its_artifacts_come_back_and_damage_is_told(site: Path) -> None:
    found = told(
        site,
        """
import copy
from tilewright.artifact.container import Archive, Member, write_archive
from pathlib import Path

feed = feed_for(small_net())
compiled = tw.compile("small.onnx", "numpy")
before = compiled.run(None, feed)
path = compiled.save("small.tw")
opened = tw.open(path)
after = opened.run(None, feed)
again = opened.save("again.tw").read_bytes() == path.read_bytes()

archive = Archive(path)
def rewritten(name, edit):
    members = {n: archive.read(n) for n in archive.names if n != "manifest.json"}
    manifest = {k: v for k, v in copy.deepcopy(archive.manifest).items() if k != "members"}
    edit(manifest, members)
    write_archive(Path(name), manifest, [Member(n, (data,)) for n, data in members.items()])
    model = tw.open(name, trust=True)
    try:
        same = all(np.array_equal(a, b) for a, b in zip(before, model.run(None, feed), strict=True))
        return [same, *model.remarks]
    except tw.TilewrightError as error:
        return [type(error).__name__, str(error)]

def reverse(manifest, members):
    calls = np.frombuffer(members["code/0/calls.bin"], "<i8")[::-1]
    members["code/0/calls.bin"] = calls.tobytes()

def older(manifest, members):
    manifest["native"][0]["format"] = "0"

print(json.dumps({
    "names": archive.names, "remarks": opened.remarks, "again": again,
    "same": all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)),
    "reversed": rewritten("reversed.tw", reverse), "older": rewritten("older.tw", older),
    "trusted": rewritten("copy.tw", lambda manifest, members: None),
}))
""",
    )
    assert "code/0/calls.bin" in found["names"]
    assert (found["remarks"], found["same"], found["again"]) == ([], True, True)
    kind, message = found["reversed"]
    assert (kind, message.count("\n")) == ("ArtifactCorrupt", 0)
    assert "comes before its operands" in message
    same, remark = found["older"]
    assert same
    assert "another tw-numpy (format 0); generated again here" in remark
    assert found["trusted"] == [True]


@pytest.mark.sampled(0)
def test_what_it_declines_it_says_and_so_does_the_command_line(site: Path) -> None:
    listed = run(site, "-m", "tilewright", "targets", "numpy")
    assert "numpy" in listed.stdout, listed.stderr
    checked = run(site, "-m", "tilewright", "check", "det.onnx", "--target", "numpy")
    assert "numpy has nothing for it" in checked.stdout, checked.stderr
    compiled = run(site, "-m", "tilewright", "compile", "det.onnx", "--target", "numpy")
    assert compiled.returncode == 3, compiled.stderr
    assert "numpy has nothing for it" in compiled.stderr


@pytest.mark.slow
def test_it_is_honest_on_a_part_of_the_node_suite(site: Path) -> None:
    found = told(
        site,
        """
import warnings
from collections import Counter
from tilewright.backend import prepare
from tests.support.node_suite import node_cases, run_cases

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    results = list(run_cases(node_cases()[::24], lambda model: prepare(model, "NUMPY")))
print(json.dumps({
    "count": Counter(r.status for r in results),
    "bad": [f"{r.name}: {r.status}: {r.reason}" for r in results if r.status in ("wrong", "crash")],
    "silent": [r.name for r in results if r.status == "unsupported" and len(r.reason) < 20],
}))
""",
    )
    assert (found["bad"], found["silent"]) == ([], [])
    assert found["count"]["pass"] >= 40
