"""What tuning brings at equal budget: the forms of subgraphs beside products one by one and the untuned plan.

`python -m benchmarks tuning --seconds 60 --threads 2 1 --limit 90m` tunes each network by each search, from
nothing, and then runs all plans in turns in one process. Every network is a line that is appended to
`--output` (tuning.jsonl) as soon as it is measured: the same command goes on where it was stopped, and no
network is begun that would not end within `--limit`. In the end, or at once with `--summary`, it prints a
table, geometric means with intervals, and where a search broke a promise: never slower than the untuned plan
by more than 3 %, nor than `flat`; by 1.10 faster than the untuned plan on the geometric mean. `--page
docs/tuning.md` puts the table there.

`--searches` are any of flat, reformer, evolutionary, conventional, and ago (the reformer on AGO's partition).
Intervals are of 95 %, from rounds; those of means take networks as independent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of, with_table
from tilewright.benchmark import Ratio
from tilewright.planning import Budget
from tilewright.reproduce.ago.latency import Job, Raced, Variant, raced, seconds

MAX_LOSS = 0.03
MIN_GEOMEAN = 1.10
UNTUNED, FLAT, REFORMER = "untuned", "flat", "reformer"
SEARCHES: dict[str, Variant] = {
    FLAT: Variant("auto", "flat"),
    REFORMER: Variant("auto", "reformer"),
    "evolutionary": Variant("auto", "evolutionary"),
    "conventional": Variant("auto", "conventional"),
    "ago": Variant("ago", "reformer"),
}

NETWORKS: dict[str, dict[str, int]] = {
    **{
        f"{name}:{size}": {"image": size}
        for size in (112, 224, 56)
        for name in ("squeezenet1_1", "shufflenet_v2_x1_0", "mobilenet_v2", "mnasnet1_0")
    },
    "bert_tiny": {},
    "mobilevit_s:224": {"image": 224},
}
"""By name and side of the image: their sizes."""

# What a job takes beside its searches: compilation, and ends of searches after their budget.
_EXTRA_S = 8.0
_Z = 1.96
Row = dict[str, Any]


def measured(name: str, threads: int, arguments: Namespace) -> Row:
    """Tune a network by each search and run all plans in turns."""
    job = Job(
        name.partition(":")[0], NETWORKS[name], threads, seconds(arguments.seconds), arguments.race_seconds
    )
    variants = {UNTUNED: Variant("auto", None), **{search: SEARCHES[search] for search in arguments.searches}}
    race = raced(job, variants, peers=tuple(arguments.peers))
    return {
        **_facts(name, threads, arguments),
        "load": race.load,
        "median_ms": {who: timing.median_ms for who, timing in race.timings.items()},
        "over": {
            who: {other: _interval(race, who, other) for other in race.timings if other != who}
            for who in race.timings
        },
        "said": dict(race.said),
    }


def _facts(name: str, threads: int, arguments: Namespace) -> Row:
    """What tells one measurement from others: a row with the same is not measured again."""
    asked = {"network": name, "threads": threads, "seconds": arguments.seconds}
    return {**asked, "contestants": [*arguments.searches, *arguments.peers]}


def _interval(race: Raced, who: str, other: str) -> tuple[float, float, float]:
    ratio: Ratio | None = race.ratio(who, other)
    assert ratio is not None
    return ratio.median, ratio.low, ratio.high


def geomean(ratios: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The geometric mean of ratios with their intervals, and its interval."""
    logs = [math.log(median) for median, _, _ in ratios]
    errors = [(math.log(high) - math.log(low)) / (2 * _Z) for _, low, high in ratios]
    mean, error = sum(logs) / len(logs), math.hypot(*errors) / len(logs)
    return math.exp(mean), math.exp(mean - _Z * error), math.exp(mean + _Z * error)


def broken_promises(rows: Sequence[Row]) -> Iterator[str]:
    """Where a search is slower than it may be: surely where the whole interval says so."""
    for row in rows:
        for other in (UNTUNED, FLAT):
            median, _, high = row["over"].get(REFORMER, {}).get(other, (1.0, 1.0, 1.0))
            if median < 1 - MAX_LOSS:
                surely = "surely" if high < 1 - MAX_LOSS else "perhaps"
                yield f"{row['network']}, {row['threads']} threads: {median:.3f} of {other}, {surely}"
    for (threads, budget_s), of_threads in _grouped(rows):
        ratios = [row["over"][REFORMER][UNTUNED] for row in of_threads if REFORMER in row["over"]]
        if ratios and (mean := geomean(ratios)[0]) < MIN_GEOMEAN:
            mean_of = f"{threads} threads, {budget_s:g} s: {mean:.3f} x untuned on the geometric mean"
            yield f"{mean_of}, less than {MIN_GEOMEAN}"


