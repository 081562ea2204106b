"""Simulated time against what a machine has: bandwidth, cores, and the capacity of each level.

`python -m benchmarks monotone --output monotone` plans three networks for variants of a machine, with the
best recipe, and writes `monotone.json` and a picture for each axis; `--networks resnet50 --axes local
--recipe graphturbo` measures less, `--machine v100 --recipe joint --budget 100trials` joint plans. A machine
that has more of something can run every plan of one that has less, so that more should never cost time: what
does by more than `TOLERANCE` is listed. With `--same-plan` each machine with more also runs the plan of each
with less as it is, its kernels, stages and slices: what is slower there is no fault of the search.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.pictures import write_line_chart
from benchmarks.results import provenance, with_table
from benchmarks.zoo import built
from tilewright.api.simulation import Simulation
from tilewright.api.simulation_request import SimulationRequest
from tilewright.compiler import Planned, plan_optimised
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.hardware.variants import parse_axis, variants
from tilewright.planner import Planner, cost_of
from tilewright.progress import PhaseClock
from tilewright.report.figure import Line
from tilewright.target_ref import TargetRef
from tilewright.targets.npu.recipes import NAMED
from tilewright.targets.npu.target import NpuTarget

TOLERANCE = 0.005

NETWORKS: Mapping[str, Mapping[str, int]] = {
    "resnet50": {"batch": 4},
    "bert_base": {"batch": 4, "sequence": 128},
    "mobilenet_v2": {"batch": 4},
}
"""Those that are planned unless others are named, with their sizes; others have the zoo's own."""

AXES = ("bandwidth", "cores", "local", "shared")
FACTORS = (0.5, 0.75, 1, 1.25, 1.5, 2, 3)
"""Of what the machine has."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What of a machine is varied, where its file says it, how much it has, and the unit."""

    what: str
    paths: tuple[str, ...]
    has: float
    unit: str

    def on(self, machine: Machine, value: float) -> Machine:
        """The machine with so much of it."""
        axes = [parse_axis(f"{path}={value:g}{self.unit}", machine) for path in self.paths]
        (variant,) = variants(machine, axes)
        return variant.machine


def axes_of(machine: Machine) -> dict[str, Axis]:
    """The axes of a machine: bandwidth of main memory, cores, the largest buffers of a core and of all."""
    outermost, *_ = machine.levels[::-1]
    found: dict[str, Axis] = {}
    per_s = outermost.read_bytes_per_s
    if per_s is not None:
        name = f"levels.{outermost.name}"
        paths = [f"{name}.read_bytes_per_s", f"{name}.write_bytes_per_s"]
        paths += [f"units.{u.name}.bytes_per_s" for u in machine.units if u.bytes_per_s is not None]
        found["bandwidth"] = Axis("GB/s of main memory", tuple(paths), per_s * 1e-9, "GB/s")
    cores = machine.num_cores_per_cluster
    each = [level for level in machine.levels if level.num_instances_per_parent == cores and cores > 1]
    paths = ["num_cores_per_cluster", *(f"levels.{level.name}.num_instances_per_parent" for level in each)]
    found["cores"] = Axis("cores", tuple(paths), cores, "")
    for axis, per, what in (("local", "core", "a core's buffer"), ("shared", "machine", "the shared buffer")):
        levels = [level for level in machine.levels[:-1] if level.per == per]
        if levels:
            level = max(levels, key=lambda level: level.capacity_bytes or 0)
            path = f"levels.{level.name}.capacity_bytes"
            found[axis] = Axis(f"KiB of {what}", (path,), (level.capacity_bytes or 0) / 1024, "KiB")
    return found


def planned_on(machine: Machine, network: str, recipe: str, budget: str | None) -> Planned:
    """The best plan of a network on a machine, or that of a named recipe."""
    sizes = NETWORKS.get(network)
    model = built(network) if sizes is None else tw.zoo.build(network, **sizes)
    request = SimulationRequest(
        model=model, target=TargetRef.parse(machine.name), recipe=recipe, budget=budget
    )
    asked = Simulation(request, lambda *_: None, machine)
    clock, target = PhaseClock(None, None), NpuTarget(machine)
    graph = asked.model.graph(None)
    return plan_optimised(graph, asked.options, clock, target=target, portfolio=request.portfolio)


