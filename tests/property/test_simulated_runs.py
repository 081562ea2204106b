"""What holds for every simulated run, on random networks and machines; and that its checker finds what is
wrong."""

# mypy: disable-error-code="arg-type, operator"

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.property.machines import accelerators
from tests.property.strategies import Draw
from tests.support.accelerator import checked, graphturbo, plan
from tests.support.graphs import GraphBuilder
from tests.support.integer_networks import integer_network

from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Value
from tilewright.memory.scopes import ScopePlan
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.planning.portfolio import PLAIN_RECIPE, Recipe
from tilewright.schedule.binding import Scope
from tilewright.targets.npu.check_run import check_run
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.ports import CORE_DMA, DMA
from tilewright.targets.npu.recipes import GRAPHTURBO, MEMORY, NAMED, Baseline
from tilewright.targets.npu.simulate import Overlap, Policy, simulate
from tilewright.targets.simulated import UnitRun

pytestmark = pytest.mark.sampled(10)

MACHINE = load_preset("stcp920")
PLAIN_IN_LEVELS = replace(PLAIN_RECIPE, memory=MEMORY)
WITHOUT_SHARED = load_preset("ipu-mk1")


@st.composite
def networks(draw: Draw) -> Graph:
    """Small images through windows and joins, or products with weights of all sizes."""
    if draw(st.booleans()):
        return integer_network(draw(st.integers(0, 200)), draw(st.integers(2, 14)))
    b = GraphBuilder()
    widths = st.sampled_from((1, 3, 16, 40, 128, 513))
    values = [b.input(draw(st.sampled_from((1, 6, 32))), draw(widths))]
    for _ in range(draw(st.integers(1, 6))):
        values.append(_next(draw, b, values, draw(widths)))
    return b.finish(*(v for v in values[1:] if not v.users))


def _next(draw: Draw, b: GraphBuilder, values: Sequence[Value], width: int) -> Value:
    x = draw(st.sampled_from(values[-3:]))
    kind = draw(st.sampled_from(("MatMul", "MatMul", "Relu", "Add", "Softmax")))
    if kind == "MatMul":
        weight = b.constant(x.shape[1], width)
        return b.op(kind, x, weight, shape=(x.shape[0], width))
    if kind == "Add":
        return b.op(kind, x, draw(st.sampled_from([v for v in values if v.shape == x.shape])))
    return b.op(kind, x)


def recipes(graph: Graph) -> st.SearchStrategy[Recipe | Baseline]:
    """The named ones, kernels for each layer, slices of every sort, and groups of cores."""
    largest = max(v.size_bytes for v in graph.values())
    sliced = [graphturbo(GraphTurbo(capacity_bytes=int(largest * s), dims="any")) for s in (0.3, 1.0)]
    ways = [Baseline(GRAPHTURBO, way) for way in ("resident_weights=true", "launches=each subgraph")]
    in_groups = [
        Baseline(replace(recipe, schedule=order), way)
        for recipe in (PLAIN_IN_LEVELS, *sliced)
        for order in (
            "core-groups{number=2}",
            "core-groups{number=3, order=depth-first}",
            "core-pipeline{stages=3}",
        )
        for way in ("", "resident_weights=true", "launches=each subgraph")
    ]
    return st.one_of(
        st.sampled_from([*NAMED.values(), *ways, PLAIN_RECIPE, *sliced]), st.sampled_from(in_groups)
    )


@given(data=st.data(), graph=networks(), machine=accelerators())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_ran_obeys_the_machine(data: st.DataObject, graph: Graph, machine: Machine) -> None:
    obeys(data, graph, machine)


@pytest.mark.slow
@given(data=st.data(), graph=networks(), machine=accelerators())
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_ran_obeys_the_machine_on_many(data: st.DataObject, graph: Graph, machine: Machine) -> None:
    obeys(data, graph, machine)


def obeys(data: st.DataObject, graph: Graph, machine: Machine) -> None:
    """A recipe's plan and its run by every policy; more overlap takes no longer than none."""
    recipe = data.draw(recipes(graph))
    try:
        planned = plan(graph, machine, recipe)
    except InfeasibleMapping:
        assume(False)
    found = planned.simulation
    assert max(found.busy_s.values(), default=0.0) <= found.time_s * (1 + 1e-9)
    times = []
    for overlap in get_args(Overlap):
        again = simulate(found.steps, machine, found.residents, Policy(overlap))
        checked(replace(planned, simulation=again), machine)
        times.append(again.time_s)
    serial, tiles, layers = times
    # What is issued first runs first, so that overlap may make a step wait for what runs ahead of its time;
    # it never takes longer than everything in sequence.
    assert serial >= tiles * (1 - 1e-9)
    assert serial >= layers * (1 - 1e-9)


SEEDS = (1, 3, 13)
"""Networks whose plans have everything: slices that are put together, moved between cores, spilled."""


