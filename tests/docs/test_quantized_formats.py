"""`docs/quantized_formats.md` lists the forms of quantised models that are read: each is a small model here.

What the page says a form runs as is what its kernels are, its values are onnxruntime's, and no operator that
is read is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.compiled import CompiledModel
from tilewright.frontend.onnx.microsoft.quantized import QUANTIZED

Array = np.ndarray[Any, Any]
F32, U8, I8, I32 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32
STEPS, COLUMNS, ROWS = 64, 64, 6
MICROSOFT = "com.microsoft"
FLOAT_PRODUCTS = frozenset({"contraction", "winograd", "matrix"})


class Net:
    """Nodes by short calls: constants are inputs of nodes as they are given."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def x(self, *shape: int, kind: int = F32) -> str:
        """An input."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def of(self, data: Array | np.generic | float, kind: int | None = None) -> str:
        """A constant."""
        name = f"c{len(self.arrays)}"
        array = np.asarray(data, np.float32) if isinstance(data, float) else np.asarray(data)
        made = numpy_helper.from_array(array, name)
        if kind is not None:  # a type that numpy lacks
            made = helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())
        self.arrays.append(made)
        return name

    def bytes(self, *shape: int, signed: bool = True) -> Array:
        """Random whole numbers."""
        low, high, dtype = (-100, 100, np.int8) if signed else (0, 256, np.uint8)
        return self.rng.integers(low, high, shape, dtype=dtype)

    def scales(self, *shape: int) -> Array:
        """Random scales."""
        return (0.002 + 0.01 * self.rng.random(shape)).astype(np.float32)

    def __call__(self, op_type: str, *operands: str, count: int = 1, **attributes: Any) -> str:
        """A node; the name of its first result."""
        names = [f"n{len(self.nodes)}_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(op_type, operands, names, **attributes))
        return names[0]

    def quantised(self, name: str, *, signed: bool = False) -> str:
        """A float tensor as bytes and back."""
        zero = self.of(np.int8(-3) if signed else np.uint8(120))
        scale = self.of(0.02)
        return self("DequantizeLinear", self("QuantizeLinear", name, scale, zero), scale, zero)

    def model(self, result: str, opset: int = 21) -> onnx.ModelProto:
        """All of it."""
        y = onnx.ValueInfoProto(name=result)
        graph = helper.make_graph(self.nodes, "g", self.inputs, [y], self.arrays)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


Build = Callable[[Net], str]


def runs_as(compiled: CompiledModel) -> str:
    """What a model's kernels compute with."""
    integers = [k for k in compiled.kernels if k.template.startswith("integer")]
    products = integers or [k for k in compiled.kernels if k.template in FLOAT_PRODUCTS]
    notes = " ".join(note for k in products for note in k.notes)
    if integers:
        return "integers"
    if "B of 4 bits" in notes or "B of 8 bits" in notes:
        return "floats, weights as stored"
    if products:
        return "floats"
    return "element by element" if compiled.kernels else "nothing"


def _weights(net: Net, grain: str, *, signed: bool = True, axis: int = 1) -> str:
    """Weights of a product as bytes that are dequantised."""
    shape, steps, columns = (STEPS, COLUMNS), STEPS // 32, COLUMNS
    scale = {
        "tensor": net.of(0.01),
        "channel": net.of(net.scales(columns)),
        "block": net.of(net.scales(steps, columns)),
    }
    attributes = {"tensor": {}, "channel": {"axis": axis}, "block": {"axis": 0, "block_size": 32}}[grain]
    return net("DequantizeLinear", net.of(net.bytes(*shape, signed=signed)), scale[grain], **attributes)


def _qdq_matmul(grain: str, *, signed: bool = False, last: bool = True) -> Build:
    def build(net: Net) -> str:
        y = net("MatMul", net.quantised(net.x(ROWS, STEPS), signed=signed), _weights(net, grain))
        return net.quantised(y, signed=signed) if last else y

    return build


