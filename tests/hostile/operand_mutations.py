"""Models of one operator whose operands, attributes or declared shapes do not fit: refused, or run and right.

`python -m tests.hostile.operand_mutations SEED FIRST COUNT [OPERATOR ...]` takes valid models of ONNX's node
suite and changes one or two things of each: the shape of an operand, an attribute, the declared shape of a
result. What the compiler takes runs with every input against a page that nothing may touch, and must agree
with the reference semantics and, where ONNX Runtime or ONNX's own reference take the model too, with one of
these. Where data decide shapes there is no graph for the reference semantics, and these alone judge.

Each attempt is printed before it starts, so that a crash is a finding with a name. Crashes of the other
engines are none: `run_in_processes` goes on behind them.
"""

from __future__ import annotations

import json
import pickle
import random
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TypeProto, numpy_helper
from tests.support.node_suite import node_cases

import tilewright as tw
from tilewright.backend import as_array
from tilewright.errors import InternalError, TilewrightError
from tilewright.frontend.onnx import PreparedModel, import_open_model, open_model
from tilewright.ir.interpret import run_graph
from tilewright.testing.kernel_runner import guarded

Array = np.ndarray[Any, Any]

MAX_ATTEMPT_S = 20
_MOST_ELEMENTS = 1 << 20
_EXTENTS = (0, 1, 2, 3, 5, 17, 100)
_INTEGERS = (0, 1, -1, 2, -2, 3, 7, 64, 1000, 10**9, 2**31, 2**40, 2**62, -(2**40), -(2**63))
_OPSETS = range(11, 24)
_FLOATS = (0.0, -1.0, 1e9, 1e-9, float("nan"), float("inf"))
_HALVES = ("float16", "bfloat16")
_RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike", "Dropout"})


@dataclass(frozen=True, slots=True)
class Mutant:
    """A model, what it is fed, and what was changed."""

    name: str
    model: ModelProto
    feed: Mapping[str, Array]


@cache
def seeds() -> tuple[Mutant, ...]:
    """The valid models: every case of the node suite that is one node on small dense tensors."""
    found = []
    for case in node_cases():
        graph = case.model.graph
        inputs = case.data_sets[0][0]
        if len(graph.node) != 1 or graph.node[0].op_type in _RANDOM or graph.node[0].domain:
            continue
        if not all(i.type.HasField("tensor_type") for i in (*graph.input, *graph.output)):
            continue
        arrays = [as_array(array) for array in inputs]
        if any(a.dtype.kind not in "biuf" and a.dtype.name != "bfloat16" for a in arrays):
            continue
        if sum(a.size for a in arrays) > _MOST_ELEMENTS:
            continue
        feed = {i.name: a for i, a in zip(graph.input, arrays, strict=True)}
        found.append(Mutant(case.name, case.model, feed))
    return tuple(found)


def mutants(seed: Mutant, rng: random.Random) -> Iterator[Mutant]:
    """Ever more variants of a valid model, each with one or two changes."""
    while True:
        model = ModelProto()
        model.CopyFrom(seed.model)
        feed = dict(seed.feed)
        _make_constant(model, feed, rng)
        said = [_change(model, feed, rng) for _ in range(rng.choice((1, 1, 1, 2)))]
        yield Mutant(f"{seed.name}: {'; '.join(said)}", model, feed)


def _make_constant(model: ModelProto, feed: dict[str, Array], rng: random.Random) -> None:
    """Inputs become initializers: all, all but the first, or none."""
    names = list(feed)
    for name in rng.choice((names[1:], names[1:], names, [])):
        (info,) = (i for i in model.graph.input if i.name == name)
        model.graph.input.remove(info)
        model.graph.initializer.append(numpy_helper.from_array(feed.pop(name), name))
    model.ir_version = max(4, model.ir_version)


