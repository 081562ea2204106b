"""The ONNX node suite, run and told: every case passes, or is unsupported for a stated reason."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx

from tilewright.arrays import Array
from tilewright.errors import TilewrightError, UnsupportedOp
from tilewright.files import write_atomically
from tilewright.ir.graph import Graph
from tilewright.ir.nest import Opaque

Status = Literal["pass", "unsupported", "wrong", "crash"]
Path = Literal["generated", "reference"]


@dataclass(frozen=True, slots=True)
class Wider:
    """A case whose published outputs are themselves inexact: what is allowed instead, and why.

    `error` is absolute, for float32 and wider; `units` are units in the last place of a half type, and
    widen what the suite itself allows in them.
    """

    reason: str
    error: float = 0.0
    units: int = 1


_FOUR_DECIMALS = Wider("the suite writes its expected outputs with four decimals", error=1e-4)
_ROUNDED_STEPS = Wider(
    "the suite rounds every intermediate result to the type, so that its expected outputs are up to two "
    "units off; the exact result, rounded once, is met within one",
    units=2,
)
_COMPLEX64 = Wider("the suite computes its expected outputs in complex64, which leaves 2e-7 of 0", error=1e-6)
EXCEPTIONS: Mapping[str, Wider] = {
    "test_attention_4d_attn_mask_causal_bf16_expanded": _ROUNDED_STEPS,
    "test_attention_4d_causal_bf16": _ROUNDED_STEPS,
    "test_attention_4d_causal_bf16_expanded": _ROUNDED_STEPS,
    "test_attention_4d_causal_fp16_expanded": _ROUNDED_STEPS,
    "test_attention_4d_causal_padded_kv_bf16": _ROUNDED_STEPS,
    "test_attention_4d_causal_padded_kv_bf16_expanded": _ROUNDED_STEPS,
    "test_attention_4d_padded_kv_bf16_expanded": _ROUNDED_STEPS,
    "test_averagepool_2d_ceil_last_window_starts_on_pad": _FOUR_DECIMALS,
    "test_dft_inverse": _COMPLEX64,
    "test_dft_inverse_opset19": _COMPLEX64,
    "test_gridsample_bicubic": _FOUR_DECIMALS,
    "test_roialign_aligned_false": _FOUR_DECIMALS,
    "test_roialign_aligned_true": _FOUR_DECIMALS,
}

# Fractions of |expected| and of the output's largest magnitude, in units in the last place of its type.
ULPS = 8
# The suite's own, of cases that name none.
RTOL, ATOL = 1e-3, 1e-7
_HALF_TYPES = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Case:
    """One case of the suite: a model of usually one node, inputs, expected outputs, tolerances of its own."""

    name: str
    operator: str
    model: Any
    data_sets: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float = RTOL
    atol: float = ATOL


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What happened. `path` says whether nests (thus generated code) describe every node of the case."""

    name: str
    operator: str
    status: Status
    path: Path
    reason: str = ""


def node_cases() -> tuple[Case, ...]:
    """Every case of the installed onnx package's node suite, sorted by name; callers may change them."""
    return tuple(
        Case(name, operator, onnx.load_from_string(model), *rest)
        for name, operator, model, *rest in pickle.loads(_suite())
    )


@functools.cache
def _suite() -> bytes:
    """The fields of all cases, pickled: kept for other processes, since to make them takes some 8 s."""
    folder = pathlib.Path(__file__).parents[2] / ".pytest_cache"
    path = folder / f"node_suite-{onnx.__version__}-{np.__version__}.pickle"
    with contextlib.suppress(OSError):
        return path.read_bytes()
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        # Building the cases divides by zero on purpose.
        warnings.simplefilter("ignore")
        loaded = sorted(load_model_tests(kind="node"), key=lambda case: case.name)
    made = pickle.dumps(
        [
            (
                c.name,
                _operator_of(c.model, c.name),
                c.model.SerializeToString(),
                tuple(c.data_sets),
                c.rtol,
                c.atol,
            )
            for c in loaded
        ]
    )
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
        write_atomically(path, made)
    return made


def run_cases(
    cases: Iterable[Case],
    prepare: Callable[[Any], Any],
    describe_graph: Callable[[Graph], Path] | None = None,
) -> Iterator[CaseResult]:
    """Run cases one after the other; `prepare` is that of a backend. Never raises for a case's sake."""
    for case in cases:
        yield _run_case(case, prepare, describe_graph or graph_path)


def graph_path(graph: Graph) -> Path:
    """`generated` if loop nests describe every node that computes something, or the steps that it is written
    as, or if it walks trees, for which there are kernels, else `reference`."""
    from tilewright.ir.nest import Walks
    from tilewright.ir.ops.registry import describe, has_effect
    from tilewright.passes.expand_recurrent import num_steps_of

    computing = [node for node in graph.nodes if not has_effect(node)]
    opaque = any(
        isinstance(describe(node), Opaque)
        and not isinstance(describe(node), Walks)
        and num_steps_of(graph, node) is None
        for node in computing
    )
    return "reference" if opaque else "generated"