def as_it_is(found: Planned, machine: Machine) -> float:
    """The ns that a plan's kernels, stages and slices take on another machine; values are placed anew."""
    program, target = found.program, NpuTarget(machine)
    graph, options, schedule = found.backend.graph, program.options, program.schedule
    planner = Planner(graph, target, target.backend(graph, options), options, PhaseClock(None, None))
    return cost_of(planner.of_stages(schedule.partition, schedule.stages, program.recipe))


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
                values = f"{less['value']:g} to {more['value']:g} {more['what']}"
                yield f"{network}: {values}: {100 * slower:.1f} % slower ({less['recipe']}; {more['recipe']})"
            for less in points[:place]:
                kept_ns = more.get("as_it_is_ns", {}).get(f"{less['value']:g}")
                if kept_ns is not None and kept_ns > less["time_ns"] * (1 + TOLERANCE):
                    values = f"{less['value']:g}, with {more['value']:g} {more['what']}"
                    slower = kept_ns / less["time_ns"] - 1
                    yield f"{network}: the plan for {values}: {100 * slower:.1f} % slower ({less['recipe']})"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table for each axis: a line for each network, a column for each value."""
    text = ""
    for axis in dict.fromkeys(r["axis"] for r in rows):
        values = sorted({r["value"] for r in rows if r["axis"] == axis})
        what = next(r["what"] for r in rows if r["axis"] == axis)
        text += f"| {what} | " + " | ".join(f"{v:g}" for v in values) + " |\n"
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
        what = next(r["what"] for r in rows if r["axis"] == axis)
        write_line_chart(path, what, "simulated time of the best plan, ms", lines)


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--machine", default="stcp920")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument("--factors", default=",".join(map(str, FACTORS)), help="of what the machine has")
    parser.add_argument("--values", help="of one axis, instead of factors")
    parser.add_argument("--recipe", default="best", help=f"best, joint, or one of {', '.join(NAMED)}")
    parser.add_argument("--budget", help="of each plan, such as 100trials")
    parser.add_argument("--same-plan", action="store_true", help="run plans for less with more, too")
    parser.add_argument("--output", default=Path("monotone"))
    parser.add_argument("--page")


def main(arguments: Namespace) -> None:
    """Measure, print, and write what was asked for."""
    machine = load_preset(arguments.machine)
    rows: list[dict[str, Any]] = []
    as_is: dict[str, Planned] = {}
    known = axes_of(machine)
    for network, name in itertools.product(arguments.networks.split(","), arguments.axes.split(",")):
        axis = known.get(name)
        if axis is None:
            print(f"{machine.name} has no axis {name}")
            continue
        factors = [float(factor) * axis.has for factor in arguments.factors.split(",")]
        values = map(float, arguments.values.split(",")) if arguments.values else factors
        before: dict[str, Planned] = {}
        for value in sorted({round(v) if name != "bandwidth" else v for v in values}):
            start_s, here = time.process_time(), axis.on(machine, value)
            found = as_is.get(network) if value == axis.has else None
            found = found or planned_on(here, network, arguments.recipe, arguments.budget)
            if value == axis.has:  # the same machine whatever the axis
                as_is[network] = found
            row = {
                "network": network,
                "axis": name,
                "what": axis.what,
                "value": value,
                "time_ns": cost_of(found.program),
                "recipe": str(found.program.recipe),
                "processor_s": round(time.process_time() - start_s, 2),
            }
            if arguments.same_plan:
                row["as_it_is_ns"] = {less: as_it_is(plan, here) for less, plan in before.items()}
                before[f"{value:g}"] = found
            rows.append({**provenance(), **row})
            print(json.dumps(rows[-1]), flush=True)
            arguments.output.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    text = table(rows)
    listed = list(violations(rows))
    text += "".join(f"* {line}\n" for line in listed) or f"Nothing is slower by more than {TOLERANCE:.1%}.\n"
    print(text)
    pictures(rows, arguments.output)
    if arguments.page:
        arguments.page.write_text(with_table(arguments.page.read_text(), text, "monotone"))
