"""What a block's accesses cost a memory: sectors of 32 bytes of global memory, conflicts of shared banks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.records import dataclass
from tilewright.targets.cuda.device import Span
from tilewright.targets.cuda.emulated.records import SHARED
from tilewright.targets.cuda.emulated.rewrite import Site
from tilewright.text.formatting import counted

SECTOR_BYTES = 32
BANKS = 32
BANK_BYTES = 4
_WIDEST_BYTES = 16
_PHASE_BYTES = BANKS * BANK_BYTES


@dataclass(frozen=True, slots=True)
class AccessCounts:
    """Accesses of the warps of one block.

    `num_sectors` are the sectors that its loads and stores of global memory move, `least_sectors` those that
    hold as many bytes as are asked for. `num_wavefronts` are the steps that shared memory takes,
    `least_wavefronts` those without conflicts; `worst_conflict` is the most words of one bank in one step.
    `races` are bytes of shared memory that a warp writes and another uses with no barrier between;
    `block_races` are places of a buffer that a block writes and another uses.
    """

    num_global: int
    num_sectors: int
    least_sectors: int
    num_shared: int
    num_wavefronts: int
    least_wavefronts: int
    worst_conflict: int
    races: tuple[int, ...] = ()
    block_races: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = []
        if self.num_sectors:
            parts.append(f"{100 * self.least_sectors / self.num_sectors:.0f} % of global sectors used")
        if self.num_shared:
            ratio = self.num_wavefronts / self.least_wavefronts
            worst = f"bank conflicts of up to {self.worst_conflict} ways take {ratio:.1f} x the steps"
            parts.append(worst if self.worst_conflict > 1 else "no bank conflicts")
        if self.races:
            places = counted(len(self.races), "place")
            parts.append(f"RACES at {places} of shared memory, the first at byte {self.races[0]}")
        if self.block_races:
            number = len(self.block_races)
            parts.append(f"RACES of blocks at {counted(number, 'place')}, the first at {self.block_races[0]}")
        return ", ".join(parts) or "no accesses"


def access_counts(sites: Sequence[Site], trace: Array, shared: Sequence[tuple[int, int]]) -> AccessCounts:
    """Counts of a trace, whose columns are site, thread, address and number of barriers; `shared` are ends of
    shared arrays.

    A load that is wider than 16 bytes, or than it is aligned, is as many as the code generator makes of it.
    """
    num_global = num_sectors = least_sectors = num_shared = num_wavefronts = least_wavefronts = 0
    worst = 1
    for site, rows in _by_site(sites, trace):
        piece = min(site.size_bytes, site.align_bytes, _WIDEST_BYTES)
        first = int(rows[0, 2])
        in_shared = site.space == SHARED or any(start <= first < end for start, end in shared)
        for group in _warp_instructions(rows):
            for offset in range(0, site.size_bytes, piece):
                addresses = group + offset
                if in_shared:
                    wavefronts, least, ways = _shared_steps(addresses, piece)
                    num_shared, num_wavefronts = num_shared + 1, num_wavefronts + wavefronts
                    least_wavefronts, worst = least_wavefronts + least, max(worst, ways)
                else:
                    covered = (addresses[:, None] + np.arange(piece)).ravel()
                    num_global += 1
                    num_sectors += len(set((covered // SECTOR_BYTES).tolist()))
                    least_sectors += -(-len(set(covered.tolist())) // SECTOR_BYTES)
    return AccessCounts(
        num_global, num_sectors, least_sectors, num_shared, num_wavefronts, least_wavefronts, worst
    )


def shared_races(sites: Sequence[Site], trace: Array, shared: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Where a warp writes what another reads or writes between the same two barriers, whatever the order.

    Bytes are counted from the lowest shared array. An asynchronous copy writes where it is
    issued; that it has ended before it is read, late copies show.
    """
    units, unit = [], _unit_bytes(sites)
    for site, rows in _by_site(sites, trace):
        if site.space != SHARED and not any(start <= rows[0, 2] < end for start, end in shared):
            continue
        places = (rows[:, 2, None] + np.arange(0, site.size_bytes, unit)) // unit
        columns = (rows[:, 3, None], places, rows[:, 1, None] // BANKS, np.full((1, 1), site.is_store))
        units.append(np.stack([np.broadcast_to(column, places.shape).ravel() for column in columns], 1))
    if not units:
        return ()
    base = min(start for start, _ in shared)
    return tuple(dict.fromkeys((unit * _contested(np.concatenate(units)) - base).tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class BlockUses:
    """What a block uses of the buffers that its kernel writes: rows of 0, the place in units of the smallest
    access, the number of barriers before, and whether it stores there. Atomic operations are no uses.

    Of places of atomic operations: before how many barriers uses came that others which come there later
    see, and after how many those that see what others did.
    """

    rows: Array
    releases: Mapping[int, int]
    acquires: Mapping[int, int]


def global_uses(sites: Sequence[Site], trace: Array, written: Sequence[Span]) -> BlockUses:
    """Those of a block by its trace: an atomic operation tells of what comes before a fence in front of it,
    and of what comes before a barrier in front of that."""
    units, unit = [], _unit_bytes(sites)
    for site, rows in _by_site(sites, trace):
        if site.space == SHARED or site.is_atomic:
            continue
        is_in = np.zeros(len(rows), bool)
        for span in written:
            is_in |= (rows[:, 2] >= span.address) & (rows[:, 2] < span.end)
        places = (rows[is_in, 2, None] + np.arange(0, site.size_bytes, unit)) // unit
        columns = (np.zeros((1, 1)), places, rows[is_in, 3, None], np.full((1, 1), site.is_store))
        units.append(np.stack([np.broadcast_to(column, places.shape).ravel() for column in columns], 1))
    used = _distinct_rows(np.concatenate(units).astype(np.int64)) if units else np.zeros((0, 4), np.int64)
    releases: dict[int, int] = {}
    acquires: dict[int, int] = {}
    fenced: set[int] = set()
    told: dict[int, list[tuple[int, int]]] = {}
    special = np.array([site.is_atomic or site.is_fence for site in sites], bool)
    for number, thread, address, epoch in trace[special[trace[:, 0]]].tolist() if len(trace) else ():
        if sites[number].is_atomic:
            if thread in fenced:
                releases[address] = max(releases.get(address, 0), epoch)
            told.setdefault(thread, []).append((address, epoch))
            continue
        fenced.add(thread)
        for place, at in told.pop(thread, ()):
            acquires[place] = min(acquires.get(place, at), at)
    return BlockUses(used, releases, acquires)


def block_races(sites: Sequence[Site], uses: Sequence[BlockUses], written: Sequence[Span]) -> tuple[str, ...]:
    """Where a block writes what another uses, and no atomic operations with fences order the two.

    Blocks are given in the order in which they ran; on a GPU they run in any order, and at the same time.
    """
    if not uses:
        return ()
    rows = np.concatenate([np.insert(use.rows, 2, i, axis=1) for i, use in enumerate(uses)])
    contested = _contested(rows[:, [0, 1, 2, 4]])
    rows = rows[np.isin(rows[:, 1], contested)]
    if not len(rows):
        return ()
    rows = rows[np.argsort(rows[:, 1], kind="stable")]
    kinds = _distinct_rows(rows[:, 2:])
    races = np.array([[_is_race(uses, a, b) for b in kinds.tolist()] for a in kinds.tolist()], bool)
    places = rows[:, 1]
    kind = np.argmax((rows[:, None, 2:] == kinds).all(2), axis=1)
    found: set[int] = set()
    for apart in range(1, len(places)):
        is_same = places[apart:] == places[:-apart]
        if not is_same.any():
            break
        found |= set(places[apart:][is_same & races[kind[apart:], kind[:-apart]]].tolist())
    named, unit = [], _unit_bytes(sites)
    for place in sorted(found):
        address = unit * place
        span = next(span for span in written if span.address < address + unit and address < span.end)
        named.append(f"byte {max(0, address - span.address)} of {span.name!r}")
    return tuple(named)


def _is_race(uses: Sequence[BlockUses], first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether nothing orders two uses of a place, each with its block, its barriers and whether it stores."""
    (block, before, stores), (later, after, also) = sorted((tuple(first), tuple(second)))
    if block == later or not (stores or also):
        return False
    releases, acquires = uses[block].releases, uses[later].acquires
    return not any(before < releases[at] and after > acquires[at] for at in releases.keys() & acquires)


def _distinct_rows(rows: Array) -> Array:
    """Rows of numbers without repetitions."""
    rows = rows[np.lexsort(rows.T)]
    is_first = np.ones(len(rows), bool)
    is_first[1:] = (rows[1:] != rows[:-1]).any(1)
    found: Array = rows[is_first]
    return found


def _unit_bytes(sites: Sequence[Site]) -> int:
    """The smallest access of a kernel: places of this size are whole parts of every other."""
    return min((site.size_bytes for site in sites if not site.is_fence), default=1)


def _by_site(sites: Sequence[Site], trace: Array) -> Iterator[tuple[Site, Array]]:
    """The rows of each access in a kernel's text."""
    for number in np.flatnonzero(np.bincount(trace[:, 0], minlength=len(sites))).tolist():
        if sites[number].is_fence:
            continue
        yield sites[number], trace[trace[:, 0] == number]


def _contested(used: Array) -> Array:
    """Places that one owner writes and another uses in the same phase.

    Rows are phase, place, owner, and whether it writes.
    """
    if not len(used):
        return used[:, 1]
    used = used[np.lexsort((used[:, 1], used[:, 0]))]
    starts = np.flatnonzero(np.any(np.diff(used[:, :2], axis=0, prepend=-1), axis=1))
    least, most = np.minimum.reduceat(used[:, 2], starts), np.maximum.reduceat(used[:, 2], starts)
    found = (least != most) & (np.maximum.reduceat(used[:, 3], starts) > 0)
    places: Array = used[starts[found], 1]
    return places


def _warp_instructions(rows: Array) -> list[Array]:
    """The addresses of lanes that execute an access together: those of a warp that come to it as often."""
    threads = rows[:, 1]
    order = np.argsort(threads, kind="stable")
    threads, addresses = threads[order], rows[order, 2]
    starts = np.flatnonzero(np.diff(threads, prepend=-1))
    occurrence = np.arange(len(threads)) - np.repeat(starts, np.diff(starts, append=len(threads)))
    keys = (threads // BANKS) * (int(occurrence.max()) + 1) + occurrence
    order = np.argsort(keys, kind="stable")
    return np.split(addresses[order], np.flatnonzero(np.diff(keys[order])) + 1)


def _shared_steps(addresses: Array, size_bytes: int) -> tuple[int, int, int]:
    """Steps that an access takes and needs, 128 bytes at a time, and the most words of a bank in a step."""
    lanes = max(1, min(len(addresses), _PHASE_BYTES // max(size_bytes, BANK_BYTES)))
    steps = least = worst = 0
    for start in range(0, len(addresses), lanes):
        part = addresses[start : start + lanes]
        words = {
            w for a in part.tolist() for w in range(a // BANK_BYTES, (a + size_bytes - 1) // BANK_BYTES + 1)
        }
        ways = int(np.bincount(np.array(list(words)) % BANKS).max())
        steps, least, worst = steps + ways, least + 1, max(worst, ways)
    return steps, least, worst
