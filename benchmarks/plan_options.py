"""What each option beyond GraphTurbo's paper gains over the portfolio without it.

`python -m benchmarks plan_options --output plan_options` plans six networks for three machines, with all
options and without each, and for each objective; `--networks squeezenet1_1 --machines a310` plans less. An
option that the best plan does not use gains nothing, so that the portfolio is planned again without those
alone that it does use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.results import provenance, with_table
from tilewright.api import load
from tilewright.compiler import plan_optimised
from tilewright.cost.base import Objective
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.partition.base import Partition
from tilewright.passes import run_passes
from tilewright.planning.portfolio import Recipe
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.target import NpuTarget

NETWORKS = ("resnet50", "mobilenet_v2", "bert_base", "inception_v3", "squeezenet1_1", "densenet121")
MACHINES = ("stcp920", "a310", "ipu-mk2")

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "rows kept": ("rows=keep",),
    "resident weights": ("resident_weights=true",),
    "smaller capacities": ("capacity_bytes=", "most_bytes="),
}
"""What a recipe that uses an option says."""

OBJECTIVES: tuple[Objective, ...] = ("energy", "edp")


class _Backend(NpuBackend):
    """Leaves recipes out that use an option."""

    left_out: str = ""

    def recipes(self, partition: Callable[[str], Partition]) -> Iterable[Recipe]:
        return self._kept(super().recipes(partition))

    def variants(self, best: Recipe) -> Iterable[Recipe]:
        return self._kept(super().variants(best))

    def _kept(self, recipes: Iterable[Recipe]) -> Iterator[Recipe]:
        return (recipe for recipe in recipes if not uses(str(recipe), self.left_out))


class _Target(NpuTarget):
    left_out = ""

    def backend(self, graph: Graph, options: Options) -> NpuBackend:
        made = _Backend(self, self.machine, self.types, self.policy, self.tiler, self.mapper, graph, options)
        made.left_out = self.left_out
        return made


def uses(recipe: str, option: str) -> bool:
    """Whether a recipe uses an option."""
    return any(text in recipe for text in OPTIONS.get(option, ()))


def measure(
    network: str, machine: str, batch: int, left_out: str = "", objective: Objective = "latency"
) -> dict[str, Any]:
    """Time and energy of the best plan, by an objective and without an option."""
    graph = load(tw.zoo.build(network, batch=batch)).graph
    run_passes(graph)
    target = type("_Without", (_Target,), {"left_out": left_out})(load_preset(machine))
    planned = plan_optimised(graph, Options(hint=objective), target=target)
    found = cast(NpuBackend, planned.backend).generate(planned.program).planned.simulation
    return {
        "network": network,
        "machine": machine,
        "batch": batch,
        "left_out": left_out,
        "objective": objective,
        "time_s": found.time_s,
        "energy_j": found.energy_j,
        "recipe": str(planned.program.recipe),
    }


def cell(network: str, machine: str, batch: int, objectives: Sequence[Objective]) -> Iterator[dict[str, Any]]:
    """The best plan, the best without each option that it uses, and the best by each other objective."""
    best = measure(network, machine, batch)
    yield best
    for option in OPTIONS:
        if uses(best["recipe"], option):
            yield measure(network, machine, batch, option)
    for objective in objectives:
        yield measure(network, machine, batch, objective=objective)


def _saved(before: float, after: float) -> str:
    share = 1 - after / before
    return f"{100 * share:.1f} %" if share >= 0.0005 else "0"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What each option saves of the time, and each objective of what it minimises."""
    names = [*OPTIONS, *dict.fromkeys(r["objective"] for r in rows if r["objective"] != "latency")]
    text = f"| network | machine | best, ms | {' | '.join(names)} |\n|---|---|{'---:|' * (len(names) + 1)}\n"
    for key in dict.fromkeys((r["network"], r["machine"]) for r in rows):
        found = {(r["left_out"], r["objective"]): r for r in rows if (r["network"], r["machine"]) == key}
        best = found["", "latency"]
        cells = []
        for option in OPTIONS:
            without = found.get((option, "latency"))
            cells.append("0" if without is None else _saved(without["time_s"], best["time_s"]))
        for objective in names[len(OPTIONS) :]:
            other = found.get(("", objective))
            cells.append("" if other is None else _saved(_cost(best, objective), _cost(other, objective)))
        text += f"| {key[0]} | {key[1]} | {best['time_s'] * 1e3:.3f} | {' | '.join(cells)} |\n"
    return text


def _cost(row: Mapping[str, Any], objective: str) -> float:
    return float(row["energy_j"] * (row["time_s"] if objective == "edp" else 1.0))


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--objectives", default=",".join(OBJECTIVES))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--output", default=Path("plan_options"))
    parser.add_argument("--page")


def main(arguments: Namespace) -> None:
    """Measure, print, and write what was asked for."""
    objectives = cast(Sequence[Objective], list(filter(None, arguments.objectives.split(","))))
    rows: list[dict[str, Any]] = []
    for network in arguments.networks.split(","):
        for machine in arguments.machines.split(","):
            for row in cell(network, machine, arguments.batch, objectives):
                rows.append({**provenance(), **row})
                print(json.dumps(row), flush=True)
                arguments.output.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    text = table(rows)
    print(text)
    if arguments.page:
        arguments.page.write_text(with_table(arguments.page.read_text(), text, "options"))
