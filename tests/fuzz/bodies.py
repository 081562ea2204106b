"""Cases of ONNX's node suite inside bodies: each in a branch of an If, in a Loop or in a Scan, or in several.

A composed model has the case's inputs and expected outputs, which its control flow copies, stacks or hands
on, so that what it must give is known. Conditions and trip counts are inputs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from tests.support.node_suite import EXCEPTIONS, Case, Wider, mismatch, node_cases, suite_mismatch

import tilewright as tw
from tilewright.backend import as_array
from tilewright.errors import ModelRejected, TilewrightError, UnsupportedOp

Array = np.ndarray[Any, Any]

OLDEST_OPSET = 11
"""With a Loop that may have no states."""
_NEWEST_OPSET = 21
"""Of control flow around a case that has none of its operators."""
_NUM_STEPS = 3
_RANDOM = ("Bernoulli", "Multinomial", "Random")


@dataclass(frozen=True, slots=True, eq=False)
class Composed:
    """A model around a case, what it is fed, and the outputs expected of it in order."""

    case: Case
    kind: str
    is_open: bool
    model: ModelProto
    feed: dict[str, Array]
    expected: list[Array]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`right`, `refused` with a typed error, `as alone`, which is what the case itself is, or a failure."""

    status: str
    reason: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether it is a fault of ours."""
        return self.status in ("wrong", "crash")


@cache
def usable_cases() -> tuple[Case, ...]:
    """Those that a body can hold: of tensors, without random numbers, of an opset that has all three."""
    return tuple(case for case in node_cases() if _is_usable(case))


def _is_usable(case: Case) -> bool:
    graph = case.model.graph
    versions = [entry.version for entry in case.model.opset_import if entry.domain in ("", "ai.onnx")]
    values = (*graph.input, *graph.output)
    return (
        max(versions, default=_NEWEST_OPSET) >= OLDEST_OPSET
        and bool(case.data_sets)
        and all(v.type.WhichOneof("value") == "tensor_type" for v in values)
        and not any(node.op_type.startswith(_RANDOM) for node in graph.node)
        and all(graph.output[i].name not in {v.name for v in graph.input} for i in range(len(graph.output)))
    )


def composed(seed: int) -> Composed:
    """The model of a seed: seeds one after the other take the cases in turn, in another kind each time."""
    cases = usable_cases()
    case, lap = cases[seed % len(cases)], seed // len(cases)
    names = tuple(_KINDS)
    kind = names[(seed + lap) % len(names)]
    return compose(case, kind, is_open=random.Random(seed).random() < 0.3)


def compose(case: Case, kind: str, *, is_open: bool) -> Composed:
    """A case in one kind of body; `is_open` leaves the shapes of all inputs open."""
    inputs, outputs = case.data_sets[0]
    graph = case.model.graph
    arrays = {v.name: as_array(x) for v, x in zip(graph.input, inputs, strict=False)}
    expected = [as_array(x) for x in outputs]
    made = _KINDS[kind](case, arrays, expected)
    opsets = [*case.model.opset_import]
    if all(entry.domain not in ("", "ai.onnx") for entry in opsets):
        opsets.append(helper.make_opsetid("", _NEWEST_OPSET))
    given = {v.name: v for v in made.inputs}
    if is_open:
        for value in given.values():
            for dim in value.type.tensor_type.shape.dim:
                dim.ClearField("value")
    proto = helper.make_graph(made.nodes, "composed", list(given.values()), made.outputs)
    model = helper.make_model(proto, opset_imports=opsets, ir_version=case.model.ir_version)
    model.functions.extend(case.model.functions)
    return Composed(case, kind, is_open, model, made.feed, made.expected)


def judge(sample: Composed, target: str = "cpu") -> Verdict:
    """What becomes of a composed model, beside what becomes of the case alone."""
    case = sample.case
    verdict = _ran(sample.model, sample.feed, sample.expected, case, target)
    if verdict.status == "right":
        return verdict
    inputs, outputs = case.data_sets[0]
    arrays = {v.name: as_array(x) for v, x in zip(case.model.graph.input, inputs, strict=False)}
    alone = _ran(case.model, arrays, [as_array(x) for x in outputs], case, target)
    return verdict if alone.status == "right" else Verdict("as alone", alone.reason)


def _ran(
    model: ModelProto, feed: dict[str, Array], expected: Sequence[Array], case: Case, target: str
) -> Verdict:
    wider = EXCEPTIONS.get(case.name, Wider(""))
    try:
        compiled = tw.compile(model, target=target, threads=1)
        for _ in range(2):  # the second run takes what the first one kept
            found = compiled.run(None, feed)
            for index, (actual, want) in enumerate(zip(found, expected, strict=True)):
                problem = mismatch(actual, want, wider.error, units=wider.units)
                problem = problem or suite_mismatch(actual, want, case.rtol, case.atol, units=wider.units)
                if problem:
                    return Verdict("wrong", f"output {index}: {problem}")
    except (UnsupportedOp, ModelRejected) as error:
        return Verdict("refused", f"{type(error).__name__}: {error}")
    except TilewrightError as error:
        return Verdict("crash", f"{type(error).__name__}: {error}")
    except Exception as error:  # an error without a type is the finding
        return Verdict("crash", f"untyped {type(error).__name__}: {error}")
    return Verdict("right")


# Kinds -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    nodes: list[NodeProto]
    inputs: list[ValueInfoProto]
    outputs: list[ValueInfoProto]
    feed: dict[str, Array]
    expected: list[Array]


def _info(name: str, array: Array, *, is_open: bool = False) -> ValueInfoProto:
    text = array.dtype.kind in "OUS"
    number = TensorProto.STRING if text else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, number, [None] * array.ndim if is_open else array.shape)


def _fed(feed: dict[str, Array]) -> list[ValueInfoProto]:
    return [_info(name, array) for name, array in feed.items()]


def _typed(values: Sequence[ValueInfoProto]) -> list[ValueInfoProto]:
    """Outputs of a body by their element type alone."""
    return [helper.make_tensor_value_info(v.name, v.type.tensor_type.elem_type, None) for v in values]


def _body(case: Case, name: str, inputs: Sequence[ValueInfoProto], first: Sequence[ValueInfoProto] = (),
          nodes: Sequence[NodeProto] = ()) -> GraphProto:  # fmt: skip
    graph = case.model.graph
    body = helper.make_graph([*nodes, *graph.node], name, inputs, [*first, *_typed(graph.output)])
    body.initializer.extend(graph.initializer)
    return body


def _results(case: Case, expected: Sequence[Array]) -> list[ValueInfoProto]:
    return [
        _info(f"{v.name}__out", array, is_open=True)
        for v, array in zip(case.model.graph.output, expected, strict=True)
    ]


def _branches(taken: bool) -> Callable[[Case, dict[str, Array], list[Array]], _Made]:
    """In one branch; the other one gives what is fed as `..__other`."""

    def make(case: Case, arrays: dict[str, Array], expected: list[Array]) -> _Made:
        outputs = case.model.graph.output
        others = {f"{v.name}__other": e for v, e in zip(outputs, expected, strict=True)}
        copies = [
            helper.make_node("Identity", [name], [f"{v.name}__copy"])
            for name, v in zip(others, outputs, strict=True)
        ]
        typed = _typed(outputs)
        for value in typed:
            value.name += "__copy"
        other = helper.make_graph(copies, "other", [], typed)
        results = _results(case, expected)
        node = helper.make_node(
            "If",
            ["condition__"],
            [v.name for v in results],
            then_branch=_body(case, "taken", []),
            else_branch=other,
        )
        feed = {"condition__": np.array(taken), **arrays, **others}
        return _Made([node], _fed(feed), results, feed, list(expected))

    return make


def _loop(case: Case, arrays: dict[str, Array], expected: list[Array]) -> _Made:
    """In each step, whose results are stacked; the first input is a state."""
    name = next(iter(arrays), None)
    infos = [_info("step__", np.array(0)), _info("on__", np.array(True))]
    first = [_info("still__", np.array(True))]
    nodes = [helper.make_node("Identity", ["on__"], ["still__"])]
    feed: dict[str, Array] = {"count__": np.array(_NUM_STEPS)}
    states, outer = [], dict(arrays)
    if name is not None:
        infos.append(_info(name, arrays[name], is_open=True))
        nodes.append(helper.make_node("Identity", [name], [f"{name}__next"]))
        first.append(_info(f"{name}__next", arrays[name], is_open=True))
        outer[f"{name}__first"] = outer.pop(name)
        states = [name]
    feed |= outer
    body = _body(case, "step", infos, first, nodes)
    finals = [_info(f"{n}__last", arrays[n], is_open=True) for n in states]
    stacked = [np.stack([e] * _NUM_STEPS) for e in expected]
    results = [*finals, *_results(case, stacked)]
    node = helper.make_node(
        "Loop", ["count__", "", *(f"{n}__first" for n in states)], [v.name for v in results], body=body
    )
    return _Made([node], _fed(feed), results, feed, [*(arrays[n] for n in states), *stacked])


def _while(case: Case, arrays: dict[str, Array], expected: list[Array]) -> _Made:
    """In each step of a loop that its condition ends."""
    infos = [_info("step__", np.array(0)), _info("on__", np.array(True))]
    nodes = [helper.make_node("Less", ["step__", "last__"], ["still__"])]
    feed = {"last__": np.array(_NUM_STEPS - 1), "begin__": np.array(True), **arrays}
    body = _body(case, "step", infos, [_info("still__", np.array(True))], nodes)
    stacked = [np.stack([e] * _NUM_STEPS) for e in expected]
    results = _results(case, stacked)
    node = helper.make_node("Loop", ["", "begin__"], [v.name for v in results], body=body)
    return _Made([node], _fed(feed), results, feed, stacked)


def _scan(case: Case, arrays: dict[str, Array], expected: list[Array]) -> _Made:
    """In each step of a Scan over copies of the first input, or over numbers that nothing reads."""
    name = next(iter(arrays), "step__")
    sliced = arrays.get(name, np.array(0.0, np.float32))
    body = _body(case, "step", [_info(name, sliced, is_open=True)])
    outer = {n: a for n, a in arrays.items() if n != name}
    feed = {f"{name}__all": np.stack([sliced] * _NUM_STEPS), **outer}
    stacked = [np.stack([e] * _NUM_STEPS) for e in expected]
    results = _results(case, stacked)
    node = helper.make_node("Scan", [f"{name}__all"], [v.name for v in results], body=body, num_scan_inputs=1)
    return _Made([node], _fed(feed), results, feed, stacked)


def _nested(case: Case, arrays: dict[str, Array], expected: list[Array]) -> _Made:
    """In a branch inside a loop."""
    inside = _branches(True)(case, arrays, expected)
    infos = [_info("step__", np.array(0)), _info("on__", np.array(True))]
    first = [_info("still__", np.array(True))]
    nodes = [helper.make_node("Identity", ["on__"], ["still__"]), *inside.nodes]
    body = helper.make_graph(nodes, "step", infos, [*first, *_typed(inside.outputs)])
    stacked = [np.stack([e] * _NUM_STEPS) for e in expected]
    results = _results(case, stacked)
    for value in results:
        value.name += "__stacked"
    node = helper.make_node("Loop", ["count__", ""], [v.name for v in results], body=body)
    feed = {"count__": np.array(_NUM_STEPS), **inside.feed}
    return _Made([node], _fed(feed), results, feed, stacked)


_KINDS: dict[str, Callable[[Case, dict[str, Array], list[Array]], _Made]] = {
    "if": _branches(True),
    "loop": _loop,
    "scan": _scan,
    "other branch": _branches(False),
    "while": _while,
    "if in loop": _nested,
}
