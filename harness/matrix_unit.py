"""The matrix unit emulated: kernels made for its tiles of bfloat16 run, bit for bit, where there is none.

Calls of the unit's instructions become calls of functions that follow the manual's description of them
(Intel's Software Developer's Manual, `TDPBF16PS`): even and odd products in two chains of fused
multiply-adds, values below the smallest normal number as zero, both chains added up, their sum added to the
tile. Everything else of a kernel is as it was generated.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace

from tilewright.hardware.host import host_machine
from tilewright.hardware.instruction_sets import AMX_NEEDS
from tilewright.hardware.machine import Machine
from tilewright.targets.cpu import codegen, target
from tilewright.targets.cpu.isa import Isa, host_isa, isa_of

_INSTRUCTIONS = "ldtilecfg|tilerelease|tilezero|tileloadd64|tilestored64|tdpbf16ps"
_CALL = re.compile(rf"call void @llvm\.x86\.({_INSTRUCTIONS})\((.*)\)")
_DECLARATION = re.compile(rf"^declare void @llvm\.x86\.({_INSTRUCTIONS})\(.*$", re.MULTILINE)
_FUNCTION = re.compile(r"^define .*?^\}", re.MULTILINE | re.DOTALL)
_TILES = "%emulated.tiles"
# Rounding to nearest, exceptions masked, denormals zero on both sides.
_MXCSR = 0x9FC0


def can_emulate() -> bool:
    """Whether this processor splits into bfloat16 as the kernels do, and has their vectors."""
    return "+avx512bf16" in host_isa().features.split(",") and host_isa().vector_bytes[0] == 64


def machine_with_matrix_unit() -> Machine:
    """This host with the unit."""
    machine = host_machine()
    instructions = machine.instructions
    assert instructions is not None
    features = tuple(sorted({*instructions.features, *AMX_NEEDS}))
    missing = tuple(name for name in instructions.missing_features if name not in AMX_NEEDS)
    update = {"features": features, "missing_features": missing}
    return machine.model_copy(update={"instructions": instructions.model_copy(update=update)})


def isa_with_matrix_unit() -> Isa:
    """What kernels may use of this host with the unit; code for it runs within `emulated_matrix_unit`."""
    return replace(isa_of(machine_with_matrix_unit()), runs_on_host=True)


@contextlib.contextmanager
def emulated_matrix_unit() -> Iterator[None]:
    """Within it, models are compiled for this host with the unit, and run with the emulation in its place."""
    prepared, machine, host = codegen.prepared_module, machine_with_matrix_unit(), target.host_machine
    threshold_s = codegen.PARALLEL_THRESHOLD_S

    def with_emulation(ir_text: str, *args: object, **named: object) -> object:
        return prepared(emulated(ir_text), *args, **named)  # type: ignore[arg-type]  # as they came

    codegen.prepared_module = with_emulation  # type: ignore[assignment]
    codegen.PARALLEL_THRESHOLD_S = float("inf")  # other processes would not know of the emulation
    target.host_machine = lambda: machine  # type: ignore[assignment]
    try:
        yield
    finally:
        codegen.prepared_module = prepared
        codegen.PARALLEL_THRESHOLD_S = threshold_s
        target.host_machine = host


def emulated(ir_text: str) -> str:
    """A module whose functions keep tiles on their stacks and call functions for the unit's instructions."""
    if not _CALL.search(ir_text):
        return ir_text

    def function(match: re.Match[str]) -> str:
        text, count = _CALL.subn(_emulated_call, match[0])
        if not count:
            return text
        place = f"entry:\n  {_TILES} = alloca [8 x [1024 x i8]], align 64"
        return text.replace("entry:", place, 1)

    module = _FUNCTION.sub(function, _DECLARATION.sub("", ir_text)) + _EMULATION
    return module if _FMA in ir_text else f"{module}\n{_FMA}\n"


def _emulated_call(match: re.Match[str]) -> str:
    operands = ", ".join(filter(None, (f"ptr {_TILES}", match[2])))
    return f"call void @emulated.{match[1]}({operands})"


def _copy(name: str, source: str, target: str) -> str:
    """A function that moves the rows of a tile from or to memory."""
    return f"""
define internal void @emulated.{name}(ptr %t, i8 %number, ptr %memory, i64 %pitch) noinline nounwind {{
entry:
  %n = zext i8 %number to i64
  %tile = getelementptr [1024 x i8], ptr %t, i64 %n
  br label %rows
rows:
  %m = phi i64 [ 0, %entry ], [ %next, %rows ]
  %inside = getelementptr [64 x i8], ptr %tile, i64 %m
  %shift = mul i64 %m, %pitch
  %outside = getelementptr i8, ptr %memory, i64 %shift
  %row = load <16 x i32>, ptr {source}, align 4
  store <16 x i32> %row, ptr {target}, align 4
  %next = add i64 %m, 1
  %more = icmp ult i64 %next, 16
  br i1 %more, label %rows, label %done
done:
  ret void
}}
"""


