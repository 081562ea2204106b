"""Bandwidth and rate of generic loop-nest kernels beside numpy and ONNX Runtime, one thread, interleaved.

Run: `python -m benchmarks micro_loopnest [name-filter] [rounds] [instruction set]`. Informal: best of the
rounds. `ways` as fourth argument measures instead in turns the ways to run each nest that a form may choose,
beside the rules', and prints the five best.
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
from tilewright.ir.nest import Nests, Operand, operands_of
from tilewright.ir.ops.registry import describe
from tilewright.targets.cpu.isa import host_isa, isa_by_name
from tilewright.targets.cpu.kernel import Kernel, Layout, Layouts
from tilewright.targets.cpu.loopnest import loop_choices, lower_nests
from tilewright.targets.llvm.codegen import JitLibrary, compile_object
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import PTR, Int, Val
from tilewright.tuning import Choice

Array = np.ndarray[Any, Any]
NHWC = Layout((0, 2, 3, 1))


@dataclass
class Case:
    """One operator; `reference` is numpy's way, None where there is no simple one."""

    name: str
    op: str
    inputs: list[Array]
    output_shape: tuple[int, ...]
    attrs: dict[str, Any]
    layouts: Layouts
    flop: int = 0
    reference: Callable[..., Array] | None = None
    peer: bool = True
    constants: tuple[int, ...] = ()


def aligned(shape: Sequence[int], dtype: Any) -> Array:
    count = int(np.prod(shape)) if shape else 1
    size = count * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def nests_of(case: Case) -> Nests:
    """The operator as loop nests."""
    values = [
        Value(f"i{k}", DType.from_numpy(a.dtype), a.shape, a if k in case.constants else None)
        for k, a in enumerate(case.inputs)
    ]
    out = Value("o", DType.FLOAT32, case.output_shape)
    nests = describe(Node(case.op, values, [out], case.attrs))
    assert isinstance(nests, tuple)
    return nests


def kernel_runner(
    case: Case, isa: Any, choice: Choice | None = None
) -> tuple[Callable[[], None], Array, str]:
    """Runs the kernels of an operator, whose nests run as chosen if anything is."""
    nests = nests_of(case)
    kernels = lower_nests(nests, case.layouts, isa, lambda members: choice)
    memory: dict[tuple[str, int], Array] = {}
    for operand in operands_of(nests):
        layout = case.layouts.get(operand.key, Layout.row_major(len(operand.shape)))
        array = aligned([operand.shape[a] for a in layout.order], operand.dtype.numpy)
        if operand.kind == "input":
            array[...] = case.inputs[operand.position].transpose(layout.order)
        if operand.kind == "table":
            array[...] = operand.data
        memory[operand.key] = array
    scratch = aligned((max(k.scratch_bytes for k in kernels) + 64,), np.uint8)
    blocks = []
    runner = Emitter(triple=isa.triple)
    with runner.function("run"):
        for kernel in kernels:
            pointers = [memory[a.key].ctypes.data for a in kernel.args if isinstance(a, Operand)]
            blocks.append((ctypes.c_void_p * len(pointers))(*pointers))
            args = _address(ctypes.addressof(blocks[-1]))
            area = _address(scratch.ctypes.data)

            def call(
                index: Int, _: object, kernel: Kernel = kernel, args: Val = args, area: Val = area
            ) -> None:
                runner.call(kernel.symbol, [args, runner.index(index), area])

            runner.loop(0, kernel.num_chunks, 1, call)
    distinct = {k.symbol: k.text for k in kernels}
    start = time.perf_counter()
    objects = [compile_object(t, isa) for t in distinct.values()]
    compile_ms = 1e3 * (time.perf_counter() - start)
    library = JitLibrary(
        [*objects, compile_object(runner.text(), isa)], ["run"], keep_alive=(memory, blocks, scratch)
    )
    function = ctypes.CFUNCTYPE(None)(library["run"])
    layout = case.layouts.get(("output", 0), Layout.row_major(len(case.output_shape)))
    result = memory["output", 0].transpose(np.argsort(layout.order)) if layout.order else memory["output", 0]
    num_lines = sum(t.count("\n") for t in distinct.values())
    info = f"{num_lines} lines, {compile_ms:.0f} ms, {len(kernels)} kernels"

    def run(keep: Any = library) -> None:
        function()

    return run, result, info


def _address(address: int) -> Val:
    return Val(f"inttoptr (i64 {address} to ptr)", PTR)


