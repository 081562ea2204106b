"""How often the processor's cost model picks the way of a product that is the fastest when measured.

    python -m benchmarks picks --seconds 30 --limit 10m --page docs/tuning.md
    python -m benchmarks picks --isa avx2 --networks vit_b_16,regnet_x_400mf --losses

Searches other ways to compute the products of a network (`flat`), from nothing, in a cache of its own. A pick
is right where no alternative that was measured is faster by more than 5 %; subgraphs count by the time that
they take as picked, at all their places. The least of many measured alternatives looks faster than it is: the
share is a lower one. `--losses` lists the picks that are not right, and what was faster. A line for each
network is appended to `--output` as soon as it is there: the same command goes on where it was stopped.
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
from tilewright.targets.cpu.isa import HOST, isa_by_name

WRONG = 0.05
NETWORKS = (
    "bert_base", "resnet50", "swin_t", "vit_b_16", "mlp_mixer_b16", "resnext50_32x4d", "mobilenet_v2",
    "densenet121", "resnet18", "inception_v3", "mnasnet1_0", "shufflenet_v2_x1_0", "squeezenet1_1", "yolov5s",
)  # fmt: skip
Row = dict[str, Any]


def measured(name: str, isa: str, threads: int, seconds: float) -> Row:
    """Tune a network's products, and what their picks took beside the best alternatives."""
    with tempfile.TemporaryDirectory() as folder:
        result = tw.tune(
            zoo.build(name),
            search="flat",
            isa=isa,
            budget=Budget(deadline_s=seconds),
            threads=threads,
            cache_dir=Path(folder),
        )
    subgraphs = [[", ".join(s.nodes[:1]), s.before_ns, s.after_ns, s.form] for s in result.tuning.subgraphs]
    found = {"subgraphs": subgraphs, "num_trials": result.tuning.num_trials}
    return {"network": name, "isa": isa, "threads": threads, **found}


def table(rows: Sequence[Row]) -> str:
    """Of each network: subgraphs with alternatives, what the picks take, and which share of that is right."""
    lines = [
        "| network | code for | threads | subgraphs | picked ms | right, of the time | with the best ms |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    total = right = 0.0
    for row in rows:
        picked = [(before, before if after is None else after) for _, before, after, _ in row["subgraphs"]]
        took = sum(before for before, _ in picked)
        good = sum(before for before, after in picked if after >= (1 - WRONG) * before)
        best = sum(min(pair) for pair in picked)
        total, right = total + 1, right + good / took
        times = f"{took / 1e6:.2f} | {100 * good / took:.0f} % | {best / 1e6:.2f}"
        lines.append(f"| {row['network']} | {row['isa']} | {row['threads']} | {len(picked)} | {times} |")
    if total:
        lines.append(f"| mean | | | | | {100 * right / total:.0f} % | |")
    return "\n".join(lines) + "\n"


def losses(rows: Sequence[Row]) -> str:
    """The picks that are not right, those that lose most of a network's time first."""
    found = []
    for row in rows:
        took = sum(before for _, before, _, _ in row["subgraphs"])
        for nodes, before, after, form in row["subgraphs"]:
            if after is not None and after < (1 - WRONG) * before:
                times = f"{before / 1e3:.1f} us, {after / 1e3:.1f} us as {form}"
                found.append(((before - after) / took, f"{row['network']} {row['isa']}: {nodes}: {times}"))
    return "\n".join(f"{100 * lost:.1f} % {about}" for lost, about in sorted(found, reverse=True))


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--isa", default=HOST)
    parser.add_argument("--losses", action="store_true", help="list the picks that are not right")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30, help="of each search")
    parser.add_argument("--limit", type=Budget.parse, help="as in 10m: begin no network after so long")
    parser.add_argument("--output", default=Path("picks.jsonl"))
    parser.add_argument("--page")


def main(arguments: Namespace) -> None:
    """Measure what is missing, print the table."""
    ends_s = time.monotonic() + (arguments.limit.deadline_s if arguments.limit else float("inf"))
    isa = isa_by_name(arguments.isa).name
    done = {(row["network"], row["isa"], row["threads"]) for row in rows_of(arguments.output)}
    for name in arguments.networks.split(","):
        if (name, isa, arguments.threads) not in done and time.monotonic() < ends_s:
            append_row(arguments.output, measured(name, isa, arguments.threads, arguments.seconds))
    text = table(rows_of(arguments.output))
    print(text)
    if arguments.losses:
        print(losses(rows_of(arguments.output)))
    if arguments.page:
        page = arguments.page.read_text()
        arguments.page.write_text(with_table(page, text, "picks"))
