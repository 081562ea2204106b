"""What tuning brings at equal budget: the forms of subgraphs beside products one by one and the untuned plan.

`python benchmarks/tuning.py --budget 60 --threads 2 1` tunes each network by each search, from nothing, and
runs all plans in turns in one process; `--networks squeezenet1_1:112 bert_tiny` takes less time. It writes
`tuning.json` and a table, says where a search lost what it promises (never slower than the untuned plan by
more than 3 %, nor than the flat search; by 1.10 faster than the untuned plan on the geometric mean), and with
`--page docs/tuning.md` puts the table there. Intervals are of 95 %, from rounds.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from results import write

from tilewright.benchmark import Ratio
from tilewright.reproduce.ago.latency import (
    AGO,
    FLAT,
    REFORMER,
    UNTUNED,
    VARIANTS,
    Job,
    Raced,
    raced,
    seconds,
)

MAX_LOSS = 0.03
MIN_GEOMEAN = 1.10

NETWORKS: dict[str, dict[str, int]] = {
    **{
        f"{name}:{size}": {"image": size}
        for size in (56, 112, 224)
        for name in ("squeezenet1_1", "shufflenet_v2_x1_0", "mobilenet_v2", "mnasnet1_0")
    },
    "bert_tiny": {},
    "mobilevit_s:224": {"image": 224},
}
"""By name and side of the image: their sizes."""


def row(name: str, race: Raced) -> dict[str, Any]:
    """What was measured of one network, as plain values."""
    return {
        "network": name,
        "threads": race.job.num_threads,
        "budget_s": race.job.budget.deadline_s,
        "load": race.load,
        "median_ms": {who: timing.median_ms for who, timing in race.timings.items()},
        "over_untuned": _interval(race.ratio(REFORMER, UNTUNED)),
        "over_flat": _interval(race.ratio(REFORMER, FLAT)),
        "ago_over_untuned": _interval(race.ratio(AGO, UNTUNED)),
        "flat_over_untuned": _interval(race.ratio(FLAT, UNTUNED)),
        "said": dict(race.said),
    }


def broken_promises(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Where the whole interval says that a promise is broken, and the geometric mean if that is too small."""
    for entry in rows:
        for what in ("over_untuned", "over_flat"):
            _, _, high = entry[what]
            if high < 1 - MAX_LOSS:
                yield f"{entry['network']}, {entry['threads']} threads: {what} at most {high:.3f}"
    mean = geomean([entry["over_untuned"][0] for entry in rows])
    if mean < MIN_GEOMEAN:
        yield f"geometric mean over the untuned plans {mean:.3f}, less than {MIN_GEOMEAN}"


def geomean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each network and number of threads, and the means."""
    text = "| network | threads | untuned ms | flat ms | reformer ms | on AGO's partition ms "
    text += "| reformer over untuned | over flat | load |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    for entry in rows:
        times = " | ".join(f"{entry['median_ms'][who]:.3f}" for who in VARIANTS)
        ratios = " | ".join(
            "{:.2f} ({:.2f} to {:.2f})".format(*entry[what]) for what in ("over_untuned", "over_flat")
        )
        load = "" if entry["load"] is None else f"{entry['load']:.1f}"
        text += f"| {entry['network']} | {entry['threads']} | {times} | {ratios} | {load} |\n"
    for what in ("over_untuned", "over_flat", "flat_over_untuned", "ago_over_untuned"):
        text += f"\nGeometric mean, {what.replace('_', ' ')}: {geomean([e[what][0] for e in rows]):.3f}\n"
    return text


def _interval(ratio: Ratio | None) -> tuple[float, float, float]:
    assert ratio is not None
    return ratio.median, ratio.low, ratio.high


def main() -> None:
    """Measure, write, and say what was promised in vain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--threads", nargs="*", type=int, default=[2, 1])
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each search")
    parser.add_argument("--output", type=Path, default=Path("tuning"))
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for num_threads in arguments.threads:
        for name in arguments.networks:
            network = name.partition(":")[0]
            job = Job(network, NETWORKS[name], num_threads, seconds(arguments.budget))
            rows.append(row(name, raced(job, VARIANTS, peers=())))
            print(json.dumps(rows[-1]), flush=True)
            arguments.output.with_suffix(".json").write_text(json.dumps(rows, indent=1))
    write(arguments, rows, table(rows))
    for text in broken_promises(rows):
        print(f"broken: {text}")


if __name__ == "__main__":
    main()