def table(rows: Sequence[Row]) -> str:
    """For each number of threads and each budget a line for each network, then the means."""
    text = ""
    for (threads, budget_s), of_threads in _grouped(rows):
        names = list(dict.fromkeys(name for row in of_threads for name in row["over"]))
        others = [name for name in names if name != UNTUNED]
        heads = [f"{name} ms" for name in names] + [f"{name} over untuned" for name in others]
        heads += [f"{name} over flat" for name in others if name != FLAT and FLAT in others]
        text += f"\nThreads: {threads}; {budget_s:g} s for each search\n\n"
        text += f"| network | {' | '.join(heads)} | load |\n"
        text += "|---|" + "---:|" * (len(heads) + 1) + "\n"
        pairs = [(name, UNTUNED) for name in others]
        pairs += [(name, FLAT) for name in others if name != FLAT and FLAT in others]
        for row in of_threads:
            times = [f"{row['median_ms'][n]:.3f}" if n in row["median_ms"] else "" for n in names]
            ratios = [_shown(row["over"].get(who, {}).get(other)) for who, other in pairs]
            load = "" if row["load"] is None else f"{row['load']:.1f}"
            text += f"| {row['network']} | {' | '.join([*times, *ratios])} | {load} |\n"
        means = [
            _shown(geomean(found)) if (found := _ratios(of_threads, who, other)) else ""
            for who, other in pairs
        ]
        text += f"| geometric mean | {' | '.join(['' for _ in names] + means)} | |\n"
    return text.lstrip("\n")


def _ratios(rows: Sequence[Row], who: str, other: str) -> list[Sequence[float]]:
    return [row["over"][who][other] for row in rows if other in row["over"].get(who, {})]


def _shown(ratio: Sequence[float] | None) -> str:
    return "" if ratio is None else "{:.3f} ({:.3f} to {:.3f})".format(*ratio)


def _grouped(rows: Sequence[Row]) -> Iterator[tuple[tuple[int, float], list[Row]]]:
    """Rows by threads and seconds."""
    for key in dict.fromkeys((row["threads"], row["seconds"]) for row in rows):
        yield key, [row for row in rows if (row["threads"], row["seconds"]) == key]


def measure_all(arguments: Namespace) -> None:
    """Append the rows that are not there yet, while there is time."""
    deadline_s = math.inf
    if arguments.limit is not None:
        deadline_s = time.monotonic() + (Budget.parse(arguments.limit).deadline_s or math.inf)
    longest_s = len(arguments.searches) * (arguments.seconds + _EXTRA_S) + arguments.race_seconds
    done = [{key: row.get(key) for key in _facts("", 0, arguments)} for row in rows_of(arguments.output)]
    for threads in arguments.threads:
        for name in arguments.networks:
            if _facts(name, threads, arguments) in done:
                continue
            if time.monotonic() + longest_s > deadline_s:
                print(f"{name}, {threads} threads: no time left; the same command goes on here")
                return
            start_s = time.monotonic()
            row = measured(name, threads, arguments)
            longest_s = max(longest_s, time.monotonic() - start_s)
            append_row(arguments.output, row)
            ratios = {who: _shown(others.get(UNTUNED)) for who, others in row["over"].items()}
            print(name, threads, {who: ratio for who, ratio in ratios.items() if ratio}, flush=True)


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--threads", nargs="*", type=int, default=[2, 1])
    parser.add_argument("--searches", nargs="*", default=[FLAT, REFORMER], choices=list(SEARCHES))
    parser.add_argument("--peers", nargs="*", default=[], help="other engines, such as onnxruntime")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search")
    parser.add_argument("--race-seconds", type=float, default=12.0, help="of all plans in turns")
    parser.add_argument("--limit", help="time after which no network is begun, such as 90m")
    parser.add_argument("--output", default=Path("tuning.jsonl"))
    parser.add_argument("--summary", action="store_true", help="measure nothing")
    parser.add_argument("--page")


def main(arguments: Namespace) -> None:
    """Measure, append, and say what was promised in vain."""
    if not arguments.summary:
        measure_all(arguments)
    rows = rows_of(arguments.output)
    if not rows:
        return
    text = table(rows)
    print(text)
    if arguments.page:
        arguments.page.write_text(with_table(arguments.page.read_text(), text))
    for promise in broken_promises(rows):
        print(f"broken: {promise}")
