"""The measurement of AMX machines: what its tables say, and all of it in the emulator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.amx import tables
from benchmarks.variants import estimates_table, missing, table, verdict
from tests.support.matrix_unit import can_emulate

ROOT = Path(__file__).parents[3]


def times(**ratios: tuple[float, float, float]) -> dict[str, Any]:
    """Of a default of 2 ms and of others by the median and the interval of their ratio."""
    found: dict[str, Any] = {"default": {"ms": 2.0, "ratio": None, "error": None}}
    for name, (low, median, high) in ratios.items():
        ratio = {"low": low, "median": median, "high": high}
        found[name] = {"ms": 2 * median, "ratio": ratio, "error": None}
    return found


def row(**ratios: tuple[float, float, float]) -> dict[str, Any]:
    return {"network": "n", "threads": 1, "times": times(**ratios)}


def test_the_default_is_slower_where_the_whole_interval_says_so() -> None:
    assert verdict(row(avx512=(0.9, 0.95, 0.96), strict=(0.99, 1.0, 1.2))) == "slower than avx512"
    assert verdict(row(avx512=(0.9, 0.95, 0.98), strict=(1.0, 1.0, 1.0))) == "holds"
    assert verdict(row(relaxed=(0.5, 0.5, 0.5))) == "holds", "it is not held against what errs more"


def test_what_was_not_measured_is_a_dash() -> None:
    failed = {"ms": None, "ratio": None, "error": "not installed"}
    rows = [row(avx512=(0.9, 1.0, 1.1)), {**row(), "times": {**times(), "openvino": failed}}]
    assert table(rows).splitlines()[2:] == [
        "| n | 1 | 2.00 | 1.00 (0.90-1.10) | - | holds |",
        "| n | 1 | 2.00 | - | - | holds |",
    ]
    assert list(missing(rows, ["n", "m"], [1, 2])) == [("n", 2), ("m", 1), ("m", 2)]


def test_estimates_are_relative_to_the_default() -> None:
    estimated = {"default": 4e6, "steady": 2e6, "avx512": 4e6, "strict": 5e6, "relaxed": 3e6}
    text = estimates_table([{"network": "n", "estimated": estimated}])
    assert text.splitlines()[2] == "| n | 4.00 | 0.50 | 1.00 | 1.25 | 0.75 |"


def test_a_product_is_told_by_its_speed_beside_multiply_adds() -> None:
    ways = {
        "multiply-adds": {"us": [90.0, 100.0, 110.0], "estimated_kcycles": [200.0]},
        "8 int8 products": {"us": [25.0, 40.0, 200.0], "estimated_kcycles": [100.0, 400.0]},
    }
    rate = {"rate": "tile load", "threads": 1, "cycles": [8.0, 21.0], "slow_share": 0.25, "clock_ghz": 2.7}
    rows = [
        {**rate, "measured": {"machine": "m, 2 cores"}},
        {"network": "n", "product": "MatMul 4x4 by 4x4", "count": 3, "ways": ways},
        row(avx512=(0.9, 1.0, 1.1)),
    ]
    text = tables(rows)
    assert "| tile load | 1 | 8.0, 21.0 | 25 % |" in text
    assert "m, 2 cores, 2.70 GHz." in text
    assert "| n | 3 x MatMul 4x4 by 4x4 | 100 us | 0.50 to 4.00 (model 0.50 to 2.00) |" in text
    assert "| n | 1 | 2.00 | 1.00 (0.90-1.10) | holds |" in text


@pytest.mark.slow
@pytest.mark.skipif(not can_emulate(), reason="this processor has no vectors of 512 bits")
def test_all_of_it_runs_in_the_emulator_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    asked = "--emulated --networks bert_tiny --minutes 30 --seconds 0.02 --threads 1 --products 1 --peers="
    command = [sys.executable, "-m", "benchmarks", "amx", *asked.split()]
    command += ["--output", str(tmp_path / "amx.jsonl")]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in (tmp_path / "amx.jsonl").read_text().splitlines()]
    (product,) = [r for r in rows if "product" in r]
    differences = {way: found["difference"] for way, found in product["ways"].items()}
    assert differences["8 int8 products"] < 1e-6
    assert differences["6 bfloat16 products"] < 1e-6
    assert 1e-4 < differences["1 bfloat16 product"] < 1e-1
    assert len([r for r in rows if "rate" in r]) == 9
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert again.stdout == first.stdout
