"""What no mapping of a problem can beat, however it is found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from math import ceil, gcd, prod

from tilewright.cost.base import Objective
from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Level, Machine, TensorKind
from tilewright.loops.problem import Operand, Problem

_ROUNDING = 1e-12


def latency_bound_cycles(problem: Problem, machine: Machine) -> int:
    """The roofline: all units busy all the time, or every operand moved once at the outermost level."""
    compute = ceil(problem.num_macs / num_mac_units(machine))
    outermost = machine.outermost
    read = sum(touched_words(problem, o) for o in problem.operands if o.kind is not TensorKind.OUTPUT)
    written = touched_words(problem, problem.output)
    return max(compute, transfer_cycles(machine, outermost, read, written))


def energy_bound_pj(problem: Problem, machine: Machine, cost_options: CostOptions = TIMELOOP) -> float:
    """Every multiplication, and every operand moved once between neighbouring levels that hold it.

    The innermost level of an operand serves every multiplication, but for those that share a word at once.
    """
    total = problem.num_macs * machine.mac_pj
    for operand in problem.operands:
        words = touched_words(problem, operand)
        kept = [level for level in machine.levels if operand.kind in level.holds]
        for place, level in enumerate(kept):
            accesses = float(words)
            if place == 0:
                accesses = max(accesses, problem.num_macs / _num_fed(machine, level))
            is_output = operand.kind is TensorKind.OUTPUT
            reads = 0.0 if is_output else accesses
            is_filled = place < len(kept) - 1 and not (is_output and cost_options.elides_first_fills)
            filled = words if is_filled else 0
            writes = (accesses if is_output else 0.0) + filled
            access_pj = reads * level.read_access_pj + writes * level.write_access_pj
            total += access_pj / level.words_per_access / level.num_instances_per_access
    return total


def _num_fed(machine: Machine, level: Level) -> int:
    """Units that one instance of a level feeds."""
    return max(1, num_mac_units(machine) // machine.num_instances(level))


def objective_bound(
    problem: Problem, machine: Machine, objective: Objective, cost_options: CostOptions = TIMELOOP
) -> float:
    """A lower bound in the objective's unit: cycles, pJ, or pJ * cycles."""
    match objective:
        case "latency":
            return float(latency_bound_cycles(problem, machine))
        case "energy":
            return energy_bound_pj(problem, machine, cost_options)
        case "edp":
            return energy_bound_pj(problem, machine, cost_options) * latency_bound_cycles(problem, machine)


def check_smallest_tiles(problem: Problem, machine: Machine, cost_options: CostOptions = TIMELOOP) -> None:
    """Tiles of one iteration must fit every level, whole tensors the outermost.

    Raises:
        InfeasibleMapping: they do not; names level, tensors, words needed and available, the least to change.
    """
    for level in machine.levels:
        is_outermost = level is machine.outermost
        for kinds, capacity_words, halves in level_capacities(machine, level, cost_options):
            inside = [o for o in problem.operands if o.kind in kinds]
            innermost = {o.name: o.copies if level is machine.innermost else 1 for o in inside}
            words = (
                {o.name: _least_words(problem, o, cost_options) for o in inside}
                if is_outermost
                else innermost
            )
            needed = sum(words.values())
            if needed <= capacity_words:
                continue
            need_bytes = ceil(needed * halves * level.word_bits / 8)
            names = listed(words)
            if is_outermost:
                most = max(words, key=lambda name: words[name])
                why, other = f", most {most} with {words[most]}", "leave capacity_bytes out"
            else:
                passing = names if len(words) == 1 else "some of them"
                why, other = " even for one iteration", f"let {passing} bypass it (holds)"
            raise InfeasibleMapping(
                f"level {level.name}: {names} need {_counted(needed)}{why}; there {_are(capacity_words)}. "
                f"Give {relaxation(level, kinds, need_bytes)}, or {other}."
            )


def _counted(words: int) -> str:
    return f"{words} word{'' if words == 1 else 's'}"


def _are(words: int) -> str:
    return f"{'is' if words == 1 else 'are'} {words}"


def _least_words(problem: Problem, operand: Operand, cost_options: CostOptions) -> int:
    return touched_words(problem, operand) if cost_options.skips_pixels else problem.num_words(operand)