def _change(model: ModelProto, feed: dict[str, Array], rng: random.Random) -> str:
    attributes = [a for a in model.graph.node[0].attribute if _can_change(a)]
    kinds = ["operand"] * 8 + ["attribute"] * 6 * bool(attributes) + ["declared"] * 2 + ["opset"]
    match rng.choice(kinds):
        case "operand":
            return _change_operand(model, feed, rng)
        case "attribute":
            return _change_attribute(rng.choice(attributes), rng)
        case "opset":
            (opset,) = (o for o in model.opset_import if o.domain == "")
            before, opset.version = opset.version, rng.choice(_OPSETS)
            return f"opset {before} -> {opset.version}"
        case _:
            return _change_declared(rng.choice(model.graph.output).type, rng)


def _change_operand(model: ModelProto, feed: dict[str, Array], rng: random.Random) -> str:
    names = [*feed, *(t.name for t in model.graph.initializer)]
    if not names:
        return "nothing"
    name = rng.choice(names)
    tensors = {t.name: t for t in model.graph.initializer}
    given = numpy_helper.to_array(tensors[name]) if name in tensors else feed[name]
    shape = _changed_shape(given.shape, rng)
    filler = np.zeros(1, given.dtype) if given.size == 0 else given
    array = np.resize(filler, shape).astype(given.dtype)
    if array.size and array.dtype.kind in "iu" and rng.random() < 0.2:
        array = array.copy()
        array.reshape(-1)[rng.randrange(array.size)] = rng.choice((0, 1, 2, 3, 5, 100))
    if name in tensors:
        tensors[name].CopyFrom(numpy_helper.from_array(array, name))
    else:
        feed[name] = array
        (info,) = (i for i in model.graph.input if i.name == name)
        _declare(info.type, shape)
    if rng.random() < 0.9:
        # What a result declared before would give most of these away.
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
    return f"{name} {list(given.shape)} -> {list(shape)}"


def _changed_shape(shape: Sequence[int], rng: random.Random) -> tuple[int, ...]:
    extents = list(shape)
    choices = ["insert"] + ["extent"] * 5 * bool(extents) + ["drop", "swap"] * bool(extents)
    match rng.choice(choices):
        case "insert":
            extents.insert(rng.randint(0, len(extents)), rng.choice((1, 1, 2)))
        case "drop":
            extents.pop(rng.randrange(len(extents)))
        case "swap":
            rng.shuffle(extents)
        case _:
            axis = rng.randrange(len(extents))
            near = (extents[axis] + 1, max(0, extents[axis] - 1), 2 * extents[axis])
            extents[axis] = rng.choice((*near, *_EXTENTS))
    return tuple(extents)


def _declare(kind: TypeProto, shape: Sequence[int]) -> None:
    kind.tensor_type.ClearField("shape")
    kind.tensor_type.shape.SetInParent()
    for extent in shape:
        kind.tensor_type.shape.dim.add().dim_value = extent


def _change_declared(kind: TypeProto, rng: random.Random) -> str:
    shape = [d.dim_value for d in kind.tensor_type.shape.dim]
    changed = _changed_shape(shape, rng)
    if rng.random() < 0.1:
        changed = tuple(rng.choice((100001, 10**6, 10**12)) if e == max(changed) else e for e in changed)
    _declare(kind, changed)
    return f"declared {shape} -> {list(changed)}"


def _can_change(attribute: onnx.AttributeProto) -> bool:
    kinds = onnx.AttributeProto
    return attribute.type in (kinds.INT, kinds.INTS, kinds.FLOAT, kinds.FLOATS)


def _change_attribute(attribute: onnx.AttributeProto, rng: random.Random) -> str:
    before = onnx.helper.get_attribute_value(attribute)
    match attribute.type:
        case onnx.AttributeProto.INT:
            attribute.i = _integer(attribute.i, rng)
        case onnx.AttributeProto.FLOAT:
            attribute.f = rng.choice(_FLOATS)
        case onnx.AttributeProto.INTS:
            _change_list(attribute.ints, lambda value: _integer(value, rng), rng)
        case _:
            _change_list(attribute.floats, lambda _: rng.choice(_FLOATS), rng)
    return f"{attribute.name} {before} -> {onnx.helper.get_attribute_value(attribute)}"