def _qdq_conv(grain: str) -> Build:
    def build(net: Net) -> str:
        per_channel = grain == "channel"
        scale = net.scales(32) if per_channel else np.float32(0.01)
        zero = net.of(np.zeros(32, np.int8) if per_channel else np.int8(0))
        given = [net.of(net.bytes(32, 32, 3, 3)), net.of(scale), zero]
        w = net("DequantizeLinear", *given, **({"axis": 0} if per_channel else {}))
        bias = net.of(net.rng.integers(-999, 999, 32, dtype=np.int32))
        b = net(
            "DequantizeLinear", bias, net.of(np.float32(0.02) * scale), **({"axis": 0} if per_channel else {})
        )
        return net.quantised(net("Relu", net("Conv", net.quantised(net.x(1, 32, 9, 9)), w, b, pads=[1] * 4)))

    return build


def _qdq_two(net: Net) -> str:
    a, b = net.quantised(net.x(4, 2 * STEPS, STEPS)), net.quantised(net.x(4, STEPS, 2 * COLUMNS))
    return net.quantised(net("MatMul", a, b))


def _qdq_16(net: Net) -> str:
    scale, zero = net.of(0.001), net.of(np.uint16(30000))
    x = net("DequantizeLinear", net("QuantizeLinear", net.x(ROWS, STEPS), scale, zero), scale, zero)
    return net("MatMul", x, _weights(net, "channel"))


def _weight_only(grain: str) -> Build:
    return lambda net: net("MatMul", net.x(ROWS, STEPS), _weights(net, grain))


def _int4_blocks(net: Net) -> str:
    numbers = net.of(net.rng.integers(-8, 8, (256, COLUMNS)), TensorProto.INT4)
    w = net("DequantizeLinear", numbers, net.of(net.scales(8, COLUMNS)), axis=0, block_size=32)
    return net("MatMul", net.x(ROWS, 256), w)


def _qdq_add(net: Net) -> str:
    return net.quantised(net("Add", net.quantised(net.x(ROWS, STEPS)), net.quantised(net.x(ROWS, STEPS))))


def _qdq_pool(net: Net) -> str:
    return net.quantised(
        net("MaxPool", net.quantised(net.x(1, 8, 8, 8)), kernel_shape=[2, 2], strides=[2, 2])
    )


def _qlinear_matmul(net: Net) -> str:
    a = [net.x(ROWS, STEPS, kind=U8), net.of(0.02), net.of(np.uint8(7))]
    b = [net.of(net.bytes(STEPS, COLUMNS)), net.of(net.scales(COLUMNS)), net.of(np.zeros(COLUMNS, np.int8))]
    return net("QLinearMatMul", *a, *b, net.of(0.05), net.of(np.uint8(128)))


def _qlinear_conv(net: Net) -> str:
    a = [net.x(1, 32, 9, 9, kind=U8), net.of(0.02), net.of(np.uint8(7))]
    b = [net.of(net.bytes(32, 32, 3, 3)), net.of(net.scales(32)), net.of(np.zeros(32, np.int8))]
    bias = net.of(net.rng.integers(-999, 999, 32, dtype=np.int32))
    return net("QLinearConv", *a, *b, net.of(0.1), net.of(np.uint8(128)), bias, pads=[1] * 4)


def _integer_matmul(net: Net) -> str:
    given = [net.x(ROWS, STEPS, kind=U8), net.of(net.bytes(STEPS, COLUMNS)), net.of(np.uint8(7))]
    return net("MatMulInteger", *given)


def _integer_conv(net: Net) -> str:
    given = [net.x(1, 32, 9, 9, kind=U8), net.of(net.bytes(32, 32, 3, 3)), net.of(np.uint8(7))]
    return net("ConvInteger", *given, pads=[1] * 4)


def _dynamic(net: Net) -> str:
    net("DynamicQuantizeLinear", net.x(ROWS, STEPS), count=3)
    product = net("MatMulInteger", "n0_0", net.of(net.bytes(STEPS, COLUMNS)), "n0_2", net.of(np.int8(0)))
    scale = net("Mul", "n0_1", net.of(0.01))
    return net("Mul", net("Cast", product, to=F32), scale)


