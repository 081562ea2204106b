"""The checker of memory plans and the bounds on them against counting bytes and steps one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations, product

import pytest

from tilewright.memory import (
    Buffer,
    MemoryLevel,
    MemoryPlan,
    MemoryProblem,
    check_memory,
    lower_bound_bytes,
    spill_bound_bytes,
)
from tilewright.memory.base import LevelUse, aligned
from tilewright.planning import Bound, Provenance, Quality, Space, Status

Bytes = dict[Buffer, set[tuple[int, int]]]


def some_buffers(draw: random.Random, num_levels: int) -> tuple[Buffer, ...]:
    """Up to five short-lived ones, of which the later may take the place of those that die."""
    buffers: list[Buffer] = []
    meets = draw.choice(((0, 0, 0), (2, 1, 0), (4, 0, 1), (6, 5, 3)))  # groups that may run at the same time
    for number in range(draw.randrange(1, 6)):
        first = draw.randrange(4)
        last = first + draw.choice((0, 0, 1, 1, 2))
        group = draw.randrange(3)
        reuse = tuple(b.name for b in buffers if draw.random() < 0.7)
        buffers.append(
            Buffer(
                f"b{number}",
                draw.choice((0, 1, 2, 3, 4)),
                first,
                last,
                draw.choice((1, 1, 2)),
                reuse,
                draw.randrange(num_levels),
                used=1 << group,
                beside=meets[group],
            )
        )
    return tuple(buffers)


def may_lie_in_place(plan: MemoryPlan, new: Buffer, old: Buffer) -> bool:
    return (
        old.name in new.may_reuse
        and old.last_step == new.first_step > old.first_step
        and (plan.levels[new.name], plan.offsets[new.name]) == (plan.levels[old.name], plan.offsets[old.name])
        and new.size_bytes <= old.size_bytes
        and not new.beside & old.used
    )


def live_at(plan: MemoryPlan, buffer: Buffer, step: int) -> bool:
    """Where one lies in place of another, the other's are the bytes of the step that both are live at."""
    return buffer.first_step + (buffer.name in plan.in_place_of) <= step <= buffer.last_step


def faults(problem: MemoryProblem, plan: MemoryPlan) -> Iterator[str]:
    known = {b.name: b for b in problem.buffers}
    for b in problem.buffers:
        if plan.offsets[b.name] < 0 or plan.offsets[b.name] % b.alignment_bytes:
            yield "align"
        if plan.levels[b.name] < b.level:
            yield "level"
    for name, old in plan.in_place_of.items():
        if name not in known or old not in known or not may_lie_in_place(plan, known[name], known[old]):
            yield "in-place"
    for a, b in combinations(problem.buffers, 2):
        bytes_of = [set(range(plan.offsets[x.name], plan.offsets[x.name] + x.size_bytes)) for x in (a, b)]
        steps_of = [set(range(x.first_step, x.last_step + 1)) for x in (a, b)]
        together = steps_of[0] & steps_of[1] or a.beside & b.used
        if plan.levels[a.name] == plan.levels[b.name] and together and bytes_of[0] & bytes_of[1]:
            pairs = ((a, b), (b, a))
            if not any(
                plan.in_place_of.get(x.name) == y.name and may_lie_in_place(plan, x, y) for x, y in pairs
            ):
                yield "overlap"
    for number, use in enumerate(plan.uses):
        true = use_of(problem, plan, number)
        counts = ("num_buffers", "live_bytes", "num_spilled", "spilled_bytes")
        if use.level != true.level:
            yield "summary"
        if use.peak_bytes != true.peak_bytes:
            yield "peak"
        if any(getattr(use, count) != getattr(true, count) for count in counts):
            yield "summary"
        if use.lower_bound_bytes > true.peak_bytes:
            yield "bound"
        capacity = problem.levels[number].capacity_bytes
        if capacity is not None and (true.peak_bytes > capacity or true.live_bytes > capacity):
            yield "capacity"
    if (plan.quality.cost, plan.quality.unit) != (cost_of(problem, plan), "bytes"):
        yield "cost"
    yield from ("bound" for bound in plan.quality.bounds if bound.value > cost_of(problem, plan))


def use_of(problem: MemoryProblem, plan: MemoryPlan, number: int) -> LevelUse:
    here = [b for b in problem.buffers if plan.levels[b.name] == number]
    out = [b for b in problem.buffers if b.level <= number and plan.levels[b.name] > number]
    peak = max((plan.offsets[b.name] + b.size_bytes for b in here), default=0)
    live = max(sum(b.size_bytes for b in here if live_at(plan, b, step)) for step in range(8))
    level = problem.levels[number]
    return LevelUse(level, len(here), live, max(peak, 0), 0, len(out), sum(b.size_bytes for b in out))