def _change_list(values: Any, other: Any, rng: random.Random) -> None:
    items = list(values)
    match rng.choice(("element", "element", "element", "longer", "shorter", "swap")):
        case "longer":
            items.append(items[-1] if items else other(0))
        case "shorter":
            items = items[:-1]
        case "swap":
            rng.shuffle(items)
        case _ if items:
            position = rng.randrange(len(items))
            items[position] = other(items[position])
        case _:
            pass
    del values[:]
    values.extend(items)


def _integer(value: int, rng: random.Random) -> int:
    near = (max(value - 1, -(2**63)), min(value + 1, 2**63 - 1))
    return rng.choice((*near, *_INTEGERS))


# What must hold of each -------------------------------------------------------------------------------


class TooLong(BaseException):
    """An attempt did not come to an end."""


def outcome_of(mutant: Mutant) -> tuple[str, str | None]:
    """What became of a mutant, and what is wrong with that, if anything."""
    try:
        model = tw.compile(mutant.model, target="cpu", threads=1)
    except InternalError as error:
        return "InternalError", str(error)
    except TilewrightError as error:
        kind = type(error).__name__
        return kind, f"{kind} of several lines: {error}" if "\n" in str(error) else None
    try:
        found = model.run(None, {name: guarded(array) for name, array in mutant.feed.items()})
        model.run(None, {name: guarded(array, at_end=False) for name, array in mutant.feed.items()})
    except InternalError as error:
        return "InternalError", str(error)
    except TilewrightError as error:
        kind = type(error).__name__
        return f"run: {kind}", f"{kind} of several lines: {error}" if "\n" in str(error) else None
    try:
        source = import_open_model(open_model(mutant.model), {})
        if isinstance(source, PreparedModel):
            return "ran", None  # data decide shapes: there is no graph to interpret, other engines judge
        reference = list(run_graph(source, mutant.feed).values())
    except TilewrightError as error:
        return "ran", f"runs where the reference semantics refuse: {error}"
    problem = _difference(found, reference)
    if problem is not None:
        return "wrong", f"differs from the reference semantics: {problem}"
    return "ran", None


def disagreement(mutant: Mutant) -> str | None:
    """How the results differ from those of every other engine that takes the model, None if one agrees."""
    found = tw.compile(mutant.model, target="cpu", threads=1).run(None, dict(mutant.feed))
    problems = []
    for name, run in (("ONNX Runtime", _run_onnxruntime), ("ONNX's reference", _run_reference)):
        theirs = run(mutant)
        if theirs is None:
            continue
        problem = _difference(found, theirs)
        if problem is None:
            return None
        problems.append(f"{name}: {problem}")
    return "; ".join(problems) or None


def _run_onnxruntime(mutant: Mutant) -> list[Array] | None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(mutant.model.SerializeToString(), options, ["CPUExecutionProvider"])
        results: list[Array] = session.run(None, dict(mutant.feed))
    except Exception:  # every refusal of ONNX Runtime has a type of its own
        return None
    return results


def _run_reference(mutant: Mutant) -> list[Array] | None:
    from onnx.reference import ReferenceEvaluator

    try:
        return [np.asarray(a) for a in ReferenceEvaluator(mutant.model).run(None, dict(mutant.feed))]
    except Exception:  # whatever it stumbles over
        return None


def _difference(found: Sequence[Array], expected: Sequence[Array]) -> str | None:
    for position, (ours, theirs) in enumerate(zip(found, expected, strict=False)):
        theirs = np.asarray(theirs)
        if ours.shape != theirs.shape:
            return f"result {position} has shape {list(ours.shape)}, theirs {list(theirs.shape)}"
        is_float = ours.dtype.kind == "f" or ours.dtype.name == "bfloat16"
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            a, b = (x.astype(np.float64) if is_float else x for x in (ours, theirs))
            scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=0)) if is_float else 0.0
            slack = 2e-2 if ours.dtype.name in _HALVES else 1e-3
            near = np.isclose(a, b, slack, slack * scale, equal_nan=True) if is_float else a == b
        if not np.all(near):
            return f"result {position} differs in {int(np.sum(~np.asarray(near)))} of {ours.size} elements"
    return None


# Many of them, in processes of their own --------------------------------------------------------------


