"""The joint search on one program against the least of all plans of small graphs, graph by graph.

    python -m benchmarks minima --output minima.jsonl --seeds 0:500 --minutes 60

Adds a row for each seed that the output lacks: how many layers, the least simulated ns of all plans of the
space of `tests/support/one_program.py` that is below the search's, else that; what the search found; the
highest bound; how many plans were simulated, and the seconds of processor time. Prints how many graphs were
run, on how many the search found the least, and where it did not.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from tests.support.one_program import ROUNDING, found

from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--output", required=True)
    parser.add_argument("--seeds", default="0:500", help="the first, and the one behind the last")
    parser.add_argument("--layers", type=int, default=5, help="of a graph, at most")
    parser.add_argument("--trials", type=int, default=60, help="of each search")
    parser.add_argument("--minutes", default=inf)


def main(arguments: Namespace) -> None:
    """Run the seeds that the output lacks, and print what it has."""
    until_s = time.monotonic() + 60 * arguments.minutes
    rows = rows_of(arguments.output)
    known = {row["seed"] for row in rows}
    first, stop = map(int, arguments.seeds.split(":"))
    for seed in range(first, stop):
        if seed in known or time.monotonic() > until_s:
            continue
        begun_s = time.process_time()
        case = found(seed, arguments.layers, arguments.trials)
        row = {"seed": seed, **asdict(case), "processor_s": time.process_time() - begun_s}
        append_row(arguments.output, row)
        rows.append(row)
    print(report(rows))


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many graphs, on how many the search found the least, whether bounds held, and the other graphs."""
    if not rows:
        return "No graphs."
    others = [row for row in rows if row["joint"] > row["least"] * ROUNDING]
    above = [row["seed"] for row in rows if row["bound"] > row["least"] * ROUNDING]
    number = len(rows)
    share = f"{100 * (1 - len(others) / number):.1f} %"
    lines = [f"{number} graphs; the least of all plans was found on {number - len(others)} ({share})"]
    for row in others:
        above_percent = 100 * (row["joint"] / row["least"] - 1)
        lines.append(f"seed {row['seed']}: {row['joint']:.1f} ns, {above_percent:.3f} % above")
    lines.append(f"bounds above the least: {', '.join(map(str, above)) or 'none'}")
    return "\n".join(lines)
