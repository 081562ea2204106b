"""Words that instances of an array take from their neighbours instead of from their parent (rule 8).

After Timeloop (commit 019f107): the instances that one parent feeds stand in a line. What an instance lacks
at one step it may get from the instance next to it, if that one received the very same words at the step
before. A step is counted so only if the parent is then read less; every word that goes along a link is one
read and one fill of the instances, on average. Where the level inside passes the tensor by, nothing does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

Shift = tuple[int, ...]  # elements along each axis of a tensor


@dataclass(frozen=True, slots=True)
class Linked:
    """Counts of one tensor between a parent instance and those that it feeds, over all steps.

    `received` adds up over the instances what they got from the parent, `sent` what went along links.
    """

    accesses: int
    received: int
    sent: int


@dataclass(frozen=True, slots=True)
class _Delta:
    """The words of one step, relative to where the tile is: a box."""

    offset: Shift
    shape: Shift


def linked(box: Shift, loops: Sequence[tuple[int, Shift]], positions: Sequence[Shift]) -> Linked:
    """Count with links.

    `box` is the tile of one instance, `loops` the temporal loops outside it, innermost first, with what an
    iteration moves; `positions` says where each instance's tile lies, in the order in which they stand.
    Every loop's second iteration stands for the following ones.
    """
    zero: Shift = (0,) * len(box)
    ends = [zero]
    for _, move in loops:
        ends.append(_add(ends[-1], move))
    State = tuple[Shift | None, Shift | None, _Delta | None]  # noqa: N806  # a type
    memory: dict[tuple[int, State], tuple[Linked, Shift | None, _Delta | None]] = {}

    def visit(depth: int, state: State) -> tuple[Linked, Shift | None, _Delta | None]:
        """Counts of the `depth` innermost loops; the last move and the last words, for what comes then."""
        if (depth, state) not in memory:
            memory[depth, state] = step(state) if depth == 0 else loop(depth, state)
        return memory[depth, state]

    def loop(depth: int, state: State) -> tuple[Linked, Shift | None, _Delta | None]:
        factor, move = loops[depth - 1]
        first, last, words = visit(depth - 1, state)
        again, last, words = visit(depth - 1, (_subtract(move, ends[depth - 1]), last, words))
        times = factor - 1
        total = Linked(
            first.accesses + times * again.accesses,
            first.received + times * again.received,
            first.sent + times * again.sent,
        )
        return total, last, words

    def step(state: State) -> tuple[Linked, Shift | None, _Delta | None]:
        arrival, before, previous = state
        now: _Delta | None
        if arrival is None:
            now, last = _Delta(zero, box), None
        elif before is None or before == arrival:
            now, last = _entering(box, arrival), arrival
        else:
            now, last = _Delta(zero, box), None
        if now is None:
            return Linked(0, 0, 0), last, None
        held = None if previous is None or arrival is None else _moved(previous, arrival)
        return _counted(now, held, positions), last, now

    return visit(len(loops), (None, None, None))[0]


def _counted(now: _Delta, held: _Delta | None, positions: Sequence[Shift]) -> Linked:
    """One step: all from the parent, or what neighbours held from them if that spares the parent."""
    words = prod(now.shape)
    without = Linked(words * len(set(positions)), words * len(positions), 0)
    if held is None or held.shape != now.shape:
        return without
    apart = _subtract(held.offset, now.offset)
    rest = [
        position
        for number, position in enumerate(positions)
        if not any(
            _subtract(position, positions[neighbour]) == apart
            for neighbour in (number - 1, number + 1)
            if 0 <= neighbour < len(positions)
        )
    ]
    accesses = words * len(Counter(rest))
    if accesses >= without.accesses:
        return without
    return Linked(accesses, words * len(rest), words * (len(positions) - len(rest)))


def _entering(box: Shift, move: Shift) -> _Delta | None:
    """What a tile holds that it did not hold before it moved; all of it if it moved along several axes."""
    zero: Shift = (0,) * len(box)
    moved = [axis for axis, distance in enumerate(move) if distance]
    if not moved:
        return None
    axis = moved[0]
    distance = move[axis]
    if len(moved) > 1 or abs(distance) >= box[axis]:
        return _Delta(zero, box)
    start = box[axis] - distance if distance > 0 else 0
    return _Delta((*zero[:axis], start, *zero[axis + 1 :]), (*box[:axis], abs(distance), *box[axis + 1 :]))


def _moved(delta: _Delta, move: Shift) -> _Delta:
    """A box as seen from a tile that has moved."""
    return _Delta(_subtract(delta.offset, move), delta.shape)


def _add(a: Shift, b: Shift) -> Shift:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _subtract(a: Shift, b: Shift) -> Shift:
    return tuple(x - y for x, y in zip(a, b, strict=True))