def cost_of(problem: MemoryProblem, plan: MemoryPlan) -> int:
    if len(problem.levels) == 1:
        return max(plan.offsets[b.name] + b.size_bytes for b in problem.buffers)
    return sum(b.size_bytes for b in problem.buffers if plan.levels[b.name] != b.level)


def some_plan(draw: random.Random) -> tuple[MemoryProblem, MemoryPlan]:
    """Mostly right in what it says, with offsets that often meet."""
    num_levels = draw.choice((1, 1, 2, 3))
    buffers = some_buffers(draw, num_levels)
    levels = tuple(MemoryLevel(f"l{n}", draw.choice((None, 4, 6, 8))) for n in range(num_levels))
    problem = MemoryProblem(tuple(draw.sample(buffers, len(buffers))), levels)
    offsets = {
        b.name: draw.randrange(-1, 6) if draw.random() < 0.2 else 2 * draw.randrange(5) for b in buffers
    }
    places = {b.name: draw.randrange(b.level if draw.random() < 0.9 else 0, num_levels) for b in buffers}
    in_place: dict[str, str] = {}
    for new, old in product(buffers, repeat=2):
        if new.fits_in_place_of(old) and draw.random() < 0.8:
            in_place[new.name] = old.name
            offsets[new.name], places[new.name] = offsets[old.name], places[old.name]
    if draw.random() < 0.4 and len(buffers) > 1:  # mostly where it may not
        new, old = draw.sample(buffers, 2)
        in_place[new.name] = old.name
        offsets[new.name] = offsets[old.name] + draw.choice((0, 0, 0, 2))
        places[new.name] = places[old.name] if draw.random() < 0.8 else draw.randrange(num_levels)
    if draw.random() < 0.1:
        in_place[draw.choice(("b0", "b1", "z"))] = draw.choice(("b0", "b2", "z"))
    nothing = Quality(0, "bytes", Status.FEASIBLE, ())
    plan = MemoryPlan(places, offsets, in_place, (), nothing, Provenance("test"))
    uses = []
    for number in range(num_levels):
        use = use_of(problem, plan, number)
        use = replace(use, lower_bound_bytes=use.peak_bytes)
        if draw.random() < 0.15:
            field = draw.choice(
                (
                    "num_buffers",
                    "live_bytes",
                    "num_spilled",
                    "spilled_bytes",
                    "peak_bytes",
                    "lower_bound_bytes",
                )
            )
            use = replace(use, **{field: getattr(use, field) + draw.choice((1, -1))})
        if draw.random() < 0.03:
            use = replace(use, level=MemoryLevel("other"))
        uses.append(use)
    plan = replace(plan, uses=tuple(uses))
    cost = cost_of(problem, plan)
    value = cost + draw.choice((0, 0, 0, 0, 1, -1))
    bounds = (Bound(value, Space("placements"), "by hand"),)
    stated, unit = cost + draw.choice((0,) * 9 + (1,)), draw.choice(("bytes",) * 9 + ("B",))
    quality = Quality(stated, unit, Status.FEASIBLE, bounds)
    return problem, replace(plan, quality=quality)


@pytest.mark.parametrize("seed", range(2))
def test_a_plan_has_the_faults_that_its_bytes_and_steps_have(seed: int) -> None:
    draw, seen = random.Random(seed), Counter[str]()
    for _ in range(700):
        problem, plan = some_plan(draw)
        found = Counter(violation.rule for violation in check_memory(problem, plan))
        assert found == Counter(faults(problem, plan)), (problem, plan)
        seen.update(found.keys() or ["none"])
    assert set(seen) == {
        "none",
        "align",
        "level",
        "in-place",
        "overlap",
        "summary",
        "peak",
        "bound",
        "capacity",
        "cost",
    }
    assert min(seen.values()) > 10