def peer_runner(case: Case) -> tuple[Callable[[], None], Callable[[], Array]]:
    import onnxruntime as ort

    names = [f"i{k}" for k in range(len(case.inputs))]
    node = helper.make_node(case.op, names, ["o"], **case.attrs)
    element = {np.dtype(np.float32): 1, np.dtype(np.int64): 7}
    infos = [
        helper.make_tensor_value_info(n, element[a.dtype], a.shape)
        for k, (n, a) in enumerate(zip(names, case.inputs, strict=True))
        if k not in case.constants
    ]
    weights = [onnx.numpy_helper.from_array(case.inputs[k], f"i{k}") for k in case.constants]
    out = helper.make_tensor_value_info("o", 1, case.output_shape)
    graph = helper.make_graph([node], "g", infos, [out], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17 if case.op != "Gelu" else 20)])
    model.ir_version = 8
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    keep = [a for k, a in enumerate(case.inputs) if k not in case.constants]
    for info, array in zip(infos, keep, strict=True):
        binding.bind_ortvalue_input(info.name, ort.OrtValue.ortvalue_from_numpy(array))
    result = ort.OrtValue.ortvalue_from_numpy(np.zeros(case.output_shape, np.float32))
    binding.bind_ortvalue_output("o", result)
    return lambda: session.run_with_iobinding(binding), result.numpy


def cases() -> list[Case]:
    rng = np.random.default_rng(0)

    def r(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    found = []

    def add(name: str, op: str, inputs: list[Array], shape: tuple[int, ...], **more: Any) -> None:
        attrs, layouts = more.pop("attrs", {}), more.pop("layouts", {})
        found.append(Case(name, op, inputs, shape, attrs, layouts, **more))

    for label, shape in (("200KB", (56, 56, 16)), ("3MB", (56, 56, 256)), ("50MB", (16, 56, 56, 256))):
        add(f"add {label}", "Add", [r(*shape), r(*shape)], shape, reference=np.add)
        add(f"relu {label}", "Relu", [r(*shape)], shape, reference=lambda x: np.maximum(x, 0))
    add("gelu 384x3072", "Gelu", [r(384, 3072)], (384, 3072))
    add("sigmoid 384x3072", "Sigmoid", [r(384, 3072)], (384, 3072))
    for rows, n in ((1536, 128), (2364, 197), (64, 1000)):
        add(f"softmax {rows}x{n}", "Softmax", [r(rows, n)], (rows, n), attrs={"axis": -1})
    add("softmax axis1 2x64x3136", "Softmax", [r(2, 64, 3136)], (2, 64, 3136), attrs={"axis": 1})
    add("layernorm 197x768", "LayerNormalization", [r(197, 768), r(768), r(768)], (197, 768))
    sizes = ((144, 56, 1), (144, 56, 2), (192, 28, 1), (384, 14, 1), (576, 14, 1), (960, 7, 1), (32, 112, 1))
    sizes += ((96, 56, 2), (144, 28, 1), (384, 7, 1), (960, 4, 1))
    for c, h, s in sizes:
        oh = (h + 2 - 3) // s + 1
        layouts = {("input", 0): NHWC, ("output", 0): NHWC, ("input", 1): Layout((2, 3, 1, 0))}
        attrs = {"group": c, "kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (s, s)}
        add(
            f"dw3x3 {c}@{h} s{s}", "Conv", [r(1, c, h, h), r(c, 1, 3, 3), r(c)], (1, c, oh, oh),
            attrs=attrs, layouts=layouts, flop=2 * 9 * c * oh * oh, constants=(1, 2),
        )  # fmt: skip
    nhwc = {("input", 0): NHWC, ("input", 1): NHWC, ("output", 0): NHWC}
    pool = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 2)}
    for label, layout in (("nhwc", nhwc), ("nchw", {})):
        x = r(1, 64, 112, 112)
        add(f"maxpool3 s2 64@112 {label}", "MaxPool", [x], (1, 64, 56, 56), attrs=pool, layouts=layout)
        x = r(1, 2048, 7, 7)
        add(f"avgpool global 2048@7 {label}", "GlobalAveragePool", [x], (1, 2048, 1, 1), layouts=layout)
    add("transpose 197x768", "Transpose", [r(197, 768)], (768, 197), attrs={"perm": (1, 0)})
    split = {"perm": (0, 2, 1, 3)}
    add("heads 128x12x64 0213", "Transpose", [r(1, 128, 12, 64)], (1, 12, 128, 64), attrs=split)
    add("nchw->nhwc 64@56", "Transpose", [r(1, 64, 56, 56)], (1, 56, 56, 64), attrs={"perm": (0, 2, 3, 1)})
    ids = rng.integers(0, 30000, (128,))
    add("embedding 128x768", "Gather", [r(30000, 768), ids], (128, 768), attrs={"axis": 0})
    halves = [r(1, 96, 28, 28), r(1, 96, 28, 28)]
    add("concat 2x96@28 nhwc", "Concat", halves, (1, 192, 28, 28), attrs={"axis": 1}, layouts=nhwc)
    up = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    scales = np.array([1, 1, 2, 2], np.float32)
    inputs = [r(1, 128, 26, 26), np.zeros(0, np.float32), scales]
    for label, layout in (("nhwc", nhwc), ("nchw", {})):
        add(
            f"nearest x2 128@26 {label}", "Resize", inputs, (1, 128, 52, 52), attrs=up,
            layouts={k: v for k, v in layout.items() if k != ("input", 1)}, constants=(1, 2),
        )  # fmt: skip
    return found


