"""The checker of joint tilings: cuts and costs, and boxes that steps see for the first time."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tests.unit.mapping.chains.test_solve import inverted_residual, with_buffer

from tilewright.hardware.presets import load_preset
from tilewright.ir.region import Region
from tilewright.mapping.chains.check import USUAL_WORDS, Seen, TooLong, check_cuts, check_plan
from tilewright.mapping.chains.runs import runs_of, stages_of
from tilewright.mapping.chains.solve import ChainSolver
from tilewright.planning import Bound, Quality, Space


@pytest.mark.parametrize(
    ("cost", "bound", "is_proven", "expected"),
    [
        (12.0, 12.0, True, []),
        (12.0 * (1 + 1e-10), 3.0, True, []),
        (12.0 * (1 + 1e-8), 3.0, True, ["cost"]),
        (11.0, 3.0, True, ["cost"]),
        (13.0, 12.5, True, ["cost", "bound"]),
        (13.0, 12.5, False, ["cost"]),
    ],
)
def test_a_cost_is_that_of_all_segments_and_no_bound_lies_above_it(
    cost: float, bound: float, is_proven: bool, expected: list[str]
) -> None:
    (run,) = runs_of(inverted_residual())
    segments = stages_of(run)
    quality = Quality.of(cost, Bound(bound, Space("tilings"), "test", is_proven), unit="pJ")
    nodes = [node for segment in segments for node in segment]

    def rules(*cut: Sequence[object]) -> list[str]:
        return [v.rule for v in check_cuts(nodes, cut, [7.0, 5.0], quality)]  # type: ignore[arg-type]

    assert rules(*segments) == expected
    assert rules(nodes) == expected
    for wrong in (segments[1:], segments[:-1], segments[::-1], [*segments, segments[0]]):
        assert rules(*wrong) == ["cover", *expected]


def box_of(points: set[tuple[int, int]]) -> Region | None:
    if not points:
        return None
    return tuple((min(p[axis] for p in points), max(p[axis] for p in points) + 1) for axis in range(2))


@pytest.mark.parametrize("seed", range(40))
def test_boxes_are_new_where_none_before_was_and_live_until_the_last(seed: int) -> None:
    """Held against sets of places; some boxes are empty, some steps need nothing."""
    rng = random.Random(seed)
    boxes: list[Region | None] = []
    for _ in range(rng.randint(1, 6)):
        (a, b), (c, d) = (sorted(rng.randint(2, 7) for _ in range(2)) for _ in range(2))
        boxes.append(rng.choice((((a, b), (c, d)), ((a, b + 1), (c, d + 1)), None)))
    places = [
        set() if box is None else {(i, j) for i in range(*box[0]) for j in range(*box[1])} for box in boxes
    ]
    spent: list[float] = []
    seen = Seen(boxes, spent.append)
    before: set[tuple[int, int]] = set()
    for its, (box, count) in zip(places, seen.new, strict=True):
        assert (box, count) == (box_of(its - before), len(its - before))
        before |= its
    live = [
        {
            p
            for p in before
            if any(p in its for its in places[: n + 1]) and any(p in its for its in places[n:])
        }
        for n in range(len(boxes))
    ]
    assert seen.most_live == max(map(len, live))
    if sum(map(bool, places)) > 1:
        outer = box_of(before)
        assert outer is not None
        hull = (outer[0][1] - outer[0][0]) * (outer[1][1] - outer[1][0])
        assert sum(spent) == hull + sum(map(len, places))


def test_no_more_words_are_walked_than_may_be() -> None:
    machine = with_buffer(load_preset("eyeriss"), 128)
    (run,) = runs_of(inverted_residual())
    segments = ChainSolver(machine, deadline_s=5).solve(run).segments
    (fused, *_) = (s for s in segments if s.tiling is not None and s.chain is not None)
    chain, tiling = fused.chain, fused.tiling
    assert chain is not None
    assert tiling is not None

    def is_walked(max_words: int) -> bool:
        try:
            return check_plan(chain, tiling.plan, tiling.count, 1 << 20, max_words) == ()
        except TooLong:
            return False

    low, high = 0, 1 << 16
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_walked(middle) else (middle + 1, high)
    assert 0 < low < 1 << 16
    assert USUAL_WORDS == 33_554_432
