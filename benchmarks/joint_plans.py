"""Joint plans beside published schedulers alone, the best of their combinations, and the portfolio.

    python -m benchmarks joint_plans OUTPUT.jsonl --seconds 10 --batches 1 --minutes 60
    python -m benchmarks joint_plans OUTPUT.jsonl --networks googlenet --targets v100 --seconds 60,600
    python -m benchmarks joint_plans OUTPUT.jsonl --table

Adds a line for each column of each cell, the most telling first: simulated ns of the joint plan, with sums in
parts and without, of the best of the grid and of the portfolio, each after so many seconds of processor time;
of every paper alone as far as one of these came to it (layers one by one tiled by CoSA, or staged by IOS;
GraphTurbo; AGO; PCGC with virtual units); the bound of all schedules, and the highest of a space that holds
the plan; with `--ablations`, plans of which another kind of decision is left out. Columns are planned in
processes of their own, so that none knows what another has found but for mappings of layers, which the cache
keeps; `--known` plans each cell once before, so that all columns find most of these there, and with
`TILEWRIGHT_NO_CACHE=1` each maps for itself. What OUTPUT has is left out, so that it may be stopped and
started again. Prints a table, geometric means, how many plans are proven and median gaps.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, get_args

import tilewright as tw
from benchmarks.command import Namespace, Parser, again
from benchmarks.joint import count_processor_time
from benchmarks.results import append_row, rows_of
from tilewright import zoo
from tilewright.options import Choice
from tilewright.planning.grid import PAPERS
from tilewright.planning.portfolio import Recipe

NAMES = dict(zip(("GraphTurbo", "AGO", "CoSA", "PCGC", "IOS"), PAPERS, strict=True))
"""Partitioner, scheduler and execution of each paper."""
NETWORKS = (
    "googlenet,resnet50,mobilevit_s,densenet121,squeezenet1_1,shufflenet_v2_x1_0,mobilenet_v2,ios_inception_v3,"
    "ios_randwire,yolox_nano,yolov5s,ios_nasnet_a,bert_base,efficientnet_b0"
)
TARGETS = "v100,a310,jetson-nano,zcu102{dtype=int8},a100,rtx2080ti,k80"
KINDS = get_args(Choice)
"""The kinds of decision that `--only` names, of which ablations leave out one."""
JOINT = "joint"


def options(parser: Parser) -> None:
    """What may be asked for."""
    parser.add_argument("output", type=Path)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--seconds", default="60,10", help="Of processor time, for each column.")
    parser.add_argument("--ablations", action="store_true", help="At the first of these times.")
    parser.add_argument("--known", action="store_true", help="Plan each cell once before, uncounted.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--table", action="store_true", help="Of what OUTPUT has; nothing is planned.")
    parser.add_argument("--column", help="One column alone, printed as JSON: for processes of their own.")


def main(arguments: Namespace) -> None:
    """Measure what OUTPUT lacks, then print the table."""
    if arguments.column is not None:
        cell = arguments.networks, arguments.targets, int(arguments.batches)
        print(json.dumps(column(*cell, arguments.column)))
        return
    until_s = time.monotonic() + (0 if arguments.table else 60 * arguments.minutes)
    times = arguments.seconds.split(",")
    kinds = ["joint", "grid", "without sums", "portfolio"]
    columns = [f"{kind} {seconds}" for kind in kinds for seconds in times]
    if arguments.ablations:
        columns += [f"without {kind} {times[0]}" for kind in KINDS if kind != "sums"]
    cells = itertools.product(
        map(int, arguments.batches.split(",")),
        columns,
        arguments.networks.split(","),
        arguments.targets.split(","),
    )
    known = {
        (row["batch"], row["column"], row["network"], row["target"]) for row in rows_of(arguments.output)
    }
    mapped: set[tuple[str, str, int]] = set()
    for batch, name, network, target in cells:
        if (batch, name, network, target) not in known and time.monotonic() < until_s:
            cell = network, target, batch
            if arguments.known and cell not in mapped:
                in_own_process(*cell, columns[0])
                mapped.add(cell)
            row = {"network": network, "target": target, "batch": batch, "column": name}
            row["knows_mappings"] = arguments.known
            append_row(arguments.output, row | in_own_process(*cell, name))
    print(table(cells_of(rows_of(arguments.output))))


def cells_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one network, machine and batch together, by columns."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        cell = {name: row[name] for name in ("network", "target", "batch")}
        found.setdefault(tuple(cell.values()), cell)[row["column"]] = row
    return list(found.values())


def in_own_process(network: str, target: str, batch: int, name: str) -> dict[str, Any]:
    """A column, or why it has none."""
    cell = ("--networks", network, "--targets", target, "--batches", str(batch))
    command = again("joint_plans", "none", *cell, "--column", name)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message"}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def column(network: str, target: str, batch: int, name: str) -> dict[str, Any]:
    """What a kind of plan comes to for a network on a machine."""
    count_processor_time()
    kind, *parts = name.split()
    budget = f"{parts[-1]}s" if parts else None
    only = ",".join(known for known in KINDS if known != parts[0]) if kind == "without" else None
    model = tw.load(zoo.build(network, batch=batch))
    start_s = time.process_time()
    recipe = {"portfolio": "best", "without": JOINT}.get(kind, kind)
    found = tw.simulate(model, target, recipe=recipe, budget=budget, only=only)
    answer: dict[str, Any] = {
        "ns": found.time_s * 1e9,
        "recipe": found.recipe,
        "bound_ns": found.lower_bound_s * 1e9,
    }
    answer["processor_s"] = time.process_time() - start_s
    answer["untried"] = found.num_untried
    if kind != "portfolio":
        whole: dict[tuple[str, str, str], float] = {}
        split: dict[tuple[str, str, str], float] = {}
        for tried in found.tried:
            if isinstance(tried.planners, Recipe) and tried.cost is not None:
                # The first is of the graph as it is; those of graphs with merges come behind.
                recipe_of = tried.planners
                costs = split if recipe_of.splits_sums else whole
                costs.setdefault((recipe_of.partition, recipe_of.schedule, recipe_of.execution), tried.cost)
        # A plan that no mapper tiles is the same under each.
        answer["alone_ns"] = {
            paper: whole.get(key, whole.get((*key[:2], ""))) for paper, key in NAMES.items()
        }
        answer["sequence_ns"] = least(cost for key, cost in whole.items() if key[0] != "joint")
        answer["split_sequence_ns"] = least(cost for key, cost in split.items() if key[0] != "joint")
    if found.bounds is not None:
        answer["space_bound_ns"] = max((b.value for b in found.bounds), default=None)
        answer["is_optimal"] = found.optimal_among is not None
    return answer


def table(cells: Sequence[Mapping[str, Any]]) -> str:
    """Simulated µs, and how much less joint plans take than the best paper and the best combination.

    *Sequence* is the best of all recipes that were tried on the graph as it is, *split* with sums in parts.
    """
    joint = list(dict.fromkeys(name for cell in cells for name in cell if name.startswith("joint ")))
    without = list(dict.fromkeys(name for cell in cells for name in cell if name.startswith("without ")))
    heads = ["network, batch", "machine", *NAMES, "sequence", "split", "portfolio"]
    heads += [f"{name} s" for name in (*joint, *without)] + ["bound", "of its space"]
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    gains: dict[str, list[float]] = {}
    for cell in cells:
        columns = {name: column for name, column in cell.items() if isinstance(column, dict)}
        tried = [column for column in columns.values() if "alone_ns" in column]
        alone = {name: least(column["alone_ns"].get(name) for column in tried) for name in NAMES}
        others = {
            "best paper": least(alone.values()),
            "best sequence": least(column["sequence_ns"] for column in tried),
            "best split sequence": least(column.get("split_sequence_ns") for column in tried),
            "portfolio": least(c.get("ns") for name, c in columns.items() if name.startswith("portfolio")),
        }
        figures = [*alone.values(), *list(others.values())[1:]]
        figures += [columns.get(name, {}).get("ns") for name in (*joint, *without)]
        best = columns.get(joint[0], {}) if joint else {}
        texts = ["-" if ns is None else f"{ns / 1e3:,.1f}" for ns in (*figures, best.get("bound_ns"))]
        of_space = best.get("space_bound_ns")
        texts.append(
            "optimal" if best.get("is_optimal") else "-" if of_space is None else f"{of_space / 1e3:,.1f}"
        )
        lines.append(f"| {cell['network']}, {cell['batch']} | `{cell['target']}` | {' | '.join(texts)} |")
        for name in (*joint, *(name for name in without if name.startswith("without sums"))):
            for other, ns in others.items():
                if ns and columns.get(name, {}).get("ns"):
                    gains.setdefault(f"{other} / {name} s", []).append(ns / columns[name]["ns"])
    means = (
        f"{name}: {geometric_mean(found):.3f} ({len(found)} cells, least {min(found):.3f})"
        for name, found in gains.items()
    )
    return "\n".join((*lines, "", *means, *(proven(cells, name) for name in joint)))


def proven(cells: Sequence[Mapping[str, Any]], name: str) -> str:
    """How many plans of a column are the best of their spaces, and how far above bounds they lie."""
    rows = [cell[name] for cell in cells if "ns" in cell.get(name, {})]
    if not rows:
        return f"{name} s: no plans"
    optimal = sum(bool(row.get("is_optimal")) for row in rows)
    gaps = [row["ns"] / row["bound_ns"] - 1 for row in rows if row.get("bound_ns")]
    of_spaces = [row["ns"] / row["space_bound_ns"] - 1 for row in rows if row.get("space_bound_ns")]
    texts = (f"{median(found):.1%}" if found else "-" for found in (gaps, of_spaces))
    taken_s = [row["processor_s"] for row in rows]
    return (
        f"{name} s: {optimal} of {len(rows)} optimal; median gap to all schedules {next(texts)}, to the "
        f"highest bound {next(texts)}; {median(taken_s):.1f} s of processor time, at most {max(taken_s):.1f}"
    )


def least(figures: Iterable[float | None]) -> float | None:
    """The least of those that are known."""
    return min((ns for ns in figures if ns is not None), default=None)
