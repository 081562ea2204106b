"""How often the processor's cost model picks the way of a product that is the fastest when measured.

    python -m benchmarks picks --seconds 30 --limit 10m --page docs/tuning.md

Searches other ways to compute the products of a network (`flat`), from nothing, in a cache of its own. A pick
is right where no alternative that was measured is faster by more than 5 %; subgraphs count by the time that
they take as picked, at all their places. The least of many measured alternatives looks faster than it is: the
share is a lower one. A line for each network is appended to `--output` as soon as it is there: the same
command goes on where it was stopped.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of, with_table
from tilewright import zoo
from tilewright.planning import Budget

WRONG = 0.05
NETWORKS = (
    "bert_base", "resnet50", "swin_t", "vit_b_16", "mlp_mixer_b16", "resnext50_32x4d", "mobilenet_v2",
    "densenet121", "resnet18", "inception_v3", "mnasnet1_0", "shufflenet_v2_x1_0", "squeezenet1_1", "yolov5s",
)  # fmt: skip
Row = dict[str, Any]


def measured(name: str, threads: int, seconds: float) -> Row:
    """Tune a network's products, and what their picks took beside the best alternatives."""
    with tempfile.TemporaryDirectory() as folder:
        result = tw.tune(
            zoo.build(name),
            search="flat",
            budget=Budget(deadline_s=seconds),
            threads=threads,
            cache_dir=Path(folder),
        )
    subgraphs = [[", ".join(s.nodes[:1]), s.before_ns, s.after_ns, s.form] for s in result.tuning.subgraphs]
    found = {"subgraphs": subgraphs, "num_trials": result.tuning.num_trials}
    return {"network": name, "threads": threads, **found}


def table(rows: Sequence[Row]) -> str:
    """Of each network: subgraphs with alternatives, what the picks take, and which share of that is right."""
    lines = [
        "| network | threads | subgraphs | picked ms | right, of their time | if all were the best ms |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    total = right = 0.0
    for row in rows:
        picked = [(before, before if after is None else after) for _, before, after, _ in row["subgraphs"]]
        took = sum(before for before, _ in picked)
        good = sum(before for before, after in picked if after >= (1 - WRONG) * before)
        best = sum(min(pair) for pair in picked)
        total, right = total + 1, right + good / took
        times = f"{took / 1e6:.2f} | {100 * good / took:.0f} % | {best / 1e6:.2f}"
        lines.append(f"| {row['network']} | {row['threads']} | {len(picked)} | {times} |")
    if total:
        lines.append(f"| mean | | | | {100 * right / total:.0f} % | |")
    return "\n".join(lines) + "\n"


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30, help="of each search")
    parser.add_argument("--limit", type=Budget.parse, help="as in 10m: begin no network after so long")
    parser.add_argument("--output", default=Path("picks.jsonl"))
    parser.add_argument("--page")


def main(arguments: Namespace) -> None:
    """Measure what is missing, print the table."""
    ends_s = time.monotonic() + (arguments.limit.deadline_s if arguments.limit else float("inf"))
    done = {(row["network"], row["threads"]) for row in rows_of(arguments.output)}
    for name in arguments.networks:
        if (name, arguments.threads) not in done and time.monotonic() < ends_s:
            append_row(arguments.output, measured(name, arguments.threads, arguments.seconds))
    text = table(rows_of(arguments.output))
    print(text)
    if arguments.page:
        page = arguments.page.read_text()
        arguments.page.write_text(with_table(page, text, "picks"))
