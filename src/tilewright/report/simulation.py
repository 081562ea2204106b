"""A simulated plan for people: its cost, its values checked, its timeline as a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.interpret import run_graph
from tilewright.report.comparison import TensorDifference, Tolerance
from tilewright.text.formatting import format_bytes

if TYPE_CHECKING:
    from tilewright.steps import SimulatedCost
    from tilewright.targets.base import SimulatedCode
    from tilewright.targets.simulated import Timeline


def compare_values(code: SimulatedCode, tolerance: Tolerance) -> tuple[TensorDifference, ...]:
    """The results of a plan, computed buffer by buffer, beside the interpreter's.

    Inputs are small integers, of which sums in any order are the same, and which are indices of any table.
    """
    graph = code.program.graph
    random = np.random.default_rng(0)
    feed = {}
    for value in graph.inputs:
        low, high = (-2, 3) if value.dtype.is_float else (0, 2)
        feed[value.name] = random.integers(low, high, value.shape).astype(value.dtype.numpy)
    expected = run_graph(graph, feed)
    results = code.load(None).run(feed)
    return tuple(TensorDifference.of(name, results[name], expected[name], tolerance) for name in results)


def cost_rows(cost: SimulatedCost) -> list[tuple[str, str]]:
    """Time, bound, energy, bytes and how busy units are, a line each."""
    read, written = (format_bytes(cost.bytes[f"main_{way}"]) for way in ("read", "written"))
    busiest_first = sorted(cost.utilization.items(), key=lambda item: (-item[1], item[0]))
    return [
        ("time", f"{cost.time_s * 1e3:.3f} ms"),
        (
            "at least",
            f"{cost.lower_bound_s * 1e3:.3f} ms for all plans that run this way ({cost.bound_by}): "
            f"{100 * cost.gap:.0f} % above",
        ),
        *_energy_rows(cost),
        ("main memory", f"{read} read, {written} written"),
        ("busy", ", ".join(f"{unit} {100 * share:.0f} %" for unit, share in busiest_first)),
    ]


def _energy_rows(cost: SimulatedCost) -> list[tuple[str, str]]:
    if cost.energy_j is None or cost.power_w is None:
        return [("energy", cost.energy_source)]
    source = cost.energy_source.split(";")[0]
    energy = f"{cost.energy_j * 1e3:.1f} mJ, estimated ({source})"
    total_j = sum(cost.energy_by_j.values())
    most_first = sorted(cost.energy_by_j.items(), key=lambda item: (-item[1], item[0]))
    by_part = ", ".join(f"{part} {100 * joules / total_j:.0f} %" for part, joules in most_first if joules)
    of_it = [("of it", by_part)] if by_part else []
    return [("energy", energy), *of_it, ("power", _power(cost, cost.power_w))]


def _power(cost: SimulatedCost, power_w: float) -> str:
    """Mean power beside what the machine can draw; if it is above, which part takes most."""
    if cost.max_power_w is None or not cost.time_s:
        return f"{power_w:.3g} W"
    if not cost.exceeds_power:
        return f"{power_w:.3g} W of at most {cost.max_power_w:.3g} W"
    most_w = cost.energy_by_j[cost.most_energy_by] / cost.time_s
    return (
        f"{power_w:.3g} W, ABOVE the {cost.max_power_w:.3g} W that the machine can draw: "
        f"{cost.most_energy_by} takes most, {most_w:.3g} W"
    )


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """What every unit does when, and how full the buffers are, in the trace format that Perfetto reads."""
    rows = {unit: row for row, unit in enumerate(timeline.units)}
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": unit}}
        for unit, row in rows.items()
    ]
    for run in timeline.runs:
        events.append(
            {
                "name": f"{timeline.plan.steps[run.step].name} ({run.what})",
                "ph": "X",
                "pid": 0,
                "tid": rows[run.unit],
                "ts": run.start_s * 1e6,
                "dur": (run.end_s - run.start_s) * 1e6,
                "args": {"step": run.step, "tile": run.tile, "bytes": run.size_bytes, "of": run.name},
            }
        )
    for level in timeline.levels:
        name, kinds = f"{level.level.name} bytes", tuple(level.held)
        events += [
            {
                "name": name,
                "ph": "C",
                "pid": 0,
                "ts": at_s * 1e6,
                "args": dict(zip(kinds, sizes, strict=True)),
            }
            for at_s, sizes in level.totals()
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}
