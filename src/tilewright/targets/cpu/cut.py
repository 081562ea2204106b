"""The cost model of a kernel's cut into chunks that threads claim, which every template asks.

The work alone decides, never the number of threads of a run, so that any number gives the same bits.
Templates say how many units can be apart, the cycles of all of them, and what each part reads again; how long
threads wait for each other, and what it costs to claim a chunk, is here alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import accumulate, pairwise

from tilewright.hardware.rates import PROFILE, Rates
from tilewright.records import dataclass
from tilewright.targets.cpu.isa import Isa

_USUAL_THREADS = (1, 2, 4)
# Share of the largest chunk for which threads wait at the end on a busy machine: small ones make that cheap.
STRAGGLER_SHARE = 0.25
# Cycles to claim a chunk and to begin it: of SqueezeNet's kernels on Zen 5; a claim alone takes 15 to 90.
_CHUNK_CYCLES = 250.0
# Enough pieces for a few threads to balance, few enough that starting them costs nothing.
MAX_CHUNKS = 16
# Work below this many operations is not worth a parallel region.
_MIN_CHUNK_OPERATIONS = 16_384
# Operations of vector code in a cycle, where a kernel is cut before more is known of it.
_OPERATIONS_PER_CYCLE = 20.0


@dataclass(frozen=True, slots=True)
class Cut:
    """How a kernel is cut into chunks: `num_row_parts` x `num_panel_parts`."""

    num_row_parts: int
    num_panel_parts: int

    @property
    def num_chunks(self) -> int:
        """All chunks."""
        return self.num_row_parts * self.num_panel_parts


UNCUT = Cut(1, 1)


@dataclass(frozen=True, slots=True)
class CutWork:
    """Work to cut: independent units of rows times panels, its operations, and the cycles of all of them.

    A row part reads all `b_bytes`, a panel part all `a_bytes`: again only if no private cache keeps them.
    Other kernels write the latter by rows, and read by rows the `c_bytes` that have rows and panels.
    """

    num_row_units: int
    num_panels: int
    operations: int
    cycles: float
    a_bytes: int = 0
    b_bytes: int = 0
    c_bytes: int = 0


def cut_cycles(cycles: float, num_chunks: int) -> float:
    """Processor time of a kernel whose equal chunks together take `cycles`, waiting and claiming included.

    >>> [round(cut_cycles(1e6, n)) for n in (1, 3, 4, 16)]
    [2583583, 1306306, 1063500, 1019625]
    """
    return cycles + waiting_cycles(cycles, num_chunks) + num_chunks * _CHUNK_CYCLES


def waiting_cycles(cycles: float, num_chunks: int) -> float:
    """Of these the time that threads wait for each other."""
    return cycles * (_waiting_share([1] * num_chunks) - 1)


def rank_cuts(work: CutWork, isa: Isa) -> tuple[Cut, ...]:
    """Every cut worth considering, the least estimated processor time first.

    >>> from tilewright.targets.cpu.isa import isa_by_name
    >>> rank_cuts(CutWork(16, 96, 300_000_000, 1e7, 400_000, 9_000_000), isa_by_name("avx512"))[0]
    Cut(num_row_parts=1, num_panel_parts=16)
    """
    return _ranked(work, isa.caches.l2_bytes // 2, isa.rates)


def choose_num_chunks(extent: int, operations: int) -> int:
    """Pieces to cut `extent` independent iterations into that share nothing.

    >>> choose_num_chunks(56, 100_000_000), choose_num_chunks(56, 1000)
    (16, 1)
    """
    work = CutWork(extent, 1, operations, operations / _OPERATIONS_PER_CYCLE)
    return _ranked(work, 0, PROFILE)[0].num_row_parts


@functools.lru_cache(maxsize=4096)
def _ranked(work: CutWork, private_bytes: int, rates: Rates) -> tuple[Cut, ...]:
    rows, panels = max(1, work.num_row_units), max(1, work.num_panels)
    most = max(1, min(MAX_CHUNKS, work.operations // _MIN_CHUNK_OPERATIONS))
    found: list[tuple[float, int, int]] = []
    for panel_parts in range(1, min(panels, most) + 1):
        panels_of = _pieces(panels, panel_parts)
        for row_parts in range(1, min(rows, most // panel_parts) + 1):
            sizes = [r * p for r in _pieces(rows, row_parts) for p in panels_of]
            cycles = work.cycles * _waiting_share(sizes)
            read = work.a_bytes * _times_read(panel_parts, work.a_bytes <= private_bytes)
            read += work.b_bytes * _times_read(row_parts, work.b_bytes <= private_bytes)
            cycles += read / rates.shared_bytes_per_cycle
            # Lines that another core wrote come about as fast as cold ones.
            cycles += _moved_bytes(work, row_parts, panel_parts) / rates.cold_bytes_per_cycle
            found.append((cycles + len(sizes) * _CHUNK_CYCLES, panel_parts, row_parts))
    return tuple(Cut(row_parts, panel_parts) for _, panel_parts, row_parts in sorted(found))


def _pieces(extent: int, num_parts: int) -> list[int]:
    """Sizes of nearly equal parts."""
    return [b - a for a, b in pairwise(extent * part // num_parts for part in range(num_parts + 1))]


def _times_read(num_parts: int, stays: bool) -> float:
    """Times that an operand comes from the shared cache: by each part, or thread where it stays."""
    return sum(min(num_parts, p) for p in _USUAL_THREADS) / len(_USUAL_THREADS) if stays else num_parts


def _moved_bytes(work: CutWork, row_parts: int, panel_parts: int) -> float:
    """Bytes between cores, where kernels before and after this one are cut by rows: threads that share rows
    read all of these, and each leaves a part of their results."""
    total = 0.0
    for threads in _USUAL_THREADS:
        sharing = min(panel_parts, -(-threads // row_parts))
        total += (work.a_bytes * sharing + work.c_bytes) * (1 - 1 / sharing)
    return total / len(_USUAL_THREADS)


def _waiting_share(sizes: Sequence[int]) -> float:
    """Processor time of a few usual numbers of threads over that of the work that they share.

    Each has neighbouring chunks, of these sizes. Threads that find no more chunks wait.
    """
    done = [0, *accumulate(sizes)]
    total = 0.0
    for threads in _USUAL_THREADS:
        shares = pairwise(done[len(sizes) * thread // threads] for thread in range(threads + 1))
        total += threads * max(b - a for a, b in shares)
    return (total / len(_USUAL_THREADS) + STRAGGLER_SHARE * max(sizes)) / done[-1]
