"""The ONNX node suite: no wrong values, no crashes; what does not pass is refused with a reason."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.docs.write_conformance import conformance_markdown
from tests.support.cuda import EMULATED, needs_fibers
from tests.support.node_suite import (
    EXCEPTIONS,
    Case,
    CaseResult,
    Wider,
    count_status,
    mismatch,
    node_cases,
    run_cases,
    suite_mismatch,
)

from tilewright.backend import PreparedModel, as_array, prepare
from tilewright.compiler import compile_graph
from tilewright.frontend.onnx import import_model, open_model
from tilewright.ir.dtype import DType
from tilewright.ir.interpret import run_graph
from tilewright.options import Options
from tilewright.target_ref import TargetRef

# Promises: the first release passes 60 % of the suite, and no later one fewer than this one.
MIN_PASS = {"INTERPRETER": 1597, "CPU": 1576, "STCP920": 1596}
PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
SPREAD = {"CPU": 8, "STCP920": 40}
NUM_PARTS = 8
WITH_PILLOW = {"ImageDecoder"}
"""Whose cases pass where Pillow is there."""


@cache
def cases() -> tuple[Case, ...]:
    return node_cases()


@cache
def operators() -> Sequence[str]:
    return sorted({case.operator for case in cases()})


def written_page() -> str:
    """The page of results; it tells nothing of the cases of another onnx."""
    page = PAGE.read_text()
    if f"onnx {onnx.__version__} " not in page:
        pytest.skip(f"the page was written with another onnx than {onnx.__version__}")
    return page


def lines_by_operator(page: str) -> tuple[list[str], dict[str, str]]:
    """The interpreter's table, its head and the line of each operator."""
    table = page.partition("## By operator, interpreter")[2].partition("## ")[0]
    head, rule, *lines = (line for line in table.splitlines() if line.startswith("|"))
    by_name = {line.split("|")[1].strip(): line for line in lines}
    return [head, rule], {name: line for name, line in by_name.items() if name not in WITH_PILLOW}


def results_of(device: str, chosen: Sequence[Case]) -> list[CaseResult]:
    with warnings.catch_warnings():
        # Operators at the edge of their domain divide by zero on purpose.
        warnings.simplefilter("ignore")
        return list(run_cases(chosen, lambda model: prepare(model, device)))


def assert_honest(results: Sequence[CaseResult]) -> None:
    bad = [f"{r.name}: {r.status}: {r.reason}" for r in results if r.status in ("wrong", "crash")]
    assert not bad, "\n".join(bad[:20])
    silent = [r.name for r in results if r.status == "unsupported" and len(r.reason) < 20]
    assert not silent


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_the_interpreter_is_never_wrong_and_the_page_tells_its_results(part: int) -> None:
    """Each part has all cases of every eighth operator, whose lines on the page hold what passes."""
    assert len(cases()) > 1800
    chosen = [case for case in cases() if operators().index(case.operator) % NUM_PARTS == part]
    results = results_of("INTERPRETER", chosen)
    assert len(results) == len(chosen) > 50
    assert_honest(results)
    heads, lines = lines_by_operator(written_page())
    fresh = lines_by_operator(conformance_markdown({"interpreter": results}, {"onnx": onnx.__version__}))
    told = {name: line for name, line in lines.items() if operators().index(name) % NUM_PARTS == part}
    assert fresh == (heads, told), "run python -m tests.docs.write_conformance"


def test_the_page_tells_of_every_operator_and_of_as_many_passing_cases_as_are_promised() -> None:
    _, lines = lines_by_operator(written_page())
    assert set(lines) == set(operators()) - WITH_PILLOW
    num_passing = sum(int(n) for line in lines.values() for n in line.split("|")[3:5])
    assert num_passing >= MIN_PASS["INTERPRETER"] - sum(case.operator in WITH_PILLOW for case in cases())


def on_emulated_gpu(model: onnx.ModelProto) -> PreparedModel:
    opened = open_model(model)
    graph = import_model(opened)
    code = compile_graph(graph, Options(target=TargetRef.parse(EMULATED))).code
    return PreparedModel(graph, code.load(None).run, opened.edges)


@needs_fibers
@pytest.mark.parametrize(
    ("spread", "first"),
    [(40, None), *(pytest.param(8, first, marks=pytest.mark.slow) for first in range(8))],
)
def test_the_emulated_gpu_is_right_wherever_it_compiles(
    spread: int, first: int | None, request: pytest.FixtureRequest
) -> None:
    seed = sum(str(request.config.getoption("--sample-seed")).encode()) if first is None else first
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = list(run_cases(cases()[seed % spread :: spread], on_emulated_gpu))
    assert_honest(results)
    assert count_status(results)["pass"] > 0.7 * len(results)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("device", SPREAD)
def test_no_target_is_wrong_on_a_spread_of_the_suite(device: str) -> None:
    chosen = cases()[:: SPREAD[device]]
    results = results_of(device, chosen)
    assert_honest(results)
    assert count_status(results)["pass"] >= 0.75 * len(chosen)


