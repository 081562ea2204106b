"""Differences between tensors, and the first kernel that is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.models import feed_for, small_net

import tilewright as tw
from tilewright.errors import UsageError
from tilewright.ir.dtype import DType
from tilewright.report.comparison import TensorDifference, Tolerance, compare_layers, first_difference

EXACT = Tolerance(0.0, 0.0)


def differ(a: object, b: object, tolerance: Tolerance = EXACT) -> TensorDifference:
    return TensorDifference.of("t", np.asarray(a), np.asarray(b), tolerance)


@pytest.mark.parametrize(
    "values", [[1.0, -2.0], [np.nan, 1.0], [np.inf, -np.inf], [], [True], ["a"], [1 + 2j]], ids=str
)
def test_a_tensor_equals_itself(values: list[object]) -> None:
    assert differ(values, values).max_difference == 0
    assert differ(values, values).ok


@pytest.mark.parametrize(
    ("a", "b"),
    [([np.nan], [1.0]), ([1.0], [np.nan]), ([np.inf], [-np.inf]), ([np.inf], [1.0]), ([1.0], [1.0, 1.0])],
    ids=str,
)
def test_no_tolerance_makes_up_for_other_shapes_or_missing_numbers(a: list[float], b: list[float]) -> None:
    assert not differ(a, b, Tolerance(1e6, 1e6)).ok


def test_text_differs_or_not() -> None:
    assert not differ(["a"], ["b"], Tolerance(1, 1)).ok


@given(st.floats(0.01, 100), st.floats(1e-6, 1e-1), st.floats(1e-9, 1e-3))
def test_what_is_allowed_grows_with_the_largest_value(scale: float, rtol: float, atol: float) -> None:
    allowed = atol + rtol * scale
    for factor, ok in ((0.99, True), (1.01, False)):
        found = differ([0.0 + factor * allowed, scale], [0.0, scale], Tolerance(rtol, atol))
        assert found.ok is ok
        assert found.allowed == pytest.approx(allowed)


@pytest.mark.parametrize(("dtype", "unit"), [(DType.FLOAT16, 2**-9), (DType.BFLOAT16, 2**-6)])
def test_half_types_are_judged_in_their_own_units(dtype: DType, unit: float) -> None:
    """At 4 a unit of float16 is 0.0039: networks whose values are rounded at other places differ by it."""
    expected = np.array([4.0, 1.0])
    for num_units, ok in ((1, True), (2, True), (4, False)):
        got = np.array([4.0 + num_units * 2 * unit, 1.0]).astype(dtype.numpy)
        assert differ(got, expected, Tolerance()).ok is ok
    assert not differ(np.array([4.0 + 2 * unit, 1.0]).astype(dtype.numpy), expected).ok


@pytest.mark.parametrize("bad", [{"rtol": -1.0}, {"atol": float("nan")}, {"rtol": float("inf")}], ids=str)
def test_a_tolerance_is_a_number_that_is_not_negative(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(bad))):
        Tolerance(**bad)


def test_layers_of_a_right_model_agree_and_are_those_of_the_partition() -> None:
    proto = small_net()
    compiled = tw.compile(proto, threads=1)
    found = compare_layers(compiled.program, compiled.facts, feed_for(proto), Tolerance())
    assert first_difference(found.tensors) is None
    assert {t.name for t in found.tensors} == {
        v.name for s in compiled.partition.subgraphs for v in s.outputs
    }
    assert found.num_kernels == len(compiled.kernels)


def test_looking_between_kernels_does_not_change_the_model() -> None:
    compiled = tw.compile(small_net(), threads=1)
    outputs = [v.name for v in compiled.program.graph.outputs]
    before = compiled.run(None, feed_for(small_net()))
    compare_layers(compiled.program, compiled.facts, feed_for(small_net()), Tolerance())
    assert [v.name for v in compiled.program.graph.outputs] == outputs
    for a, b in zip(before, compiled.run(None, feed_for(small_net())), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("victim", range(0, 16, 5))
def test_one_wrong_kernel_is_the_first_that_differs(victim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias that code generation reads wrongly: the reference keeps the right one."""
    from tilewright.report import comparison
    from tilewright.targets import TARGETS

    proto = tw.zoo.build("squeezenet1_1", image=64)
    compiled = tw.compile(proto)
    layers = [n for n in compiled.program.graph.nodes if n.op_type == "Conv"]
    name = layers[victim].name
    target = TARGETS.get("cpu")

    class Wrong:
        code_store = target.code_store

        def backend(self, graph: object, options: object) -> object:
            return self

        def generate(self, program: object) -> object:
            node = next(n for n in program.graph.nodes if n.name == name)  # type: ignore[attr-defined]
            bias = node.inputs[2]
            wrong = program.graph.constant(bias.data + np.float32(0.25), "wrong")  # type: ignore[attr-defined]
            program.graph.set_inputs(node, [*node.inputs[:2], wrong])  # type: ignore[attr-defined]
            fresh = comparison._with_boundaries_as_outputs(program)  # type: ignore[arg-type]
            return target.backend(fresh.graph, fresh.options).generate(fresh)

    monkeypatch.setattr(comparison, "find_target", lambda name, machine: Wrong())
    found = compare_layers(compiled.program, compiled.facts, tw.zoo.example_inputs(proto), Tolerance())
    first = first_difference(found.tensors)
    assert first is not None
    kernel = compiled.partition.subgraph_of(layers[victim])
    assert first.name in {v.name for v in kernel.outputs}
    monkeypatch.undo()
    assert (
        first_difference(
            compare_layers(
                compiled.program, compiled.facts, tw.zoo.example_inputs(proto), Tolerance()
            ).tensors
        )
        is None
    )


def test_targets_without_kernels_say_so() -> None:
    compiled = tw.compile(small_net(), "interpreter")
    with pytest.raises(UsageError, match="no kernels"):
        compare_layers(compiled.program, compiled.facts, feed_for(small_net()), Tolerance())
