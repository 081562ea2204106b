"""Seconds and gaps of `exact` on networks' layers and every preset: `exact` beyond CoSA's layers and machine.

`python -m benchmarks mapping_presets OUT.jsonl --minutes 20` appends a row for each layer that differs from
those before it and each machine, and goes on where it was stopped; `--page docs/mapping.md` writes the table.
Seconds are those that the processor worked, and `--seconds` limits them for each layer: so they are the same
where other work is on the machine. Compiled parts are loaded before the clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of, with_table
from tilewright.api.models import as_model
from tilewright.compiler import plan
from tilewright.hardware.presets import load_preset, preset_names
from tilewright.loops.problem import Problem, layer
from tilewright.mapping import cosa, gpu
from tilewright.mapping.exact import mapper
from tilewright.mapping.network import layers_of
from tilewright.mapping.solve import MapProblem, mapped_part, same_loops, solve_layer
from tilewright.options import Options
from tilewright.planning import UNLIMITED, Budget

NETWORKS = ("resnet50", "bert_base", "mobilenet_v2")
MOST_S, CLOSE = 5.0, 0.05


class Processor:
    """The clock of this process's work, as modules read it."""

    monotonic = staticmethod(time.process_time)
    perf_counter = staticmethod(time.process_time)


def distinct_layers(networks: Sequence[str]) -> Iterator[tuple[str, Problem]]:
    """Products of each network that none before has."""
    seen = set()
    for name in networks:
        graph = plan(as_model(tw.zoo.build(name), None).graph, Options()).program.graph
        for node in layers_of(graph):
            if node.problem is not None and same_loops(node.problem) not in seen:
                seen.add(same_loops(node.problem))
                yield name, node.problem


def named(item: Problem) -> str:
    """What tells a layer apart: extents, and steps of its windows."""
    steps = sorted({(dim, step) for o in item.operands for axis in o.axes for dim, step in axis if step > 1})
    extents = [f"{dim}={extent}" for dim, extent in item.dims if extent > 1]
    return " ".join([*extents, *(f"{dim} by {step}" for dim, step in steps)])


def measured(problem: MapProblem, part: Any, network: str, item: Problem) -> dict[str, Any]:
    started = time.process_time()
    answer = solve_layer(item, problem, part)
    return {
        "machine": problem.machine.name,
        "objective": problem.objective,
        "network": network,
        "layer": named(item),
        "seconds": round(time.process_time() - started, 3),
        "gap": answer.quality.gap,
        "status": str(answer.quality.status),
        "cycles": answer.cost.cycles,
        "energy_pj": answer.cost.energy_pj,
        "bound": answer.quality.bound,
        "details": dict(answer.details),
        "note": answer.provenance.note,
    }


def summary(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| machine | layers | seconds, median | worst | gap, median | worst | longer than "
        f"{MOST_S:g} s with a gap above {CLOSE:.0%} |",
        "|---|---|---|---|---|---|---|",
    ]
    for machine in dict.fromkeys(row["machine"] for row in rows):
        of_machine = [row for row in rows if row["machine"] == machine]
        seconds = [row["seconds"] for row in of_machine]
        gaps = [100 * row["gap"] for row in of_machine]
        late = sum(
            (row["status"] == "cut off" or row["seconds"] > MOST_S) and row["gap"] > CLOSE
            for row in of_machine
        )
        lines.append(
            f"| `{machine}` | {len(of_machine)} | {median(seconds):.2f} | {max(seconds):.2f} "
            f"| {median(gaps):.1f} % | {max(gaps):.1f} % | {late} |"
        )
    return "\n".join(lines) + "\n"


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("output", type=Path)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--machines", default=",".join(preset_names()))
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--objective", default="latency")
    parser.add_argument("--every", type=int, default=1, help="of the layers every so many, for a first look")
    parser.add_argument("--page")


def main(arguments: Namespace) -> None:
    """Measure what is missing, and print."""
    for module in (mapper, gpu, cosa):
        module.time = Processor  # type: ignore[attr-defined]
    done = {(row["machine"], row["objective"], row["layer"]) for row in rows_of(arguments.output)}
    items = list(distinct_layers(arguments.networks.split(",")))[:: arguments.every]
    end_s = time.monotonic() + 60 * arguments.minutes
    for name in arguments.machines.split(","):
        machine = load_preset(name)
        part, _ = mapped_part(machine)
        budget = Budget(UNLIMITED, arguments.seconds)
        problem = MapProblem(machine=machine, workloads=(), objective=arguments.objective, budget=budget)
        measured(problem, part, "", layer("1_4_8_8_1"))
        for network, item in items:
            text = named(item)
            if (name, arguments.objective, text) in done:
                continue
            if time.monotonic() > end_s:
                break
            row = measured(problem, part, network, item)
            append_row(arguments.output, row)
            print(f"{name} {text}: {row['seconds']:.2f} s, gap {row['gap']:.1%}, {row['status']}", flush=True)
    rows = [row for row in rows_of(arguments.output) if row["objective"] == arguments.objective]
    text = summary(rows)
    print(text)
    if arguments.page:
        arguments.page.write_text(with_table(arguments.page.read_text(), text, "presets"))