@pytest.mark.slow
@pytest.mark.parametrize("device", MIN_PASS)
def test_no_target_is_wrong_on_the_whole_suite(device: str) -> None:
    results = results_of(device, cases())
    assert_honest(results)
    assert count_status(results)["pass"] >= MIN_PASS[device]


def test_every_exception_names_a_case_and_a_reason() -> None:
    names = {case.name for case in cases()}
    for name, wider in EXCEPTIONS.items():
        assert name in names
        assert (0 < wider.error < 1e-3 and wider.units == 1) or (wider.error == 0 and wider.units == 2)
        assert re.search(r"\w+ \w+", wider.reason)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("device", ["INTERPRETER", "CPU"])
def test_exceptions_in_half_types_are_within_one_unit_of_the_exact_values(device: str) -> None:
    """Where the suite's own outputs are off, ours are not: the evaluation in float64 says so."""
    chosen = [case for case in cases() if EXCEPTIONS.get(case.name, Wider("")).units > 1]
    assert len(chosen) >= 7
    for case in chosen:
        prepared = prepare(case.model, device)
        for inputs, outputs in case.data_sets:
            arrays = [as_array(x) for x in inputs]
            feed = dict(zip((v.name for v in prepared.graph.inputs), arrays, strict=True))
            exact = run_graph(prepared.graph, feed, dtype=DType.FLOAT64)
            found = dict(zip(exact, prepared.run(arrays), strict=True))
            assert len(found) == len(outputs)
            for name, array in found.items():
                assert mismatch(array, exact[name].astype(array.dtype)) == "", (case.name, name)


def bfloat16(numbers: Sequence[float]) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(numbers).astype(DType.BFLOAT16.numpy)


def one_ulp_up(array: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]  # any float array
    return np.nextafter(array, np.float32(np.inf))


@pytest.mark.parametrize(
    ("actual", "expected", "problem"),
    [
        (np.array([1, 2], np.float32), np.array([1, 2], np.float32), ""),
        (one_ulp_up(np.array([1, 2], np.float32)), np.array([1, 2], np.float32), ""),
        (np.array([1, 2.001], np.float32), np.array([1, 2], np.float32), "largest error"),
        (np.array([1e-7, 1e3], np.float32), np.array([0, 1e3], np.float32), ""),
        (np.array([1, 2], np.float32), np.array([1, 2], np.float64), "type float32, expected float64"),
        (np.array([1, 2], np.float32), np.array([[1, 2]], np.float32), "shape"),
        (np.array([np.nan, np.inf], np.float32), np.array([np.nan, np.inf], np.float32), ""),
        (np.array([np.nan, 1], np.float32), np.array([1, 1], np.float32), "infinities or NaN"),
        (np.array([1, np.inf], np.float32), np.array([1, -np.inf], np.float32), "infinities or NaN"),
        (np.array([1, 1.001], np.float16), np.array([1, 1], np.float16), ""),
        (np.array([1e3, 6e-8], np.float16), np.array([1e3, 1.2e-7], np.float16), ""),
        (np.array([1e3, 6e-8], np.float16), np.array([1e3, -6e-8], np.float16), "2 units"),
        (np.array([1, 1.002], np.float16), np.array([1, 1], np.float16), "2 units"),
        (bfloat16([1.0, 1.0078125]), bfloat16([1, 1]), ""),
        (bfloat16([1.0, 1.015625]), bfloat16([1, 1]), "2 units"),
        (bfloat16([0.0]), bfloat16([-0.0]), ""),
        (np.array([1, 2], np.int64), np.array([1, 3], np.int64), "1 of 2 values differ"),
        (np.array([True]), np.array([False]), "1 of 1 values differ"),
        (np.array(["a"], object), np.array(["b"], object), "different text"),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), ""),
    ],
)
def test_the_comparison_notices_what_it_should(
    actual: np.ndarray,
    expected: np.ndarray,
    problem: str,  # type: ignore[type-arg]  # any arrays
) -> None:
    found = mismatch(actual, expected)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_the_suites_own_tolerances_hold_too() -> None:
    """Near zero they are narrower than units of the output's largest magnitude."""
    actual, expected = np.array([1e3, 1e-5], np.float32), np.array([1e3, 0], np.float32)
    assert mismatch(actual, expected) == ""
    assert suite_mismatch(actual, expected, 1e-3, 1e-7).startswith("1 of 2 values")
    assert suite_mismatch(expected, expected, 1e-3, 1e-7) == ""
    assert suite_mismatch(np.array([np.nan], np.float32), np.array([1], np.float32), 1e-3, 1e-7)


def test_a_wrong_backend_is_caught() -> None:
    class Negated:
        def __init__(self, model: onnx.ModelProto) -> None:
            self._prepared = prepare(model, "INTERPRETER")
            self.graph = self._prepared.graph

        def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:  # type: ignore[type-arg]
            return [-output for output in self._prepared.run(inputs)]

    chosen = [case for case in cases() if case.name in ("test_exp", "test_relu", "test_add")]
    found: Mapping[str, str] = {r.name: r.status for r in run_cases(chosen, Negated)}
    assert found == {"test_exp": "wrong", "test_relu": "wrong", "test_add": "wrong"}
