"""What ours, ONNX Runtime and ONNX's reference say of a node or a model, and where they differ."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto
from tests.fuzz.sketch import Step
from tests.fuzz.special import float_limits

from tilewright.errors import InputError, ModelRejected, UnsupportedOp
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph

Array = np.ndarray[Any, Any]
# Who may differ from the interpreter: generated code is one of them.
RUNTIME, REFERENCE, CPU = "onnxruntime", "reference", "generated code"

# Functions that subtract numbers near one, and those whose coordinates are rounded.
NEAR_ONE = ("Elu", "Celu", "Selu", "Tanh", "Sigmoid", "Softplus", "Erf", "Gelu", "Mish", "Swish", "HardSwish")
SAMPLED = ("Resize", "GridSample", "RoiAlign")
_EPSILON = {DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8, DType.FLOAT64: 2.0**-53}


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Results, or why there are none; `valid` is False where the model itself is said to be wrong."""

    arrays: tuple[Array, ...] | None
    reason: str = ""
    valid: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """Where one output of a node differs: `wrong` marks the elements, all of them if shapes differ.

    `confirmed`: ONNX Runtime gives what ours does, on these inputs or on the same in float32.
    """

    step: Step
    other: str
    output: int
    ours: Array
    theirs: Array
    wrong: Array
    text: str
    confirmed: bool = False

    def __str__(self) -> str:
        types = [None if a is None else f"{a.dtype}{list(a.shape)}" for a in self.step.inputs()]
        return f"{self.step.op_type}@{self.step.opset} {types} against {self.other}: {self.text}"


def ask_ours(model: ModelProto, feed: Mapping[str, Array]) -> Answer:
    try:
        graph = load_onnx(model)
        found = run_graph(graph, feed)
    except UnsupportedOp as error:
        return Answer(None, f"UnsupportedOp: {error}")
    except (ModelRejected, InputError) as error:
        return Answer(None, f"{type(error).__name__}: {error}", valid=False)
    return Answer(tuple(found[output.name] for output in model.graph.output))


def ask_runtime(model: ModelProto, feed: Mapping[str, Array], *, optimised: bool = False) -> Answer:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        if any(_is_bfloat16(a) for a in feed.values()):
            return Answer(None, "bfloat16 cannot be given from numpy")
        found = session.run(None, dict(feed))
    except Exception as error:  # every refusal of ONNX Runtime has a type of its own
        return Answer(None, " ".join(str(error).split()))
    return Answer(tuple(np.asarray(a) for a in found))


def _is_bfloat16(array: Array) -> bool:
    return bool(array.dtype.name == "bfloat16")


def ask_reference(model: ModelProto, feed: Mapping[str, Array]) -> Answer:
    from onnx.reference import ReferenceEvaluator

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = ReferenceEvaluator(model).run(None, dict(feed))
    except Exception as error:  # it raises whatever numpy does
        return Answer(None, " ".join(str(error).split()))
    if any(not isinstance(a, np.ndarray | np.generic) for a in found):
        return Answer(None, "gives no tensors")
    return Answer(tuple(np.asarray(a) for a in found))


def margins(step: Step, ours: Sequence[Array], *, is_local: bool) -> list[Array]:
    """How far off each element of a node's results may be: how far rounding errors of inputs move it."""
    coarsest = max((_epsilon(a) for a in (*ours, *step.arrays.values())), default=0.0)
    if not any(is_float(a) for a in ours):
        return [np.zeros(a.shape) for a in ours]
    allowed = _spread(load_onnx(step.model()), step.feed(), ours, coarsest)
    taken = max((_largest(a) for a in step.arrays.values() if is_float(a)), default=0.0)
    if step.op_type in SAMPLED:
        taken *= max(step.arrays[step.proto.input[0]].shape, default=1)
    for limit, array in zip(allowed, ours, strict=True):
        if is_float(array):
            limit += 2 * coarsest * (step.op_type in NEAR_ONE)
            limit += 0 if is_local else coarsest * (16 * _largest(array) + 4 * taken)
    return allowed


def model_margins(graph: Graph, feed: Mapping[str, Array], ours: Sequence[Array]) -> list[Array]:
    """How far off each element of a model's results may be, after many nodes."""
    floats = [v for v in graph.values() if v.dtype.is_float]
    coarsest = max((_EPSILON.get(v.dtype, 2.0**-24) for v in floats), default=0.0)
    with np.errstate(all="ignore"):
        everything = run_graph(graph, feed, taps=[v.name for v in floats])
    most = max((_largest(a) for a in everything.values() if is_float(a)), default=0.0)
    allowed = _spread(graph, feed, ours, coarsest, tries=8, factor=64)
    return [
        limit + coarsest * (16 * _largest(a) + 4 * most) * is_float(a)
        for limit, a in zip(allowed, ours, strict=True)
    ]


