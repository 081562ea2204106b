"""Mappers on the network, CoSA's figure 10: speed-up over random mappings, cycle by cycle, on its 58 layers.

`python -m benchmarks noc --output out` writes out.json and out.md; with `--page docs/mapping.md` the table
between the page's markers as well. Besides the network as it is assumed, others, to see what that decides.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean, geometric_mean
from typing import Any

from benchmarks.command import Namespace, Parser
from benchmarks.results import cosa_options, layers, provenance, write
from tilewright.cost.noc import NocOptions, simulate
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import Mapping
from tilewright.loops.problem import Problem
from tilewright.mapping.base import Mapper, MappingProblem, MappingSolution
from tilewright.mapping.cosa import Cosa
from tilewright.mapping.exact import Exact
from tilewright.mapping.hybrid import Hybrid
from tilewright.mapping.random import Random
from tilewright.planning import Budget

MAPPERS: dict[str, Mapper] = {
    "cosa": Cosa(),
    "cosa-paper": Cosa("paper"),
    "exact": Exact(),
    "hybrid, 32 threads": Hybrid(num_threads=32, timeout=0),
    "random, best of 5": Random(),
}
RANDOM, HYBRID = "random, best of 5", "hybrid, 32 threads"
OPTIONS: dict[str, NocOptions] = {
    "as assumed": NocOptions(),
    "no packet headers": NocOptions(header_flits=0),
    "packets of up to 32 flits": NocOptions(payload_flits=32),
    "input buffers of 2 flits": NocOptions(fifo_flits=2),
    "DRAM latency of 300 cycles": NocOptions(dram_latency_cycles=300),
    "flits of 128 bits": NocOptions(flit_bits=128),
    "no multicast": NocOptions(has_multicast=False),
}


def measured(machine_name: str, problems: Sequence[tuple[str, Problem]]) -> list[dict[str, Any]]:
    machine = load_preset(machine_name)
    rows = []
    for network, problem in problems:
        mappings: dict[str, Mapping] = {}
        row: dict[str, Any] = {"network": network, "layer": problem.name, "analytical": {}, "options": {}}
        for name, mapper in MAPPERS.items():
            answer = mapper.solve(MappingProblem(problem, machine, "latency"), Budget())
            assert isinstance(answer, MappingSolution), (name, problem.name, answer)
            mappings[name] = answer.mapping
            row["analytical"][name] = answer.cost.cycles
        started = time.perf_counter()
        for label, options in OPTIONS.items():
            row["options"][label] = {
                name: simulate(problem, machine, mapping, options).cycles
                for name, mapping in mappings.items()
            }
        row["seconds"] = (time.perf_counter() - started) / len(OPTIONS) / len(MAPPERS)
        rows.append({**provenance(), **row})
        print(network, problem.name, row["options"]["as assumed"], f"{row['seconds']:.2f} s", flush=True)
    return rows


def summary(rows: Sequence[dict[str, Any]], machine: str) -> str:
    def line(label: str, cycles: Sequence[dict[str, int]]) -> str:
        over = [geometric_mean([c[RANDOM] / c[name] for c in cycles]) for name in MAPPERS if name != RANDOM]
        hybrid = geometric_mean([c[HYBRID] / c["cosa"] for c in cycles])
        return f"| {label} | " + " | ".join(f"{value:.2f}" for value in [*over, hybrid]) + " |"

    names = [name for name in MAPPERS if name != RANDOM]
    lines = [
        f"{len(rows)} layers on `{machine}`: speed-up over the best of five random mappings, geometric mean.",
        "",
        "| cycles by | " + " | ".join(names) + " | cosa over hybrid |",
        "|---|" + "---|" * (len(names) + 1),
        line("the analytical rules", [row["analytical"] for row in rows]),
    ]
    lines += [line(f"network, {label}", [row["options"][label] for row in rows]) for label in OPTIONS]
    for network in dict.fromkeys(row["network"] for row in rows):
        own = [row["options"]["as assumed"] for row in rows if row["network"] == network]
        lines.append(line(f"network, as assumed, {network} alone", own))
    seconds = [row["seconds"] for row in rows]
    lines += [
        "",
        f"A simulation takes {fmean(seconds):.2f} s on average, {max(seconds):.2f} s on the slowest layer.",
    ]
    return "\n".join(lines) + "\n"


def options(parser: Parser) -> None:
    """What can be asked."""
    cosa_options(parser, "noc")


def main(arguments: Namespace) -> None:
    """Measure, print and write."""
    rows = measured(arguments.machine, layers(arguments.only))
    write(arguments, rows, summary(rows, arguments.machine), "network")
