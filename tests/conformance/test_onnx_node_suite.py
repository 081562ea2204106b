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


@cache
def cases() -> tuple[Case, ...]:
    return node_cases()


def results_of(device: str, chosen: Sequence[Case]) -> list[CaseResult]:
    with warnings.catch_warnings():
        # Operators at the edge of their domain divide by zero on purpose.
        warnings.simplefilter("ignore")
        return list(run_cases(chosen, lambda model: prepare(model, device)))


@cache
def interpreted() -> tuple[CaseResult, ...]:
    return tuple(results_of("INTERPRETER", cases()))


def assert_honest(results: Sequence[CaseResult]) -> None:
    bad = [f"{r.name}: {r.status}: {r.reason}" for r in results if r.status in ("wrong", "crash")]
    assert not bad, "\n".join(bad[:20])
    silent = [r.name for r in results if r.status == "unsupported" and len(r.reason) < 20]
    assert not silent


def test_the_interpreter_is_never_wrong_on_the_whole_suite() -> None:
    results = interpreted()
    assert len(results) == len(cases()) > 1800
    assert_honest(results)
    assert count_status(results)["pass"] >= MIN_PASS["INTERPRETER"]


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
@pytest.mark.parametrize("device", SPREAD)
def test_no_target_is_wrong_on_the_whole_suite(device: str) -> None:
    results = results_of(device, cases())
    assert_honest(results)
    assert count_status(results)["pass"] >= MIN_PASS[device]


def by_operator(page: str) -> list[str]:
    """The interpreter's lines; whether images are decoded depends on whether Pillow is there."""
    table = page.partition("## By operator, interpreter")[2].partition("## ")[0].strip()
    return [line for line in table.splitlines() if not line.startswith("| ImageDecoder ")]


def test_the_page_tells_the_interpreters_results() -> None:
    if f"onnx {onnx.__version__} " not in PAGE.read_text():
        pytest.skip(f"the page was written with another onnx than {onnx.__version__}")
    fresh = conformance_markdown({"interpreter": interpreted()}, {"onnx": onnx.__version__})
    table, page = (by_operator(text) for text in (fresh, PAGE.read_text()))
    assert table == page, "run python -m tests.docs.write_conformance"


def test_every_exception_names_a_case_and_a_reason() -> None:
    names = {case.name for case in cases()}
    for name, wider in EXCEPTIONS.items():
        assert name in names
        assert (0 < wider.error < 1e-3 and wider.units == 1) or (wider.error == 0 and wider.units == 2)
        assert re.search(r"\w+ \w+", wider.reason)


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
