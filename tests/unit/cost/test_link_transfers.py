"""Transfers between neighbours: against a walk over all steps with sets of words, and by hand."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.cost.link_transfers import Linked, Shift, linked
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.options import CostOptions
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import convolution


def walked(box: Shift, loops: list[tuple[int, Shift]], positions: list[Shift]) -> Linked:
    """Every step, every word: what each instance holds, lacks, and finds beside it."""
    accesses = received = sent = 0
    last_move: Shift | None = None
    tile: set[Shift] = set()
    before: list[set[Shift]] = []
    origin: Shift | None = None
    for at in product(*(range(factor) for factor, _ in reversed(loops))):
        start = tuple(
            sum(i * move[axis] for i, (_, move) in zip(at, reversed(loops), strict=True))
            for axis in range(len(box))
        )
        words = {tuple(s + x for s, x in zip(start, w, strict=True)) for w in product(*map(range, box))}
        if origin is None:
            lacks = words
        else:
            move = tuple(a - b for a, b in zip(start, origin, strict=True))
            if last_move is None or move == last_move:
                along_one_axis = sum(d != 0 for d in move) <= 1
                lacks, last_move = words - tile if along_one_axis else words, move
            else:
                lacks, last_move = words, None
        tile, origin = words, start
        now = [
            {tuple(p + x for p, x in zip(position, w, strict=True)) for w in lacks} for position in positions
        ]
        beside = [
            bool(words) and any(before and words == before[n] for n in (i - 1, i + 1) if 0 <= n < len(now))
            for i, words in enumerate(now)
        ]
        distinct = {frozenset(words) for words in now}
        rest = [words for words, found in zip(now, beside, strict=True) if not found]
        with_links = sum(map(len, {frozenset(words) for words in rest}))
        if with_links < sum(map(len, distinct)):
            accesses += with_links
            received += sum(map(len, rest))
            sent += sum(len(words) for words, found in zip(now, beside, strict=True) if found)
        else:
            accesses += sum(map(len, distinct))
            received += sum(map(len, now))
        before = now
    return Linked(accesses, received, sent)


moves = st.tuples(st.integers(0, 3), st.integers(0, 2))


@given(
    box=st.tuples(st.integers(1, 4), st.integers(1, 2)),
    shifts=st.lists(moves, max_size=4),
    unit=moves,
    count=st.integers(2, 4),
)
@settings(max_examples=400, deadline=None)
def test_it_counts_what_a_walk_over_all_steps_counts(
    box: Shift, shifts: list[Shift], unit: Shift, count: int
) -> None:
    # Of two iterations the second stands for itself: nothing is extrapolated.
    loops = [(2, move) for move in shifts]
    positions = [tuple(i * u for u in unit) for i in range(count)]
    assert linked(box, loops, positions) == walked(box, loops, positions)


def test_a_window_slides_along_an_array() -> None:
    """Eight positions spatial, three window steps temporal: only the last one lacks anything new."""
    problem = convolution({"R": 3, "P": 8, "K": 4, "C": 2})
    mapping = Mapping(
        (
            LevelLoops("DRAM", (Loop("K", 4),)),
            LevelLoops("GlobalBuffer", (Loop("C", 2), Loop("R", 3)), (Loop("P", 8),)),
        )
    )
    machine = load_preset("simba-cosa-repo")
    without, with_links = (
        evaluate(problem, machine, mapping, CostOptions(link_transfers=on)) for on in (False, True)
    )
    parent = [
        {level.level: level for level in cost.levels}["GlobalBuffer"].tensors["Inputs"]
        for cost in (without, with_links)
    ]
    child = [
        {level.level: level for level in cost.levels}["InputBuffer"].tensors["Inputs"]
        for cost in (without, with_links)
    ]
    rounds = 4 * 2
    assert [count.reads for count in parent] == [rounds * 3 * 8, rounds * (8 + 1 + 1)]
    assert child[0].fills == child[1].fills == rounds * 3
    assert child[1].reads - child[0].reads == rounds * 2 * 7 // 8
    assert with_links.energy_pj < without.energy_pj


def test_averages_over_instances_are_rounded() -> None:
    """Of 2 words that 3 instances pass on, one each; of 6 that reach them, two each."""
    problem = convolution({"R": 2, "P": 3})
    mapping = Mapping((LevelLoops("GlobalBuffer", (Loop("R", 2),), (Loop("P", 3),)),))
    cost = evaluate(problem, load_preset("simba-cosa-repo"), mapping, CostOptions(link_transfers=True))
    levels = {level.level: level.tensors for level in cost.levels}
    assert levels["GlobalBuffer"]["Inputs"].reads == 4
    assert levels["InputBuffer"]["Inputs"].fills == 2
    alone = evaluate(problem, load_preset("simba-cosa-repo"), mapping)
    without = {level.level: level.tensors for level in alone.levels}["InputBuffer"]["Inputs"].reads
    assert levels["InputBuffer"]["Inputs"].reads - without == 1
