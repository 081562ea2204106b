"""Operands that decide a result's shape, fed at run time to a model that declares the shape."""

# mypy: disable-error-code="union-attr"

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.support.accelerator import plan
from tests.support.node_suite import node_cases
from tests.support.run_time import Array, Case, Ways

import tilewright as tw
from tilewright.errors import InputError, ModelRejected, TilewrightError, UnsupportedOp
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Opaque
from tilewright.ir.ops import describe, operators
from tilewright.ir.ops.registry import has_effect
from tilewright.passes import run_passes
from tilewright.targets.npu.execute import execute

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
F = np.float32


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def scalar(value: int) -> Array:
    return np.array(value, np.int64)


def floats(*shape: int) -> tuple[type[np.generic], tuple[int, ...]]:
    return F, shape


# The case, which of its inputs decides, values that give the declared shape, values that do not.
Decided = tuple[Case, int, Sequence[Array], Sequence[Array]]

CASES: Sequence[Decided] = [
    (
        Case("Reshape", [X, ints(3, 2)], [floats(3, 2)]),
        1,
        [ints(-1, 2), ints(3, -1)],
        [ints(2, 3), ints(3, 3), ints(-1, -1), ints(0, 2), ints(-2, -3), ints(6, 0)],
    ),
    (Case("Reshape", [X, ints(0, -1)], [floats(2, 3)]), 1, [ints(2, 3)], [ints(3, 2), ints(1, -1)]),
    (
        Case("Squeeze", [X.reshape(1, 2, 1, 3), ints(0)], [floats(2, 1, 3)]),
        1,
        [ints(-4)],
        [ints(2), ints(1), ints(-2), ints(4), ints(-5)],
    ),
    (Case("Squeeze", [X.reshape(1, 1, 6), ints(0)], [floats(1, 6)]), 1, [ints(1), ints(-2)], [ints(2)]),
    (Case("Unsqueeze", [X, ints(0)], [floats(1, 2, 3)]), 1, [ints(-3)], [ints(1), ints(2), ints(3)]),
    (
        Case("Expand", [X, ints(4, 2, 3)], [floats(4, 2, 3)]),
        1,
        [ints(4, 1, 3), ints(4, 1, 1)],
        [ints(5, 2, 3), ints(4, 3, 3), ints(1, 2, 3), ints(-4, 2, 3)],
    ),
    (
        Case("Tile", [X, ints(2, 3)], [floats(4, 9)]),
        1,
        [],
        [ints(3, 2), ints(2, 2), ints(2, -3), ints(2, 10**6)],
    ),
    (
        Case("OneHot", [ints(0, 4, -1), scalar(5), np.array([0, 1], F)], [floats(3, 5)]),
        1,
        [],
        [scalar(4), scalar(6), scalar(-5)],
    ),
    (Case("ConstantOfShape", [ints(2, 3)], [floats(2, 3)]), 0, [], [ints(3, 2), ints(-2, 3), ints(2, 10**9)]),
    (
        Case("TopK", [X, ints(2)], [floats(2, 2), (np.int64, (2, 2))]),
        1,
        [],
        [ints(1), ints(3), ints(4), ints(-1)],
    ),
    (
        Case("Range", [np.array(0, F), np.array(5, F), np.array(1, F)], [floats(5)]),
        1,
        [np.array(4.5, F)],
        [np.array(3, F), np.array(5.5, F), np.array(-1, F)],
    ),
    (Case("CenterCropPad", [X, ints(4, 2)], [floats(4, 2)]), 1, [], [ints(2, 2), ints(4, 3), ints(-4, 2)]),
    (
        Case(
            "MaxUnpool",
            [X.reshape(1, 1, 2, 3), ints(0, 2, 4, 12, 14, 16).reshape(1, 1, 2, 3), ints(1, 1, 5, 7)],
            [floats(1, 1, 5, 7)],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
        ),
        2,
        [],
        [ints(1, 1, 6, 7), ints(1, 1, 4, 6)],
    ),
    (Case("Slice", [X, ints(0), ints(2), ints(1)], [floats(2, 2)]), 1, [ints(-3)], [ints(1), ints(3)]),
    (
        Case("Slice", [X, ints(0), ints(2), ints(1)], [floats(2, 2)]),
        3,
        [ints(-1)],
        [ints(0), ints(2), ints(-3)],
    ),
    (
        Case("Pad", [X, ints(0, 1, 0, 1)], [floats(2, 5)]),
        1,
        [ints(0, 2, 0, 0)],
        [ints(0, 1, 0, 0), ints(1, 1, 0, 1)],
    ),
    (Case("CumSum", [X, scalar(1)], [floats(2, 3)]), 1, [scalar(0), scalar(-1)], [scalar(2), scalar(-3)]),
    (
        Case("Split", [X, ints(1, 2)], [floats(2, 1), floats(2, 2)], {"axis": 1}),
        1,
        [],
        [ints(2, 1), ints(1, 3), ints(1, 1), ints(4, -1)],
    ),
    (Case("ReduceSum", [X, ints(1)], [floats(2, 1)]), 1, [ints(-1)], [ints(0), ints(2)]),
    (Case("ReduceMax", [X, ints(1)], [floats(2, 1)]), 1, [ints(-1)], [ints(0), ints(-3)]),
    (
        Case(
            "Resize", [X.reshape(1, 1, 2, 3), np.zeros(0, F), np.array([1, 1, 2, 2], F)], [floats(1, 1, 4, 6)]
        ),
        2,
        [np.array([1, 1, 2, 2.1], F)],
        [np.array([1, 1, 2, 3], F), np.array([1, 1, 1, 2], F)],
    ),
    (Case("Trilu", [X, scalar(1)], [floats(2, 3)]), 1, [scalar(0), scalar(-1), scalar(9)], []),
    (
        Case("Compress", [X, np.array([True, False])], [floats(1, 3)], {"axis": 0}),
        1,
        [np.array([False, True])],
        [np.array([True, True]), np.array([False, False])],
    ),
    (Case("NonZero", [X], [(np.int64, (2, 6))]), 0, [], [np.zeros_like(X)]),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("case", "position", "good", "bad"),
    CASES,
    ids=[f"{c[0].operator}-{c[1]}-{i}" for i, c in enumerate(CASES)],
)
def test_what_does_not_give_the_declared_shape_is_an_error_however_it_runs(
    case: Case, position: int, good: Sequence[Array], bad: Sequence[Array], tmp_path: Path
) -> None:
    ways = Ways(case.model(), tmp_path)
    for value in (case.inputs[position], *good):
        (_, expected), *others = ways.answers(case.feed(position, value))
        assert isinstance(expected, list), expected
        for way, found in others:
            assert isinstance(found, list), f"{way}: {found}"
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other, err_msg=way)
    for value in bad:
        messages = set()
        for way, found in ways.answers(case.feed(position, value)):
            assert isinstance(found, InputError), f"{way} takes {value}: {found}"
            assert found.exit_code == 2
            messages.add(str(found))
        (message,) = messages
        assert f"{case.operator} 'node'" in message
        assert "\n" not in message


