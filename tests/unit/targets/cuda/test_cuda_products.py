"""Products on the emulated GPU: every kind of arithmetic, strides, padding, groups, batches, splits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.cuda import ACCURACIES
from benchmarks.ptx_uses import has_tools, kernel_uses
from onnx import TensorProto, helper, numpy_helper
from tests.support.cuda import EMULATED, compiled, error, needs_fibers, templates
from tests.support.kernels import group_of
from tests.support.models import model

from tilewright.compiler import compile_graph, optimise
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.presets import find_machine
from tilewright.ir.fuse import fuse_nodes
from tilewright.options import Options
from tilewright.target_ref import TargetRef
from tilewright.targets.cuda.code import CudaCode
from tilewright.targets.cuda.device import MOST_BLOCKS
from tilewright.targets.cuda.emitter import CudaEmitter
from tilewright.targets.cuda.kernel import Context
from tilewright.targets.cuda.products import lower_product, tiles
from tilewright.targets.cuda.ptx import gpu_isa, ptx_of
from tilewright.targets.cuda.rates import rates_of
from tilewright.targets.llvm.layout import Declined

pytestmark = [needs_fibers, pytest.mark.sampled(8)]
TYPES = {"f2": TensorProto.FLOAT16, "f4": TensorProto.FLOAT, "f8": TensorProto.DOUBLE}
# Of the largest output: float32 rounds to 6e-8, tf32 to 5e-4, bfloat16 to 4e-3, float16 to 5e-4.
BOUNDS = {"f2": 1e-3, "f4": 1e-6, "f8": 1e-14}


def convolution(x: list[int], w: list[int], dtype: str = "f4", **attributes: Any) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    arrays = (rng.standard_normal(w), rng.standard_normal(w[0]))
    weights = [numpy_helper.from_array(a.astype(dtype), n) for a, n in zip(arrays, "wb", strict=True)]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", **attributes),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    kind = TYPES[dtype]
    inputs = [helper.make_tensor_value_info("x", kind, x)]
    return model(nodes, inputs, [helper.make_tensor_value_info("y", kind, None)], weights)


def product(a: list[int], b: list[int], dtype: str = "f4") -> onnx.ModelProto:
    kind = TYPES[dtype]
    inputs = [helper.make_tensor_value_info(n, kind, s) for n, s in (("a", a), ("b", b))]
    outputs = [helper.make_tensor_value_info("y", kind, None)]
    return model([helper.make_node("MatMul", ["a", "b"], ["y"], "product")], inputs, outputs, [])


def feed_of(proto: onnx.ModelProto) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    found = {}
    for value in proto.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        found[value.name] = rng.standard_normal(shape).astype(dtype)
    return found


PRODUCTS = [
    pytest.param(convolution([1, 8, 6, 6], [16, 8, 3, 3], pads=[1, 1, 1, 1]), "f4", id="padded"),
    pytest.param(
        convolution(
            [2, 16, 7, 9], [24, 8, 3, 2], pads=[1, 2, 0, 1], strides=[2, 1], dilations=[1, 2], group=2
        ),
        "f4",
        id="groups",
    ),
    pytest.param(convolution([1, 8, 6, 6], [8, 8, 3, 3], "f8"), "f8", id="float64"),
    pytest.param(convolution([1, 16, 5, 5], [16, 16, 3, 3], "f2", pads=[1, 1, 1, 1]), "f2", id="float16"),
    pytest.param(product([2, 17, 40], [2, 40, 33]), "f4", id="batch"),
    pytest.param(product([9, 64], [64, 40], "f2"), "f2", id="half-product"),
    pytest.param(product([16, 600], [600, 16]), "f4", id="split"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("proto", "dtype"), PRODUCTS)
def test_a_product_is_as_exact_as_its_type(proto: onnx.ModelProto, dtype: str) -> None:
    found = compiled(proto)
    assert templates(found)[0] == "product"
    assert error(proto, feed_of(proto), found.run(None, feed_of(proto))) <= BOUNDS[dtype]


@pytest.mark.parametrize(("accuracy", "kind", "bound"), [("relaxed", "tf32", 2e-3), ("fast", "bf16", 1e-2)])
def test_an_accuracy_chooses_what_multiplies(accuracy: str, kind: str, bound: float) -> None:
    proto = convolution([1, 8, 6, 6], [16, 8, 3, 3], pads=[1, 1, 1, 1])
    found = compiled(proto, accuracy=accuracy)
    (kernel,) = (kernel for step in found.steps for kernel in step.kernels)
    assert kernel.notes[0].startswith(kind)
    off = error(proto, feed_of(proto), found.run(None, feed_of(proto)))
    assert 1e-6 < off <= bound


def test_a_long_sum_of_a_small_result_is_split_and_added_up_in_order() -> None:
    proto = product([16, 600], [600, 16])
    found = compiled(proto)
    assert templates(found) == ["product"]
    first, second = (found.run(None, feed_of(proto))[0] for _ in range(2))
    assert first.tobytes() == second.tobytes()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("missing", [None, "first fence", "second fence", "first barrier", "second barrier"])
def test_parts_are_added_up_once_all_are_there(missing: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that ran one after another have right values still: what misses is seen as a race."""
    if missing is not None:
        place, what = missing.split()
        emit, last = getattr(CudaEmitter, what), CudaEmitter.is_last_block

        def is_last_block(*args: Any) -> Any:
            kept = iter((place != "first", place != "second"))
            with monkeypatch.context() as patch:
                patch.setattr(CudaEmitter, what, lambda e: emit(e) if next(kept) else None)
                return last(*args)

        monkeypatch.setattr(CudaEmitter, "is_last_block", is_last_block)
    found = compiled(product([16, 600], [600, 16]), no_cache=True)
    found.run(None, feed_of(product([16, 600], [600, 16])))
    assert ("RACES" in str(found.explain())) is (missing is not None)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rows", "accuracy"), [(128, "default"), (128, "fast"), (64, "default")])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_tiles_whose_columns_threads_do_not_divide_are_copied_whole(
    rows: int, accuracy: str, is_transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tile = next(tile for tile in tiles.TILES if (tile.rows, tile.columns) == (rows, 96))
    monkeypatch.setattr(tiles, "TILES", (tile,))
    shapes = {"a": [rows + 2, 40], "b": [100, 40] if is_transposed else [40, 100]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    node = helper.make_node("Gemm", ["a", "b"], ["y"], "product", transB=int(is_transposed))
    proto = model([node], inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [])
    found = compiled(proto, accuracy=accuracy)
    assert error(proto, feed_of(proto), found.run(None, feed_of(proto))) <= ACCURACIES[accuracy]
    told = str(found.explain())
    assert f"{rows} x 96" in told
    assert "RACES" not in told


def test_what_is_no_matrix_is_no_product() -> None:
    graph, _ = optimise(load_onnx(convolution([1, 16, 5, 5], [16, 1, 3, 3], group=16)), Options())
    group = fuse_nodes(graph.nodes, graph.outputs)
    made = [lower_product(nest, Context(rates_of(find_machine("h200")))) for nest in group.nests]  # type: ignore[union-attr]
    assert all(isinstance(kernels, Declined) for kernels in made)


@pytest.mark.skipif(not has_tools(), reason="needs ptxas and nvdisasm: pip install tilewright[cuda-check]")
@pytest.mark.parametrize("accuracy", ["default", "relaxed", "fast"])
@pytest.mark.parametrize("isa", ["sm_80", "sm_90"])
@pytest.mark.parametrize("channels", [3, 64])
def test_nothing_spills_and_shared_memory_is_as_planned(accuracy: str, isa: str, channels: int) -> None:
    proto = convolution([1, channels, 28, 28], [96, channels, 3, 3], pads=[1, 1, 1, 1])
    graph, _ = optimise(load_onnx(proto), Options())
    group = group_of(graph)
    constants = {("input", i): v.data for i, v in enumerate(group.inputs) if v.data is not None}
    context = Context(rates_of(find_machine("h200")), accuracy, constants)  # type: ignore[arg-type]
    kernel = lower_product(group.nests[-1], context)
    assert not isinstance(kernel, Declined)
    (ptx,) = ptx_of([kernel.text], gpu_isa(isa))
    (use,) = kernel_uses(ptx, isa).values()
    assert (use.spilled_bytes, use.stack_bytes) == (0, 0)
    assert use.shared_bytes == kernel.shared_bytes
    assert not {"LDL", "STL"} & set(use.instructions)
    wanted = {"FFMA"} if accuracy == "default" else {"HMMA", "LDSM"}
    assert {"LDGSTS", *wanted} <= set(use.instructions)


@pytest.mark.parametrize(
    ("a", "b"),
    [([70_000, 8, 8], [70_000, 8, 8]), ([8, 8], [8, 2_200_000]), ([40_000, 8, 300], [40_000, 300, 8])],
)
def test_no_grid_has_more_blocks_than_a_gpu_takes(a: list[int], b: list[int]) -> None:
    code = compile_graph(load_onnx(product(a, b)), Options(target=TargetRef.parse(EMULATED))).code
    assert isinstance(code, CudaCode)
    for launch in code.placed.launches:
        grid = launch.kernel.grid
        assert all(size <= most for size, most in zip(grid, MOST_BLOCKS, strict=True)), grid
