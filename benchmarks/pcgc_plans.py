"""Networks of the zoo planned by PCGC on described machines: what plans cost, and what deciding takes.

    python -m benchmarks pcgc_plans OUTPUT.jsonl --minutes 8

Adds a line for each network and machine: the estimated ns of PCGC's plan, of static fusion alone and of each
default partition; processor seconds that deciding took from nothing; what was priced. Those that OUTPUT has
already are left out, so that it may be stopped and started again; networks that take long come last. Those
that a machine has no rates for are left out. Prints a table; a ratio above 1 is a plan that was missed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.command import Namespace, Parser
from benchmarks.pcgc import LARGE
from benchmarks.results import append_row, rows_of
from tilewright import zoo
from tilewright.compiler import optimise
from tilewright.errors import MachineError
from tilewright.families import PARTITIONERS
from tilewright.frontend.onnx import load_onnx
from tilewright.options import Options
from tilewright.planning import Infeasible
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target

OTHERS = {"rules": "pcgc{recut=none}", "layerwise": "layerwise", "graphturbo": "graphturbo"}


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("output", type=Path)
    parser.add_argument("--targets", default="a310,jetson-nano,zcu102{dtype=int8}")
    parser.add_argument("--networks", default=",".join(zoo.names()))
    parser.add_argument("--minutes", type=float, default=8.0)


def main(arguments: Namespace) -> None:
    """Measure what is missing, and print."""
    until_s = time.monotonic() + 60 * arguments.minutes
    known = {(row["network"], row["target"]) for row in rows_of(arguments.output)}
    for network in sorted(arguments.networks.split(","), key=lambda name: (name in LARGE, name)):
        for target in arguments.targets.split(","):
            if (network, target) in known or time.monotonic() > until_s:
                continue
            try:
                append_row(arguments.output, planned(network, target))
            except MachineError as error:
                print(f"{network}: {error}", file=sys.stderr)
    print(table(rows_of(arguments.output)))


def planned(network: str, target: str) -> dict[str, Any]:
    """One network on one machine."""
    options = Options(target=TargetRef.parse(target))
    graph, _ = optimise(load_onnx(zoo.build(network)), options)
    backend = find_target(options.target).backend(graph, options)
    costs: dict[str, float | None] = {}
    row: dict[str, Any] = {"network": network, "target": target, "num_nodes": len(graph.nodes)}
    for name, member in {"pcgc": "pcgc", **OTHERS}.items():
        started_s = time.process_time()
        plan = PARTITIONERS.get(member).solve(backend.partition_problem, options.search_budget)
        if name == "pcgc":
            row["decided_cpu_s"] = round(time.process_time() - started_s, 3)
        costs[name] = None if isinstance(plan, Infeasible) else plan.quality.cost
        if name == "pcgc" and not isinstance(plan, Infeasible):
            row["note"] = plan.provenance.note
    return row | {"cost_ns": costs}


def table(rows: Iterable[dict[str, Any]]) -> str:
    """One line for each network and machine."""
    lines = ["| network | machine | CPU s | ms | over rules | over layerwise | over graphturbo |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: (row["target"], row["network"])):
        costs = row["cost_ns"]
        ours = costs["pcgc"]
        ratios = [f"{ours / costs[name]:.4f}" if ours and costs[name] else "-" for name in OTHERS]
        shown = f"{ours / 1e6:.4f}" if ours else "-"
        cells = [row["network"], row["target"], f"{row['decided_cpu_s']:.1f}", shown, *ratios]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
