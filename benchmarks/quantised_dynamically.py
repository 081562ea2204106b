"""Networks quantised dynamically by onnxruntime, beside it: `python -m benchmarks quantised_dynamically`.

Two bidirectional layers of LSTM (`DynamicQuantizeLSTM`), and four layers of an encoder with fused attention
(`QAttention`). Both engines run in turns with one thread; a figure is the median of the rounds with the first
and the third quartile, in microseconds of processor time. The largest difference of the results is shown.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import tilewright as tw
from benchmarks.command import Namespace, Parser

Array = np.ndarray[Any, Any]
# Steps, batch, width of the input, units, and whether each channel has a scale.
LAYERS = (
    (50, 1, 64, 128, False),
    (100, 1, 80, 256, True),
    (30, 8, 64, 128, True),
    (64, 1, 256, 512, False),
    (20, 32, 64, 64, False),
)
# Tokens and channels.
ENCODERS = ((16, 64), (128, 256), (384, 256))


class Network:
    """A model being made, of one input."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """A node; the name of its result."""
        name = f"{op_type.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, domain=domain, **attributes))
        return name

    def constant(self, data: Array) -> str:
        """A constant."""
        self.weights.append(numpy_helper.from_array(data, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def drawn(self, *shape: int, terms: int) -> str:
        """Weights of a sum of so many terms."""
        return self.constant((self.rng.uniform(-1, 1, shape) / terms**0.5).astype(np.float32))

    def quantised(self, result: str, *, per_channel: bool) -> onnx.ModelProto:
        """The model as onnxruntime quantises it."""
        given = helper.make_tensor_value_info("x", 1, self.shape)
        shown = helper.make_tensor_value_info(result, 1, None)
        graph = helper.make_graph(self.nodes, "g", [given], [shown], self.weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            options = {"DefaultTensorType": 1}
            kind = QuantType.QInt8
            quantize_dynamic(model, path, per_channel=per_channel, weight_type=kind, extra_options=options)
            return onnx.load(path)


def recurrent(steps: int, batch: int, width: int, size: int, *, per_channel: bool) -> onnx.ModelProto:
    """Two layers of LSTM in both directions."""
    network, x = Network((steps, batch, width)), "x"
    for _ in range(2):
        weights = [network.drawn(2, 4 * size, terms, terms=size) for terms in (width, size)]
        bias = network.drawn(2, 8 * size, terms=size)
        x = network.add("LSTM", x, *weights, bias, direction="bidirectional", hidden_size=size)
        x = network.add("Transpose", x, perm=[0, 2, 1, 3])
        width = 2 * size
        x = network.add("Reshape", x, network.constant(np.array([steps, batch, width])))
    return network.quantised(x, per_channel=per_channel)


def encoder(length: int, channels: int) -> onnx.ModelProto:
    """Four layers as onnxruntime's optimiser leaves them: attention, its product, and two more."""
    network, x = Network((1, length, channels)), "x"
    ones, zeros = (network.constant(np.full(channels, v, np.float32)) for v in (1, 0))

    def product(x: str, terms: int, columns: int) -> str:
        made = network.add("MatMul", x, network.drawn(terms, columns, terms=terms))
        return network.add("Add", made, network.drawn(columns, terms=terms))

    for _ in range(4):
        weights = network.drawn(channels, 3 * channels, terms=channels)
        bias = network.drawn(3 * channels, terms=channels)
        a = network.add("Attention", x, weights, bias, domain="com.microsoft", num_heads=4)
        x = network.add("Add", product(a, channels, channels), x)
        x = network.add("LayerNormalization", x, ones, zeros)
        inner = network.add("Gelu", product(x, channels, 4 * channels), domain="com.microsoft")
        x = network.add("Add", product(inner, 4 * channels, channels), x)
        x = network.add("LayerNormalization", x, ones, zeros)
    return network.quantised(x, per_channel=True)


def compare(label: str, model: onnx.ModelProto, rounds: int) -> None:
    """Print a line."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    compiled = tw.compile(model, threads=1)
    shape = session.get_inputs()[0].shape
    feed = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    engines = (lambda: session.run(None, feed)[0], lambda: compiled.run(None, feed)[0])
    theirs, ours = (engine() for engine in engines)
    samples: list[list[float]] = [[], []]
    for _ in range(rounds):
        for engine, taken in zip(engines, samples, strict=True):
            start = time.process_time_ns()
            engine()
            taken.append((time.process_time_ns() - start) / 1e3)
    texts = []
    for taken in samples:
        low, middle, high = np.quantile(taken, [0.25, 0.5, 0.75])
        texts.append(f"{middle:9.0f} ({low:.0f}-{high:.0f})")
    ratio = float(np.median(samples[0]) / np.median(samples[1]))
    host = sum(kernel.is_host for kernel in compiled.kernels)
    error = float(np.abs(theirs - ours).max())
    print(f"{label:42} {texts[0]:>24} {texts[1]:>24} {ratio:6.2f} {error:9.1e} {host:5d}")


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--rounds", type=int, default=41)


def main(arguments: Namespace) -> None:
    """Both kinds of networks."""
    rounds = arguments.rounds
    print(
        f"{'network':42} {'onnxruntime, us':>24} {'tilewright, us':>24} {'ratio':>6} {'error':>9} {'host':>5}"
    )
    for steps, batch, width, size, per_channel in LAYERS:
        label = f"LSTM {steps}x{batch}x{width}, {size} units{', by channel' if per_channel else ''}"
        compare(label, recurrent(steps, batch, width, size, per_channel=per_channel), rounds)
    for length, channels in ENCODERS:
        compare(f"encoder {length}x{channels}", encoder(length, channels), rounds)
