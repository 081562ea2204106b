"""Simulated time against what a machine has: bandwidth, cores, and the capacity of each level.

`python -m benchmarks monotone --output monotone` plans three networks for variants of a machine, with the
best recipe, and writes `monotone.json` and a picture for each axis; `--networks resnet50 --axes local
--recipe graphturbo` measures less. A machine that has more of something can run every plan of one that has
less, so that more should never cost time: what does by more than `TOLERANCE` is listed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.pictures import write_line_chart
from benchmarks.results import provenance, with_table
from tilewright.api import load
from tilewright.compiler import plan_optimised
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.hardware.variants import parse_axis, variants
from tilewright.options import Options
from tilewright.passes import run_passes
from tilewright.report.figure import Line
from tilewright.targets.npu.recipes import NAMED
from tilewright.targets.npu.target import NpuTarget

TOLERANCE = 0.005

NETWORKS: Mapping[str, Mapping[str, int]] = {
    "resnet50": {"batch": 4},
    "bert_base": {"batch": 4, "sequence": 128},
    "mobilenet_v2": {"batch": 4},
}

AXES: Mapping[str, tuple[str, tuple[str, ...], tuple[float, ...]]] = {
    "bandwidth": (
        "GB/s of main memory",
        ("levels.DDR.read_bytes_per_s", "levels.DDR.write_bytes_per_s", "units.DMA.bytes_per_s"),
        (13.5, 20, 27, 34, 41, 54, 108),
    ),
    "cores": (
        "cores",
        ("num_cores_per_cluster", "levels.L1.num_instances_per_parent"),
        (4, 5, 6, 7, 8, 10, 12, 16),
    ),
    "local": (
        "KiB of local buffer a core",
        ("levels.L1.capacity_bytes",),
        (640, 896, 1024, 1280, 1536, 1792, 2048, 2560),
    ),
    "shared": ("MiB of shared buffer", ("levels.LLB.capacity_bytes",), (3, 4, 5, 6, 7, 8, 12, 16)),
}
"""By name: what it counts, where the machine says it, and the values it takes."""

UNITS = {"bandwidth": "GB/s", "cores": "", "local": "KiB", "shared": "MiB"}


def with_more(machine: Machine, axis: str, value: float) -> Machine:
    """The machine with so much along an axis."""
    _, paths, _ = AXES[axis]
    axes = [parse_axis(f"{path}={value:g}{UNITS[axis]}", machine) for path in paths]
    (variant,) = variants(machine, axes)
    return variant.machine


def measure(machine: Machine, network: str, recipe: str) -> dict[str, Any]:
    """The best plan of a network on a machine, or that of a named recipe."""
    graph = load(tw.zoo.build(network, **NETWORKS[network])).graph
    run_passes(graph)
    options = Options()
    if recipe != "best":
        chosen = NAMED[recipe].recipe
        options = Options(partition=chosen.partition, schedule=chosen.schedule, memory=chosen.memory)
    start_s = time.process_time()
    planned = plan_optimised(graph, options, target=NpuTarget(machine))
    cost = planned.program.schedule.quality
    return {
        "time_ns": cost.cost,
        "lower_bound_ns": cost.bound,
        "recipe": str(planned.program.recipe),
        "processor_s": round(time.process_time() - start_s, 2),
    }


def violations(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Where more of something takes longer than the best that any less of it takes."""
    for network, axis in dict.fromkeys((r["network"], r["axis"]) for r in rows):
        points = sorted(
            (r for r in rows if (r["network"], r["axis"]) == (network, axis)), key=lambda r: float(r["value"])
        )
        for place, more in enumerate(points[1:], 1):
            less = min(points[:place], key=lambda r: float(r["time_ns"]))
            slower = more["time_ns"] / less["time_ns"] - 1
            if slower > TOLERANCE:
                values = f"{less['value']:g} to {more['value']:g} {AXES[axis][0]}"
                yield f"{network}: {values}: {100 * slower:.1f} % slower ({less['recipe']}; {more['recipe']})"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table for each axis: a line for each network, a column for each value."""
    text = ""
    for axis in dict.fromkeys(r["axis"] for r in rows):
        values = sorted({r["value"] for r in rows if r["axis"] == axis})
        text += f"| {AXES[axis][0]} | " + " | ".join(f"{v:g}" for v in values) + " |\n"
        text += "|---|" + "---:|" * len(values) + "\n"
        for network in dict.fromkeys(r["network"] for r in rows):
            at = {r["value"]: r for r in rows if (r["network"], r["axis"]) == (network, axis)}
            cells = [f"{at[v]['time_ns'] * 1e-6:.3f}" if v in at else "" for v in values]
            text += f"| {network}, ms | {' | '.join(cells)} |\n"
        text += "\n"
    return text


def pictures(rows: Sequence[Mapping[str, Any]], output: Path) -> None:
    """A chart for each axis."""
    for axis in dict.fromkeys(r["axis"] for r in rows):
        lines = []
        for network in dict.fromkeys(r["network"] for r in rows):
            own = [r for r in rows if (r["network"], r["axis"]) == (network, axis)]
            lines.append(Line(network, tuple((r["value"], r["time_ns"] * 1e-6) for r in own)))
        path = output.with_name(f"{output.name}_{axis}.svg")
        write_line_chart(path, AXES[axis][0], "simulated time of the best plan, ms", lines)


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--machine", default="stcp920")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument("--values", help="of one axis, instead of its usual ones")
    parser.add_argument("--recipe", default="best", help=f"best, or one of {', '.join(NAMED)}")
    parser.add_argument("--output", default=Path("monotone"))
    parser.add_argument("--page")


def main(arguments: Namespace) -> None:
    """Measure, print, and write what was asked for."""
    machine = load_preset(arguments.machine)
    rows: list[dict[str, Any]] = []
    for network in arguments.networks.split(","):
        for axis in arguments.axes.split(","):
            values = map(float, arguments.values.split(",")) if arguments.values else AXES[axis][2]
            for value in values:
                found = measure(with_more(machine, axis, value), network, arguments.recipe)
                rows.append({**provenance(), "network": network, "axis": axis, "value": value, **found})
                print(json.dumps(rows[-1]), flush=True)
                arguments.output.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    text = table(rows)
    listed = list(violations(rows))
    text += "".join(f"* {line}\n" for line in listed) or f"Nothing is slower by more than {TOLERANCE:.1%}.\n"
    print(text)
    pictures(rows, arguments.output)
    if arguments.page:
        arguments.page.write_text(with_table(arguments.page.read_text(), text, "monotone"))
