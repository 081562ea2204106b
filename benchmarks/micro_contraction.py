"""Rate of contraction kernels beside this core's FMA peak and ONNX Runtime, one thread, interleaved.

Run: `python -m benchmarks micro_contraction [name-filter] [rounds]`. Informal: best of the rounds.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from benchmarks.command import Namespace, Parser
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.ops.registry import describe
from tilewright.targets.cpu.isa import Isa, host_isa
from tilewright.targets.cpu.kernel import Declined, Layout
from tilewright.targets.cpu.loopnest import lower_nests
from tilewright.targets.cpu.product.contraction import CONTRACTION
from tilewright.targets.cpu.template import Context, lower_with
from tilewright.targets.llvm.codegen import JitLibrary, compile_object
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import vec
from tilewright.testing.kernel_runner import KernelRunner

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One operator on given shapes; the second input is a constant."""

    name: str
    op: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    attributes: dict[str, Any]

    @property
    def flop(self) -> int:
        per_element = int(np.prod(self.w[1:])) if self.op == "Conv" else self.x[-1]
        return 2 * int(np.prod(self.y)) * per_element


def conv(name: str, c: int, k: int, size: int, kernel: int = 3, group: int = 1, stride: int = 1) -> Case:
    pad, out = kernel // 2, (size + stride - 1) // stride
    attributes = {"kernel_shape": (kernel,) * 2, "pads": (pad,) * 4, "group": group, "strides": (stride,) * 2}
    x, w, y = (1, c, size, size), (k, c // group, kernel, kernel), (1, k, out, out)
    return Case(f"{name} {c}-{k} @{size} k{kernel} g{group}", "Conv", x, w, y, attributes)


def matmul(m: int, n: int, k: int) -> Case:
    return Case(f"gemm {m}x{n}x{k}", "MatMul", (m, k), (k, n), (m, n), {})


CASES = (
    matmul(128, 768, 768),
    matmul(197, 768, 768),
    matmul(1, 1000, 2048),
    *(matmul(512, n, 512) for n in (1, 2, 3, 4, 8, 12, 20)),
    matmul(64, 1, 4096),
    matmul(4096, 1, 64),
    *(matmul(3136, 64, k) for k in (4, 8, 16, 32)),
    conv("pointwise", 16, 96, 56, 1),
    conv("pointwise", 24, 144, 28, 1),
    conv("pointwise", 32, 16, 56, 1),
    conv("dense", 64, 64, 56),
    conv("dense", 256, 256, 14),
    conv("dense", 512, 512, 7),
    conv("grouped", 128, 128, 56, group=32),
    conv("grouped", 256, 256, 28, group=32),
    conv("grouped", 512, 512, 14, group=32),
    conv("grouped", 1024, 1024, 7, group=32),
    conv("strided", 256, 256, 28, group=32, stride=2),
)


def peak_gflops(isa: Isa) -> float:
    """What independent FMAs on registers reach."""
    lanes, chains, steps = isa.lanes(), 12, 1_000_000
    e = Emitter(triple=isa.triple, attributes=isa.function_attributes)
    kind = vec("float", lanes)
    with e.function("peak", ()) as _:
        one = e.constant(kind, 1.0)
        start = [(kind, e.constant(kind, float(i))) for i in range(chains)]
        total = e.loop(0, steps, 1, lambda i, values: [e.fma(one, one, v) for v in values], start)
        place = e.alloca(kind, chains)
        for i, value in enumerate(total):
            e.store(value, e.gep(place, i * kind.size_bytes))
    library = JitLibrary([compile_object(e.text(), isa)], exports=["peak"])
    run = ctypes.CFUNCTYPE(None)(library["peak"])
    return 2 * lanes * chains * steps / best_ns([run], 5)[0]


def kernel_of(case: Case, isa: Isa) -> tuple[KernelRunner, str]:
    rng = np.random.default_rng(0)
    data = [rng.standard_normal(s).astype(np.float32) for s in (case.x, case.w)]
    values = [Value("x", DType.FLOAT32, case.x), Value("w", DType.FLOAT32, case.w, data[1])]
    node = Node(case.op, values, [Value("y", DType.FLOAT32, case.y)], case.attributes)
    nests = describe(node)
    assert isinstance(nests, tuple)

    def layout(shape: Sequence[int]) -> Layout:
        return Layout((0, 2, 3, 1)) if len(shape) == 4 else Layout.row_major(len(shape))

    layouts = {
        ("input", 0): layout(case.x),
        ("input", 1): Layout.row_major(len(case.w)),
        ("output", 0): layout(case.y),
    }
    constants = frozenset({("input", 1)})
    kernels = lower_with(CONTRACTION, nests[0], Context(isa, layouts, "strict", constants))
    notes = "" if isinstance(kernels, Declined) else kernels[-1].notes[0]
    if isinstance(kernels, Declined):
        kernels, notes = lower_nests(nests, layouts, isa), kernels.reason
    operands = {("input", 0): data[0], ("input", 1): data[1], ("output", 0): np.zeros(case.y, np.float32)}
    return KernelRunner(kernels, operands, layouts, isa), notes


def peer_of(case: Case) -> Callable[[], Any]:
    import onnxruntime as ort

    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.standard_normal(case.w).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node(case.op, ["x", "w"], ["y"], **case.attributes)],
        "g",
        [helper.make_tensor_value_info("x", 1, case.x)],
        [helper.make_tensor_value_info("y", 1, case.y)],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    feed = {"x": rng.standard_normal(case.x).astype(np.float32)}
    return lambda: session.run(None, feed)


def best_ns(runs: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    best = [float("inf")] * len(runs)
    for _ in range(rounds):
        for number, run in enumerate(runs):
            start = time.perf_counter_ns()
            run()
            best[number] = min(best[number], time.perf_counter_ns() - start)
    return best


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("pattern", nargs="?", default="", help="part of the names of cases")
    parser.add_argument("rounds", nargs="?", type=int, default=30)


def main(arguments: Namespace) -> None:
    """Print the rates."""
    pattern, rounds = arguments.pattern, arguments.rounds
    isa = host_isa()
    peak = peak_gflops(isa)
    print(f"{isa.name}: FMA peak {peak:.0f} GF/s")
    print(f"{'case':<34}{'GF/s':>8}{'% peak':>8}{'ORT GF/s':>10}{'ORT/ours':>10}  tile")
    for case in CASES:
        if pattern not in case.name:
            continue
        runner, notes = kernel_of(case, isa)
        ours, theirs = best_ns([runner, peer_of(case)], rounds)
        rate = case.flop / ours
        print(
            f"{case.name:<34}{rate:>8.1f}{100 * rate / peak:>8.0f}{case.flop / theirs:>10.1f}"
            f"{theirs / ours:>10.2f}  {notes}"
        )
