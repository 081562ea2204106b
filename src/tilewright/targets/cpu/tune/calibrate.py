"""Measures the rates of this machine that estimates use, as `hardware.calibration` keeps them.

Short runs take turns, so that each sees the machine in the same states, and count by the processor time that
they took, to which other programs add little: the best counts, but of tile products also the worst, since
cores of shared machines multiply tiles at two speeds for seconds at a time. Rates are in cycles of
multiply-adds, which need no clock.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace

from tilewright.hardware.calibration import Calibration, in_steps
from tilewright.hardware.probe import affinity_cores
from tilewright.hardware.rates import MatrixRates, Rates
from tilewright.records import dataclass
from tilewright.targets.cpu.isa import Isa, host_isa
from tilewright.targets.cpu.runtime.pool import AlignedBuffer
from tilewright.targets.cpu.tune.probes import FMAS, TILE_PRODUCTS, fma_ir, probe_executor, read_ir, tile_ir

_NUM_ROUNDS = 8
_NUM_RUNS = 2  # of each round, the fastest of which counts
# Between rounds on a machine with a matrix unit, whose states last for seconds.
_PAUSE_S = 0.3
# Of a tile load that products hide.
_LEAST_EXPOSED_CYCLES = 0.5
_FMA_STEPS, _TILE_STEPS = 20_000, 2_000
# Bytes read in a run from a private or shared cache; the most that stands for memory.
_READ_BYTES = 4 << 20
_MAX_MEMORY_BYTES = 256 << 20
# Threads that compute less than this share of what one does alone have no core each.
_SHARED_CORE = 0.65


@dataclass(slots=True, eq=False)
class _Probe:
    """A short run, what it does, and the least processor time of each round."""

    run: Callable[[], None]
    work: float
    samples_s: list[float]

    def measure(self) -> None:
        """One more round."""
        taken: list[float] = []
        for _ in range(_NUM_RUNS):
            start = time.process_time()
            self.run()
            taken.append(time.process_time() - start)
        self.samples_s.append(min(taken))

    @property
    def per_s(self) -> float:
        """The best rate of a thread."""
        return self.work / min(self.samples_s)

    @property
    def worst_per_s(self) -> float:
        """The rate of the worst round."""
        return self.work / max(self.samples_s)


def calibrated_host() -> Calibration:
    """Measure for about 0.2 s, with a matrix unit for a few."""
    isa, threads = host_isa(), affinity_cores()
    data = AlignedBuffer(_memory_bytes(isa))
    ctypes.memset(data.address, 1, data.size_bytes)  # untouched pages are all one page of zeros
    half = replace(isa, vector_bytes=isa.vector_bytes[1:])
    probes = {("fma", 1): _fma(isa, 1), ("fma", threads): _fma(isa, threads)}
    if half.vector_bytes:
        probes["half", 1] = _fma(half, 1)
    for name, size_bytes in (("private", isa.caches.l2_bytes // 2), ("shared", _shared_bytes(isa))):
        probes[name, 1] = _read(isa, 1, size_bytes, data)
    for count in (1, threads):
        probes["memory", count] = _read(isa, count, data.size_bytes, data)
        if isa.has_matrix_unit:
            probes["tiles", count] = _tiles(isa, count)
    for number in range(_NUM_ROUNDS):
        if number and isa.has_matrix_unit:
            time.sleep(_PAUSE_S)
        for probe in probes.values():
            probe.measure()
    return _calibration(isa, threads, probes)


def _calibration(isa: Isa, threads: int, probes: dict[tuple[str, int], _Probe]) -> Calibration:
    """The rates that follow from runs."""
    vectors_per_s = probes["fma", 1].per_s
    per_cycle = isa.fmas_per_cycle
    if ("half", 1) in probes:
        # Two pipes as wide as the widest vectors take as many of them as of narrower ones, else half as many.
        per_cycle = 2.0 if vectors_per_s > 0.75 * probes["half", 1].per_s else 1.0
    hz = vectors_per_s / per_cycle
    alone, busy = probes["memory", 1].per_s, probes["memory", threads].per_s
    tiles = [probe for (name, _), probe in probes.items() if name == "tiles"]
    rates = Rates(
        private_bytes_per_cycle=in_steps(probes["private", 1].per_s / hz),
        shared_bytes_per_cycle=in_steps(probes["shared", 1].per_s / hz),
        memory_bytes_per_cycle=in_steps(busy / hz),
        cold_bytes_per_cycle=in_steps((alone + busy) / 2 / hz),
    )
    matrix = MatrixRates()
    if tiles:
        # A product comes with one load: what it takes beside the product is exposed.
        best, worst = tiles[0].per_s, min(tile.worst_per_s for tile in tiles)
        matrix = replace(
            matrix,
            exposed_load_cycles=in_steps(max(_LEAST_EXPOSED_CYCLES, hz / best - matrix.product_cycles)),
            slow_exposed_load_cycles=in_steps(max(_LEAST_EXPOSED_CYCLES, hz / worst - matrix.product_cycles)),
        )
    share = probes["fma", threads].per_s / vectors_per_s
    cores = threads if share >= _SHARED_CORE else max(1, round(share * threads))
    return Calibration(rates, matrix, per_cycle, in_steps(vectors_per_s), threads, cores)


def _fma(isa: Isa, threads: int) -> _Probe:
    """Multiply-adds of whole vectors on registers."""
    executor = probe_executor(fma_ir(isa, _FMA_STEPS), "fma", threads, num_chunks=4 * threads)
    out = AlignedBuffer(64 * 4 * threads)
    return _Probe(lambda: executor.run([out.address, 0]), 4.0 * threads * FMAS * _FMA_STEPS, [])


def _tiles(isa: Isa, threads: int) -> _Probe:
    """Products of tiles with the loads of their factors."""
    executor = probe_executor(tile_ir(isa, _TILE_STEPS), "tile", threads, num_chunks=4 * threads)
    out = AlignedBuffer(64)
    work = 4.0 * threads * TILE_PRODUCTS * _TILE_STEPS
    return _Probe(lambda: executor.run([out.address, 0]), work, [])


def _read(isa: Isa, threads: int, size_bytes: int, data: AlignedBuffer) -> _Probe:
    """Bytes read in order, from where so many stay."""
    num_passes = max(1, _READ_BYTES // size_bytes)
    chunk_bytes = size_bytes // threads // 4096 * 4096
    text = read_ir(isa, chunk_bytes, num_passes)
    executor = probe_executor(text, "read", threads, num_chunks=threads)
    out = AlignedBuffer(64 * threads)
    run = lambda: executor.run([out.address, data.address])  # noqa: E731
    return _Probe(run, float(num_passes * chunk_bytes * threads), [])


def _shared_bytes(isa: Isa) -> int:
    return max(2 * isa.caches.l2_bytes, min(4 * isa.caches.l2_bytes, isa.caches.l3_bytes // 4))


def _memory_bytes(isa: Isa) -> int:
    return min(_MAX_MEMORY_BYTES, max(64 << 20, 2 * isa.caches.l3_bytes))
