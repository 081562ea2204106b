"""Joint plans beside published schedulers alone, the best of their combinations, portfolio and search.

    python -m benchmarks joint_plans OUTPUT.jsonl --known --minutes 600
    python -m benchmarks joint_plans OUTPUT.jsonl --networks googlenet --targets v100 --seconds 60,600
    python -m benchmarks joint_plans OUTPUT.jsonl --table --picture PICTURE.svg

Adds a line for each column of each cell, cell by cell: simulated ns of the joint plan, of the best of the
grid, of the search that goes on from the portfolio, and of the portfolio, each after so many seconds of
processor time; of every paper alone as far as one of these came to it (layers one by one tiled by CoSA, or
staged by IOS; GraphTurbo; AGO; PCGC with virtual units); the bound of all schedules, and the highest of a
space that holds the plan; with `--ablations`, joint plans of which one kind of decision is left out. Columns
are planned in processes of their own, so that none knows what another has found but for mappings of layers,
which the cache keeps; `--known` plans each cell twice before, jointly and as the portfolio does, which are
columns of their own, and gives each other column a copy of the cache as it is then, so that all know the same
mappings; with `TILEWRIGHT_NO_CACHE=1` each maps for itself. What OUTPUT has is left out, so that it may be
stopped and started again. Prints a table, geometric means over the machines that launch
kernels and over those that run one program, how many plans are proven, median gaps, and columns that are
below the joint plan. The picture has a line for each cell: how many times longer others take than the joint
plan after the longest time, from the best of all to the best paper, with a dot at the best sequence.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, get_args

import tilewright as tw
from benchmarks.command import Namespace, Parser, again
from benchmarks.joint import count_processor_time
from benchmarks.results import append_row, rows_of
from tilewright import zoo
from tilewright.joint.launched.proof import WITH_LANES, WITHOUT_LANES
from tilewright.options import Choice
from tilewright.planning.grid import PAPERS
from tilewright.planning.portfolio import Recipe
from tilewright.private_files.folder import TEMPORARY_PREFIX
from tilewright.private_files.places import default_cache_directory
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target

NAMES = dict(zip(("AGO", "GraphTurbo", "CoSA", "PCGC", "IOS"), PAPERS, strict=True))
"""Partitioner, scheduler and execution of each paper."""
NETWORKS = (
    "squeezenet1_1,mobilenet_v2,googlenet,shufflenet_v2_x1_0,resnet50,mobilevit_s,efficientnet_b0,densenet121,"
    "yolox_nano,ios_inception_v3,ios_randwire,bert_base,yolov5s,ios_nasnet_a"
)
"""All machines have the first three before any has more."""
TARGETS = "v100,a310,jetson-nano,zcu102{dtype=int8},k80,stcp920,ipu-mk2"
KINDS = get_args(Choice)
"""The kinds of decision that `--only` names, of which ablations leave out one."""
JOINT, FIRST = "joint", "first"
RECIPES = {
    "joint": JOINT,
    "grid": "grid",
    "search": "search",
    "portfolio": "best",
    "without": JOINT,
}
"""By the first word of a column, of which those that come before others have a kind as second word."""


def options(parser: Parser) -> None:
    """What may be asked for."""
    parser.add_argument("output", type=Path)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument("--batches", default="1")
    parser.add_argument("--seconds", default="10", help="Of processor time, for each column.")
    parser.add_argument("--kinds", default="joint,grid,search,portfolio", help="Of plans, a column each.")
    parser.add_argument("--ablations", action="store_true", help="At the first of these times.")
    parser.add_argument("--known", action="store_true", help="Plan each cell twice before.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--table", action="store_true", help="Of what OUTPUT has; nothing is planned.")
    parser.add_argument("--picture", type=Path, help="an SVG file of what OUTPUT has")
    parser.add_argument("--column", help="One column alone, printed as JSON: for processes of their own.")


def main(arguments: Namespace) -> None:
    """Measure what OUTPUT lacks, then print the table."""
    if arguments.column is not None:
        cell = arguments.networks, arguments.targets, int(arguments.batches)
        print(json.dumps(column(*cell, arguments.column)))
        return
    until_s = time.monotonic() + (0 if arguments.table else 60 * arguments.minutes)
    times = arguments.seconds.split(",")
    columns = [f"{FIRST} {kind} {times[0]}" for kind in (JOINT, "portfolio") if arguments.known]
    columns += [f"{kind} {seconds}" for seconds in times for kind in arguments.kinds.split(",")]
    if arguments.ablations:
        columns += [f"without {kind} {times[0]}" for kind in KINDS]
    batches = map(int, arguments.batches.split(","))
    networks, targets = arguments.networks.split(","), arguments.targets.split(",")
    known = {
        (row["batch"], row["network"], row["target"], row["column"]) for row in rows_of(arguments.output)
    }
    for batch, network, target, name in itertools.product(batches, networks, targets, columns):
        if (batch, network, target, name) not in known and time.monotonic() < until_s:
            row = {"network": network, "target": target, "batch": batch, "column": name}
            row["knows_mappings"] = arguments.known and not name.startswith(FIRST)
            with cache_kept() if row["knows_mappings"] else contextlib.nullcontext() as environment:
                append_row(arguments.output, row | in_own_process(network, target, batch, name, environment))
    cells = cells_of(rows_of(arguments.output))
    print(table(cells))
    if arguments.picture is not None:
        draw(arguments.picture, cells)


def cells_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one network, machine and batch together, by columns."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        cell = {name: row[name] for name in ("network", "target", "batch")}
        found.setdefault(tuple(cell.values()), cell)[row["column"]] = row
    return list(found.values())


@contextlib.contextmanager
def cache_kept() -> Iterator[dict[str, str]]:
    """An environment whose cache is a copy, so that what is added to it is known to nothing else."""
    directory = default_cache_directory()
    with tempfile.TemporaryDirectory() as copy:
        if directory is not None and directory.is_dir():
            half_written = shutil.ignore_patterns(f"{TEMPORARY_PREFIX}*")  # by other processes
            shutil.copytree(directory, copy, dirs_exist_ok=True, ignore=half_written)
        yield {**os.environ, "TILEWRIGHT_CACHE": copy}


def in_own_process(
    network: str, target: str, batch: int, name: str, environment: Mapping[str, str] | None
) -> dict[str, Any]:
    """A column, or why it has none."""
    cell = ("--networks", network, "--targets", target, "--batches", str(batch))
    command = again("joint_plans", "none", *cell, "--column", name)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message"}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def column(network: str, target: str, batch: int, name: str) -> dict[str, Any]:
    """What a kind of plan comes to for a network on a machine."""
    count_processor_time()
    kind, *parts = name.removeprefix(f"{FIRST} ").split()
    budget = f"{parts[-1]}s" if parts else None
    only = ",".join(known for known in KINDS if known != parts[0]) if kind == "without" else None
    model = tw.load(zoo.build(network, batch=batch))
    start_s = time.process_time()
    found = tw.simulate(model, target, recipe=RECIPES[kind], budget=budget, only=only)
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
        answer["optimal_among"] = among = found.optimal_among
        # A scheduler may prove its own plan of one partition; counted are those of all blocks.
        declared = (WITHOUT_LANES, WITH_LANES)
        answer["is_optimal"] = among is not None and any(str(rule) in among for rule in declared)
    return answer


def table(cells: Sequence[Mapping[str, Any]]) -> str:
    """Simulated µs, and how much less joint plans take than what they are compared with.

    *Sequence* is the best of all recipes that were tried on the graph as it is, *split* with sums in parts.
    """
    names = list(dict.fromkeys(name for cell in cells for name in cell if isinstance(cell[name], dict)))
    joint = [name for name in names if name.split()[0] == JOINT]
    beside = [name for name in names if name.split()[0] in (FIRST, "without")]
    heads = ["network, batch", "machine", *NAMES, "sequence", "split", "portfolio", "search"]
    heads += [f"{name} s" for name in (*beside, *joint)] + ["bound", "gap"]
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    gains: dict[str, list[float]] = {}
    above: list[str] = []
    for cell in cells:
        columns = {name: column for name, column in cell.items() if isinstance(column, dict)}
        others = compared(columns)
        planned = [columns.get(name, {}).get("ns") for name in (*beside, *joint)]
        figures = [*others.values(), *planned]
        best = columns.get(joint[0], {}) if joint else {}
        texts = ["-" if ns is None else f"{ns / 1e3:,.1f}" for ns in (*figures, best.get("bound_ns"))]
        bound_ns = max(filter(None, (best.get("bound_ns"), best.get("space_bound_ns"))), default=None)
        gap = "-" if bound_ns is None else f"{100 * (best['ns'] / bound_ns - 1):.0f} %"
        texts.append("optimal" if best.get("is_optimal") else gap)
        lines.append(f"| {cell['network']}, {cell['batch']} | `{cell['target']}` | {' | '.join(texts)} |")
        others["paper"] = least(others[name] for name in NAMES)
        of = "launched kernels" if launches_kernels(cell["target"]) else "one program"
        for name in joint:
            joint_ns = columns.get(name, {}).get("ns")
            for other, ns in others.items() if joint_ns else ():
                if ns and other not in NAMES:
                    gains.setdefault(f"{of}: {other} / {name} s", []).append(ns / joint_ns)
                if ns and ns < joint_ns * (1 - 1e-9):
                    of_cell = f"{cell['network']} {cell['target']}"
                    above.append(f"{of_cell}: {name} s is {joint_ns / ns - 1:.2%} above {other}")
    means = (
        f"{name}: {geometric_mean(found):.3f} ({len(found)} cells, least {min(found):.3f})"
        for name, found in gains.items()
    )
    kinds = {"launched kernels": True, "one program": False}
    proofs = (
        f"{of}: {proven([c for c in cells if launches_kernels(c['target']) is launches], name)}"
        for name in joint
        for of, launches in kinds.items()
    )
    return "\n".join((*lines, "", *means, *proofs, *above))


def draw(path: Path, cells: Sequence[Mapping[str, Any]]) -> None:
    """How many times longer the best of all other plans, the best sequence and the best paper take."""
    from benchmarks.pictures import Ratio, write_ratio_chart  # needs a browser

    ratios = []
    for cell in cells:
        columns = {name: column for name, column in cell.items() if isinstance(column, dict)}
        planned = [name for name in columns if name.split()[0] == JOINT and "ns" in columns[name]]
        others = compared(columns)
        paper, sequence = least(others[name] for name in NAMES), others["sequence"]
        if planned and paper is not None and sequence is not None:
            joint_ns = columns[max(planned, key=lambda name: float(name.split()[-1]))]["ns"]
            low = least(others.values())
            assert low is not None, "the best paper is one of them"
            name = f"{cell['network']}, {TargetRef.parse(cell['target']).name}"
            ratios.append(Ratio(name, low / joint_ns, sequence / joint_ns, paper / joint_ns))
    write_ratio_chart(path, "simulated time / that of the joint plan", ratios)


def compared(columns: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """What a joint plan is compared with: the least that any column found of each."""
    tried = [column for column in columns.values() if "alone_ns" in column]
    found = {name: least(column["alone_ns"].get(name) for column in tried) for name in NAMES}
    found["sequence"] = least(column["sequence_ns"] for column in tried)
    found["split"] = least(column.get("split_sequence_ns") for column in tried)
    for kind in ("portfolio", "search"):
        found[kind] = least(c.get("ns") for name, c in columns.items() if name.startswith(kind))
    return found


def launches_kernels(target: str) -> bool:
    """Whether a machine launches the kernels of a network one by one."""
    return find_target(TargetRef.parse(target)).machine.launches == "each subgraph"


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
