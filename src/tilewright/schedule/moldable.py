"""Cores for the groups of a stage: the extension of IOS to machines whose cores are given out (IOS-M).

A kernel that may run on any number of cores is moldable. Groups of a stage get cores so that the last one
finishes as early as it can; where there are more groups than cores, some follow each other on one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.records import dataclass

_MAX_EXACT = 8  # groups that are packed onto cores without a heuristic


@dataclass(frozen=True, slots=True)
class Allocation:
    """When the last group finishes, and how many cores each gets."""

    makespan_ns: float
    num_cores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """When the last core finishes, and which groups each runs, one after another."""

    makespan_ns: float
    cores: tuple[tuple[int, ...], ...]


def core_counts(num_cores: int) -> tuple[int, ...]:
    """Numbers of cores that a group may get: powers of two, and all.

    >>> core_counts(6)
    (1, 2, 4, 6)
    """
    powers = [1 << i for i in range(num_cores.bit_length()) if 1 << i < num_cores]
    return (*powers, num_cores)


def allocation(times_ns: Sequence[Mapping[int, float]], num_cores: int) -> Allocation | None:
    """The cores with which the last group finishes first; None where there are fewer than groups.

    `times_ns[g]` says how long group g takes on a number of cores that it may get. Exact: the makespan is one
    of these times, and within one every group takes the fewest cores that suffice. O(times x log).

    >>> allocation([{1: 8.0, 2: 4.0}, {1: 4.0, 2: 3.0}], 3).num_cores
    (2, 1)
    """
    candidates = sorted({time for times in times_ns for time in times.values()})
    low, high = 0, len(candidates)
    best: Allocation | None = None
    while low < high:
        middle = (low + high) // 2
        needed = _needed(times_ns, candidates[middle])
        if needed is not None and sum(needed) <= num_cores:
            best = Allocation(candidates[middle], needed)
            high = middle
        else:
            low = middle + 1
    return best


def _needed(times_ns: Sequence[Mapping[int, float]], makespan_ns: float) -> tuple[int, ...] | None:
    """The fewest cores with which each group finishes in time."""
    needed: list[int] = []
    for times in times_ns:
        enough = [count for count, time in times.items() if time <= makespan_ns]
        if not enough:
            return None
        needed.append(min(enough))
    return tuple(needed)


def packing(times_ns: Sequence[float], num_cores: int) -> Packing:
    """Groups on cores of their own so that the last core finishes early: exact for few groups.

    For more, the longest first onto the core that is free first. O(3^groups x cores) where it is exact.

    >>> packing([3.0, 3.0, 2.0, 2.0, 2.0], 2).makespan_ns
    6.0
    """
    cores = (
        _exact(times_ns, num_cores) if len(times_ns) <= _MAX_EXACT else _longest_first(times_ns, num_cores)
    )
    makespan_ns = max((sum(times_ns[i] for i in core) for core in cores), default=0.0)
    return Packing(makespan_ns, tuple(tuple(core) for core in cores if core))


def _longest_first(times_ns: Sequence[float], num_cores: int) -> list[list[int]]:
    loads = [0.0] * num_cores
    cores: list[list[int]] = [[] for _ in range(num_cores)]
    for i in sorted(range(len(times_ns)), key=lambda i: (-times_ns[i], i)):
        core = loads.index(min(loads))
        loads[core] += times_ns[i]
        cores[core].append(i)
    return [sorted(core) for core in cores]


def _exact(times_ns: Sequence[float], num_cores: int) -> list[list[int]]:
    """Over sets of groups: the best makespan of a set on k cores gives one of its subsets to the last."""
    everything = (1 << len(times_ns)) - 1
    sums = [sum(t for i, t in enumerate(times_ns) if mask >> i & 1) for mask in range(everything + 1)]
    best = list(sums)
    last_of: list[list[int]] = [list(range(everything + 1))]
    for _ in range(1, min(num_cores, len(times_ns))):
        following, lasts = list(best), [0] * (everything + 1)
        for mask in range(1, everything + 1):
            subset = mask
            while subset:
                makespan = max(sums[subset], best[mask ^ subset])
                if makespan < following[mask]:
                    following[mask], lasts[mask] = makespan, subset
                subset = (subset - 1) & mask
        best = following
        last_of.append(lasts)
    cores: list[list[int]] = []
    left = everything
    for lasts in reversed(last_of):
        cores.append([i for i in range(len(times_ns)) if lasts[left] >> i & 1])
        left ^= lasts[left]
    return cores