def compare_ways(case: Case, rounds: int, isa: Any) -> None:
    """All ways to run a nest in turns, each in blocks as long as a call costs little."""
    (kernel, *_) = lower_nests(nests_of(case), case.layouts, isa)
    listed, more = loop_choices(kernel.loops[0], isa, divides=False)
    ways = (None, *listed, *more)
    runs = [kernel_runner(case, isa, way)[0] for way in ways]
    for run in runs:
        run()
    start = time.perf_counter()
    runs[0]()
    repeats = max(1, int(3e-4 / max(1e-7, time.perf_counter() - start)))
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for position, run in enumerate(runs):
            start = time.perf_counter()
            for _ in range(repeats):
                run()
            times[position].append((time.perf_counter() - start) / repeats)
    typical = [sorted(some)[rounds // 5] for some in times]
    print(f"{case.name}: {1e6 * typical[0]:.2f} us by rule, {len(listed)} ways listed, {len(more)} more")
    for position in sorted(range(len(ways)), key=typical.__getitem__)[:5]:
        print(f"    {typical[position] / typical[0]:.3f} {ways[position] or 'by rule'}")


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("pattern", nargs="?", default="", help="part of the names of cases")
    parser.add_argument("rounds", nargs="?", type=int, default=30)
    parser.add_argument("isa", nargs="?", default="host")
    parser.add_argument("what", nargs="?", default="peers", choices=("peers", "ways"))


def main(arguments: Namespace) -> None:
    """Print the rates."""
    pattern, rounds = arguments.pattern, arguments.rounds
    isa = host_isa() if arguments.isa == "host" else isa_by_name(arguments.isa)
    if arguments.what == "ways":
        for case in cases():
            if pattern in case.name:
                compare_ways(case, rounds, isa)
        return
    print(f"{'case':30} {'ours us':>9} {'GB/s':>6} {'GF/s':>6} {'numpy us':>9} {'ort us':>9} {'ort/ours':>8}")
    for case in cases():
        if pattern not in case.name:
            continue
        run, result, info = kernel_runner(case, isa)
        contestants: list[Callable[[], object]] = [run]
        peer_result = None
        if case.peer:
            peer, peer_result = peer_runner(case)
            contestants.append(peer)
        if case.reference is not None:
            out = np.empty(case.output_shape, np.float32)
            contestants.append(lambda c=case, out=out: np.copyto(out, c.reference(*c.inputs)))
        best = [float("inf")] * len(contestants)
        for contestant in contestants:
            contestant()
        if peer_result is not None:
            np.testing.assert_allclose(result, peer_result(), rtol=1e-3, atol=1e-4, err_msg=case.name)
        for _ in range(rounds):
            for position, contestant in enumerate(contestants):
                repeats = max(1, min(50, int(2e-3 / best[position]) if best[position] < 1 else 1))
                start = time.perf_counter()
                for _ in range(repeats):
                    contestant()
                best[position] = min(best[position], (time.perf_counter() - start) / repeats)
        moved = sum(a.nbytes for a in case.inputs if a.shape[0] != 30000) + result.nbytes
        ours = best[0]
        ort_us = best[1] * 1e6 if case.peer else float("nan")
        numpy_us = best[-1] * 1e6 if case.reference is not None else float("nan")
        print(
            f"{case.name:30} {ours * 1e6:9.1f} {moved / ours / 1e9:6.1f} {case.flop / ours / 1e9:6.1f} "
            f"{numpy_us:9.1f} {ort_us:9.1f} {ort_us / 1e6 / ours:8.2f}  {info}"
        )
