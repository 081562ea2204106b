"""What is known of a plan's time before it is simulated, and what the portfolio leaves out for it."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.accelerator import best_plan, compiled, plan, with_capacities
from tests.support.graphs import GraphBuilder
from tests.support.integer_networks import integer_network

from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.schedule.binding import Scope
from tilewright.schedule.instances import Kind
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.bounds import steps_s, values_passing_s
from tilewright.targets.npu.groups import StepGroup
from tilewright.targets.npu.kernels import Kernel
from tilewright.targets.npu.pools import PoolSizes
from tilewright.targets.npu.ports import ports_of
from tilewright.targets.npu.recipes import GRAPHTURBO, NAMED
from tilewright.targets.npu.simulated_step import SimulatedStep, Weight
from tilewright.targets.npu.tiles import Passage, Tiling
from tilewright.targets.npu.work import UnitWork

pytestmark = pytest.mark.sampled(6)

MACHINE = load_preset("stcp920")


def small(machine: Machine, local_bytes: int, shared_bytes: int) -> Machine:
    """The same machine with other buffers."""
    return with_capacities(machine, {"L1": local_bytes, "LLB": shared_bytes})


MACHINES = {"whole": MACHINE, "small": small(MACHINE, 512, 2048), "kernels": load_preset("a310")}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("which", MACHINES)
@pytest.mark.parametrize("seed", range(6))
def test_no_plan_runs_faster_than_what_is_known_of_it_before(which: str, seed: int) -> None:
    graph, machine = integer_network(seed), MACHINES[which]
    for name in ("graphturbo", "tvm", "astitch-overlapped", "variant-2"):
        planned = plan(graph, machine, NAMED[name])
        run, scopes = planned.simulation, planned.scopes
        values, steps = values_passing_s(scopes, machine), steps_s(run.steps, run.residents.scopes, machine)
        passing = [part for step in run.steps for part in (*step.loads, *step.stores)]
        main_bytes = sum(part.size_bytes for part in passing if part.scope is Scope.MAIN)
        assert values == main_bytes / ports_of(machine).main_bytes_per_s
        assert 0 < values <= steps * (1 + 1e-9), "all values pass the port of main memory, and more"
        assert steps <= run.time_s * (1 + 1e-9)


def passing(moved_bytes: int, outer_bytes: int = 0) -> Passage:
    return Passage(moved_bytes, outer_bytes, moved_bytes, False, 0)


def step(*, weights: Sequence[tuple[str | None, int, int]] = (), **fields: Any) -> SimulatedStep:
    """A step of one tile; a weight is its name, its bytes, and how many go to the cores."""
    parts = tuple(Weight(name, size_bytes) for name, size_bytes, _ in weights)
    tiling = Tiling(
        None,
        1,
        tuple(passing(moved_bytes) for _, _, moved_bytes in weights),
        fields.pop("loads", ()),
        fields.pop("stores", ()),
    )
    works = tuple(UnitWork(unit, s, 0.0, 0.0, 0.0, "float32") for unit, s in fields.pop("works", ()))
    return SimulatedStep(0, "step", Kind.INSTANCE, works, (), (), parts, tiling, (), **fields)


KERNEL = Kernel(0, 0, 0, 1, 0.25, PoolSizes(0, 0))
GROUP = StepGroup(0, 1, 0.25, PoolSizes(0, 0), 0)
MAIN_BYTES, LOCAL_BYTES = 27_000_000_000, 256_000_000_000
"""Of MACHINE, per second."""


@pytest.mark.parametrize(
    ("steps", "expected_s"),
    [
        ([step(works=[("MME", 2.0), ("VME", 1.5)]), step(works=[("VME", 1.0)])], 2.5),  # sums by unit
        ([step(works=[("MME", 2.0)], group=GROUP), step(works=[("MME", 1.0)])], 1.5),
        ([step(works=[("MME", 2.0)], kernel=KERNEL, loads=(passing(0, MAIN_BYTES),))], 1.0),
        ([step(loads=(passing(LOCAL_BYTES),), kernel=KERNEL)], 0.0),  # kernels' cores have ports of their own
        ([step(loads=(passing(LOCAL_BYTES),)), step(kernel=KERNEL)], 0.0),
        ([step(loads=(passing(LOCAL_BYTES),), stores=(passing(LOCAL_BYTES),))] * 2, 4.0),
        ([step(loads=(passing(0, MAIN_BYTES),), stores=(passing(0, MAIN_BYTES),))] * 2, 4.0),
        ([step(weights=[("w", 8, LOCAL_BYTES)] * 2)] * 2, 4.0),
        ([step(weights=[("w", MAIN_BYTES, 1)])] * 3, 1.0),  # each part once
        ([step(weights=[("w", MAIN_BYTES, 1), ("v", MAIN_BYTES, 1)])], 2.0),
        ([step(weights=[("w", MAIN_BYTES, 0)])], 0.0),  # is there
        ([step(weights=[("stays", MAIN_BYTES, 1)])], 1 / LOCAL_BYTES),
        ([step(weights=[(None, MAIN_BYTES, 1)])] * 3, 3.0),  # rows that data choose, each time
    ],
)
def test_the_busiest_unit_takes_as_long_as_its_work(
    steps: Sequence[SimulatedStep], expected_s: float
) -> None:
    assert steps_s(steps, {"stays ()": Scope.SHARED}, MACHINE) == expected_s


def test_without_a_shared_buffer_one_engine_moves_all() -> None:
    bare = load_preset("ipu-mk1")
    rate = ports_of(bare).main_bytes_per_s
    assert steps_s([step(loads=(passing(1 << 60, 1024),))], {}, bare) == 1024 / rate


def test_what_is_left_out_is_slower_than_the_best() -> None:
    """Every recipe that was left out takes as long as was said, and longer than what was taken."""
    b = GraphBuilder()
    x = b.input(4, 16, 32, 32)
    for channels in (32, 16, 32):
        x = b.conv(x, channels)
    graph, machine = b.finish(x), small(MACHINE, 8 << 10, 32 << 10)
    best = compiled(graph, machine)
    assert isinstance(best.backend, NpuBackend)
    least_s = best.backend.plan(best.program.schedule, best.program.recipe).simulation.time_s
    left_out = [a for a in best.attempts if a.cost is None]
    assert left_out
    recipes = {str(r): r for r in best.backend.recipes(lambda _: best.program.partition)}
    for attempt in left_out:
        assert "ms at least, another plan" in attempt.error
        bound_s = float(attempt.error.split()[1]) * 1e-3
        if attempt.what in recipes:
            alone = plan(graph, machine, recipes[attempt.what]).simulation
            assert alone.time_s > least_s
            assert alone.time_s >= bound_s * 0.999
    assert all(a.cost >= least_s * 1e9 * (1 - 1e-9) for a in best.attempts if a.cost is not None)


def test_of_two_orders_the_one_that_was_better_is_varied() -> None:
    graph = integer_network(3)
    best = best_plan(graph, small(MACHINE, 512, 2048))
    recipe = replace(GRAPHTURBO, schedule="depth-first")
    taken = next(iter(best.backend.variants(GRAPHTURBO)))
    assert (taken.partition, taken.memory) == (recipe.partition, recipe.memory)
    assert taken.schedule in ("depth-first", "breadth-first")
    times = {
        order: plan(graph, small(MACHINE, 512, 2048), replace(GRAPHTURBO, schedule=order)).simulation.time_s
        for order in ("depth-first", "breadth-first")
    }
    assert times[taken.schedule] == min(times.values())