def main() -> None:
    """Attempts `FIRST` to `COUNT` of a seed; the valid models are read from the input where it is a pipe."""
    seed, first, count, *operators = sys.argv[1:]
    given = None if sys.stdin.isatty() else sys.stdin.buffer.read()
    valid = _unpacked(given) if given else seeds()
    chosen = [s for s in valid if not operators or s.model.graph.node[0].op_type in operators]
    warnings.simplefilter("ignore")

    def too_long(*_: Any) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, too_long)
    for index in range(int(first), int(count)):
        rng = random.Random(f"{seed}/{index}")
        mutant = next(mutants(rng.choice(chosen), rng))
        _say(index=index, stage="ours", name=mutant.name)
        signal.alarm(MAX_ATTEMPT_S)
        outcome, problem = "took too long", None
        try:
            outcome, problem = outcome_of(mutant)
            if outcome == "ran" and problem is None:
                _say(index=index, stage="others", name=mutant.name)
                problem = disagreement(mutant)
        except TooLong:
            problem = f"more than {MAX_ATTEMPT_S} s" if outcome == "took too long" else None
        except Exception as error:
            outcome, problem = "untyped", f"{type(error).__name__}: {error}"
        signal.alarm(0)
        _say(index=index, stage="done", name=mutant.name, outcome=outcome, problem=problem)
    _say(stage="end")


def _unpacked(pickled: bytes) -> list[Mutant]:
    """The valid models as `run_in_processes` sends them."""
    return [Mutant(name, onnx.load_from_string(data), feed) for name, data, feed in pickle.loads(pickled)]


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


# What engines answer differently without ours being wrong: a part of the model's name, of the finding, and
# why.
EXPLAINED = (
    (
        "lppool",
        "theirs",
        "ONNX Runtime gives a window wider than its input one output where its stride is wider",
    ),
    (
        "maxpool",
        "theirs",
        "ONNX Runtime gives a window wider than its input one output where its stride is wider",
    ),
    ("attention", "scale ", "ONNX's reference takes the root of a scale, ours takes 0 for none given"),
    ("test_resize", "axes ", "ONNX Runtime does not count negative axes from the end"),
    (
        "qk_matmul_output_mode",
        "ONNX Runtime",
        "it shows scores before the bound, where the standard says after",
    ),
    ("averagepool", "ONNX's reference", "it pads an axis without elements"),
)


def unexplained(findings: list[str]) -> list[str]:
    """Findings that no other engine is known for."""
    return [f for f in findings if not any(model in f and part in f for model, part, _ in EXPLAINED)]


def run_in_processes(
    seed: int, count: int, operators: Sequence[str] = ()
) -> tuple[dict[str, int], list[str]]:
    """How many attempts ended in which way, and every finding: a crash, an untyped error, a wrong answer."""
    counts: dict[str, int] = {}
    findings: list[str] = []
    first = 0
    root = Path(__file__).parents[2]
    # A process of its own would make the node suite again, which takes seconds.
    valid = pickle.dumps([(s.name, s.model.SerializeToString(), s.feed) for s in seeds()])
    while first < count:
        command = [sys.executable, "-W", "ignore", "-m", "tests.hostile.operand_mutations"]
        command += [str(seed), str(first), str(count), *operators]
        ended = subprocess.run(command, input=valid, capture_output=True, cwd=root, check=False)
        output, error = ended.stdout.decode(), ended.stderr.decode()
        last: dict[str, Any] = {}
        for line in output.splitlines():
            if not line.startswith("{"):
                continue
            last = json.loads(line)
            if last["stage"] == "done":
                counts[last["outcome"]] = counts.get(last["outcome"], 0) + 1
                if last["problem"]:
                    findings.append(f"{last['index']} {last['name']}: {last['problem']}")
        if last.get("stage") == "end":
            break
        if last.get("stage") not in ("ours", "others"):
            raise RuntimeError(f"died with {ended.returncode}: {error[-2000:]}")
        if last["stage"] == "ours":
            findings.append(f"{last['index']} {last['name']}: died with {ended.returncode}")
        first = last["index"] + 1
    return counts, unexplained(findings)


if __name__ == "__main__":
    main()