def _to_float(net: Net) -> str:
    given = [
        net.x(ROWS, STEPS, kind=U8),
        net.of(net.bytes(STEPS, COLUMNS)),
        net.of(0.02),
        net.of(net.scales(COLUMNS)),
    ]
    return net("MatMulIntegerToFloat", *given, net.of(np.uint8(7)), domain=MICROSOFT)


def _dynamic_matmul(net: Net) -> str:
    given = [net.x(ROWS, STEPS), net.of(net.bytes(STEPS, COLUMNS)), net.of(net.scales(COLUMNS))]
    return net("DynamicQuantizeMatMul", *given, domain=MICROSOFT)


def _qgemm(net: Net) -> str:
    a = [net.x(ROWS, STEPS, kind=U8), net.of(0.02), net.of(np.uint8(7))]
    b = [net.of(net.bytes(STEPS, COLUMNS)), net.of(net.scales(COLUMNS)), net.of(np.zeros(COLUMNS, np.int8))]
    bias = net.of(net.rng.integers(-999, 999, COLUMNS, dtype=np.int32))
    return net("QGemm", *a, *b, bias, net.of(0.05), net.of(np.uint8(128)), domain=MICROSOFT)


def _of_bytes(op_type: str, num_tensors: int, *shape: int, **attributes: Any) -> Build:
    """An operator of onnxruntime on tensors of bytes, each with its scale and zero point."""

    def build(net: Net) -> str:
        given: list[str] = []
        for number in range(num_tensors):
            given += [net.x(*shape, kind=U8), net.of(0.02 + 0.01 * number), net.of(np.uint8(100 + number))]
        return net(op_type, *given, net.of(0.04), net.of(np.uint8(90)), domain=MICROSOFT, **attributes)

    return build


def _qconcat(net: Net) -> str:
    parts = [x for _ in range(2) for x in (net.x(ROWS, STEPS, kind=U8), net.of(0.03), net.of(np.uint8(9)))]
    return net("QLinearConcat", net.of(0.04), net.of(np.uint8(90)), *parts, domain=MICROSOFT, axis=1)


