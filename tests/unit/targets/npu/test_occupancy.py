"""What levels hold over time, and a plan in words: what follows from the runs, derived anew here."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.support.models import small_net

import tilewright as tw
from tilewright.targets.npu.code import NpuCode
from tilewright.targets.simulated import Curve, Timeline

RECIPES = ("graphturbo", "tvm", "variant-2")


@pytest.fixture(scope="module", params=RECIPES)
def code(request: pytest.FixtureRequest) -> NpuCode:
    code = tw.simulate(small_net(), recipe=request.param).code
    assert isinstance(code, NpuCode)
    return code


def test_at_any_time_as_many_bytes_are_placed_as_are_covered_by_live_buffers(code: NpuCode) -> None:
    """In a level's bytes, one by one: what is written in place of another buffer counts once."""
    timeline = code.timeline()
    buffers = timeline.plan.buffers
    for level in timeline.levels:
        here = [b for b in buffers if b.level == level.level.name]
        times = sorted({t for b in here for t in (b.start_s, b.end_s)})
        curve = dict(level.held.get("placed", ()))
        for early, late in pairwise(times):
            middle = (early + late) / 2
            live = [b for b in here if b.start_s <= middle < b.end_s]
            covered = {i for b in live for i in range(b.offset_bytes, b.offset_bytes + b.size_bytes)}
            drawn = [size for at_s, size in sorted(curve.items()) if at_s <= middle]
            assert (drawn[-1] if drawn else 0) == len(covered)


def test_buffers_begin_with_their_computation_not_with_what_is_fetched_for_it(code: NpuCode) -> None:
    plan, runs = code.plan(), code.simulation.runs
    for buffer in plan.buffers:
        computing = [r.start_s for r in runs if r.step == buffer.first_step and r.what == "compute"]
        if computing:
            assert buffer.start_s == min(computing)
        readers = [s.number for s in plan.steps if any(r.buffer == buffer.number for r in s.reads)]
        ends = [r.end_s for r in runs if r.step in readers]
        if ends and not buffer.is_result:
            assert buffer.end_s == pytest.approx(max(max(ends), buffer.made_s))


def bytes_at(timeline: Timeline, level: str, kinds: set[str], at_s: float) -> int:
    (found,) = (x for x in timeline.levels if x.level.name == level)
    held = [size for kind, curve in found.held.items() if kind in kinds for size in last_before(curve, at_s)]
    return sum(held)


def last_before(curve: Curve, at_s: float) -> list[int]:
    return [size for begin_s, size in curve if begin_s <= at_s][-1:]


def test_what_a_step_computes_with_is_in_the_cores_meanwhile(code: NpuCode) -> None:
    timeline, steps = code.timeline(), code.simulation.steps
    for run in code.simulation.runs:
        if run.what == "compute":
            tiling = steps[run.step].tiling
            middle_s = (run.start_s + run.end_s) / 2
            weights = sum(p.held_bytes for p in tiling.weights)
            assert bytes_at(timeline, "L1", {"weights"}, middle_s) >= weights
            tiles = sum(p.held_bytes for p in (*tiling.loads, *tiling.stores))
            assert bytes_at(timeline, "L1", {"tiles"}, middle_s) >= tiles


def test_what_is_fetched_ahead_is_in_the_shared_buffer_until_it_is_used(code: NpuCode) -> None:
    timeline, runs = code.timeline(), code.simulation.runs
    fetched = [r for r in runs if r.what == "fetch"]
    assert fetched
    for run in fetched:
        reading = min(r.start_s for r in runs if r.what == "weights" and r.name == run.name)
        middle_s = (run.start_s + reading) / 2
        assert bytes_at(timeline, "LLB", {"weights", "prefetched"}, middle_s) > 0
    last_s = max(r.end_s for r in runs if r.what == "weights")
    assert bytes_at(timeline, "LLB", {"weights", "prefetched"}, last_s) == 0


def test_weights_that_stay_are_there_all_the_time() -> None:
    code = tw.simulate(small_net(), "stcp920{resident_weights=true}", recipe="graphturbo").code
    assert isinstance(code, NpuCode)
    residents = code.simulation.residents
    assert residents.scopes
    timeline = code.timeline()
    for share in (0.0, 0.5, 0.99):
        at_s = share * code.cost.time_s
        there = sum(bytes_at(timeline, x.level.name, {"resident"}, at_s) for x in timeline.levels)
        assert there == residents.size_bytes
    weights = [w for step in code.plan().steps for w in step.weights]
    assert {w.name for w in weights if w.resident_in} == {key.split(" ")[0] for key in residents.scopes}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("recipe", RECIPES)
def test_no_level_holds_more_than_its_capacity(recipe: str) -> None:
    """Where the shares of weights are used up: a batch of a network that streams and spills."""
    model = tw.zoo.build("squeezenet1_1", image=64, batch=32)
    for level in tw.simulate(model, recipe=recipe).code.timeline().levels:
        capacity_bytes = level.level.capacity_bytes
        assert capacity_bytes is not None
        assert max(sum(sizes) for _, sizes in level.totals()) <= capacity_bytes


def test_some_step_is_fetched_for_before_it_starts() -> None:
    steps = tw.simulate(small_net(), recipe="graphturbo").plan.steps
    assert any(step.fetch_s < step.start_s for step in steps)
    assert all(step.fetch_s <= step.start_s <= step.end_s for step in steps)


def test_nothing_is_left_at_the_end(code: NpuCode) -> None:
    for level in code.timeline().levels:
        totals = [sizes for _, sizes in level.totals()]
        assert all(min(sizes) >= 0 for sizes in totals)
        assert not totals or sum(totals[-1]) == 0
