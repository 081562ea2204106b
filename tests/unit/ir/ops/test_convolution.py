"""The loops of convolutions: which dims they have, where they pad, and that large ones stay quick."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Node, Value
from tilewright.ir.interpret import run_node
from tilewright.ir.nest import Nest
from tilewright.ir.nest_interpreter import run_described
from tilewright.ir.ops import convolution, describe

Shape = tuple[int, ...]


def node(
    op_type: str, x: Shape, w: Shape, y: Shape, attributes: Mapping[str, Attribute], *, bias: bool = False
) -> Node:
    f = DType.FLOAT32
    inputs = [Value("x", f, x), Value("w", f, w)]
    if bias:
        inputs.append(Value("b", f, (y[1],)))
    return Node(op_type, inputs, [Value("y", f, y)], attributes, opset=22)


def nests(one: Node) -> tuple[Nest, ...]:
    description = describe(one)
    assert isinstance(description, tuple)
    return description


def names(nest: Nest) -> list[str]:
    return [d.name for d in nest.dims]


def test_a_pointwise_convolution_has_the_dims_of_any_other() -> None:
    (nest,) = nests(node("Conv", (1, 3, 5, 5), (4, 3, 1, 1), (1, 4, 5, 5), {}))
    assert names(nest) == ["n", "m", "oh", "ow", "c", "kh", "kw"]
    assert nest.reads[0].fill is None


def test_a_depthwise_convolution_shares_its_channel_dim_and_has_no_others() -> None:
    (nest,) = nests(
        node("Conv", (1, 6, 5, 5), (6, 1, 3, 3), (1, 6, 5, 5), {"group": 6, "pads": (1, 1, 1, 1)})
    )
    assert names(nest) == ["n", "m", "oh", "ow", "kh", "kw"]
    x, weight = nest.reads
    assert x.index[1] == weight.index[0] == nest.write.index[1]
    assert x.fill == 0.0


def test_groups_count_channels_within_the_group() -> None:
    (nest,) = nests(node("Conv", (1, 6, 5, 5), (4, 3, 1, 1), (1, 4, 5, 5), {"group": 2}))
    assert names(nest) == ["n", "g", "m", "oh", "ow", "c", "kh", "kw"]
    assert str(nest).count("3*g") == 1  # input channel
    assert str(nest).count("2*g") == 2  # output channel of weight and output


def test_the_bias_starts_the_sum() -> None:
    (nest,) = nests(node("Conv", (1, 3, 5, 5), (4, 3, 1, 1), (1, 4, 5, 5), {}, bias=True))
    assert nest.init is not None
    assert nest.finish is None
    assert nest.reads[2].dims() == ("m",)


@pytest.mark.parametrize(("rank", "spatial"), [(1, ["ow"]), (2, ["oh", "ow"]), (3, ["od", "oh", "ow"])])
def test_output_dims_are_named_by_rank(rank: int, spatial: list[str]) -> None:
    one = node("Conv", (1, 2, *[4] * rank), (2, 2, *[2] * rank), (1, 2, *[3] * rank), {})
    assert [d.name for d in nests(one)[0].parallel_dims if d.name.startswith("o")] == spatial


def test_a_transposed_convolution_is_one_convolution_per_phase_and_wastes_no_product() -> None:
    one = node(
        "ConvTranspose", (1, 2, 4, 4), (2, 3, 4, 4), (1, 3, 8, 8), {"strides": (2, 2), "pads": (1,) * 4}
    )
    phases = nests(one)
    assert len(phases) == 2 * 2
    # Each of the 8 * 8 outputs gathers a quarter of the 4 * 4 taps of both input channels.
    assert sum(p.num_iterations for p in phases) == 3 * 8 * 8 * (4 * 4 // 4) * 2


def test_a_phase_without_taps_is_the_bias() -> None:
    one = node(
        "ConvTranspose", (1, 1, 2), (1, 1, 1), (1, 1, 4), {"strides": (2,), "output_padding": (1,)}, bias=True
    )
    x, w, b = np.array([[[1, 2]]], np.float32), np.array([[[3]]], np.float32), np.array([10], np.float32)
    want = [[[13, 10, 16, 10]]]
    for (result,) in (run_node(one, [x, w, b]), run_described(one, [x, w, b])):
        assert result is not None
        assert result.tolist() == want


@pytest.mark.parametrize("budget", [1, 5000, 1 << 30])
def test_the_size_of_gathered_patches_never_changes_the_result(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (2, 4, 9, 7)).astype(np.float32)
    w = rng.integers(-4, 5, (6, 2, 3, 3)).astype(np.float32)
    one = node("Conv", x.shape, w.shape, (2, 6, 5, 4), {"group": 2, "strides": (2, 2), "pads": (1, 1, 1, 1)})
    (want,) = run_described(one, [x, w])
    monkeypatch.setattr(convolution, "_PATCH_BYTES", budget)
    (got,) = run_node(one, [x, w])
    np.testing.assert_array_equal(got, want)


def test_padding_of_an_integer_convolution_is_a_real_zero() -> None:
    def values(*shapes: Shape) -> list[Value]:
        return [Value(f"x{i}", DType.UINT8, s) for i, s in enumerate(shapes)]

    for constant in (True, False):
        inputs = values((1, 1, 2), (1, 1, 3), ())
        zero = np.array(7, np.uint8)
        inputs[2].data = zero if constant else None
        one = Node("ConvInteger", inputs, [Value("y", DType.INT32, (1, 1, 2))], {"pads": (1, 1)}, opset=10)
        x, w = np.array([[[8, 9]]], np.uint8), np.array([[[1, 10, 100]]], np.uint8)
        for (result,) in (run_node(one, [x, w, zero]), run_described(one, [x, w, zero])):
            assert result is not None
            # x - 7 is [1, 2], and nothing stands beside it.
            assert result.tolist() == [[[1 * 10 + 2 * 100, 1 * 1 + 2 * 10]]]
