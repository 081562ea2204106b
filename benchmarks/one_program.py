"""Joint plans of one program beside the best sequence of published planners, and their bounds.

    python -m benchmarks one_program --output rows.jsonl --minutes 60
    python -m benchmarks one_program --cells squeezenet1_1:1:stcp920,mobilenet_v2:1:ipu-mk2 --budget 300trials

Adds a row for each network, batch and machine: simulated ns of the best of portfolio and grid, each as far as
it comes within the budget, and of the joint plan; the bound of the busiest unit, and that of boxes where the
plan is in its space; the seconds of processor time that joint plan and bound took. Budgets that are times
count processor time. What the output has is left out. Prints a table, the geometric mean of the gain, and the
median of the gaps.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from statistics import geometric_mean, median
from typing import Any

from benchmarks.command import Namespace, Parser
from benchmarks.joint import count_processor_time
from benchmarks.joint_plans import NETWORKS
from benchmarks.results import append_row, provenance, rows_of
from tilewright import zoo
from tilewright.api import load
from tilewright.compiler import plan_optimised
from tilewright.options import Options
from tilewright.passes import run_passes
from tilewright.planning import UNLIMITED, Budget
from tilewright.progress import ending_with
from tilewright.target_ref import TargetRef
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.box_bound import begins_whole, bound_in_time, is_in_space

MACHINES = "stcp920,ipu-mk2"


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--output", default=None)
    parser.add_argument("--cells", help="network:batch:machine, by commas, instead of all")
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--machines", default=MACHINES)
    parser.add_argument("--batches", default="1")
    parser.add_argument("--budget", default="10s", help="of each joint plan: trials, or processor time")
    parser.add_argument(
        "--bound-seconds", type=float, default=inf, help="of processor time, for boxes and waits"
    )
    parser.add_argument("--minutes", type=float, default=inf)


def main(arguments: Namespace) -> None:
    """Measure what the output lacks, and print the table."""
    count_processor_time()
    until_s = time.monotonic() + 60 * arguments.minutes
    rows = [] if arguments.output is None else rows_of(arguments.output)
    known = {row["cell"] for row in rows}
    for cell in cells(arguments):
        if cell not in known and time.monotonic() < until_s:
            row = {"cell": cell, "budget": arguments.budget, **provenance()}
            row |= measured(cell, arguments.budget, arguments.bound_seconds)
            rows.append(row)
            if arguments.output is not None:
                append_row(arguments.output, row)
    print(table(rows))


def cells(arguments: Namespace) -> Iterator[str]:
    """What is asked for."""
    if arguments.cells is not None:
        yield from arguments.cells.split(",")
        return
    parts = (arguments.networks, arguments.batches, arguments.machines)
    yield from map(":".join, itertools.product(*(part.split(",") for part in parts)))


def measured(cell: str, budget: str, bound_seconds: float) -> dict[str, Any]:
    """One network on one machine."""
    name, batch, machine = cell.split(":")
    graph = load(zoo.build(name, batch=int(batch))).graph
    run_passes(graph)
    begun_s = time.process_time()
    effort = Budget.parse(budget)
    target = TargetRef(machine)
    options = Options(target=target, plan="joint", budget=effort)
    planned = plan_optimised(graph, options, portfolio=effort)
    plan_s = time.process_time() - begun_s
    backend = planned.backend
    assert isinstance(backend, NpuBackend)
    program = planned.program
    plan = backend.plan(program.schedule, program.recipe)  # checked
    sequences = (
        plan_optimised(graph, Options(target=target, plan=plan), portfolio=effort)
        for plan in ("portfolio", "grid")
    )
    tried = [found.program.schedule.quality.cost for found in sequences]
    cost = program.schedule.quality.cost
    row = {
        "sequence_ns": min(tried),
        "joint_ns": cost,
        "num_searched": sum(a.recipe is None for a in planned.attempts),
        "unit_bound_ns": plan.simulation.lower_bound_s * 1e9,
        "plan_s": plan_s,
    }
    if program.graph is graph:
        begun_s = time.process_time()
        meter = Budget(UNLIMITED, deadline_s=bound_seconds).start(time.process_time)
        with ending_with(meter):
            bound = bound_in_time(plan, backend.works, graph, meter)
        row |= {
            "is_boxed": is_in_space(plan, backend.works),
            "begins_whole": begins_whole(plan),
            "box_bound_ns": None if bound is None else bound.value,
            "bound_s": time.process_time() - begun_s,
        }
    return row


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Simulated µs, the bounds of the busiest unit and of boxes, and gaps to the first and the higher one."""
    lines = [
        "| network, batch, machine | sequence, us | joint | x | searched | units | boxes | gap | gap | s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    gaps: list[tuple[float, float, float]] = []
    for row in rows:
        sequence, joint, unit = (row[f"{name}_ns"] for name in ("sequence", "joint", "unit_bound"))
        box = row.get("box_bound_ns")
        gaps.append((sequence / unit - 1, joint / unit - 1, joint / max(unit, box or 0.0) - 1))
        before, after = (f"{100 * gap:.0f} %" for gap in gaps[-1][1:])
        lines.append(
            f"| {row['cell'].replace(':', ', ')} | {sequence / 1e3:.1f} | {joint / 1e3:.1f} "
            f"| {sequence / joint:.2f} | {row['num_searched']} | {unit / 1e3:.1f} "
            f"| {'-' if box is None else f'{box / 1e3:.1f}'} | {before} | {after} | {row['plan_s']:.0f} |"
        )
    if gaps:
        mean = geometric_mean(row["sequence_ns"] / row["joint_ns"] for row in rows)
        medians = [f"{100 * median(gap):.0f} %" for gap in zip(*gaps, strict=True)]
        lines += [
            "",
            f"Sequence / joint: {mean:.3f} (geometric mean of {len(rows)} cells). Median gap: sequence over "
            f"the busiest unit {medians[0]}, joint {medians[1]}, joint over the higher bound {medians[2]}.",
        ]
    return "\n".join(lines)
