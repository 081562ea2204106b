"""What a mapping costs where operands have zeros, by Sparseloop's uniform model (MICRO 2022): expectations.

Nonzeros lie anywhere, as many in each operand as its density says, so that a group of words is empty with the
probability of drawing without replacement (hypergeometric). The mapping is counted with all its words first
(`nest_analysis.py`); then of each tensor at each level only those words count that are kept, with metadata,
and of multiplications and of what feeds them those that are not left out. Tiles lie there as if they had no
zeros, so that what fits does not depend on luck.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import ceil, comb, log2

from tilewright.cost.count import Cost, TensorCount
from tilewright.hardware.machine import Level, Machine, TensorKind, Unit
from tilewright.hardware.operator_view import multipliers
from tilewright.loops.problem import Operand, Problem

_RUN_BITS = 5
"""Bits of a run of zeros before a value, as on Eyeriss; a longer run takes entries without a value."""
_FACTORS = (TensorKind.WEIGHT, TensorKind.INPUT)


def with_zeros(problem: Problem, machine: Machine, cost: Cost) -> Cost:
    """The expected cost of a mapping with the densities of a machine; as it is where there are none.

    `cost` is what the mapping costs without zeros.
    """
    if not machine.densities:
        return cost
    unit = multipliers(machine)
    done = effectual_share(machine, unit)
    compute = _whole(cost.compute_cycles * skipped_share(machine, unit))
    macs = cost.compute_cycles * cost.num_units_used
    levels = []
    for count in cost.levels:
        level = machine.level(count.level)
        tensors = {
            operand.name: _tensor(problem, machine, level, operand, count.tensors[operand.name], macs, unit)
            for operand in problem.operands
            if operand.name in count.tensors
        }
        cycles = max([compute, *_port_cycles(machine, level, tensors)])
        throttling = compute / cycles if cycles else 1.0
        levels.append(replace(count, tensors=tensors, cycles=cycles, throttling=throttling))
    mac_pj = cost.mac_energy_pj * done
    cycles = max([compute, *(level.cycles for level in levels)])
    return replace(
        cost,
        cycles=cycles,
        compute_cycles=compute,
        energy_pj=mac_pj + sum(t.energy_pj for level in levels for t in level.tensors.values()),
        mac_energy_pj=mac_pj,
        utilization=cost.utilization * cost.cycles / cycles * skipped_share(machine, unit),
        levels=tuple(levels),
    )


def effectual_share(machine: Machine, unit: Unit) -> float:
    """The share of multiplications that take energy: without those that a unit gates or skips."""
    return _product(machine.densities.get(kind, 1.0) for kind in unit.zeros)


def skipped_share(machine: Machine, unit: Unit) -> float:
    """The share of multiplications that take time: without those that a unit skips."""
    return _product(machine.densities.get(kind, 1.0) for kind, way in unit.zeros.items() if way == "skip")


def _product(shares: Iterable[float]) -> float:
    result = 1.0
    for share in shares:
        result *= share
    return result


def bounds_with_zeros(machine: Machine, cycles: int, energy_pj: float) -> tuple[int, float]:
    """Lower bounds of cycles and energy of words that may be zero, from those of all words: each word is kept
    or used at least by its own density, and by that of what it meets."""
    share = _product(machine.densities.values())
    return _whole(cycles * share), energy_pj * share


def _nonzeros(num_words: int, density: float) -> int:
    """Whole words that are not zero, no fewer than the density says."""
    return _whole(num_words * density)


@lru_cache(maxsize=1 << 12)
def empty_probability(num_words: int, density: float, group: int) -> float:
    """Probability that a group of words of a tensor holds zeros alone.

    >>> empty_probability(4, 0.5, 2), empty_probability(4, 0.5, 3)
    (0.16666666666666666, 0.0)
    """
    nonzeros = _nonzeros(num_words, density)
    if group > num_words - nonzeros:
        return 0.0
    if num_words > _MOST_EXACT:  # draws hardly change what is left
        return float((1 - density) ** group)
    return comb(num_words - group, nonzeros) / comb(num_words, nonzeros)


_MOST_EXACT, _MOST_PAIRS = 1 << 12, 64


def format_share(level: Level, kind: TensorKind, density: float, tile_words: int) -> float:
    """Words that a level keeps of a tensor, metadata included, for each word without compression.

    >>> level = Level(name="L", word_bits=8, formats=[{"holds": ["weight"], "kind": "bitmask"}])
    >>> format_share(level, TensorKind.WEIGHT, 0.25, 64), format_share(level, TensorKind.INPUT, 0.25, 64)
    (0.375, 1.0)
    """
    match level.format_of(kind):
        case "bitmask":
            return density + 1 / level.word_bits
        case "coordinates":
            return density * (1 + ceil(log2(max(2, tile_words))) / level.word_bits)
        case "run-length":
            longer = (1 - density) ** (1 << _RUN_BITS)
            entries = density / (1 - longer) if longer < 1 else 2.0**-_RUN_BITS
            return entries * (1 + _RUN_BITS / level.word_bits)
    return 1.0


def _tensor(
    problem: Problem,
    machine: Machine,
    level: Level,
    operand: Operand,
    count: TensorCount,
    macs: int,
    unit: Unit,
) -> TensorCount:
    kept = 1.0
    if operand.kind in machine.densities:
        kept = format_share(level, operand.kind, machine.densities[operand.kind], count.tile_words)
    used = 1.0
    innermost = next(x for x in machine.levels if operand.kind in x.holds)
    is_output = operand.kind is TensorKind.OUTPUT
    moved = count.updates if is_output else count.reads
    if level.name == innermost.name and moved:
        served = max(1, round(macs / (moved * count.num_instances)))
        used = _used_share(problem, machine, operand, served, unit)
    reads, updates = (_whole(words * kept * used) for words in (count.reads, count.updates))
    fills = _whole(count.fills * kept)
    read_pj, update_pj, fill_pj = _energies(machine, level, count)
    return replace(
        count,
        reads=reads,
        updates=updates,
        fills=fills,
        temporal_reductions=_whole(count.temporal_reductions * used),
        energy_pj=(read_pj + update_pj) * kept * used + fill_pj * kept,
        fill_energy_pj=fill_pj * kept,
    )


def _used_share(problem: Problem, machine: Machine, operand: Operand, served: int, unit: Unit) -> float:
    """The share of accesses next to the units that serve some multiplication that is done, of `served`.

    Of two operands that a unit looks at, the first is read whatever the other one is, unless metadata of that
    say it before.
    """
    factors: dict[TensorKind, tuple[int, float]] = {
        o.kind: (problem.num_words(o), machine.densities.get(o.kind, 1.0))
        for o in problem.operands
        if o.kind in unit.zeros
    }
    if operand.kind is not TensorKind.OUTPUT:
        looked_at: list[TensorKind] = list(unit.zeros)
        place = looked_at.index(operand.kind) if operand.kind in looked_at else len(looked_at)
        others = [kind for kind in looked_at if kind != operand.kind]
        ahead = [kind for kind in others if kind in looked_at[:place] or _is_marked(machine, kind)]
        return _product(1 - empty_probability(*factors[kind], served) for kind in ahead)
    if len(factors) < len(_FACTORS):
        return _product(1 - empty_probability(*factor, served) for factor in factors.values())
    one, other = factors.values()
    return _any_done(*one, *other, served)


@lru_cache(maxsize=1 << 12)
def _any_done(num_words: int, density: float, num_others: int, other_density: float, group: int) -> float:
    """Probability that of a group of pairs of words one pair has no zero."""
    if num_words > _MOST_EXACT or group > min(_MOST_PAIRS, num_words, num_others):
        return float(1 - (1 - density * other_density) ** group)
    nonzeros, none = _nonzeros(num_words, density), 0.0
    for k in range(min(group, nonzeros) + 1):
        ways = comb(nonzeros, k) * comb(num_words - nonzeros, group - k) / comb(num_words, group)
        none += ways * empty_probability(num_others, other_density, k)
    return 1 - none


def _is_marked(machine: Machine, kind: TensorKind) -> bool:
    """Whether metadata say where zeros of a tensor are before it is read."""
    level = next(level for level in machine.levels if kind in level.holds)
    return level.format_of(kind) is not None


def _energies(machine: Machine, level: Level, count: TensorCount) -> tuple[float, float, float]:
    """Of reads, updates and fills without zeros, as `nest_analysis.py` counts whole accesses."""
    block = level.words_per_access
    instances = min(count.num_instances, machine.num_instances(level) / level.num_instances_per_access)
    return (
        -(-count.reads // block) * level.read_access_pj * instances,
        -(-count.updates // block) * level.write_access_pj * instances,
        -(-count.fills // block) * level.write_access_pj * instances,
    )


def _port_cycles(machine: Machine, level: Level, tensors: Mapping[str, TensorCount]) -> list[int]:
    """Cycles of a level's ports; none where the machine gives no rate."""
    word_bytes = level.word_bits / 8
    moved = (sum(t.reads for t in tensors.values()), sum(t.updates + t.fills for t in tensors.values()))
    rates = machine.read_bytes_per_cycle(level), machine.write_bytes_per_cycle(level)
    ways = [words * word_bytes / rate for words, rate in zip(moved, rates, strict=True) if rate is not None]
    return [_whole(sum(ways) if level.has_shared_port else max(ways))] if ways else []


def _whole(expected: float) -> int:
    """Whole words or cycles of an expectation; what floats add to a whole number is none."""
    return ceil(expected * (1 - 1e-12))