def _bits(bits: int, *, has_zeros: bool = False) -> Build:
    def build(net: Net) -> str:
        steps, block = 256, 32
        blocks = steps // block
        numbers = net.of(net.bytes(COLUMNS, blocks, block * bits // 8, signed=False))
        zeros = [net.of(net.bytes(COLUMNS * blocks * bits // 8, signed=False))] if has_zeros else []
        given = [net.x(ROWS, steps), numbers, net.of(net.scales(COLUMNS * blocks)), *zeros]
        sizes = {"K": steps, "N": COLUMNS, "bits": bits, "block_size": block}
        return net("MatMulNBits", *given, domain=MICROSOFT, **sizes)

    return build


def _bnb(net: Net) -> str:
    count = 256 * COLUMNS
    given = [net.x(ROWS, 256), net.of(net.bytes(count // 2, signed=False)), net.of(net.scales(count // 64))]
    return net("MatMulBnb4", *given, domain=MICROSOFT, K=256, N=COLUMNS, block_size=64, quant_type=1)


def _gather(net: Net) -> str:
    table, scales = net.of(net.bytes(50, 32, signed=False)), net.of(net.scales(50, 2))
    rows = net.x(ROWS, kind=TensorProto.INT64)
    return net(
        "GatherBlockQuantized", table, rows, scales, domain=MICROSOFT, bits=4, block_size=32, quantize_axis=1
    )


FORMS: dict[str, Build] = {
    "Conv between bytes, a scale for all weights": _qdq_conv("tensor"),
    "Conv between bytes, a scale for each output channel": _qdq_conv("channel"),
    "MatMul, Gemm between bytes, a scale for all weights": _qdq_matmul("tensor"),
    "MatMul, Gemm between signed bytes, a scale for each column": _qdq_matmul("channel", signed=True),
    "MatMul, Gemm of bytes with a float result": _qdq_matmul("channel", last=False),
    "MatMul of two activations": _qdq_two,
    "sums, products, activations": _qdq_add,
    "pools and moves of bytes": _qdq_pool,
    "activations of 16 bits": _qdq_16,
    "weights alone, a scale for all": _weight_only("tensor"),
    "weights alone, a scale for each column": _weight_only("channel"),
    "weights alone, a scale for each block of a column": _weight_only("block"),
    "weights of four bits alone, a scale for each block of a column": _int4_blocks,
    "convolution": _qlinear_conv,
    "product": _qlinear_matmul,
    "product with a result of int32": _integer_matmul,
    "convolution with a result of int32": _integer_conv,
    "product of floats that become bytes as they arrive": _dynamic,
    "product with a float result": _to_float,
    "the same of floats that become bytes as they arrive": _dynamic_matmul,
    "Gemm": _qgemm,
    "sum": _of_bytes("QLinearAdd", 2, ROWS, STEPS),
    "product of elements": _of_bytes("QLinearMul", 2, ROWS, STEPS),
    "Sigmoid": _of_bytes("QLinearSigmoid", 1, ROWS, STEPS),
    "LeakyRelu": _of_bytes("QLinearLeakyRelu", 1, ROWS, STEPS, alpha=0.1),
    "mean of windows": _of_bytes("QLinearAveragePool", 1, 1, 8, 8, 8, kernel_shape=[2, 2]),
    "mean of channels": _of_bytes("QLinearGlobalAveragePool", 1, 1, 8, 8, 8),
    "concatenation": _qconcat,
    "Softmax": _of_bytes("QLinearSoftmax", 1, ROWS, STEPS, opset=13),
    "weights of four bits in blocks": _bits(4),
    "the same with zero points": _bits(4, has_zeros=True),
    "weights of eight bits in blocks, with zero points or without": _bits(8, has_zeros=True),
    "weights of two bits in blocks": _bits(2),
    "weights of NF4 or FP4 in blocks": _bnb,
    "rows of a table of four or eight bits": _gather,
}


def rows() -> dict[str, list[str]]:
    """Cells of the page's tables by what they are of."""
    text = Path("docs/quantized_formats.md").read_text(encoding="utf-8")
    cells = [
        [c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "
    ]
    return {row[0]: row for row in cells if row[0] != "what"}


def feed_of(model: onnx.ModelProto) -> dict[str, Array]:
    """Random inputs."""
    rng, feed = np.random.default_rng(1), dict[str, Array]()
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        most = 100 if dtype.itemsize == 1 else 8
        drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, most, shape)
        feed[value.name] = drawn.astype(dtype)
    return feed


def test_the_page_lists_every_form() -> None:
    assert rows().keys() == FORMS.keys()
    text = Path("docs/quantized_formats.md").read_text(encoding="utf-8")
    operators = {
        *QUANTIZED,
        "QAttention",
        "QLinearMatMul",
        "MatMulInteger",
        "ConvInteger",
        "DynamicQuantizeLinear",
    }
    assert not {name for name in operators if f"`{name}`" not in text}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("what", FORMS)
def test_a_form_is_computed_as_the_page_says(what: str) -> None:
    net = Net()
    model = net.model(FORMS[what](net))
    names = {node.op_type for node in model.graph.node}
    assert names & set(rows()[what][1].replace("`", "").split(", "))
    compiled = tw.compile(model, threads=1)
    assert runs_as(compiled) == rows()[what][3]
    feed = feed_of(model)
    (found,) = compiled.run(None, feed)
    options = onnxruntime.SessionOptions()  # its optimiser rounds activations before weights of few bits
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    peer = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (expected,) = peer.run(None, feed)
    assert found.dtype == expected.dtype
    wide, right = found.astype(np.float64), expected.astype(np.float64)
    allowed = 1 if found.dtype.itemsize == 1 else 0  # of bytes that are rounded: a tie may fall either way
    allowed = allowed if found.dtype.kind != "f" else 1e-5 * np.abs(right).max() + _steps(what)
    assert np.abs(wide - right).max() <= allowed


def _steps(what: str) -> float:
    """How far floats may be that were bytes: a step of their scale."""
    return (
        0.0
        if what.startswith(("weights", "rows", "product", "the same")) or "float result" in what
        else 0.021
    )
