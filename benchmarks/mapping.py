"""Mappers side by side on CoSA's 58 layers: cycles, energy, gaps, seconds; and mappings counted per second.

`python -m benchmarks mapping --output out` writes out.json and out.md; with `--page docs/mapping.md` the
table between the page's markers as well. One core; seconds are those that the processor worked, so that other
work on the machine lengthens them little. Compiled parts are loaded before the clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import fmean, geometric_mean, median
from typing import Any

import numpy as np

from benchmarks.command import Namespace, Parser
from benchmarks.results import cosa_options, layers, provenance, write
from tilewright.cost.base import Objective
from tilewright.cost.nest_table import Encoded, Evaluator
from tilewright.hardware.presets import load_preset
from tilewright.loops.problem import Problem, layer
from tilewright.mapping.base import Mapper, MappingProblem, MappingSolution
from tilewright.mapping.cosa import Cosa
from tilewright.mapping.exact import Exact
from tilewright.mapping.hybrid import Hybrid
from tilewright.mapping.random import Random
from tilewright.mapping.sampling import Tilings
from tilewright.planning import Budget

MAPPERS: dict[str, tuple[Mapper, Objective]] = {
    "exact": (Exact(), "latency"),
    "exact, energy": (Exact(), "energy"),
    "exact, edp": (Exact(), "edp"),
    "cosa": (Cosa(), "latency"),
    "cosa-paper": (Cosa("paper"), "latency"),
    "hybrid, 4 threads": (Hybrid(), "latency"),
    "hybrid, 32 threads": (Hybrid(num_threads=32, timeout=0), "latency"),
    "random, best of 5": (Random(), "latency"),
}


def measured(machine_name: str, problems: Sequence[tuple[str, Problem]]) -> list[dict[str, Any]]:
    machine = load_preset(machine_name)
    for mapper, objective in MAPPERS.values():
        mapper.solve(MappingProblem(layer("3_7_16_16_1"), machine, objective), Budget())
    rows = []
    for network, problem in problems:
        row: dict[str, Any] = {"network": network, "layer": problem.name, "mappers": {}}
        for name, (mapper, objective) in MAPPERS.items():
            started = time.process_time()
            answer = mapper.solve(MappingProblem(problem, machine, objective), Budget())
            seconds = time.process_time() - started
            assert isinstance(answer, MappingSolution), (name, problem.name, answer)
            row["bound_cycles"] = answer.bound_cycles
            row["mappers"][name] = {
                "cycles": answer.cost.cycles,
                "energy_pj": answer.cost.energy_pj,
                "edp": answer.cost.edp,
                "gap": gap_unpadded(answer),
                "energy_gap_at_latency": energy_gap(answer),
                "seconds": seconds,
            }
        rows.append({**provenance(), **row})
        print(
            network, problem.name, {n: round(m["seconds"], 2) for n, m in row["mappers"].items()}, flush=True
        )
    return rows


def gap_unpadded(answer: MappingSolution) -> float:
    """How far the answer is above the least of mappings that pad nothing, as far as that was proven."""
    bound = answer.details.get("bound_unpadded", answer.quality.bound)
    return max(0.0, answer.quality.cost / bound - 1)


def energy_gap(answer: MappingSolution) -> float | None:
    """Of the fastest mappings: how far the energy is above what is proven of them."""
    bound = answer.details.get("energy_bound_at_latency_pj", 0.0)
    return answer.cost.energy_pj / bound - 1 if bound > 0 else None


def evaluations_per_s(machine_name: str, text: str, count: int = 200_000) -> float:
    """Legal random mappings counted in a second by one core."""
    machine, random = load_preset(machine_name), np.random.default_rng(0)
    task = MappingProblem(layer(text), machine)
    tilings = Tilings(task)
    mappings = []
    while len(mappings) < 1000:
        factors = tilings.draw(random, 4096)
        for one in np.nonzero(tilings.legal(factors))[0]:
            places = [place for place, _ in tilings.temporal_slots()]
            orders = [list(random.permutation(tilings.loops(factors[one], place))) for place in places]
            mappings.append(tilings.mapping(factors[one], orders))
    table = Evaluator(task.problem, machine)
    few = table.encode(mappings)
    times = -(-count // len(mappings))
    many = Encoded(*(np.repeat(a, times, axis=0) for a in (few.temporal, few.spatial, few.orders)))
    table.evaluate(few)
    started = time.perf_counter()
    cycles, _ = table.evaluate(many)
    seconds = time.perf_counter() - started
    assert np.isfinite(cycles).all()
    return len(cycles) / seconds


def summary(rows: Sequence[dict[str, Any]], speeds: dict[str, float], machine: str) -> str:
    def ratio(name: str, key: str) -> float:
        return geometric_mean([row["mappers"][name][key] / row["mappers"]["exact"][key] for row in rows])

    lines = [
        f"{len(rows)} layers on `{machine}`, one core. Geometric means against `exact`.",
        "",
        "| mapper | cycles | energy | energy x delay | at the roofline | seconds, median | mean | worst |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in MAPPERS:
        own = [row["mappers"][name] for row in rows]
        seconds = [m["seconds"] for m in own]
        reached = sum(m["cycles"] == row["bound_cycles"] for m, row in zip(own, rows, strict=True))
        ratios = " | ".join(f"{ratio(name, key):.3f}" for key in ("cycles", "energy_pj", "edp"))
        spread = f"{median(seconds):.3f} | {fmean(seconds):.3f} | {max(seconds):.2f}"
        lines.append(f"| {name} | {ratios} | {reached} | {spread} |")
    gaps: dict[str, Callable[[dict[str, Any]], float]] = {
        "cycles above the proven least, `exact`": lambda row: row["mappers"]["exact"]["gap"],
        "its energy above the least of mappings as fast": lambda row: (
            row["mappers"]["exact"]["energy_gap_at_latency"] or 0.0
        ),
        "energy above the proven least of mappings that pad nothing, `exact, energy`": lambda row: row[
            "mappers"
        ]["exact, energy"]["gap"],
        "energy x delay above the proven least of mappings that pad nothing, `exact, edp`": lambda row: row[
            "mappers"
        ]["exact, edp"]["gap"],
    }
    lines += ["", "| gap | median | worst |", "|---|---|---|"]
    for what, gap in gaps.items():
        values = [100 * gap(row) for row in rows]
        lines.append(f"| {what} | {median(values):.3f} % | {max(values):.3f} % |")
    lines += [
        "",
        "Mappings counted per second: " + ", ".join(f"{t} {v / 1e6:.2f} M" for t, v in speeds.items()) + ".",
    ]
    return "\n".join(lines) + "\n"


def options(parser: Parser) -> None:
    """What can be asked."""
    cosa_options(parser, "mapping")


def main(arguments: Namespace) -> None:
    """Measure, print and write."""
    speeds = {t: evaluations_per_s(arguments.machine, t) for t in ("3_14_256_256_1", "1_14_1024_256_1")}
    rows = measured(arguments.machine, layers(arguments.only))
    text = summary(rows, speeds, arguments.machine)
    write(arguments, {"speeds": speeds, "rows": rows}, text)