def listed(names: Iterable[str]) -> str:
    """Names as a sentence lists them: `a`, `a and b`, `a, b and c`."""
    *front, last = names
    return f"{', '.join(front)} and {last}" if front else last


def relaxation(level: Level, kinds: Iterable[TensorKind], need_bytes: int) -> str:
    """The least capacity with which so many bytes of some kinds of tensor fit a level, in words."""
    if any(set(share.holds) & set(kinds) for share in level.shares):
        return f"its share of {listed(kinds)} {need_bytes} bytes"
    return f"it {need_bytes + sum(share.capacity_bytes for share in level.shares)} bytes"


def level_capacities(
    machine: Machine, level: Level, cost_options: CostOptions = TIMELOOP
) -> list[tuple[tuple[TensorKind, ...], int, int]]:
    """What a level may hold at a time: kinds of tensor, the words that they share, and how many such parts.

    There are two parts where one is filled while the other is in use. None without a limit.
    """
    parts = [(share.holds, share.capacity_bytes) for share in level.shares]
    if level.capacity_bytes is not None:
        shared_kinds = {kind for share in level.shares for kind in share.holds}
        rest = tuple(kind for kind in level.holds if kind not in shared_kinds)
        if rest:
            parts.append((rest, level.capacity_bytes - sum(share.capacity_bytes for share in level.shares)))
    listed = []
    for kinds, capacity_bytes in parts:
        words = capacity_bytes * 8 // level.word_bits
        halves = 2 if cost_options.double_buffered and level is not machine.outermost and words > 1 else 1
        listed.append((kinds, words // halves, halves))
    return listed


def num_mac_units(machine: Machine) -> int:
    """Units that multiply and accumulate and that a mapping can reach: below the innermost level."""
    return machine.num_instances(machine.innermost) * machine.fan_out(0)


def touched_words(problem: Problem, operand: Operand) -> int:
    """Elements that some iteration touches; what a stride jumps over is none of them.

    Of axes that share a dim, as on a diagonal, at least the longest one's.
    """
    return prod(
        max(num_touched(axis, problem.extents) for axis in axes) for axes in operand.independent_axes()
    )


def num_touched(axis: tuple[tuple[str, int], ...], extents: Mapping[str, int]) -> int:
    """Positions along one axis that the iterations of a tile touch."""
    if len(axis) == 1:
        return extents[axis[0][0]]
    if len(axis) == 2:
        # Positions are the same where one index grows by the other's step over the common factor while the
        # other falls: every pair of indices counts but those that another such pair precedes.
        (left, step), (other, move) = axis
        common = gcd(step, move)
        repeats = max(0, extents[left] - move // common) * max(0, extents[other] - step // common)
        return extents[left] * extents[other] - repeats
    *windows, (dim, step) = sorted(axis, key=lambda term: extents[term[0]])
    offsets = {
        sum(s * i for (_, s), i in zip(windows, at, strict=True)) for at in _positions(windows, extents)
    }
    # Positions of the longest dim modulo its step never meet: count every residue's intervals.
    total = 0
    for residue in {offset % step for offset in offsets}:
        end = None
        for start in sorted(offset // step for offset in offsets if offset % step == residue):
            first = start if end is None else max(start, end)
            end = start + extents[dim]
            total += end - first
    return total


def _positions(terms: list[tuple[str, int]], extents: Mapping[str, int]) -> product[tuple[int, ...]]:
    return product(*(range(extents[dim]) for dim, _ in terms))


def transfer_cycles(machine: Machine, level: Level, read_words: int, written_words: int) -> int:
    """Cycles in which a level's ports move words, rounded up; 0 where the machine gives no rate.

    What floats add to a whole number of cycles is none: a bound may be too low, not too high.
    """
    word_bytes = level.word_bits / 8
    rates = machine.read_bytes_per_cycle(level), machine.write_bytes_per_cycle(level)
    read, written = (
        0.0 if rate is None else words * word_bytes / rate
        for words, rate in zip((read_words, written_words), rates, strict=True)
    )
    cycles = read + written if level.has_shared_port else max(read, written)
    return ceil(cycles * (1 - _ROUNDING))
