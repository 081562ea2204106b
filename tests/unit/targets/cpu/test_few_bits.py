"""Weights that are integers of four bits: found in float constants, packed as such, with the same results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.fields import FieldError
from tilewright.ir.block_weights import BlockWeights
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Opaque
from tilewright.ir.ops.registry import describe
from tilewright.passes.fold_constants import FoldConstants
from tilewright.specialise.model import OpenCompiledModel
from tilewright.targets.cpu.arrangements import FewBitPanels, window
from tilewright.targets.cpu.few_bits import BLOCKS, FewBits, block_of, numbers_of, scales_of
from tilewright.targets.cpu.isa import isa_by_name
from tilewright.targets.cpu.kernel import MAX_CHAIN_STEPS
from tilewright.targets.cpu.plans import parse_plan
from tilewright.targets.cpu.products import product_signature
from tilewright.targets.cpu.runtime.executable import CpuExecutable
from tilewright.targets.cpu.template import Context

Array = np.ndarray[Any, Any]
ISAS = [name for name in ("avx512", "avx2", "neon") if isa_by_name(name).runs_on_host]


def weights(num_steps: int, num_columns: int, block: int, seed: int = 0) -> Array:
    """Integers of four bits times scales of either sign, with a block and a column of zeros."""
    rng = np.random.default_rng(seed)
    scales = rng.standard_normal((num_steps // block, num_columns)).astype(np.float32)
    scales[0, 0] = 0
    numbers = rng.integers(-8, 8, (num_steps, num_columns)).astype(np.float32)
    numbers[:, -1] = 0
    return np.repeat(scales, block, axis=0) * numbers


@given(block=st.sampled_from(BLOCKS), seed=st.integers(0, 2**32 - 1), columns=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_scales_and_numbers_are_the_constant(block: int, seed: int, columns: int) -> None:
    constant = weights(2 * block, columns, block, seed)
    scales = scales_of(constant, block)
    assert scales is not None
    numbers = numbers_of(constant, scales)
    assert numbers.min() >= -8
    assert numbers.max() <= 7
    np.testing.assert_array_equal(numbers * np.repeat(scales, block, axis=0), constant)


def test_a_weight_that_is_no_multiple_keeps_a_constant_whole() -> None:
    constant = weights(256, 96, 32)
    assert block_of(constant, 0) == 32
    assert block_of(np.ascontiguousarray(constant.T), 1) == 32
    assert block_of(constant, 1) is None
    for wrong in (1.5, np.inf, np.nan):
        changed = constant.copy()
        changed[77, 33] *= np.float32(wrong)
        changed[77, 34] += np.float32(1e-3)
        assert block_of(changed, 0) is None


def model(constant: Array, num_rows: int, *, is_turned: bool) -> onnx.ModelProto:
    """A product by a constant, whose columns may be its rows in the file."""
    steps, columns = constant.shape
    stored = np.ascontiguousarray(constant.T) if is_turned else constant
    nodes = [helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0])] if is_turned else []
    nodes += [helper.make_node("MatMul", ["x", "t" if is_turned else "w"], ["m"])]
    nodes += [helper.make_node("Relu", ["m"], ["y"])]
    edges = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [num_rows, extent])
        for name, extent in (("x", steps), ("y", columns))
    ]
    graph = helper.make_graph(nodes, "few", edges[:1], edges[1:], [numpy_helper.from_array(stored, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("num_rows", "num_steps", "num_columns", "block", "is_turned"),
    [(1, 256, 200, 32, False), (1, 1024, 130, 128, True), (5, 480, 96, 16, False), (20, 128, 144, 64, True)],
)
def test_products_have_the_bits_of_those_by_floats(
    num_rows: int,
    num_steps: int,
    num_columns: int,
    block: int,
    is_turned: bool,
    isa: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    proto = model(weights(num_steps, num_columns, block), num_rows, is_turned=is_turned)
    feed = {"x": np.random.default_rng(1).standard_normal((num_rows, num_steps)).astype(np.float32)}
    packed = tw.compile(proto, threads=2, isa=isa, no_cache=True)
    (kernel,) = packed.kernels
    assert f"B of 4 bits by {block}" in kernel.notes
    assert kernel.plan is not None
    assert str(parse_plan(kernel.plan)) == kernel.plan
    (found,) = packed.run(None, feed)
    with tw.open(packed.save(tmp_path / "m.tw")) as opened:
        np.testing.assert_array_equal(opened.run(None, feed)[0], found)
    monkeypatch.setattr("tilewright.targets.cpu.lower.tensors.block_of", lambda constant, axis: None)
    plain = tw.compile(proto, threads=1, isa=isa, no_cache=True)
    assert "B packed" in plain.kernels[0].notes
    expected = np.maximum(feed["x"].astype(np.float64) @ weights(num_steps, num_columns, block), 0)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    if num_steps <= MAX_CHAIN_STEPS:  # one chain of sums, whatever the tile
        np.testing.assert_array_equal(found, plain.run(None, feed)[0])


def test_an_arrangement_of_another_constant_is_an_error() -> None:
    constant = np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)
    arrangement = FewBitPanels(window((64, 16), (16, 1), 0), 16, 16, 32)
    with pytest.raises(FieldError, match="not of four bits"):
        arrangement.arrange(constant)
    with pytest.raises(FieldError, match="blocks of 24"):
        FewBitPanels(window((64, 16), (16, 1), 0), 16, 16, 24).arrange(constant)


def test_constants_that_are_no_matrices_of_float32_are_not_looked_at() -> None:
    assert block_of(np.zeros((4, 4, 4096), np.float32), 0) is None
    assert block_of(weights(256, 96, 32).astype(np.float64), 0) is None
    assert block_of(weights(64, 16, 32), 0) is None  # too small to gain anything


def stored(bits: int, block: int, steps: int, columns: int, *, has_zeros: bool) -> BlockWeights:
    """Random numbers with scales of either sign."""
    rng = np.random.default_rng([bits, block, has_zeros])
    blocks = steps // block
    return BlockWeights(
        rng.integers(0, 256, (columns, blocks, block * bits // 8), dtype=np.uint8),
        rng.standard_normal((columns, blocks)).astype(np.float32),
        rng.integers(0, 1 << bits, (columns, blocks), dtype=np.uint8) if has_zeros else None,
        bits,
    )


def product_of(weights: BlockWeights) -> onnx.ModelProto:
    """MatMulNBits by these, of any number of rows."""
    columns, blocks, _ = weights.numbers.shape
    inputs = {"B": weights.numbers, "s": weights.scales}
    if weights.zeros is not None:
        padded = np.pad(weights.zeros, ((0, 0), (0, blocks % (8 // weights.bits))))
        low, high = (padded[:, 0::2], padded[:, 1::2]) if weights.bits == 4 else (padded, 0)
        inputs["z"] = low | high << 4
    node = helper.make_node(
        "MatMulNBits",
        ["x", *inputs],
        ["y"],
        domain="com.microsoft",
        K=blocks * weights.block,
        N=columns,
        bits=weights.bits,
        block_size=weights.block,
    )
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", extent])
        for name, extent in (("x", blocks * weights.block), ("y", columns))
    )
    arrays = [numpy_helper.from_array(array, name) for name, array in inputs.items()]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(
        helper.make_graph([node], "g", [x], [y], arrays), opset_imports=opsets, ir_version=10
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("bits", "block", "has_zeros"),
    [(4, 32, False), (4, 16, True), (8, 64, False), (8, 128, True), (4, 256, True)],
)
def test_numbers_are_read_as_they_are_stored(
    bits: int, block: int, has_zeros: bool, isa: str, tmp_path: Path
) -> None:
    """By one row, and by so many that panels are widened first; floats of the weights are made by none."""
    weights = stored(bits, block, 768, 150, has_zeros=has_zeros)
    compiled = tw.compile(product_of(weights), threads=2, isa=isa, no_cache=True)
    assert isinstance(compiled, OpenCompiledModel)
    expected = weights.floats().astype(np.float64)
    for num_rows in (1, 30):
        feed = {"x": np.random.default_rng(num_rows).standard_normal((num_rows, 768)).astype(np.float32)}
        (found,) = compiled.run(None, feed)
        right = feed["x"] @ expected
        np.testing.assert_allclose(found, right, atol=1e-5 * np.abs(right).max())
        (kernel,) = compiled.at({"x": (num_rows, 768)}).kernels
        assert any(note.startswith(f"B of {bits} bits by {min(block, 128)}") for note in kernel.notes)
    held = []
    for num_rows in (1, 30):
        executable = compiled.at({"x": (num_rows, 768)}).load()
        assert isinstance(executable, CpuExecutable)
        held.append({id(piece) for piece in executable._weights.held})
    assert held[0] == held[1]
    with tw.open(compiled.save(tmp_path / "m.tw")) as opened:
        np.testing.assert_array_equal(opened.run(None, feed)[0], found)


def test_large_weights_are_folded_to_numbers() -> None:
    """Of which the floats would take more than a folded constant may; a transposition of them, too."""
    weights = stored(4, 32, 64, 96, has_zeros=True)
    graph = tw.load(product_of(weights), shapes={"x": (1, 64)}).graph
    FoldConstants(max_bytes=1).run(graph)
    (node,) = graph.nodes
    (constant,) = (v for v in node.inputs if v is not None and v.is_constant)
    assert isinstance(constant.stored, BlockWeights)
    np.testing.assert_array_equal(constant.data, weights.floats())
    turned = graph.value("turned", constant.dtype, constant.shape[::-1])
    graph.insert_before(node, Node("Transpose", [constant], [turned], {"perm": (1, 0)}, opset=21))
    graph.outputs.append(turned)
    FoldConstants(max_bytes=1).run(graph)
    assert isinstance(graph.outputs[1].stored, BlockWeights)
    np.testing.assert_array_equal(graph.outputs[1].data, weights.floats().T)


def test_findings_tell_weights_of_few_bits_from_others() -> None:
    """What was measured of floats says nothing of numbers, nor of those of another block or of panels that
    other code reads."""
    x, w, y = (
        Value("x", DType.FLOAT32, (1, 64)),
        Value("w", DType.FLOAT32, (64, 96)),
        Value("y", DType.FLOAT32, (1, 96)),
    )
    described = describe(Node("MatMul", [x, w], [y], opset=21))
    assert not isinstance(described, Opaque)
    (nest,) = described
    constants = frozenset({("input", 1)})
    kinds = [FewBits(4, 32), FewBits(4, 64), FewBits(8, 32), FewBits(4, 32, has_zeros=True)]
    contexts = [
        Context(isa_by_name("avx2"), {}, constants=constants, few_bits=few, shared=shared)
        for few in (frozenset(), *(frozenset({(("input", 1), 0, kind)}) for kind in kinds))
        for shared in (frozenset(), constants)
    ]
    found = [product_signature(nest, context) for context in contexts]
    assert all(found)
    assert len(set(found)) == len(found)
    assert found[0] == product_signature(nest, replace(contexts[0], cached=constants))


def test_weights_that_code_has_as_floats_are_saved_the_same_each_time(tmp_path: Path) -> None:
    """Many rows of given shapes read floats, which an artifact has beside numbers that others read."""
    weights = stored(4, 32, 256, 96, has_zeros=True)
    proto = product_of(weights)
    for name in ("other", "third"):  # values without arrays of their own
        proto.graph.node.append(helper.make_node("MatMulNBits", ["x", "B", "s", "z"], [name]))
        proto.graph.node[-1].CopyFrom(proto.graph.node[0])
        proto.graph.node[-1].output[0] = name
        proto.graph.output.add().CopyFrom(proto.graph.output[0])
        proto.graph.output[-1].name = name
    feed = {"x": np.random.default_rng(1).standard_normal((200, 256)).astype(np.float32)}
    files = []
    for number in range(2):
        compiled = tw.compile(proto, threads=1, shapes={"x": (200, 256)}, no_cache=True)
        assert any("B packed" in kernel.notes for kernel in compiled.kernels)
        files.append(compiled.save(tmp_path / f"{number}.tw"))
    assert files[0].read_bytes() == files[1].read_bytes()
    with tw.open(files[0]) as opened:
        for found, expected in zip(opened.run(None, feed), compiled.run(None, feed), strict=True):
            np.testing.assert_array_equal(found, expected)