def _fill(name: str, more: str, first: str, count: int, word: int) -> str:
    """A function that gives one word to whole tiles."""
    return f"""
define internal void @emulated.{name}(ptr %t{more}) noinline nounwind {{
entry:
  %n = {first}
  %tile = getelementptr [1024 x i8], ptr %t, i64 %n
  br label %words
words:
  %w = phi i64 [ 0, %entry ], [ %next, %words ]
  %place = getelementptr i32, ptr %tile, i64 %w
  store i32 {word}, ptr %place
  %next = add i64 %w, 1
  %more = icmp ult i64 %next, {256 * count}
  br i1 %more, label %words, label %done
done:
  ret void
}}
"""


_FMA = "declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)"
_PRODUCTS = f"""
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

define internal void @emulated.tdpbf16ps(ptr %t, i8 %nc, i8 %na, i8 %nb) noinline nounwind {{
entry:
  %old = alloca i32
  %exact = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %old)
  store i32 {_MXCSR}, ptr %exact
  call void @llvm.x86.sse.ldmxcsr(ptr %exact)
  %ic = zext i8 %nc to i64
  %ia = zext i8 %na to i64
  %ib = zext i8 %nb to i64
  %c = getelementptr [1024 x i8], ptr %t, i64 %ic
  %a = getelementptr [1024 x i8], ptr %t, i64 %ia
  %b = getelementptr [1024 x i8], ptr %t, i64 %ib
  br label %rows
rows:
  %m = phi i64 [ 0, %entry ], [ %next.m, %finish ]
  %row.a = getelementptr [64 x i8], ptr %a, i64 %m
  br label %steps
steps:
  %k = phi i64 [ 0, %rows ], [ %next.k, %steps ]
  %even = phi <16 x float> [ zeroinitializer, %rows ], [ %next.even, %steps ]
  %odd = phi <16 x float> [ zeroinitializer, %rows ], [ %next.odd, %steps ]
  %at.a = getelementptr i32, ptr %row.a, i64 %k
  %pair = load i32, ptr %at.a
  %pair.0 = insertelement <16 x i32> poison, i32 %pair, i32 0
  %pairs = shufflevector <16 x i32> %pair.0, <16 x i32> poison, <16 x i32> zeroinitializer
  %row.b = getelementptr [64 x i8], ptr %b, i64 %k
  %words = load <16 x i32>, ptr %row.b
  %a.low = shl <16 x i32> %pairs, splat (i32 16)
  %b.low = shl <16 x i32> %words, splat (i32 16)
  %a.high = and <16 x i32> %pairs, splat (i32 -65536)
  %b.high = and <16 x i32> %words, splat (i32 -65536)
  %a.0 = bitcast <16 x i32> %a.low to <16 x float>
  %b.0 = bitcast <16 x i32> %b.low to <16 x float>
  %a.1 = bitcast <16 x i32> %a.high to <16 x float>
  %b.1 = bitcast <16 x i32> %b.high to <16 x float>
  %next.even = call <16 x float> @llvm.fma.v16f32(<16 x float> %a.0, <16 x float> %b.0, <16 x float> %even)
  %next.odd = call <16 x float> @llvm.fma.v16f32(<16 x float> %a.1, <16 x float> %b.1, <16 x float> %odd)
  %next.k = add i64 %k, 1
  %more.k = icmp ult i64 %next.k, 16
  br i1 %more.k, label %steps, label %finish
finish:
  %row.c = getelementptr [64 x i8], ptr %c, i64 %m
  %before = load <16 x float>, ptr %row.c
  %both = fadd <16 x float> %next.even, %next.odd
  %after = fadd <16 x float> %before, %both
  store <16 x float> %after, ptr %row.c
  %next.m = add i64 %m, 1
  %more.m = icmp ult i64 %next.m, 16
  br i1 %more.m, label %rows, label %done
done:
  call void @llvm.x86.sse.ldmxcsr(ptr %old)
  ret void
}}
"""
# Released tiles hold what shows: every word is a NaN.
_EMULATION = "".join(
    (
        _copy("tileloadd64", "%outside", "%inside"),
        _copy("tilestored64", "%inside", "%outside"),
        _fill("tilezero", ", i8 %number", "zext i8 %number to i64", 1, 0),
        _fill("ldtilecfg", ", ptr %palette", "add i64 0, 0", 8, 0),
        _fill("tilerelease", "", "add i64 0, 0", 8, -1),
        _PRODUCTS,
    )
)
