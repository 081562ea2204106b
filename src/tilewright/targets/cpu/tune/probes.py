"""Short measurements of this host: core-to-core latency, FMA peak, memory bandwidth, region latency.

Each takes about 50 ms and is made only on demand, by `doctor` and by benchmarks: multi-threaded results mean
little without the latency between cores, which on virtual machines changes as their cores are moved.
"""

from __future__ import annotations

import ctypes
import functools
import statistics
import threading
import time
from collections.abc import Callable

from tilewright.hardware.probe import resolve_threads
from tilewright.records import dataclass
from tilewright.targets.cpu.isa import Isa, host_isa
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW, TILE_ROWS, configure, release
from tilewright.targets.cpu.product.matrix.tiles import (
    TERMS,
    TILE_COLUMNS,
    TILE_DEPTH,
    Block,
    clear_sums,
    multiply,
)
from tilewright.targets.cpu.runtime.executor import Executor
from tilewright.targets.cpu.runtime.main_code import ArgRef, Launch, build_main, link_main
from tilewright.targets.cpu.runtime.pool import AlignedBuffer
from tilewright.targets.cpu.runtime.pool_ir import pause_ir
from tilewright.targets.llvm.codegen import JitLibrary, compile_object
from tilewright.targets.llvm.emitter import Emitter, Param
from tilewright.targets.llvm.values import I64, PTR, vec

_PROBE_S = 0.05
FMAS = 12  # covers FMA latency 4 on two ports with room; fits 16 registers
TILE_PRODUCTS = 4
_CACHED_BYTES = 4 << 20
_NUM_PASSES = 30  # per sample: few, because each takes a time slice while both threads share a core


@dataclass(frozen=True, slots=True)
class LatencyProbe:
    """One-way time for a cache line to pass from one core to another: least and median of the samples."""

    min_ns: float
    median_ns: float
    num_samples: int


@dataclass(frozen=True, slots=True)
class FmaProbe:
    """Fused multiply-adds in float32 on registers only, counted as two operations each."""

    num_threads: int
    peak_flop_per_s: float
    vector_bytes: int


@dataclass(frozen=True, slots=True)
class TileProbe:
    """Products of bfloat16 tiles on registers only, each multiply-add counted as two operations."""

    num_threads: int
    peak_flop_per_s: float


@dataclass(frozen=True, slots=True)
class BandwidthProbe:
    """Reading a buffer once, by all threads, best pass."""

    num_threads: int
    footprint_bytes: int
    read_bytes_per_s: float


def probe_latency() -> LatencyProbe | None:
    """Two threads pass a word to and fro; None where only one core may be used.

    A run in which both threads share a core is preempted rather than fast, so it cannot lower the result.
    """
    if resolve_threads(None) < 2:
        return None
    isa = host_isa()
    library = JitLibrary([compile_object(_ping_ir(isa), isa)], ["ping"])
    ping = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(library["ping"])
    word = AlignedBuffer(64)
    partner = threading.Thread(target=ping, args=(word.address, 1, 1 << 62))
    partner.start()
    samples: list[float] = []
    try:
        deadline = time.perf_counter() + _PROBE_S
        while len(samples) < 3 or time.perf_counter() < deadline:
            start = time.perf_counter_ns()
            ping(word.address, 0, _NUM_PASSES)
            samples.append((time.perf_counter_ns() - start) / (2 * _NUM_PASSES))
    finally:
        shared = ctypes.c_int64.from_address(word.address)
        while shared.value & 1:  # the partner's turn: what it writes must not follow the end mark
            time.sleep(0)
        shared.value = -1
        partner.join()
    return LatencyProbe(min(samples), statistics.median(samples), len(samples))


def probe_fma_peak(num_threads: int = 1, isa: Isa | None = None) -> FmaProbe:
    """Independent chains of FMAs in the widest vectors of an instruction set, by default this host's."""
    isa = isa or host_isa()
    iterations = 20_000
    flop = 2 * isa.lanes() * FMAS * iterations
    executor = probe_executor(fma_ir(isa, iterations), "fma", num_threads, num_chunks=4 * num_threads)
    out = AlignedBuffer(64 * 4 * num_threads)
    best_s = _best_s(lambda: executor.run([out.address, 0]))
    return FmaProbe(num_threads, 4 * num_threads * flop / best_s, isa.vector_bytes[0])


