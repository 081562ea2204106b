"""Bandwidth and rate of generic loop-nest kernels beside numpy and ONNX Runtime, one thread, interleaved.

Run: `python benchmarks/micro_loopnest.py [name-filter] [rounds]`. Informal: best of the rounds, shared machine.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Operand, operands_of
from tilewright.ir.ops.registry import describe
from tilewright.targets.cpu.codegen import JitLibrary, compile_object
from tilewright.targets.cpu.isa import host_isa, isa_by_name
from tilewright.targets.cpu.kernel import Layout, Layouts
from tilewright.targets.cpu.loopnest import lower_nests

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


def kernel_runner(case: Case, isa: Any) -> tuple[Callable[[], None], Array, str]:
    values = [
        Value(f"i{k}", DType.from_numpy(a.dtype), a.shape, a if k in case.constants else None)
        for k, a in enumerate(case.inputs)
    ]
    out = Value("o", DType.FLOAT32, case.output_shape)
    nests = describe(Node(case.op, values, [out], case.attrs))
    assert isinstance(nests, tuple)
    kernels = lower_nests(nests, case.layouts, isa)
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
    body, blocks, texts = [], [], []
    for number, kernel in enumerate(kernels):
        pointers = [memory[a.key].ctypes.data for a in kernel.args if isinstance(a, Operand)]
        block = (ctypes.c_void_p * len(pointers))(*pointers)
        blocks.append(block)
        texts.append(kernel.text)
        where = f"inttoptr (i64 {ctypes.addressof(block)} to ptr)"
        body.append(
            f"br label %l{number}\nl{number}:\n"
            f"%c{number} = phi i64 [0, %{'entry' if number == 0 else f'l{number - 1}'}], [%n{number}, %l{number}]\n"
            f"call void @{kernel.symbol}(ptr {where}, i64 %c{number}, ptr inttoptr (i64 {scratch.ctypes.data} to ptr))\n"
            f"%n{number} = add i64 %c{number}, 1\n"
            f"%d{number} = icmp eq i64 %n{number}, {kernel.num_chunks}\n"
            f"br i1 %d{number}, label %e{number}, label %l{number}\n"
        )
    # Each loop continues at the next one's entry.
    text = "".join(f"declare void @{s}(ptr, i64, ptr)\n" for s in {k.symbol for k in kernels})
    joined = "define void @run() {\nentry:\n"
    for number, part in enumerate(body):
        joined += part.replace(f"%e{number}", f"%e{number}")
        joined += f"e{number}:\n"
    for number in range(1, len(body)):
        joined = joined.replace(f"[0, %l{number - 1}]", f"[0, %e{number - 1}]")
    text += joined + "ret void\n}\n"
    distinct = {k.symbol: k.text for k in kernels}
    start = time.perf_counter()
    objects = [compile_object(t, isa) for t in distinct.values()]
    compile_ms = 1e3 * (time.perf_counter() - start)
    library = JitLibrary([*objects, compile_object(text, isa)], ["run"], keep_alive=(memory, blocks, scratch))
    function = ctypes.CFUNCTYPE(None)(library["run"])
    layout = case.layouts.get(("output", 0), Layout.row_major(len(case.output_shape)))
    result = memory["output", 0].transpose(np.argsort(layout.order)) if layout.order else memory["output", 0]
    info = f"{sum(t.count(chr(10)) for t in distinct.values())} lines, {compile_ms:.0f} ms, {len(kernels)} kernels"

    def run(keep: Any = library) -> None:
        function()

    return run, result, info


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
    for label, shape in (("200KB", (56, 56, 16)), ("3MB", (56, 56, 256)), ("50MB", (16, 56, 56, 256))):
        found.append(Case(f"add {label}", "Add", [r(*shape), r(*shape)], shape, {}, {}, reference=np.add))
        found.append(
            Case(f"relu {label}", "Relu", [r(*shape)], shape, {}, {}, reference=lambda x: np.maximum(x, 0))
        )
    found.append(Case("gelu 384x3072", "Gelu", [r(384, 3072)], (384, 3072), {}, {}))
    found.append(Case("sigmoid 384x3072", "Sigmoid", [r(384, 3072)], (384, 3072), {}, {}))
    for rows, n in ((1536, 128), (2364, 197), (64, 1000)):
        found.append(Case(f"softmax {rows}x{n}", "Softmax", [r(rows, n)], (rows, n), {"axis": -1}, {}))
    found.append(Case("softmax axis1 2x64x3136", "Softmax", [r(2, 64, 3136)], (2, 64, 3136), {"axis": 1}, {}))
    found.append(
        Case("layernorm 197x768", "LayerNormalization", [r(197, 768), r(768), r(768)], (197, 768), {}, {})
    )
    for c, h, s in ((144, 56, 1), (144, 56, 2), (192, 28, 1), (384, 14, 1), (576, 14, 1), (960, 7, 1), (32, 112, 1)):
        oh = (h + 2 - 3) // s + 1
        layouts = {("input", 0): NHWC, ("output", 0): NHWC, ("input", 1): Layout((2, 3, 1, 0))}
        attrs = {"group": c, "kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (s, s)}
        flop = 2 * 9 * c * oh * oh
        x, w, b = r(1, c, h, h), r(c, 1, 3, 3), r(c)
        found.append(Case(f"dw3x3 {c}@{h} s{s}", "Conv", [x, w, b], (1, c, oh, oh), attrs, layouts, flop, constants=(1, 2)))
    layouts = {("input", 0): NHWC, ("output", 0): NHWC}
    pool = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 2)}
    found.append(Case("maxpool3 s2 64@112 nhwc", "MaxPool", [r(1, 64, 112, 112)], (1, 64, 56, 56), pool, layouts))
    found.append(Case("maxpool3 s2 64@112 nchw", "MaxPool", [r(1, 64, 112, 112)], (1, 64, 56, 56), pool, {}))
    found.append(Case("avgpool global 2048@7 nhwc", "GlobalAveragePool", [r(1, 2048, 7, 7)], (1, 2048, 1, 1), {}, layouts))
    found.append(Case("avgpool global 2048@7 nchw", "GlobalAveragePool", [r(1, 2048, 7, 7)], (1, 2048, 1, 1), {}, {}))
    found.append(Case("transpose 197x768->T", "Transpose", [r(197, 768)], (768, 197), {"perm": (1, 0)}, {}))
    found.append(Case("heads 128x12x64 0213", "Transpose", [r(1, 128, 12, 64)], (1, 12, 128, 64), {"perm": (0, 2, 1, 3)}, {}))
    found.append(Case("nchw->nhwc 64@56", "Transpose", [r(1, 64, 56, 56)], (1, 56, 56, 64), {"perm": (0, 2, 3, 1)}, {}))
    ids = rng.integers(0, 30000, (128,))
    found.append(Case("embedding 128x768", "Gather", [r(30000, 768), ids], (128, 768), {"axis": 0}, {}))
    found.append(Case("concat 2x96@28 c", "Concat", [r(1, 96, 28, 28), r(1, 96, 28, 28)], (1, 192, 28, 28), {"axis": 1}, {k: NHWC for k in (("input", 0), ("input", 1), ("output", 0))}))
    return found


def main(pattern: str = "", rounds: int = 30, isa_name: str = "host") -> None:
    isa = host_isa() if isa_name == "host" else isa_by_name(isa_name)
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


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else "",
        int(sys.argv[2]) if len(sys.argv) > 2 else 30,
        sys.argv[3] if len(sys.argv) > 3 else "host",
    )