@cache
def sliced(seed: int) -> SimulatedPlan:
    """A plan without a fault that uses all levels."""
    graph = integer_network(seed, 14, batch=8)
    largest = max(v.size_bytes for v in graph.values())
    return plan(graph, MACHINE, graphturbo(GraphTurbo(capacity_bytes=int(largest * 0.6), dims="any")))


def weighty(machine: Machine = MACHINE) -> SimulatedPlan:
    """A plan without a fault whose weights are larger than what the cores have for them."""
    b = GraphBuilder()
    x = b.input(64, 2048)
    for _ in range(3):
        x = b.op("Relu", b.op("MatMul", x, b.constant(2048, 2048), shape=x.shape))
    return plan(b.finish(x), machine)


def changed(planned: SimulatedPlan, runs: Iterable[UnitRun], **figures: Any) -> SimulatedPlan:
    """The plan with other runs, units as busy as these are, and what is taken while idle."""
    runs = tuple(runs)
    busy = Counter[str]()
    for run in runs:
        busy[run.unit] += run.end_s - run.start_s  # type: ignore[assignment]
    time_s = max(planned.simulation.time_s, max((run.end_s for run in runs), default=0.0))
    energies = dict(planned.simulation.energy_pj)
    energies["static"] *= time_s / planned.simulation.time_s
    figures = {"runs": runs, "busy_s": busy, "time_s": time_s, "energy_pj": energies} | figures
    return replace(planned, simulation=replace(planned.simulation, **figures))


def rules(planned: SimulatedPlan, machine: Machine = MACHINE) -> set[str]:
    return {violation.rule for violation in check_run(planned, machine)}


def first_of_all(planned: SimulatedPlan, chosen: UnitRun) -> SimulatedPlan:
    """One run before all others, on a unit that is idle then: earlier than anything that it needs."""
    spent_s = chosen.end_s - chosen.start_s
    others = (run for run in planned.simulation.runs if run is not chosen)
    later = (replace(run, start_s=run.start_s + spent_s, end_s=run.end_s + spent_s) for run in others)
    return changed(planned, [replace(chosen, start_s=0.0, end_s=spent_s), *later])


def needs_nothing(planned: SimulatedPlan, run: UnitRun) -> bool:
    """Whether a run only brings what lies in main memory from the beginning."""
    inputs = {v.name for v in planned.partition.graph.inputs}
    return run.unit == DMA and (
        run.what in ("fetch", "weights") or (run.what == "load" and run.name in inputs)
    )


