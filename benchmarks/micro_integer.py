"""Rate of integer kernels beside ONNX Runtime and OpenVINO on the same layer, one thread, interleaved.

Run: `python -m benchmarks micro_integer [name-filter] [rounds]`. Informal: best of the rounds. Our column is
the kernels alone, on channels-last bytes; the peers' include what their sessions add to one layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.command import Namespace, Parser
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.ops.registry import describe
from tilewright.targets.cpu.isa import Isa, host_isa
from tilewright.targets.cpu.kernel import Declined, Layout
from tilewright.targets.cpu.loopnest import lower_nests
from tilewright.targets.cpu.product.integer import INTEGER
from tilewright.targets.cpu.template import Context, lower_with
from tilewright.testing.kernel_runner import KernelRunner

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One quantised convolution or matrix product on given shapes."""

    name: str
    op: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    attributes: dict[str, Any]

    @property
    def operations(self) -> int:
        per_element = int(np.prod(self.w[1:])) if self.op == "QLinearConv" else self.x[-1]
        return 2 * int(np.prod(self.y)) * per_element

    def constants(self) -> dict[str, Array]:
        """Everything but the input, by its position's name."""
        rng = np.random.default_rng(0)
        channels = self.w[0] if self.op == "QLinearConv" else self.w[1]
        steps = max(1.0, np.sqrt(self.operations / 2 / np.prod(self.y)))
        values: dict[str, Any] = {
            "xs": np.float32(0.02),
            "xz": np.uint8(120),
            "w": rng.integers(-127, 128, self.w).astype(np.int8),
            "ws": (rng.random(channels) * 0.01 + 0.005).astype(np.float32),
            "wz": np.zeros(channels, np.int8),
            "ys": np.float32(0.02 * 0.01 * steps * 90),
            "yz": np.uint8(128),
        }
        if self.op == "QLinearConv":
            values["b"] = rng.integers(-1000, 1000, channels).astype(np.int32)
        return {k: np.asarray(v) for k, v in values.items()}


