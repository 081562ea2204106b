"""Whether the default is ever slower than what it could have been: AVX-512 code, or `strict`.

    python -m benchmarks variants --networks resnet50,bert_base --threads 1,2 --page docs/benchmarks.md
    python -m benchmarks variants --estimates                     # what the model says of AMX, nothing is run

Each network runs as it is compiled by default and with other options, in turns, each in a process of its
own: how long the others take, relative to the default. More than 3 % less, by the whole interval, is
marked. The estimates are summed over kernels as planned for a processor with AMX, wherever this runs: for
the worse state of its unit, `steady` for the better one; without the unit, only they say anything of it.
Rows are appended to `--output`; the same command goes on where it was stopped.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from tests.support.matrix_unit import steady_matrix_unit
from tests.support.processors import machine_with, on_machine

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of, with_table
from benchmarks.zoo import built
from tilewright import zoo
from tilewright.benchmark import BenchPlan, Entrant, compare_engines
from tilewright.compiler import plan
from tilewright.errors import TilewrightError
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.host import host_machine
from tilewright.options import Options
from tilewright.targets.cpu.isa import host_isa, isa_of
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import KernelLaunch
from tilewright.targets.cpu.target import CpuTarget

Asked = Mapping[str, Any]
VARIANTS: Mapping[str, Asked] = {
    "default": {},
    "steady": {"no_cache": True},
    "avx512": {"isa": "avx512"},
    "strict": {"accuracy": "strict"},
    "relaxed": {"accuracy": "relaxed"},
}
# Compiled as for a matrix unit that is never slow.
STEADY = "steady"
HELD = ("avx512", "strict")
MOST_SLOWER = 0.03
SEED = 0


def available(variant: str) -> str | None:
    """Why this machine does not run a variant; None if it does."""
    try:
        isa_of(host_machine(), VARIANTS[variant].get("isa"))
    except TilewrightError as error:
        return str(error).splitlines()[0]
    return None


def measured(
    name: str, variants: Sequence[str], peers: Sequence[str], threads: int, duration_s: float
) -> dict[str, Any]:
    """Median times of variants and peers, and how long they take relative to the first variant."""
    model = built(name)
    feed = zoo.example_inputs(model, SEED)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        entrants: list[Entrant] = []
        for variant in variants:
            with steady_matrix_unit() if variant == STEADY else nullcontext():
                compiled = tw.compile(path, threads=threads, **VARIANTS[variant])
            file = compiled.save(Path(folder) / f"{variant}.tw")
            entrants.append(Entrant(variant, "tilewright", file))
        entrants += [Entrant(peer, peer, path) for peer in peers]
        comparison = compare_engines(entrants, feed, BenchPlan(threads, duration_s, warmup_s=0.1), model=name)
    told = comparison.to_json()
    times = {
        entrant.label: {"ms": row["median_ms"], "ratio": row.get("ratio"), "error": row.get("error")}
        for entrant, row in zip(entrants, told["contestants"], strict=True)
    }
    return {"network": name, "threads": threads, "isa": host_isa().name, "times": times}


def estimated(name: str, variants: Sequence[str]) -> dict[str, float]:
    """Cycles of one core, by the estimates of all kernels, on a usual machine with AMX."""
    found = {}
    with on_machine(machine_with("avx512+amx")):
        for variant in variants:
            options = Options(**{"no_cache": True, "threads": 1, **VARIANTS[variant]})
            with steady_matrix_unit() if variant == STEADY else nullcontext():
                program = plan(load_onnx(built(name)), options).program
                isa, accuracy = CpuTarget().isa(options), options.accuracy
                lowered = lower_partition(program.partition, isa, accuracy=accuracy)
            launches = (step for steps in lowered.work for step in steps if isinstance(step, KernelLaunch))
            found[variant] = sum(launch.kernel.estimate_cycles or 0.0 for launch in launches)
    return found


def verdict(row: Mapping[str, Any]) -> str:
    """What of the variants that the default is held against is faster by too much."""
    slower = [
        variant
        for variant in HELD
        if (ratio := (row["times"].get(variant) or {}).get("ratio")) and ratio["high"] < 1 / (1 + MOST_SLOWER)
    ]
    return f"slower than {', '.join(slower)}" if slower else "holds"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each network and number of threads."""
    labels = list(dict.fromkeys(label for row in rows for label in row["times"] if label != "default"))
    heads = [
        "network",
        "threads",
        "default ms",
        *(f"{label} / default" for label in labels),
        "at most 3 % slower",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---|---:|---:|" + "---:|" * len(labels) + "---|"]
    for row in rows:
        times = row["times"]
        cells = [
            row["network"],
            str(row["threads"]),
            _ms(times["default"]),
            *(_ratio(times.get(x)) for x in labels),
        ]
        lines.append(f"| {' | '.join([*cells, verdict(row)])} |")
    return "\n".join(lines) + "\n"


def _ms(time: Mapping[str, Any]) -> str:
    return "-" if time["ms"] is None else f"{time['ms']:.2f}"


def _ratio(time: Mapping[str, Any] | None) -> str:
    ratio = time and time["ratio"]
    return f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})" if ratio else "-"


