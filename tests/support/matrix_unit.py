"""The matrix unit emulated: kernels made for its tiles run, bit for bit, where there is none.

Calls of the unit's instructions become calls of functions that follow the manual's description of them
(Intel's Software Developer's Manual). `TDPBF16PS`: even and odd products in two chains of fused
multiply-adds, values below the smallest normal number as zero, both chains added up, their sum added to the
tile. `TDPBSSD` and `TDPBUSD`: four products of bytes a word, added in 32 bits. A tile's rows and bytes are
those of the palette, what lies beyond is zero. Rounding to bfloat16 is emulated where vectors have no
instruction for it. Everything else of a kernel is as it was generated.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace

from tests.support.processor_features import MATRIX_FEATURES
from tests.support.processors import machine_as

from tilewright.targets.cpu.isa import Isa, host_isa, isa_of
from tilewright.targets.cpu.product.matrix import choose
from tilewright.targets.llvm import codegen

_INSTRUCTIONS = "ldtilecfg|tilerelease|tilezero|tileloadd64|tilestored64|tdpbf16ps|tdpbssd|tdpbusd"
_CALL = re.compile(rf"call void @llvm\.x86\.({_INSTRUCTIONS})\((.*)\)")
_DECLARATION = re.compile(rf"^declare void @llvm\.x86\.({_INSTRUCTIONS})\(.*$", re.MULTILINE)
_FUNCTION = re.compile(r"^define .*?^\}", re.MULTILINE | re.DOTALL)
_ROUNDING = "@llvm.x86.avx512bf16.cvtne2ps2bf16.512("
_TILES = "%emulated.tiles"
# Eight tiles, behind them the palette.
_STATE = "{ [8 x [1024 x i8]], [64 x i8] }"
# Rounding to nearest, exceptions masked, denormals zero on both sides.
_MXCSR = 0x9FC0


def can_emulate() -> bool:
    """Whether this processor has the vectors of kernels for the unit."""
    return host_isa().arch == "x86_64" and host_isa().vector_bytes[0] == 64


def isa_with_matrix_unit() -> Isa:
    """What kernels may use of this host with the unit; code for it runs within `emulated_matrix_unit`."""
    return replace(isa_of(machine_as("amx")), runs_on_host=True)


@contextlib.contextmanager
def emulated_matrix_unit() -> Iterator[None]:
    """Within it, code that is generated in this process has the emulation in place of the unit."""
    from tilewright.targets.cpu.image.code import CpuCode

    prepared, threshold_s = codegen.prepared_module, codegen.PARALLEL_THRESHOLD_S
    load = CpuCode.load
    emulate_matrix_unit()
    # Code for the unit runs here, whatever the record of the instruction set says.
    CpuCode.load = lambda code, num_threads: code.image.load(num_threads)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        CpuCode.load = load  # type: ignore[method-assign]
        codegen.prepared_module = prepared
        codegen.PARALLEL_THRESHOLD_S = threshold_s


@contextlib.contextmanager
def steady_matrix_unit() -> Iterator[None]:
    """Within it kernels are chosen as for a unit that is in its better state at any time."""
    asked = choose.STATES["default"]
    choose.STATES["default"] = "better"
    try:
        yield
    finally:
        choose.STATES["default"] = asked


def emulate_matrix_unit() -> None:
    """The same until the process ends."""
    prepared = codegen.prepared_module

    def with_emulation(ir_text: str, isa: codegen.CodeTarget, **named: bool) -> object:
        if isinstance(isa, Isa):  # what LLVM may choose by itself, this processor must have
            features = (f"-{f[1:]}" if f[1:] in MATRIX_FEATURES else f for f in isa.features.split(","))
            isa = replace(isa, features=",".join(features))
        return prepared(emulated(ir_text), isa, **named)

    codegen.prepared_module = with_emulation  # type: ignore[assignment]
    codegen.PARALLEL_THRESHOLD_S = float("inf")  # other processes would not know of the emulation


def emulated(ir_text: str) -> str:
    """A module whose functions keep tiles on their stacks and call functions for the unit's instructions."""
    if _ROUNDING in ir_text:
        rounds = re.compile(rf"^declare .*{re.escape(_ROUNDING)}.*$", re.MULTILINE)
        ir_text = rounds.sub("", ir_text).replace(_ROUNDING, "@emulated.cvtne2ps2bf16(") + _ROUND
    if not _CALL.search(ir_text):
        return ir_text

    def function(match: re.Match[str]) -> str:
        text, count = _CALL.subn(_emulated_call, match[0])
        if not count:
            return text
        place = f"entry:\n  {_TILES} = alloca {_STATE}, align 64"
        return text.replace("entry:", place, 1)

    module = _FUNCTION.sub(function, _DECLARATION.sub("", ir_text)) + _EMULATION
    return "\n".join((module, *(line for line in _DECLARED if line not in ir_text), ""))