def _spread(
    graph: Graph,
    feed: Mapping[str, Array],
    ours: Sequence[Array],
    epsilon: float,
    *,
    tries: int = 3,
    factor: float = 1,
) -> list[Array]:
    """How far ours is from the result in float64, and this from itself when what is fed moves a little."""
    names = [v.name for v in graph.outputs]
    with np.errstate(all="ignore"):
        exact = run_graph(graph, feed, dtype=DType.FLOAT64)
        others = [
            run_graph(graph, _moved(feed, seed, factor * epsilon), dtype=DType.FLOAT64)
            for seed in range(tries)
        ]
        spread = []
        for name, array in zip(names, ours, strict=True):
            limit = np.zeros(array.shape)
            for other in (*(o[name] for o in others), array):
                apart = np.abs(other.astype(np.float64) - exact[name].astype(np.float64))
                if is_float(array):
                    limit = np.fmax(limit, np.where(np.isfinite(apart), apart, 0))
                elif factor > 1:  # what a comparison decides may turn, at the end of many nodes
                    limit = np.maximum(limit, apart)
            wide = np.abs(array.astype(np.float64))
            wide = np.where(np.isfinite(wide), wide, 0)
            own = 16 * epsilon * wide + 2 * _quantum(array) if is_float(array) else 0
            spread.append(np.asarray(24 * limit + own))
    return spread


def _moved(feed: Mapping[str, Array], seed: int, epsilon: float) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        name: np.asarray(a.astype(np.float64) * (1 + rng.choice((-1.0, 1.0), a.shape) * epsilon))
        if is_float(a)
        else a
        for name, a in feed.items()
    }


def is_float(array: Array) -> bool:
    return bool(array.dtype.kind == "f" or _is_bfloat16(array))


def _epsilon(array: Array) -> float:
    return _EPSILON.get(DType.from_numpy(array.dtype), 2.0**-24) if is_float(array) else 0.0


def _quantum(array: Array) -> float:
    return float_limits(DType.from_numpy(array.dtype))[1] if is_float(array) else 0.0


def _largest(array: Array) -> float:
    wide = np.abs(array.astype(np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0.0))


def wrong_elements(ours: Array, theirs: Array, allowed: Array) -> Array:
    """Elements that differ; NaN is equal to NaN, and -0 to 0."""
    if not is_float(ours):
        return np.asarray((ours != theirs) & (allowed == 0))
    with np.errstate(all="ignore"):
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed)
        # What is rounded to the largest number by one may be infinite for the other.
        largest = float_limits(DType.from_numpy(ours.dtype))[0] * (1 - 2.0**-5)
        same |= (np.abs(a) >= largest) & (np.abs(b) >= largest) & (np.sign(a) == np.sign(b))
    return np.asarray(~same)


def compare(
    step: Step, other: str, ours: Sequence[Array], theirs: Sequence[Array], allowed: Sequence[Array]
) -> Difference | None:
    """The first output that differs, None if none does."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            text = f"output {i} is {a.dtype}{list(a.shape)}, theirs {b.dtype}{list(b.shape)}"
            return Difference(step, other, i, a, b, np.ones(a.shape, np.bool_), text)
        wrong = wrong_elements(a, b, allowed[i])
        if wrong.any():
            place = tuple(int(n) for n in np.argwhere(wrong)[0])
            count = f"{int(wrong.sum())} of {wrong.size} of output {i}"
            text = f"{count}, at {list(place)} {a[place]!s} theirs {b[place]!s}"
            return Difference(step, other, i, a, b, wrong, text)
    return None


def in_float32(step: Step) -> Step:
    """The step with floats as float32 and integers as int32, which ONNX Runtime knows most operators for."""
    arrays = {}
    shapes = step.constants | set(step.proto.input[1:]) if step.op_type in SAMPLED else step.constants
    for name, array in step.arrays.items():
        if is_float(array):
            array = array.astype(np.float32)
        elif array.dtype.kind in "iu" and name not in shapes:
            array = array.astype(np.int32)
        arrays[name] = array
    return Step(step.proto, arrays, step.constants, step.opset)