def estimates_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What each variant is estimated to take on a processor with AMX, relative to the default."""
    labels = [v for v in VARIANTS if v != "default"]
    lines = [f"| network | default Mcycles | {' | '.join(f'{x} / default' for x in labels)} |"]
    lines.append("|---|---:|" + "---:|" * len(labels))
    for row in rows:
        base = row["estimated"]["default"]
        cells = [f"{row['estimated'][x] / base:.2f}" for x in labels]
        lines.append(f"| {row['network']} | {base / 1e6:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def missing(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], threads: Sequence[int]
) -> Iterator[tuple[str, int]]:
    """Networks and threads without a row."""
    done = {(row["network"], row["threads"]) for row in rows if "times" in row}
    yield from ((name, n) for name in names for n in threads if (name, n) not in done)


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--networks", default=",".join(zoo.names()))
    parser.add_argument("--threads", default="1")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each comparison")
    parser.add_argument(
        "--estimates", action="store_true", help="say what the model says of AMX, run nothing"
    )
    parser.add_argument("--minutes", default=float("inf"))
    parser.add_argument("--output", default=Path("benchmarks/results/variants.jsonl"))
    parser.add_argument("--page")


def main(arguments: Namespace) -> int:
    """What is missing, then the table; 1 if the default is slower than it may be."""
    names, until = arguments.networks.split(","), time.monotonic() + 60 * arguments.minutes
    reasons = {variant: available(variant) for variant in VARIANTS}
    variants = [v for v, reason in reasons.items() if reason is None]
    if not host_isa().has_matrix_unit:
        variants.remove(STEADY)
    for variant, reason in reasons.items():
        if reason is not None:
            print(f"{variant}: skipped: {reason}")
    if not host_isa().has_matrix_unit:
        print(
            "AMX: skipped: this processor, or its system, has no matrix unit; "
            "--estimates says what the model does"
        )
    if arguments.estimates:
        done = {row["network"] for row in rows_of(arguments.output) if "estimated" in row}
        for name in names:
            if name not in done and time.monotonic() < until:
                append_row(arguments.output, {"network": name, "estimated": estimated(name, list(VARIANTS))})
        text = estimates_table([r for r in rows_of(arguments.output) if "estimated" in r])
    else:
        threads = [int(n) for n in arguments.threads.split(",")]
        for name, n in missing(rows_of(arguments.output), names, threads):
            if time.monotonic() < until:
                append_row(arguments.output, measured(name, variants, (), n, arguments.seconds))
        text = table([r for r in rows_of(arguments.output) if "times" in r])
    print(text)
    if arguments.page:
        name = "variants-estimated" if arguments.estimates else "variants"
        arguments.page.write_text(with_table(arguments.page.read_text(), text, name))
    return int("slower than" in text)