def _emulated_call(match: re.Match[str]) -> str:
    operands = ", ".join(filter(None, (f"ptr {_TILES}", match[2])))
    return f"call void @emulated.{match[1]}({operands})"


_ROUND = """
define internal <16 x i16> @emulated.rounded(<16 x float> %x) noinline nounwind {
entry:
  %u = bitcast <16 x float> %x to <16 x i32>
  %high = lshr <16 x i32> %u, splat (i32 16)
  %odd = and <16 x i32> %high, splat (i32 1)
  %bias = add <16 x i32> %odd, splat (i32 32767)
  %sum = add <16 x i32> %u, %bias
  %near = lshr <16 x i32> %sum, splat (i32 16)
  %quiet = or <16 x i32> %high, splat (i32 64)
  %sign = and <16 x i32> %high, splat (i32 32768)
  %magnitude = and <16 x i32> %u, splat (i32 2147483647)
  %nan = icmp ugt <16 x i32> %magnitude, splat (i32 2139095040)
  %small = icmp ult <16 x i32> %magnitude, splat (i32 8388608)
  %some = select <16 x i1> %nan, <16 x i32> %quiet, <16 x i32> %near
  %all = select <16 x i1> %small, <16 x i32> %sign, <16 x i32> %some
  %words = trunc <16 x i32> %all to <16 x i16>
  ret <16 x i16> %words
}

define internal <32 x bfloat> @emulated.cvtne2ps2bf16(<16 x float> %high, <16 x float> %low) noinline {
entry:
  %a = call <16 x i16> @emulated.rounded(<16 x float> %low)
  %b = call <16 x i16> @emulated.rounded(<16 x float> %high)
  %both = shufflevector <16 x i16> %a, <16 x i16> %b, <32 x i32> <INDICES>
  %rounded = bitcast <32 x i16> %both to <32 x bfloat>
  ret <32 x bfloat> %rounded
}
""".replace("INDICES", ", ".join(f"i32 {number}" for number in range(32)))


_LANES = ", ".join(f"i8 {lane}" for lane in range(64))
_SHAPE = f"""
  %n = zext i8 %number to i64
  %tile = getelementptr [1024 x i8], ptr %t, i64 %n
  %palette = getelementptr i8, ptr %t, i64 8192
  %of.rows = add i64 %n, 48
  %at.rows = getelementptr i8, ptr %palette, i64 %of.rows
  %byte.rows = load i8, ptr %at.rows
  %num.rows = zext i8 %byte.rows to i64
  %of.width = add i64 %n, 8
  %at.width = getelementptr i16, ptr %palette, i64 %of.width
  %word.width = load i16, ptr %at.width
  %width = trunc i16 %word.width to i8
  %width.0 = insertelement <64 x i8> poison, i8 %width, i32 0
  %widths = shufflevector <64 x i8> %width.0, <64 x i8> poison, <64 x i32> zeroinitializer
  %mask = icmp ult <64 x i8> <{_LANES}>, %widths
"""
_MASKED_LOAD = "call <64 x i8> @llvm.masked.load.v64i8.p0"
_COPIES = f"""
define internal void @emulated.tileloadd64(ptr %t, i8 %number, ptr %memory, i64 %pitch) noinline nounwind {{
entry:{_SHAPE}
  br label %rows
rows:
  %m = phi i64 [ 0, %entry ], [ %next, %rows ]
  %is.row = icmp ult i64 %m, %num.rows
  %inside = getelementptr [64 x i8], ptr %tile, i64 %m
  %shift = mul i64 %m, %pitch
  %outside = getelementptr i8, ptr %memory, i64 %shift
  %wanted = select i1 %is.row, <64 x i1> %mask, <64 x i1> zeroinitializer
  %row = {_MASKED_LOAD}(ptr %outside, i32 1, <64 x i1> %wanted, <64 x i8> zeroinitializer)
  store <64 x i8> %row, ptr %inside, align 64
  %next = add i64 %m, 1
  %more = icmp ult i64 %next, 16
  br i1 %more, label %rows, label %done
done:
  ret void
}}

define internal void @emulated.tilestored64(ptr %t, i8 %number, ptr %memory, i64 %pitch) noinline nounwind {{
entry:{_SHAPE}
  br label %rows
rows:
  %m = phi i64 [ 0, %entry ], [ %next, %rows ]
  %inside = getelementptr [64 x i8], ptr %tile, i64 %m
  %shift = mul i64 %m, %pitch
  %outside = getelementptr i8, ptr %memory, i64 %shift
  %row = load <64 x i8>, ptr %inside, align 64
  call void @llvm.masked.store.v64i8.p0(<64 x i8> %row, ptr %outside, i32 1, <64 x i1> %mask)
  %next = add i64 %m, 1
  %more = icmp ult i64 %next, %num.rows
  br i1 %more, label %rows, label %done
done:
  ret void
}}
"""