def test_the_error_names_the_operand_what_it_is_and_what_it_should_give(tmp_path: Path) -> None:
    case = CASES[0][0]
    for _, error in Ways(case.model(), tmp_path).answers(case.feed(1, ints(2, 3))):
        assert str(error) == (
            "Reshape 'node': its shape 'i1' is [2, 3], which gives the shape [2, 3]; it was compiled for the "
            "declared shape [3, 2]."
        )


def test_a_declared_shape_that_no_operand_gives_is_not_used() -> None:
    for case, shape in (
        (Case("Tile", [X, ints(1, 1)], [floats(3, 3)]), (2, 3)),
        (Case("Squeeze", [X.reshape(1, 2, 3), ints(0)], [floats(3, 2)]), (2, 3)),
        (Case("Unsqueeze", [X, ints(0)], [floats(2, 2, 3)]), (1, 2, 3)),
        (Case("Expand", [X, ints(1, 2, 3)], [floats(1, 2, 4)]), (1, 2, 3)),
        (Case("TopK", [X, ints(2)], [floats(2, 9), (np.int64, (2, 9))]), (2, 2)),
    ):
        with pytest.raises(UnsupportedOp):  # data decide the shape
            load_onnx(case.model())
        assert tw.compile(case.model()).run(None, case.feed())[0].shape == shape


def test_passes_never_drop_the_check_and_one_on_constants_is_done_while_compiling() -> None:
    graph = load_onnx(CASES[1][0].model())  # an identity: its Reshape goes
    run_passes(graph)
    assert [n.op_type for n in graph.nodes if has_effect(n)] == ["CheckShape"]
    (check,) = [n for n in graph.nodes if has_effect(n)]
    graph.set_inputs(check, [graph.constant(ints(0, -1))])
    run_passes(graph)
    assert not any(has_effect(n) for n in graph.nodes)
    graph = load_onnx(CASES[1][0].model())
    (check,) = [n for n in graph.nodes if has_effect(n)]
    graph.set_inputs(check, [graph.constant(ints(3, 2))])
    with pytest.raises(ModelRejected, match="which gives the shape"):
        run_passes(graph)


def test_the_simulated_accelerator_checks_too() -> None:
    case = CASES[0][0]
    planned = plan(load_onnx(case.model()), load_preset("stcp920"))
    assert execute(planned.scopes, case.feed())["y0"].tolist() == X.reshape(3, 2).tolist()
    with pytest.raises(InputError, match="its shape 'i1' is"):
        execute(planned.scopes, case.feed(1, ints(2, 3)))


# Operators whose nests leave an input out, whatever it holds: the input only has a shape or a type to give.
_GIVES_ITS_SHAPE = {("Shape", 0), ("Size", 0), ("EyeLike", 0), ("CastLike", 1)}
# How much a Dropout that is no training drops.
_MEANS_NOTHING = {("Dropout", 1)}


@pytest.mark.sampled(0)
def test_no_nest_leaves_out_an_input_that_only_a_run_knows() -> None:
    """Over all operators: every input is read, decides a shape by a rule, or is one of those above."""
    seen = set()
    for case in node_cases():
        try:
            graph = load_onnx(case.model)
        except TilewrightError:  # what the suite has and we refuse is another test's matter
            continue
        for node in graph.nodes:
            seen.add((node.domain, node.op_type))
            assert not _unread(node), f"{case.name}: {node!r} never looks at its inputs {_unread(node)}"
    assert len(seen & {(o.domain, o.op_type) for o in operators()}) > 150


def _unread(node: Node) -> list[str]:
    nests = describe(node)
    if isinstance(nests, Opaque) or any(v.num_elements == 0 for v in node.results()):
        return []
    read = {a.operand.position for nest in nests for a in nest.reads if a.operand.kind == "input"}
    return [
        value.name
        for position, value in enumerate(node.inputs)
        if _is_data(value)
        and position not in read
        and (node.op_type, position) not in _GIVES_ITS_SHAPE | _MEANS_NOTHING
    ]


def _is_data(value: Value | None) -> bool:
    return value is not None and not value.is_constant and value.num_elements > 0