def runs_of(planned: SimulatedPlan, *, step: int = 9) -> list[UnitRun]:
    """Some runs of every sort."""
    sorts: dict[tuple[str, str], list[UnitRun]] = {}
    for run in planned.simulation.runs:
        sorts.setdefault((run.unit, run.what), []).append(run)
    return [run for runs in sorts.values() for run in runs[::step]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_runs_before_all_else_is_read_too_early(seed: int) -> None:
    planned = sliced(seed)
    chosen = [run for run in runs_of(planned) if not needs_nothing(planned, run)]
    assert {run.what for run in chosen} == {"weights", "load", "move", "compute", "store"}
    for run in chosen:
        assert "order" in rules(first_of_all(planned, run)), run


def test_a_tile_that_is_computed_as_soon_as_half_of_what_it_reads_is_there_is_found() -> None:
    planned = sliced(1)
    late = 0
    for run in planned.simulation.runs:
        needed = [
            r
            for r in planned.simulation.runs
            if r.step == run.step and r.what == "load" and r.unit == CORE_DMA
        ]
        coming = [r for r in needed if r.tile == run.tile]
        if run.what == "compute" and coming and run.start_s >= coming[-1].end_s:
            start_s = (coming[-1].start_s + coming[-1].end_s) / 2
            early = replace(run, start_s=start_s, end_s=start_s + run.end_s - run.start_s)
            runs = [early if r is run else r for r in planned.simulation.runs]
            late += "order" in rules(changed(planned, runs))
    assert late > 10


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_that_get_lost_are_missed(seed: int) -> None:
    planned = sliced(seed)
    for lost in (run for run in runs_of(planned) if run.size_bytes):
        less = replace(lost, size_bytes=lost.size_bytes - 1)
        runs = [less if run is lost else run for run in planned.simulation.runs]
        assert rules(changed(planned, runs)) >= {"bytes"}, lost


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_that_is_left_out_is_missed(seed: int) -> None:
    planned = sliced(seed)
    for lost in runs_of(planned):
        runs = [run for run in planned.simulation.runs if run is not lost]
        assert rules(changed(planned, runs)) & {"bytes", "rate"}, lost


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_faster_than_its_unit(seed: int) -> None:
    planned = sliced(seed)
    for quick in runs_of(planned):
        end_s = quick.end_s - 0.1 * (quick.end_s - quick.start_s)
        runs = [replace(run, end_s=end_s) if run is quick else run for run in planned.simulation.runs]
        assert "rate" in rules(changed(planned, runs)), quick


def test_products_take_the_time_of_the_units_whatever_the_steps_say() -> None:
    planned = weighty()
    steps = tuple(replace(step, works=()) for step in planned.simulation.steps)
    runs = [r if r.what != "compute" else replace(r, end_s=r.start_s + 1e-9) for r in planned.simulation.runs]
    assert "rate" in rules(changed(planned, runs, steps=steps))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_unit_does_one_thing_at_a_time(seed: int) -> None:
    planned = sliced(seed)
    for unit in planned.simulation.busy_s:
        runs = sorted((r for r in planned.simulation.runs if r.unit == unit), key=lambda r: r.start_s)
        for earlier, later in list(pairwise(runs))[::9]:
            longer = replace(earlier, end_s=(later.start_s + later.end_s) / 2)
            found = rules(changed(planned, [longer if r is earlier else r for r in planned.simulation.runs]))
            assert "unit" in found


def test_a_weight_that_is_fetched_before_there_is_free_capacity_is_found() -> None:
    planned = weighty()
    fetches = [run for run in planned.simulation.runs if run.what == "fetch"]
    assert MACHINE.shared is not None
    assert sum(run.size_bytes for run in fetches) > (MACHINE.shared.capacity_bytes or 0)
    spent_s = sum(run.end_s - run.start_s for run in fetches)
    others = (run for run in planned.simulation.runs if run.what != "fetch")
    runs = [replace(run, start_s=run.start_s + spent_s, end_s=run.end_s + spent_s) for run in others]
    at_s = 0.0
    for run in fetches:
        runs.append(replace(run, start_s=at_s, end_s=at_s + run.end_s - run.start_s))
        at_s = runs[-1].end_s
    assert rules(changed(planned, runs)) == {"capacity"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("machine", [MACHINE, WITHOUT_SHARED])
def test_weights_are_not_in_the_cores_before_there_is_free_capacity(machine: Machine) -> None:
    small = with_capacity(machine, machine.levels[0].name, 64 << 10)
    planned = weighty(small)
    last_s = max(run.end_s for run in planned.simulation.runs)
    runs = [
        run
        if run.what in ("fetch", "weights", "load")
        else replace(run, start_s=run.start_s + last_s, end_s=run.end_s + last_s)
        for run in planned.simulation.runs
    ]
    assert "capacity" in rules(changed(planned, runs), small)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", ["L1", "LLB", "DDR"])
def test_a_level_holds_what_it_can(level: str) -> None:
    planned = weighty()
    assert rules(planned) == set()
    small = with_capacity(MACHINE, level, 1000)
    assert "capacity" in rules(planned, small)


@pytest.mark.parametrize("where", ["weights", "loads", "stores"])
def test_an_operand_that_takes_more_than_is_free_is_found(where: str) -> None:
    planned = weighty()
    changes = []
    for step in planned.simulation.steps:
        passages = tuple(replace(p, held_bytes=p.held_bytes * 1000) for p in getattr(step.tiling, where))
        changes.append(replace(step, tiling=replace(step.tiling, **{where: passages})))
    assert rules(changed(planned, planned.simulation.runs, steps=tuple(changes))) == {"capacity"}


def overlaid(planned: SimulatedPlan, scope: Scope) -> SimulatedPlan:
    """The plan with all buffers of a level in one place."""
    memory = planned.scopes.memory
    offsets = dict(memory.offsets) | {str(b): 0 for b in planned.scopes.buffers if b.scope is scope}
    return replace(planned, scopes=ScopePlan(planned.scopes.timeline, replace(memory, offsets=offsets)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_place_is_not_written_while_it_is_read(seed: int) -> None:
    found = check_run(overlaid(sliced(seed), Scope.LOCAL), MACHINE)
    assert any("is written over" in str(violation) and "local" in str(violation) for violation in found)


def test_results_keep_their_places_to_the_end() -> None:
    b = GraphBuilder()
    x = b.input(8, 4, 6, 6)
    y = b.op("Relu", x)
    planned = plan(b.finish(y, b.op("Neg", y)), MACHINE)
    found = check_run(overlaid(planned, Scope.MAIN), MACHINE)
    assert [violation.rule for violation in found] == ["order"]


def test_what_is_said_of_a_whole_run_is_what_its_parts_say() -> None:
    planned = sliced(1)
    found = planned.simulation
    end_s = max(run.end_s for run in found.runs)
    assert rules(changed(planned, found.runs, time_s=end_s * 0.999)) >= {"time"}
    assert rules(changed(planned, found.runs, busy_s=found.busy_s | {DMA: 0.0})) == {"time"}
    traffic = replace(found.traffic, main_read=found.traffic.main_read + 1)
    assert rules(changed(planned, found.runs, traffic=traffic)) == {"bytes"}


def with_capacity(machine: Machine, level: str, capacity_bytes: int) -> Machine:
    changes = {"capacity_bytes": capacity_bytes, "shares": ()}
    levels = tuple(x.model_copy(update=changes) if x.name == level else x for x in machine.levels)
    return machine.model_copy(update={"levels": levels})