def _fill(name: str, more: str, first: str, count: int, word: int, *before: str) -> str:
    """A function that gives one word to whole tiles."""
    return f"""
define internal void @emulated.{name}(ptr %t{more}) noinline nounwind {{
entry:
{"".join(f"  {line}{chr(10)}" for line in before)}  %n = {first}
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


def _byte_products(name: str, extension: str) -> str:
    """A function that adds products of bytes; `extension` is the shift that widens those of A."""
    lines: list[str] = []
    for byte in range(4):
        up = 24 - 8 * byte
        lines += [
            f"%a.up.{byte} = shl <16 x i32> %pairs, splat (i32 {up})",
            f"%a.{byte} = {extension} <16 x i32> %a.up.{byte}, splat (i32 24)",
            f"%b.up.{byte} = shl <16 x i32> %words, splat (i32 {up})",
            f"%b.{byte} = ashr <16 x i32> %b.up.{byte}, splat (i32 24)",
            f"%product.{byte} = mul <16 x i32> %a.{byte}, %b.{byte}",
            f"%sum.{byte + 1} = add <16 x i32> %sum.{byte}, %product.{byte}",
        ]
    step = "\n  ".join(lines)
    return f"""
define internal void @emulated.{name}(ptr %t, i8 %nc, i8 %na, i8 %nb) noinline nounwind {{
entry:
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
  %row.c = getelementptr [64 x i8], ptr %c, i64 %m
  %before = load <16 x i32>, ptr %row.c
  br label %steps
steps:
  %k = phi i64 [ 0, %rows ], [ %next.k, %steps ]
  %sum.0 = phi <16 x i32> [ %before, %rows ], [ %sum.4, %steps ]
  %at.a = getelementptr i32, ptr %row.a, i64 %k
  %pair = load i32, ptr %at.a
  %pair.0 = insertelement <16 x i32> poison, i32 %pair, i32 0
  %pairs = shufflevector <16 x i32> %pair.0, <16 x i32> poison, <16 x i32> zeroinitializer
  %row.b = getelementptr [64 x i8], ptr %b, i64 %k
  %words = load <16 x i32>, ptr %row.b
  {step}
  %next.k = add i64 %k, 1
  %more.k = icmp ult i64 %next.k, 16
  br i1 %more.k, label %steps, label %finish
finish:
  store <16 x i32> %sum.4, ptr %row.c
  %next.m = add i64 %m, 1
  %more.m = icmp ult i64 %next.m, 16
  br i1 %more.m, label %rows, label %done
done:
  ret void
}}
"""


# Released tiles hold what shows: every word is a NaN.
_EMULATION = "".join(
    (
        _COPIES,
        _fill("tilezero", ", i8 %number", "zext i8 %number to i64", 1, 0),
        _fill(
            "ldtilecfg",
            ", ptr %palette",
            "add i64 0, 0",
            8,
            0,
            "%kept = getelementptr i8, ptr %t, i64 8192",
            "%shape = load <64 x i8>, ptr %palette, align 1",
            "store <64 x i8> %shape, ptr %kept, align 1",
        ),
        _fill("tilerelease", "", "add i64 0, 0", 8, -1),
        _PRODUCTS,
        _byte_products("tdpbssd", "ashr"),
        _byte_products("tdpbusd", "lshr"),
    )
)
_DECLARED = (
    _FMA,
    "declare <64 x i8> @llvm.masked.load.v64i8.p0(ptr, i32, <64 x i1>, <64 x i8>)",
    "declare void @llvm.masked.store.v64i8.p0(<64 x i8>, ptr, i32, <64 x i1>)",
)
