"""What is known of a plan's time before it is simulated, and what the portfolio leaves out for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.accelerator import best_plan, compiled, plan, with_capacities
from tests.support.graphs import GraphBuilder
from tests.support.integer_networks import integer_network

from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.bounds import steps_s, values_passing_s
from tilewright.targets.npu.recipes import GRAPHTURBO, NAMED

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
        assert 0 < values <= steps * (1 + 1e-9), "all values pass the port of main memory, and more"
        assert steps <= run.time_s * (1 + 1e-9)


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
