"""A simulated plan for people: its values checked, its buffers over time drawn, its timeline as a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.interpret import run_graph
from tilewright.report import figure
from tilewright.report.comparison import TensorDifference, Tolerance
from tilewright.schedule.binding import Scope
from tilewright.targets.npu.execute import execute

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine
    from tilewright.memory.scopes import ScopePlan
    from tilewright.targets.npu.plan import SimulatedPlan


def compare_plan(plan: ScopePlan, tolerance: Tolerance) -> tuple[TensorDifference, ...]:
    """The results of a plan, computed buffer by buffer, beside the interpreter's.

    Inputs are small integers, of which sums in any order are the same, and which are indices of any table.
    """
    graph = plan.graph.partition.graph
    random = np.random.default_rng(0)
    feed = {}
    for value in graph.inputs:
        low, high = (-2, 3) if value.dtype.is_float else (0, 2)
        feed[value.name] = random.integers(low, high, value.shape).astype(value.dtype.numpy)
    expected = run_graph(graph, feed)
    found = execute(plan, feed)
    return tuple(TensorDifference.of(name, found[name], expected[name], tolerance) for name in found)


def buffer_page(planned: SimulatedPlan, machine: Machine) -> str:
    """Buffers over time, as the paper's figure 3 shows them, and shares of time of units."""
    found = planned.simulation
    starts = step_starts_s(planned)
    names = {Scope.LOCAL: "buffers of the cores", Scope.SHARED: "shared buffer"}
    charts = []
    for scope, name in names.items():
        live = planned.scopes.live_bytes(scope)
        points = sorted(
            (start * 1e3, size / 2**20) for start, size in zip(starts, live, strict=True) if start is not None
        )
        capacity = planned.scopes.levels[scope].level.capacity_bytes
        limit = None if capacity is None else capacity / 2**20
        series = [figure.Series(str(scope), tuple(points), limit)]
        charts.append(figure.step_chart(name.capitalize(), "ms", "MiB", found.time_s * 1e3, series))
    units = sorted(found.utilization)
    shares = tuple(100 * found.utilization[unit] for unit in units)
    charts.append(figure.bar_chart("Busy", "% of the time", units, [figure.Bars("busy", shares)]))
    said = (
        f"One batch on one cluster of {machine.name}: {found.time_s * 1e3:.3f} ms, at least "
        f"{found.lower_bound_s * 1e3:.3f} ms. What is live, step by step; dashed: the capacity. Estimated."
    )
    return figure.page(
        f"{planned.instances.partition.graph.name} on {machine.name}", [figure.note(said), *charts]
    )


def step_starts_s(planned: SimulatedPlan) -> list[float | None]:
    """When the first task of each step starts; None for steps that take no time."""
    starts: list[float | None] = [None] * len(planned.simulation.steps)
    for run in planned.simulation.runs:
        known = starts[run.step]
        starts[run.step] = run.start_s if known is None else min(known, run.start_s)
    return starts


def chrome_trace(planned: SimulatedPlan) -> dict[str, Any]:
    """What every unit does when, and how full the buffers are, in the trace format that Perfetto reads."""
    found = planned.simulation
    rows = {unit: row for row, unit in enumerate(sorted(found.busy_s))}
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": unit}}
        for unit, row in rows.items()
    ]
    starts = step_starts_s(planned)
    for run in found.runs:
        events.append(
            {
                "name": f"{found.steps[run.step].name} ({run.what})",
                "ph": "X",
                "pid": 0,
                "tid": rows[run.unit],
                "ts": run.start_s * 1e6,
                "dur": (run.end_s - run.start_s) * 1e6,
                "args": {"step": run.step},
            }
        )
    for scope in (Scope.LOCAL, Scope.SHARED):
        for start, size in zip(starts, planned.scopes.live_bytes(scope), strict=True):
            if start is not None:
                live = {"live": size}
                events.append(
                    {"name": f"{scope} bytes", "ph": "C", "pid": 0, "ts": start * 1e6, "args": live}
                )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