def test_each_buffer_has_one_place_in_a_level_that_there_is() -> None:
    problem = MemoryProblem((Buffer("a", 1, 0, 1), Buffer("b", 1, 2, 3)), (MemoryLevel("l"),))
    use = LevelUse(problem.levels[0], 2, 1, 1, 0)
    good = MemoryPlan(
        {"a": 0, "b": 0},
        {"a": 0, "b": 0},
        {},
        (use,),
        Quality(1, "bytes", Status.FEASIBLE, ()),
        Provenance("test"),
    )

    def rules(**changes: object) -> list[str]:
        return [v.rule for v in check_memory(problem, replace(good, **changes))]  # type: ignore[arg-type]

    assert rules() == []
    assert rules(offsets={"a": 0}) == ["place"]
    assert rules(offsets={"a": 0, "b": 0, "c": 0}) == ["place"]
    assert rules(levels={"b": 0}) == ["place"]
    assert rules(levels={"a": 0, "b": 0, "c": 0}) == ["place"]
    assert rules(levels={"a": 0, "b": 1}) == ["level"]
    assert rules(levels={"a": -1, "b": 0}) == ["level"]
    assert rules(uses=()) == ["summary"]
    assert rules(uses=(use, use)) == ["summary"]


def test_nothing_takes_nothing() -> None:
    use = LevelUse(MemoryLevel("l"), 0, 0, 0, 0)
    quality = Quality(0, "bytes", Status.FEASIBLE, ())
    plan = MemoryPlan({}, {}, {}, (use,), quality, Provenance("test"))
    assert check_memory(MemoryProblem((), (MemoryLevel("l"),)), plan) == ()
    assert lower_bound_bytes(()) == lower_bound_bytes([Buffer("a", 0, 0, 1)]) == 0


@pytest.mark.parametrize("far", [1 << 40, 1 << 63, 1 << 100])
def test_addresses_of_any_size_are_compared(far: int) -> None:
    problem = MemoryProblem(tuple(Buffer(name, far, 0, 1, 1) for name in "abc"), (MemoryLevel("l"),))
    for shift, met in ((0, 0), (-1, 1)):
        offsets = {"a": 0, "b": far, "c": 2 * far + shift}
        peak = 3 * far + shift
        use = LevelUse(problem.levels[0], 3, 3 * far, peak, 0)
        plan = MemoryPlan(
            dict.fromkeys("abc", 0),
            offsets,
            {},
            (use,),
            Quality(peak, "bytes", Status.FEASIBLE, ()),
            Provenance("test"),
        )
        found = check_memory(problem, plan)
        assert [v.rule for v in found] == ["overlap"] * met
        assert all("share 1 bytes" in v.message for v in found)


def saved(beginning: list[Buffer], dying: list[Buffer], alignment: int) -> int:
    """The most by trying every way to give places of buffers that die to those that begin."""
    most = 0
    for places in permutations([*dying, *(None for _ in beginning)], len(beginning)):
        total = 0
        for new, old in zip(beginning, places, strict=True):
            if old is not None and not new.fits_in_place_of(old):
                break
            total += 0 if old is None else aligned(new.size_bytes, alignment)
        else:
            most = max(most, total)
    return most


def most_live(buffers: list[Buffer], alignment: int) -> int:
    """By steps, and every step twice: while places are handed on, and behind."""
    buffers = [b for b in buffers if b.size_bytes]
    most = 0
    for step in range(8):
        live = [b for b in buffers if b.first_step <= step <= b.last_step]
        for here, less in (
            (
                live,
                saved(
                    [b for b in live if b.first_step == step],
                    [b for b in live if b.last_step == step],
                    alignment,
                ),
            ),
            ([b for b in live if b.last_step > step], 0),
        ):
            padded = [aligned(b.size_bytes, alignment) for b in here]
            padding = max((p - b.size_bytes for p, b in zip(padded, here, strict=True)), default=0)
            most = max(most, sum(padded) - padding - less)
    return most


@pytest.mark.parametrize("seed", range(2))
def test_bounds_are_the_most_that_is_live_at_a_step_less_what_places_handed_on_save(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(250):
        num_levels = draw.choice((1, 2, 3))
        buffers = [
            replace(b, size_bytes=draw.randrange(10), alignment_bytes=draw.choice((4, 8)))
            for b in some_buffers(draw, num_levels)
        ]
        alignment = min((b.alignment_bytes for b in buffers if b.size_bytes), default=1)
        assert lower_bound_bytes(buffers) == most_live(buffers, alignment)
        levels = tuple(MemoryLevel(f"l{n}", draw.choice((None, 0, 4, 9))) for n in range(num_levels))
        spilled = 0
        for first, behind in combinations(range(num_levels), 2):
            sizes = [level.capacity_bytes for level in levels[first:behind]]
            if None not in sizes:
                here = [b for b in buffers if first <= b.level < behind]
                spilled = max(spilled, most_live(here, 1) - sum(size or 0 for size in sizes))
        assert spill_bound_bytes(MemoryProblem(tuple(buffers), levels)) == spilled
