"""`examples/plugin_scheduler`: someone else's scheduler finds cheaper plans, for it asks the cost model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from tests.support.plugin_package import build_wheel, install

import tilewright as tw

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "plugin_scheduler"
STCP920 = ROOT / "src" / "tilewright" / "hardware" / "presets" / "stcp920.yaml"
NAMES = ("sequential", "depth-first", "priced-slices")
FLAGS = ("--partition", "graphturbo", "--schedule", ",".join(NAMES))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the package is installed."""
    folder = tmp_path_factory.mktemp("site")
    files = {path.name: path.read_text() for path in PACKAGE.iterdir() if path.suffix in (".py", ".toml")}
    install(build_wheel(files, tmp_path_factory.mktemp("wheel")), folder)
    return folder


def python(site: Path, *arguments: object) -> str:
    """What a fresh process prints that finds the package."""
    paths = os.pathsep.join((str(ROOT / "src"), str(site)))
    environment = {**os.environ, "PYTHONPATH": paths, "TILEWRIGHT_CACHE": str(site / "cache")}
    command = [sys.executable, *map(str, arguments)]
    result = subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def costs(site: Path, *arguments: object) -> dict[str, float]:
    """The simulated cost of each scheduler's plan."""
    document = json.loads(python(site, "-m", "tilewright", "plan", *arguments, *FLAGS, "--json"))
    assert document["unit"] == "ns"
    found = {row["schedule"]: row for row in document["combinations"]}
    assert tuple(found) == NAMES
    for row in found.values():
        assert row["error"] is None
        assert row["bound"] <= row["cost"]
        assert row["gap"] == pytest.approx((row["cost"] - row["bound"]) / row["bound"])
    return {name: row["cost"] for name, row in found.items()}


def test_the_module_is_short() -> None:
    assert len((PACKAGE / "priced_slices.py").read_text().splitlines()) < 60


@pytest.mark.sampled(0)
def test_it_beats_sequential_and_the_slices_of_the_partition(site: Path) -> None:
    onnx.save(tw.zoo.build("squeezenet1_1", batch=8, image=224), site / "squeezenet.onnx")
    found = costs(site, "squeezenet.onnx", "-t", "stcp920")
    assert found["priced-slices"] < 0.4 * found["sequential"]
    assert found["priced-slices"] < 0.95 * found["depth-first"]


VALUES = """
import numpy as np
import onnx
import tilewright as tw

feed = tw.zoo.example_inputs(onnx.load("small.onnx"))
settings = dict(partition="graphturbo", schedule="priced-slices")
sliced = tw.compile("small.onnx", "small.yaml", **settings)
assert any(split.num_instances > 1 for split in sliced.program.schedule.splits)
reference = tw.compile("small.onnx", "interpreter").run(None, feed)
for result, wanted in zip(sliced.run(None, feed), reference, strict=True):
    np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
plain = tw.compile("small.onnx", "cpu", **settings)
assert all(split.num_instances == 1 for split in plain.program.schedule.splits)
"""


@pytest.mark.sampled(0)
def test_its_slices_compute_the_right_values(site: Path) -> None:
    """On buffers so small that a network which is quick to interpret needs slices."""
    text = STCP920.read_text()
    for large, small in (
        ("1280 KiB", "12 KiB"),
        ("256 KiB", "4 KiB"),
        ("8 MiB", "40 KiB"),
        ("2 MiB", "8 KiB"),
    ):
        assert text.count(f"capacity_bytes: {large}") == 1
        text = text.replace(f"capacity_bytes: {large}", f"capacity_bytes: {small}")
    (site / "small.yaml").write_text(text)
    onnx.save(tw.zoo.build("squeezenet1_1", batch=4, image=32), site / "small.onnx")
    found = costs(site, "small.onnx", "-t", "small.yaml")
    assert found["priced-slices"] < 0.95 * found["sequential"]
    python(site, "-c", VALUES)
