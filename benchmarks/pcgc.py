"""Networks of the zoo by the default partition, by PCGC's rules alone and cut again: run time, in turns.

    python -m benchmarks pcgc prepare FOLDER
    python -m benchmarks pcgc race FOLDER OUTPUT.jsonl --minutes 8

`prepare` compiles, which needs no idle machine: each network by each plan into FOLDER, plans that are the
same program once. `race` compiles what is missing, runs all in rounds of short blocks, adds a line for each
network as soon as it has its times; networks that OUTPUT has already, with as many threads and
by the same clock, are left out, so that it may be stopped and started again. Ratios are PCGC's time over that
of another plan: 1.03 is 3 % slower. `--clock cpu` takes processor time, for a machine that others use. Prints
a table.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of
from tilewright import zoo
from tilewright.benchmark import Ratio, Timing
from tilewright.benchmark.machine_state import BUSY_SHARE, busy_share
from tilewright.reproduce.ago.latency import in_turns
from tilewright.text.formatting import counted

DEFAULT, RULES, RECUT = "default", "rules", "pcgc"
PLANS: Mapping[str, str] = {DEFAULT: "auto", RULES: "pcgc{recut=none}", RECUT: "pcgc"}
SEED = 0
LARGE = ("bert_large", "vgg16", "yolov4", "yolov5x", "yolox_x")
"""They come last: a run of them takes a second."""
MOST_SHARE = 1.03


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("what", choices=("prepare", "race", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--networks", default=",".join(sorted(zoo.names(), key=lambda n: (n in LARGE, n))))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each network")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")


def main(arguments: Namespace) -> None:
    """Measure what is missing, and print."""
    networks = arguments.networks.split(",")
    if arguments.what == "prepare":
        until_s = time.monotonic() + 60 * arguments.minutes
        for network in networks:
            if time.monotonic() < until_s:
                prepare(network, arguments.folder, arguments.threads)
        return
    if arguments.output is None:
        raise SystemExit("give the file of the times")
    if arguments.what == "race":
        race(networks, arguments)
    print(table(lines_of(arguments)))


def prepare(network: str, folder: Path, num_threads: int) -> None:
    """Compile a network by each plan; a file says which of them are the same program."""
    done = folder / f"{network}.json"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    model = zoo.build(network)
    programs: dict[str, str] = {}
    decided_s: dict[str, float] = {}
    known: dict[str, str] = {}
    for name, partition in PLANS.items():
        started_s = time.process_time()
        compiled = tw.compile(model, threads=num_threads, partition=partition)
        decided_s[name] = time.process_time() - started_s
        clusters = [[n.name for n in s.nodes] for s in compiled.program.partition.subgraphs]
        same = known.setdefault(json.dumps(clusters), name)
        programs[name] = same
        if same == name:
            compiled.save(folder / f"{network}.{name}.tw")
    done.write_text(json.dumps({"programs": programs, "compile_cpu_s": decided_s}))
    print(network, programs, {k: round(v, 1) for k, v in decided_s.items()}, flush=True)


def race(networks: list[str], arguments: Namespace) -> None:
    """Run what was prepared, as far as the time goes."""
    until_s = time.monotonic() + 60 * arguments.minutes
    known = {line["network"] for line in lines_of(arguments)}
    for network in networks:
        if network in known:
            continue
        prepare(network, arguments.folder, arguments.threads)
        if time.monotonic() + arguments.seconds > until_s:
            print(f"the time is over before {network}", file=sys.stderr)
            return
        line = raced(network, arguments)
        append_row(arguments.output, line)
        print(row_of(line), flush=True)


def raced(network: str, arguments: Namespace) -> dict[str, Any]:
    """The ratios of one network."""
    said = json.loads((arguments.folder / f"{network}.json").read_text())
    programs: dict[str, str] = said["programs"]
    feed = zoo.example_inputs(zoo.build(network), SEED)
    busy = busy_share()
    timings: dict[str, Timing] = {}
    with contextlib.ExitStack() as stack:
        runs = {}
        for name in dict.fromkeys(programs.values()):
            path = arguments.folder / f"{network}.{name}.tw"
            compiled = stack.enter_context(tw.open(path, threads=arguments.threads))
            if compiled.options.threads != arguments.threads:
                threads = counted(compiled.options.threads, "thread")
                raise SystemExit(f"{path} is for {threads}: give another FOLDER")
            runs[name] = partial(compiled.run, None, feed)
        if len(runs) > 1:
            in_order = cpu_turns if arguments.clock == "cpu" else in_turns
            timings = in_order(runs, arguments.seconds)
    ratios = {}
    for other in (DEFAULT, RULES):
        ours, theirs = programs[RECUT], programs[other]
        if ours == theirs:
            ratios[other] = (1.0, 1.0, 1.0)
        else:
            ratio = Ratio.of(timings[ours], timings[theirs])
            ratios[other] = (1 / ratio.median, 1 / ratio.high, 1 / ratio.low)
    return {
        "network": network,
        "threads": arguments.threads,
        "clock": arguments.clock,
        "programs": programs,
        "ms": {name: timing.median_ms for name, timing in timings.items()},
        "ratios": ratios,
        "is_busy": busy is not None and busy > BUSY_SHARE,
    }


def cpu_turns(runs: Mapping[str, Any], seconds: float) -> dict[str, Timing]:
    """Processor time of the process, in turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    started_s = time.perf_counter()
    while len(times[next(iter(times))]) < 9 or time.perf_counter() - started_s < seconds:
        for name, run in runs.items():
            start_ns = time.process_time_ns()
            run()
            times[name].append((time.process_time_ns() - start_ns) / 1e6)
    return {name: Timing(tuple(values), tuple(values)) for name, values in times.items()}


def lines_of(arguments: Namespace) -> list[dict[str, Any]]:
    """What was measured so far with this number of threads, by this clock."""
    asked = (arguments.threads, arguments.clock)
    return [line for line in rows_of(arguments.output) if (line["threads"], line["clock"]) == asked]


def table(lines: list[dict[str, Any]]) -> str:
    """A row for each network, then those that are slower than they may be."""
    worse = [line["network"] for line in lines if max(r[0] for r in line["ratios"].values()) > MOST_SHARE]
    head = "| network | pcgc / default | pcgc / rules alone | ms |\n|---|---|---|---|"
    said = f"{len(lines)} networks; slower by more than 3 %: {', '.join(worse) or 'none'}"
    return "\n".join([head, *map(row_of, lines), "", said])


def row_of(line: dict[str, Any]) -> str:
    """One row of it."""
    cells = list(_cells(line))
    return f"| {' | '.join(cells)} |"


def _cells(line: dict[str, Any]) -> Iterator[str]:
    yield line["network"] + (" *" if line["is_busy"] else "")
    for middle, low, high in line["ratios"].values():
        yield "same program" if middle == low == high == 1.0 else f"{middle:.3f} ({low:.3f}, {high:.3f})"
    yield ", ".join(f"{name} {ms:.2f}" for name, ms in line["ms"].items())