def conv(c: int, k: int, size: int, kernel: int = 3, group: int = 1, stride: int = 1) -> Case:
    pad, out = kernel // 2, (size + stride - 1) // stride
    attributes = {"kernel_shape": (kernel,) * 2, "pads": (pad,) * 4, "group": group, "strides": (stride,) * 2}
    x, w, y = (1, c, size, size), (k, c // group, kernel, kernel), (1, k, out, out)
    name = f"conv {c}-{k} @{size} k{kernel}" + (f" g{group}" if group > 1 else "") + f" s{stride}"
    return Case(name, "QLinearConv", x, w, y, attributes)


def matmul(m: int, n: int, k: int) -> Case:
    return Case(f"gemm {m}x{n}x{k}", "QLinearMatMul", (m, k), (k, n), (m, n), {})


CASES = (
    matmul(128, 768, 768),
    matmul(128, 3072, 768),
    matmul(1, 1000, 512),
    conv(3, 64, 224, 7, stride=2),
    conv(64, 64, 56),
    conv(128, 128, 28),
    conv(256, 256, 14),
    conv(512, 512, 7),
    conv(64, 128, 56, stride=2),
    conv(64, 256, 56, 1),
    conv(256, 64, 56, 1),
    conv(512, 128, 28, 1),
    conv(512, 2048, 7, 1),
    conv(16, 96, 112, 1),
    conv(96, 24, 56, 1),
    conv(24, 144, 56, 1),
    conv(96, 96, 112, 3, group=96, stride=2),
    conv(144, 144, 56, 3, group=144),
    conv(576, 576, 14, 3, group=576),
)


def kernels_of(case: Case, isa: Isa) -> tuple[KernelRunner, list[KernelRunner], str]:
    """All kernels of the case, each alone, and what they are."""
    data = {"x": np.random.default_rng(1).integers(0, 256, case.x).astype(np.uint8), **case.constants()}
    values = {
        k: Value(k, DType.from_numpy(v.dtype), v.shape, None if k == "x" else v) for k, v in data.items()
    }
    order = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", *(["b"] if "b" in data else [])]
    node = Node(case.op, [values[k] for k in order], [Value("y", DType.UINT8, case.y)], case.attributes)
    nests = describe(node)
    assert isinstance(nests, tuple)

    def layout(shape: Sequence[int], is_constant: bool) -> Layout:
        return Layout((0, 2, 3, 1)) if len(shape) == 4 and not is_constant else Layout.row_major(len(shape))

    layouts = {("input", i): layout(data[k].shape, k != "x" or case.x[1] <= 3) for i, k in enumerate(order)}
    layouts["output", 0] = layout(case.y, False)
    layouts["table", 0] = Layout.row_major(1)
    constants = frozenset(("input", i) for i in range(1, len(order)))
    kernels = lower_with(INTEGER, nests[0], Context(isa, layouts, constants=constants))
    notes = "" if isinstance(kernels, Declined) else f"{kernels[-1].template} {kernels[-1].notes[0]}"
    if isinstance(kernels, Declined):
        kernels, notes = lower_nests(nests, layouts, isa), kernels.reason
    operands: dict[tuple[str, int], Array] = {("input", i): data[k] for i, k in enumerate(order)}
    operands["output", 0] = np.zeros(case.y, np.uint8)
    runners = [
        KernelRunner([k], operands, {**layouts, ("local", 0): Layout.row_major(1)}, isa) for k in kernels
    ]
    whole = KernelRunner(kernels, operands, {**layouts, ("local", 0): Layout.row_major(1)}, isa)
    return whole, runners, notes


def qdq_model(case: Case) -> onnx.ModelProto:
    """The case between QuantizeLinear and DequantizeLinear, as tools export it; bytes in and out."""
    data = case.constants()
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0 if "b" in data else 1),
    ]
    layer = ["xd", "wd"]
    if "b" in data:
        data["bs"] = data["xs"] * data["ws"]
        nodes.append(helper.make_node("DequantizeLinear", ["b", "bs"], ["bd"], axis=0))
        layer.append("bd")
    op = "Conv" if case.op == "QLinearConv" else "MatMul"
    nodes.append(helper.make_node(op, layer, ["t"], **case.attributes))
    nodes.append(helper.make_node("QuantizeLinear", ["t", "ys", "yz"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, case.x)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, case.y)],
        [numpy_helper.from_array(v, k) for k, v in data.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def onnxruntime_of(model: onnx.ModelProto, x: Array) -> Callable[[], Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})


def openvino_of(model: onnx.ModelProto, x: Array) -> Callable[[], Any]:
    import io

    import openvino

    core = openvino.Core()
    read = core.read_model(io.BytesIO(model.SerializeToString()))
    compiled = core.compile_model(read, "CPU", {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"})
    request = compiled.create_infer_request()
    request.set_input_tensor(openvino.Tensor(x))
    return request.infer


def best_ns(runs: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    best = [float("inf")] * len(runs)
    for run in runs:
        run()
    for _ in range(rounds):
        for position, run in enumerate(runs):
            start = time.perf_counter_ns()
            run()
            best[position] = min(best[position], time.perf_counter_ns() - start)
    return best


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("pattern", nargs="?", default="", help="part of the names of cases")
    parser.add_argument("rounds", nargs="?", type=int, default=60)


def main(arguments: Namespace) -> None:
    """Print the rates."""
    wanted, rounds = arguments.pattern, arguments.rounds
    isa = host_isa()
    print(f"{'case':28} {'us':>8} {'GOP/s':>7} {'parts us':>14} {'ORT':>6} {'OV':>6}  kernel")
    for case in CASES:
        if wanted not in case.name:
            continue
        whole, parts, notes = kernels_of(case, isa)
        model, x = qdq_model(case), np.random.default_rng(1).integers(0, 256, case.x).astype(np.uint8)
        runs = [whole, *parts, onnxruntime_of(model, x), openvino_of(model, x)]
        best = best_ns(runs, rounds)
        ours, split, peers = best[0], best[1:-2], best[-2:]
        each = "+".join(f"{t / 1e3:.1f}" for t in split)
        ratios = " ".join(f"{t / ours:5.2f}x" for t in peers)
        print(f"{case.name:28} {ours / 1e3:8.1f} {case.operations / ours:7.0f} {each:>14} {ratios}  {notes}")