def probe_tile_peak(num_threads: int = 1) -> TileProbe | None:
    """Independent sums of tile products on the matrix unit; None where there is none."""
    isa = host_isa()
    if not isa.has_matrix_unit:
        return None
    iterations = 5_000
    executor = probe_executor(tile_ir(isa, iterations), "tile", num_threads, num_chunks=4 * num_threads)
    out = AlignedBuffer(64)
    best_s = _best_s(lambda: executor.run([out.address, 0]))
    flop = 2 * TILE_ROWS * TILE_COLUMNS * TILE_DEPTH * TILE_PRODUCTS * iterations
    return TileProbe(num_threads, 4 * num_threads * flop / best_s)


def probe_bandwidth(num_threads: int = 1, footprint_bytes: int = 256 << 20) -> BandwidthProbe:
    """Read `footprint_bytes` in order, again and again: at the speed of where so much data stays.

    Make it larger than the caches for the memory's speed. Each thread reads what fits its own cache several
    times in a row, so that starting the threads does not count.
    """
    isa = host_isa()
    num_passes = max(1, num_threads * _CACHED_BYTES // max(1, footprint_bytes))
    num_chunks = num_threads if num_passes > 1 else 8 * num_threads
    chunk_bytes = max(4096, footprint_bytes // num_chunks // 4096 * 4096)
    text = read_ir(isa, chunk_bytes, num_passes)
    executor = probe_executor(text, "read", num_threads, num_chunks=num_chunks)
    out, data = AlignedBuffer(64 * num_chunks), AlignedBuffer(chunk_bytes * num_chunks)
    ctypes.memset(data.address, 1, chunk_bytes * num_chunks)  # untouched pages are all one page of zeros
    best_s = _best_s(lambda: executor.run([out.address, data.address]))
    read_bytes = num_passes * chunk_bytes * num_chunks
    return BandwidthProbe(num_threads, chunk_bytes * num_chunks, read_bytes / best_s)


def probe_executor(text: str, symbol: str, num_threads: int, *, num_chunks: int) -> Executor:
    """What runs a probe's function on threads."""
    isa = host_isa()
    main = build_main([Launch(symbol, num_chunks, (ArgRef(1), ArgRef(2)))], isa)
    return Executor(main, link_main(main, [_compiled(text)], isa), num_threads=num_threads)


@functools.cache
def _compiled(text: str) -> bytes:
    return compile_object(text, host_isa())


def _best_s(action: Callable[[], None]) -> float:
    """Least time of the runs that fit the probe's time; at least three."""
    action()
    samples: list[float] = []
    deadline = time.perf_counter() + _PROBE_S
    while len(samples) < 3 or time.perf_counter() < deadline:
        start = time.perf_counter()
        action()
        samples.append(time.perf_counter() - start)
    return min(samples)


def _ping_ir(isa: Isa) -> str:
    """`ping(word, me, n)`: n times, wait until the word's parity is mine, then add one; ends if negative.

    The side that ends the game (parity 0) overwrites the word in its turn, when nobody else writes.
    """
    declaration, pause = pause_ir(isa.triple)
    return f"""
{declaration}
define void @ping(ptr %word, i64 %me, i64 %n) nounwind {{
entry:
  br label %turn
turn:
  %i = phi i64 [0, %entry], [%i1, %mine]
  br label %wait
wait:
  %seen = load atomic i64, ptr %word acquire, align 64
  %over = icmp slt i64 %seen, 0
  br i1 %over, label %exit, label %compare
compare:
  %parity = and i64 %seen, 1
  %ready = icmp eq i64 %parity, %me
  br i1 %ready, label %mine, label %rest
rest:
  {pause}
  br label %wait
mine:
  %next = add i64 %seen, 1
  store atomic i64 %next, ptr %word release, align 64
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %n
  br i1 %more, label %turn, label %exit
exit:
  ret void
}}
"""


def fma_ir(isa: Isa, iterations: int) -> str:
    """`FMAS` independent chains of multiply-adds."""
    vector = f"<{isa.lanes()} x float>"
    intrinsic = f"@llvm.fma.v{isa.lanes()}f32"
    numbers = range(FMAS)
    phis = "\n".join(f"  %a{k} = phi {vector} [%start, %entry], [%b{k}, %loop]" for k in numbers)
    steps = "\n".join(
        f"  %b{k} = call {vector} {intrinsic}({vector} %a{k}, {vector} %factor, {vector} %start)"
        for k in numbers
    )
    sums = "\n".join(f"  %s{k + 1} = fadd {vector} {f'%s{k}' if k else '%start'}, %b{k}" for k in numbers)
    return f"""
declare {vector} {intrinsic}({vector}, {vector}, {vector})
define void @fma(ptr %args, i64 %chunk, ptr %scratch) {isa.function_attributes} {{
entry:
  %out = load ptr, ptr %args
  %out_at = getelementptr [64 x i8], ptr %out, i64 %chunk
  %number = uitofp i64 %chunk to float
  %small = fmul float %number, 0x3F50624DE0000000
  %one = insertelement {vector} poison, float %small, i32 0
  %start = shufflevector {vector} %one, {vector} poison, <{isa.lanes()} x i32> zeroinitializer
  %half = fmul {vector} %start, %start
  %factor = fadd {vector} %half, %start
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
{phis}
{steps}
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, {iterations}
  br i1 %more, label %loop, label %exit
exit:
{sums}
  %first = extractelement {vector} %s{FMAS}, i32 0
  store float %first, ptr %out_at
  ret void
}}
"""


def tile_ir(isa: Isa, iterations: int) -> str:
    """Four sums, two tiles of each factor, all zero."""
    e = Emitter(attributes=isa.function_attributes)
    with e.function("tile", (Param("args", PTR), Param("chunk", I64), Param("scratch", PTR))):
        configure(e)
        block = Block(2, 2)
        zeros = e.alloca(vec("i32", 16), TILE_ROWS)
        for row in range(TILE_ROWS):
            e.store(e.zero(vec("i32", 16)), e.gep(zeros, TILE_BYTES_PER_ROW * row))
        terms = TERMS["1 bfloat16 product"]
        clear_sums(e, block, terms)
        e.loop(
            0, iterations, 1, lambda i, _: multiply(e, block, terms, lambda p, i: zeros, lambda p, j: zeros)
        )
        release(e)
    return e.text()


def read_ir(isa: Isa, chunk_bytes: int, num_passes: int) -> str:
    """Add up a chunk with eight accumulators, so that loads and not additions set the pace."""
    vector, width, num = f"<{isa.lanes('i64')} x i64>", isa.vector_bytes[0], 8
    carried = "\n".join(
        f"  %c{k} = phi {vector} [zeroinitializer, %entry], [%b{k}, %next]" for k in range(num)
    )
    phis = "\n".join(f"  %a{k} = phi {vector} [%c{k}, %pass], [%b{k}, %loop]" for k in range(num))
    loads = "\n".join(
        f"  %p{k} = getelementptr i8, ptr %at, i64 {k * width}\n"
        f"  %v{k} = load {vector}, ptr %p{k}, align {width}\n"
        f"  %b{k} = add {vector} %a{k}, %v{k}"
        for k in range(num)
    )
    sums = "\n".join(f"  %s{k + 1} = add {vector} {f'%s{k}' if k else '%b0'}, %b{k}" for k in range(num))
    return f"""
define void @read(ptr %args, i64 %chunk, ptr %scratch) {isa.function_attributes} {{
entry:
  %out = load ptr, ptr %args
  %data_at = getelementptr ptr, ptr %args, i64 1
  %data = load ptr, ptr %data_at
  %offset = mul i64 %chunk, {chunk_bytes}
  %from = getelementptr i8, ptr %data, i64 %offset
  %out_at = getelementptr [64 x i8], ptr %out, i64 %chunk
  br label %pass
pass:
  %turn = phi i64 [0, %entry], [%turn1, %next]
{carried}
  br label %loop
loop:
  %i = phi i64 [0, %pass], [%i1, %loop]
{phis}
  %at = getelementptr i8, ptr %from, i64 %i
{loads}
  %i1 = add i64 %i, {num * width}
  %more = icmp ult i64 %i1, {chunk_bytes}
  br i1 %more, label %loop, label %next
next:
  %turn1 = add i64 %turn, 1
  %again = icmp ult i64 %turn1, {num_passes}
  br i1 %again, label %pass, label %exit
exit:
{sums}
  %first = extractelement {vector} %s{num}, i32 0
  store i64 %first, ptr %out_at
  ret void
}}
"""
