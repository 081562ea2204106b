"""Files of the contest: what is read, and what is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilewright.contest.problem import parse_problem, read_problem
from tilewright.errors import ModelRejected, UsageError

DATA = Path(__file__).parents[2] / "data" / "graph-scheduling"


def valid() -> dict[str, Any]:
    """A product and an operator on its result."""
    return {
        "widths": [64, 32, 32, 32],
        "heights": [16, 64, 16, 16],
        "inputs": [[0, 1], [2]],
        "outputs": [[2], [3]],
        "base_costs": [100, 10],
        "op_types": ["MatMul", "Pointwise"],
        "fast_memory_capacity": 5000,
        "slow_memory_bandwidth": 10,
        "native_granularity": [128, 128],
    }


def test_all_shipped_graphs_are_read() -> None:
    sizes = {p.stem: len(read_problem(p).operators) for p in DATA.glob("*.json")}
    assert len(sizes) == 14
    assert sizes["mlsys-2026-23"] == 121


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("widths", None, "'widths' is None; expected a list"),
        ("widths", [64, 32, 32], "'heights' has 4 entries, but 'widths' has 3"),
        ("widths", [64, 32, 32, -1], r"'widths\[3\]' holds -1"),
        ("widths", [64, 32, 32, True], r"'widths\[3\]' holds True"),
        ("widths", [64, 32, 32, 1 << 40], r"'widths\[3\]' holds 1099511627776"),
        ("heights", [16, 63, 16, 16], r"'inputs\[0\]' multiplies 64x16 by 32x63"),
        ("inputs", [[0, 1], [9]], r"'inputs\[1\]' holds 9; expected an integer from 0 to 3"),
        ("inputs", [[0, 1], [0]], r"'inputs\[1\]' names tensor 0, whose shape"),
        ("inputs", [[0, 1], [3]], "the graph has a circle"),
        ("inputs", [[0], [2]], r"'inputs\[0\]' names 1 tensors; MatMul reads two"),
        ("inputs", [[0, 1], []], r"'inputs\[1\]' is empty"),
        ("inputs", [], "'outputs' has 2 entries, but 'inputs' has 0"),
        ("outputs", [[2], [2]], r"'outputs\[1\]' names tensor 2, which operator 0 makes"),
        ("outputs", [[2], [3, 2]], r"'outputs\[1\]' names 2 tensors"),
        ("op_types", ["MatMul", "Conv"], r"'op_types\[1\]' is 'Conv'; expected MatMul or Pointwise"),
        ("base_costs", [100, -1], r"'base_costs\[1\]' is -1"),
        ("base_costs", [100, float("nan")], r"'base_costs\[1\]' is nan"),
        ("base_costs", [100, float("inf")], r"'base_costs\[1\]' is inf"),
        ("inputs", [[0, 1], [2] * 65], r"'inputs\[1\]' names 65 tensors; expected at most 64"),
        ("slow_memory_bandwidth", 0, "'slow_memory_bandwidth' is 0; expected a number from 1e-09"),
        ("slow_memory_bandwidth", 1e-310, "'slow_memory_bandwidth' is 1e-310"),
        ("native_granularity", [128], r"'native_granularity' expected \[w, h\]"),
    ],
)
def test_values_that_make_no_sense_are_named(key: str, value: Any, message: str) -> None:
    with pytest.raises(ModelRejected, match=message) as caught:
        parse_problem(valid() | {key: value}, "example")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("side", "native", "message"),
    [
        (1 << 24, 1, r"'outputs\[0\]' has 281474976710656 tiles and steps of the native granularity"),
        (1 << 24, 1 << 24, r"'outputs\[0\]' has 67108864 granularities; expected at most 2097152"),
    ],
)
def test_graphs_that_a_search_cannot_visit_are_refused(side: int, native: int, message: str) -> None:
    large = {"widths": [side] * 3, "heights": [side] * 3, "inputs": [[0], [1]], "outputs": [[1], [2]]}
    document = valid() | large | {"op_types": ["Pointwise"] * 2, "native_granularity": [native] * 2}
    with pytest.raises(ModelRejected, match=message):
        parse_problem(document, "example")


def test_a_chain_of_too_many_operators_is_refused() -> None:
    count = 1001
    document = valid() | {
        "widths": [8] * (count + 1),
        "heights": [8] * (count + 1),
        "inputs": [[i] for i in range(count)],
        "outputs": [[i + 1] for i in range(count)],
        "base_costs": [1] * count,
        "op_types": ["Pointwise"] * count,
    }
    with pytest.raises(ModelRejected, match="describes 1001 operators; expected 1 to 1000"):
        parse_problem(document, "example")


def test_a_missing_key_says_what_a_problem_has() -> None:
    document = valid()
    del document["op_types"]
    with pytest.raises(ModelRejected, match="'op_types' is missing; expected widths, heights"):
        parse_problem(document, "example")


@pytest.mark.parametrize("text", ["", "[1, 2]", '"x"', "{", "[" * 100_000, "\x00", '{"widths": 1e999}'])
def test_files_that_are_no_problem_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "graph.json"
    path.write_text(text)
    with pytest.raises(ModelRejected, match=r"graph\.json"):
        read_problem(path)


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_problem(tmp_path / "none.json")
    with pytest.raises(ModelRejected, match="cannot be read"):
        read_problem(tmp_path)
    (tmp_path / "large.json").write_text(" " * ((4 << 20) + 1) + json.dumps(valid()))
    with pytest.raises(ModelRejected, match="larger than MAX_FILE_BYTES"):
        read_problem(tmp_path / "large.json")
