"""The joint search on the graphs of the MLSys 2026 graph-scheduling contest that are in `tests/data`.

`python -m benchmarks joint --out joint.jsonl` schedules each graph within the contest's time limit, prints a
line for each beside what others reached, and appends it as JSON. With `--processor-time` limits are seconds
of processor time instead, so that results do not depend on what else the machine does; `--limit-s 600` lasts
longer, for proofs. Solutions can be judged elsewhere: `--solutions FOLDER` writes them.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row
from tilewright.contest.problem import read_problem
from tilewright.contest.schedule import schedule_problem
from tilewright.planning import Budget, Meter
from tilewright.results import json_of

DATA = Path(__file__).parents[1] / "tests" / "data" / "graph-scheduling"

REFERENCES: dict[int, tuple[float, float | None, float]] = {
    1: (2, 419_430, 322_008),
    2: (2, 26_000, 39_000),
    4: (2, 23_757, 22_281),
    5: (5, 961_195, 492_614),
    8: (5, 76_457, 74_470),
    9: (15, 48_318_382, 20_411_920),
    10: (15, 13_893_632, 6_224_041),
    13: (30, 22_160_015, 15_297_786),
    16: (30, 8_986_078, 4_348_356),
    17: (60, 5_026_493, 4_966_400),
    19: (60, None, 1_993_600),
    20: (60, 5_636_713, 5_228_800),
    23: (120, 3_476_122, 3_435_200),
    24: (120, 2_573_965, 2_526_400),
}
"""Time limit in seconds, cost of the winner's schedule under the rules as read here (None: invalid), and the
best cost that an entry published, which may be under another reading."""


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--out", type=Path)
    parser.add_argument("--solutions", type=Path)
    parser.add_argument("--graphs", default=",".join(map(str, REFERENCES)))
    parser.add_argument("--limit-s", type=float, help="instead of the contest's limits: for proofs")
    parser.add_argument("--processor-time", action="store_true")


def main(arguments: Namespace) -> None:
    """Schedule the graphs."""
    if arguments.processor_time:
        count_processor_time()
    ratios = []
    for number in map(int, arguments.graphs.split(",")):
        row = scheduled(number, arguments.limit_s or REFERENCES[number][0], arguments.solutions)
        if row["to_winner"] is not None:
            ratios.append(row["to_winner"])
        print(line(row), flush=True)
        if arguments.out is not None:
            append_row(arguments.out, row)
    if ratios:
        print(f"geometric mean to the winner: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")


def scheduled(number: int, limit_s: float, solutions: Path | None) -> dict[str, Any]:
    """A graph's schedule in figures."""
    _, winner, published = REFERENCES[number]
    problem = read_problem(DATA / f"mlsys-2026-{number}.json")
    begun, begun_processor = time.perf_counter(), time.process_time()
    result = schedule_problem(problem, Budget.parse(f"{limit_s}s"))
    seconds, processor_s = time.perf_counter() - begun, time.process_time() - begun_processor
    if solutions is not None:
        solutions.mkdir(parents=True, exist_ok=True)
        result.save(solutions / f"{number}.json")
    return {
        "graph": number,
        "operators": result.num_operators,
        "limit_s": limit_s,
        "latency": result.latency,
        "winner": winner,
        "published": published,
        "to_winner": None if winner is None else result.latency / winner,
        "bounds": json_of(result.bounds),
        "gap": result.gap,
        "status": result.status,
        "steps": len(result.steps),
        "recomputed": result.num_recomputed,
        "windows": result.num_windows,
        "seconds": seconds,
        "processor_s": processor_s,
    }


def line(row: dict[str, Any]) -> str:
    """A row of the page's table."""
    winner = "invalid" if row["winner"] is None else f"{row['winner']:,.0f}"
    to_winner = "-" if row["to_winner"] is None else f"{row['to_winner']:.3f}"
    bound = max(row["bounds"], key=lambda b: b["value"])
    cells = (
        f"{row['graph']} ({row['operators']})",
        f"{row['limit_s']:g}",
        f"{row['latency']:,.0f}",
        f"{bound['value']:,.0f}",
        "optimal" if row["status"] == "optimal" else f"{100 * row['gap']:.1f} %",
        winner,
        to_winner,
        f"{row['published']:,.0f}",
        f"{row['processor_s']:.1f}",
    )
    return f"| {' | '.join(cells)} |"


_CLOCK_STEP_S = 0.001
"""For which processor time is taken as it was: to ask for it is slow."""


def count_processor_time() -> None:
    """Let budgets run by this process's processor time, a millisecond old at most."""
    looked_s, now_s = time.monotonic(), time.process_time()

    def clock() -> float:
        nonlocal looked_s, now_s
        real_s = time.monotonic()
        if real_s - looked_s >= _CLOCK_STEP_S:
            looked_s, now_s = real_s, time.process_time()
        return now_s

    def start(self: Budget, given: object = None, *, is_interruptible: bool = False) -> Meter:
        nonlocal looked_s, now_s  # what was done before the budget began is no part of it
        looked_s, now_s = time.monotonic(), time.process_time()
        return Meter(self, clock, is_interruptible=is_interruptible)  # a clock of a search's own time, too

    Budget.start = start  # type: ignore[method-assign]  # every budget of this process
