"""Joint plans beside published schedulers alone, the best of their combinations, and the portfolio.

    python -m benchmarks joint_plans OUTPUT.jsonl --networks googlenet --targets v100,a310 --minutes 20

Adds a line for each network and machine, one sample each: simulated ns of every paper alone (layers one by
one tiled by CoSA, or staged by IOS; GraphTurbo; AGO; PCGC with virtual units), of the best of the grid, of
the portfolio and of the joint plan; its bound, and the highest of a space that holds it; processor seconds.
Those that OUTPUT has already are left out, so that it may be stopped and started again. Prints a table and
geometric means.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of
from tilewright import zoo
from tilewright.errors import MachineError
from tilewright.planning.portfolio import Recipe

ALONE: Mapping[str, tuple[str, str, str]] = {
    "GraphTurbo": ("graphturbo", "depth-or-breadth-first", ""),
    "AGO": ("ago", "sequential", ""),
    "CoSA": ("layerwise", "sequential", "mapper=cosa"),
    "IOS": ("layerwise", "ios", ""),
    "PCGC": ("pcgc", "virtual-units", ""),
}
"""Partitioner, scheduler and execution of each paper."""
NETWORKS = "squeezenet1_1,shufflenet_v2_x1_0,mobilenet_v2,googlenet,ios_inception_v3,resnet50,mobilevit_s"
TARGETS = "v100,a310,jetson-nano"


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("output", type=Path)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument("--budget", default=None, help="Of each joint plan: 60s, 300trials.")
    parser.add_argument("--minutes", type=float, default=20.0)


def main(arguments: Namespace) -> None:
    """Measure what OUTPUT lacks, then print the table."""
    until_s = time.monotonic() + 60 * arguments.minutes
    known = {(row["network"], row["target"]) for row in rows_of(arguments.output)}
    for network in arguments.networks.split(","):
        for target in arguments.targets.split(","):
            if (network, target) in known or time.monotonic() > until_s:
                continue
            try:
                append_row(arguments.output, planned(network, target, arguments.budget))
            except MachineError as error:
                print(f"{network}: {error}", file=sys.stderr)
    print(table(rows_of(arguments.output)))


def planned(network: str, target: str, budget: str | None) -> dict[str, Any]:
    """One network on one machine."""
    model = tw.load(zoo.build(network))
    start_s = time.process_time()
    portfolio = tw.simulate(model, target)
    portfolio_s = time.process_time() - start_s
    joint = tw.simulate(model, target, recipe="joint", budget=budget)
    costs: dict[tuple[str, str, str], float] = {}
    for tried in joint.tried:
        recipe = tried.planners
        if isinstance(recipe, Recipe) and tried.cost is not None:
            # The first is of the graph as it is; those of merged graphs come behind.
            costs.setdefault((recipe.partition, recipe.schedule, recipe.execution), tried.cost)
    alone = {
        name: costs.get(key, costs.get((*key[:2], ""))) for name, key in ALONE.items()
    }  # a plan that no mapper tiles is the same under each
    grid = {key: cost for key, cost in costs.items() if "{" not in key[0] + key[1] and key[0] != "joint"}
    best = min(grid, key=lambda key: grid[key])
    return {
        "network": network,
        "target": target,
        "alone_ns": alone,
        "grid_ns": grid[best],
        "grid": ", ".join(filter(None, best)),
        "portfolio_ns": portfolio.time_s * 1e9,
        "joint_ns": joint.time_s * 1e9,
        "joint": joint.recipe,
        "bound_ns": joint.lower_bound_s * 1e9,
        "space_bound_ns": max((b.value for b in joint.bounds or ()), default=None),
        "optimal_among": joint.optimal_among,
        "portfolio_cpu_s": portfolio_s,
        "joint_cpu_s": time.process_time() - start_s - portfolio_s,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Simulated µs, and how much less a joint plan takes than the best paper and the best combination."""
    lines = [
        f"| network | machine | {' | '.join(ALONE)} | grid | portfolio | joint | bound | of its space | s |",
        f"|---|---|{'---:|' * (len(ALONE) + 6)}",
    ]
    for row in rows:
        alone = [row["alone_ns"][name] for name in ALONE]
        figures = [*alone, row["grid_ns"], row["portfolio_ns"], row["joint_ns"], row["bound_ns"]]
        cells = ["-" if ns is None else f"{ns / 1e3:,.1f}" for ns in figures]
        of_space = row["space_bound_ns"]
        cells.append(
            "optimal" if row["optimal_among"] else "-" if of_space is None else f"{of_space / 1e3:,.1f}"
        )
        lines.append(
            f"| {row['network']} | `{row['target']}` | {' | '.join(cells)} | {row['joint_cpu_s']:.0f} |"
        )
    if rows:
        papers = geometric_mean(
            min(ns for ns in row["alone_ns"].values() if ns) / row["joint_ns"] for row in rows
        )
        grids = geometric_mean(row["grid_ns"] / row["joint_ns"] for row in rows)
        portfolios = geometric_mean(row["portfolio_ns"] / row["joint_ns"] for row in rows)
        lines.append(
            f"\nGeometric means over the joint plan's time: best paper alone {papers:.3f}, best of the grid "
            f"{grids:.3f}, portfolio {portfolios:.3f}."
        )
    return "\n".join(lines)