def mismatch(actual: Array, expected: Array, at_least: float = 0.0, *, units: int = 1) -> str:
    """How two outputs differ, empty if they agree within the tolerance of the type.

    Types, shapes, integers, booleans and text must be equal, and so must the places of infinities and NaN.
    Half types may differ by `units` in the last place; other floats by some units in the last place of the
    expected value plus as many of the output's largest magnitude, and always by `at_least`.

    >>> mismatch(np.float32([1, 2]), np.float32([1, 3]))
    'largest error 1 where 5.7e-06 is allowed'
    >>> mismatch(np.float16([1, 2]), np.float16([1, 2.004]))
    '2 units in the last place where 1 is allowed'
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return f"shape {list(actual.shape)}, expected {list(expected.shape)}"
    if expected.dtype.kind in "OUS":
        return "" if bool(np.all(actual.astype(str) == expected.astype(str))) else "different text"
    if actual.dtype != expected.dtype:
        return f"type {actual.dtype}, expected {expected.dtype}"
    if expected.dtype.kind in "iub":
        count = int(np.count_nonzero(actual != expected))
        return f"{count} of {expected.size} values differ" if count else ""
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, e = actual.astype(wide), expected.astype(wide)
    finite = np.isfinite(e)
    with np.errstate(invalid="ignore"):
        same = (a == e) | (np.isnan(a) & np.isnan(e))
    if not bool(np.all(same | finite)) or not bool(np.all(np.isfinite(a[finite]))):
        return "infinities or NaN in other places"
    if not finite.any():
        return ""
    error, magnitude = np.abs(a[finite] - e[finite]), np.abs(e[finite])
    if expected.dtype.name in _HALF_TYPES:
        steps = np.abs(_places(actual)[finite] - _places(expected)[finite])
        most = int(steps[error > at_least].max(initial=0))
        return f"{most} units in the last place where {units} is allowed" if most > units else ""
    allowed = np.maximum(ULPS * _epsilon(expected.dtype) * (magnitude + magnitude.max()), at_least)
    worst = int(np.argmax(error - allowed))
    if error[worst] <= allowed[worst]:
        return ""
    return f"largest error {error[worst]:.2g} where {allowed[worst]:.2g} is allowed"


def suite_mismatch(actual: Array, expected: Array, rtol: float, atol: float, *, units: int = 1) -> str:
    """How two outputs differ by more than the suite itself allows: as its own runner compares them.

    More than one of `units` in the last place of a half type widens what it allows.
    """
    if expected.dtype.kind not in "fc" and expected.dtype.name != "bfloat16":
        return ""
    if expected.dtype.name == "bfloat16":
        rtol = max(rtol, 2.0**-6)  # its own, for this type
    if expected.dtype.name in _HALF_TYPES and units > 1:
        rtol = max(rtol, units * _epsilon(expected.dtype))
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, e = actual.astype(wide), expected.astype(wide)
    close = np.isclose(a, e, rtol=rtol, atol=atol, equal_nan=True)
    if close.all():
        return ""
    return (
        f"{close.size - np.count_nonzero(close)} of {close.size} values differ by more than the suite allows"
    )


def _places(array: Array) -> Array:
    """The position of each finite number of a half type among all of them; both zeros are at 0."""
    bits = np.ascontiguousarray(array).view(np.int16).astype(np.int32)
    return np.where(bits < 0, -(bits & 0x7FFF), bits)


def _epsilon(dtype: np.dtype[Any]) -> float:
    if dtype.name == "bfloat16":
        return 2.0**-7
    return float(np.finfo(dtype).eps)


def _operator_of(model: Any, name: str) -> str:
    """The operator a case is about: that of its node, also where its function body stands in its place."""
    nodes = model.graph.node
    if name.endswith("_expanded") or "_expanded_ver" in name:
        # Names in an expanded body begin with the operator: LayerNormalization_<case>_function_<result>.
        for node in nodes:
            for result in node.output:
                operator, found, _ = result.partition(f"_{name.partition('_expanded')[0]}")
                if found:
                    return str(operator)
    return str(nodes[0].op_type) if len(nodes) == 1 else "several"


def _run_case(
    case: Case, prepare: Callable[[Any], Any], describe_graph: Callable[[Graph], Path]
) -> CaseResult:
    from tilewright.backend import as_array

    path: Path = "reference"
    wider = EXCEPTIONS.get(case.name, Wider(""))
    try:
        prepared = prepare(case.model)
        path = describe_graph(prepared.graph)
        for inputs, outputs in case.data_sets:
            found = prepared.run([as_array(x) for x in inputs])
            for index, (actual, expected) in enumerate(zip(found, outputs, strict=True)):
                want = as_array(expected)
                problem = mismatch(actual, want, wider.error, units=wider.units)
                atol = max(case.atol, wider.error)
                problem = problem or suite_mismatch(actual, want, case.rtol, atol, units=wider.units)
                if problem:
                    return CaseResult(case.name, case.operator, "wrong", path, f"output {index}: {problem}")
    except UnsupportedOp as error:
        return CaseResult(case.name, case.operator, "unsupported", path, str(error))
    except TilewrightError as error:
        return CaseResult(case.name, case.operator, "crash", path, f"{type(error).__name__}: {error}")
    except Exception as error:
        # The suite's own question is whether this ever happens.
        return CaseResult(case.name, case.operator, "crash", path, f"{type(error).__name__}: {error}")
    return CaseResult(case.name, case.operator, "pass", path)


def count_status(results: Iterable[CaseResult]) -> Mapping[Status, int]:
    """Number of results of each status."""
    counts = Counter(result.status for result in results)
    return {status: counts[status] for status in ("pass", "unsupported", "wrong", "crash")}
