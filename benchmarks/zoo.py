"""The zoo beside onnxruntime and OpenVINO: every network, in turns, one table for each set of networks.

    python -m benchmarks zoo --threads 1,2 --duration 6 --page docs/benchmarks.md
    python -m benchmarks zoo --isa avx2 --output results/zoo-avx2
    python -m benchmarks zoo --accuracy fast --output results/zoo-fast
    python -m benchmarks zoo --quantized --output results/zoo-int8
    python -m benchmarks zoo --batches 8,32 --output results/zoo-batches

Peers compute in float32 whatever the processor; beside `fast` OpenVINO computes in bfloat16. Beside code for
AVX2 they are kept to AVX2, too, by `narrow_peers.py`. Quantised, each
engine gets the same file, its layers between QuantizeLinear and DequantizeLinear, with ranges of the example
input; the error is against that file in float64, where a rounding that falls otherwise is a step. A network
may be given another size: `mobilenet_v2@112` is 112 pixels wide, `bert_base@384` reads 384 tokens,
`gru_tagger@64x8` eight sequences of 64. Writes
`OUTPUT.json` (all samples) and `OUTPUT.md` (the tables) after each network, so that a run that was
interrupted, or that `--limit` ended, goes on where it stopped; in the end the tables go into `--page`. Before
each measurement it waits for the machine to be idle; a row measured on a busy machine all the same is marked
`*`, and the geometric means leave it out.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.results import provenance, with_table
from tilewright import zoo
from tilewright.api.benchmark import expected_outputs
from tilewright.benchmark import BenchPlan, Entrant, compare_engines
from tilewright.benchmark.engines import peer_precision
from tilewright.benchmark.machine_state import BUSY_SHARE, busy_share
from tilewright.benchmark.profile import MachineLimits, profile_program
from tilewright.files import write_atomically
from tilewright.frontend.onnx import load_onnx
from tilewright.program import Program
from tilewright.targets.cpu.isa import HOST, Isa, host_isa, isa_by_name


@dataclass(frozen=True)
class Set:
    """Networks with one goal: how many times faster than the faster peer each should be at least."""

    title: str
    goal: float
    networks: tuple[str, ...]


_MOBILE = ("mobilenet_v2", "mnasnet1_0", "squeezenet1_1", "shufflenet_v2_x1_0")
SETS = (
    Set("ResNet-18 and 34", 1.6, ("resnet18", "resnet34")),
    Set(
        "Larger convolutional networks",
        1.2,
        ("resnet50", "resnext50_32x4d", "vgg16", "inception_v3", "densenet121", "yolov5s"),
    ),
    Set("Mobile networks", 1.15, (*_MOBILE, *(f"{name}@112" for name in _MOBILE))),
    Set("Mobile networks at 56 pixels", 1.4, tuple(f"{name}@56" for name in _MOBILE)),
    Set(
        "Transformers",
        1.15,
        ("bert_tiny", "minilm_l6", "bert_base", "vit_b_16", "mobilevit_s", "swin_t", "mlp_mixer_b16"),
    ),
    Set("Recurrent networks, and decoding by one token", 1.2, ("lstm_words", "gru_tagger", "gpt2_decode")),
    Set(
        "The rest of the zoo",
        0.97,
        (
            "googlenet", "squeezenet1_0", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny",
            "yolov4_tiny", "yolox_nano", "yolox_tiny", "yolox_s", "conformer_s", "dlrm_s", "gpt2_small",
            "resnet18_tailor", "ios_inception_v3", "ios_squeezenet",
            "ios_randwire", "ios_nasnet_a", "regnet_x_400mf", "regnet_y_1_6gf", "unet",
            "convnext_tiny_export",
        ),
    ),
)  # fmt: skip

_BATCHED = (
    "resnet18@224", "mobilenet_v2@224", "squeezenet1_1@224", "shufflenet_v2_x1_0@224", "bert_tiny@128",
    "minilm_l6@128",
)  # fmt: skip
BATCHED = Set("Several samples", 1.5, tuple(f"{name}x{n}" for n in (4, 8, 16, 32) for name in _BATCHED))
"""Measured where `--batches` asks for it."""

QUANTIZED = Set(
    "Quantised to bytes",
    1.2,
    (
        "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v2@112", "squeezenet1_1", "vgg16", "inception_v3",
        "densenet121", "bert_tiny", "bert_base", "vit_b_16",
    ),
)  # fmt: skip

# What keeps peers to an instruction set, where this machine has more.
_NARROWED: Mapping[str, Mapping[str, Any]] = {
    "avx2": {"preload": "benchmarks.narrow_peers", "environment": {"ONEDNN_MAX_CPU_ISA": "AVX2"}}
}

SEED = 0
LOOK_S = 1.0
PROFILE_S = 1.0


def measure(
    name: str,
    peers: list[str],
    threads: list[int],
    duration_s: float,
    accuracy: str,
    isa: str | None,
    is_quantized: bool = False,
) -> Iterator[dict[str, Any]]:
    """A row for each number of threads: figures, samples, versions, the state of the machine, the commit."""
    model = built(name)
    feed = zoo.example_inputs(model, SEED)
    if is_quantized:
        from tests.support.quantize import quantize

        model = quantize(model, feed)
    graph = load_onnx(model)
    expected = expected_outputs(graph, feed, [o.name for o in graph.outputs])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        for num_threads in threads:
            start = time.perf_counter()
            compiled = tw.compile(path, threads=num_threads, accuracy=accuracy, isa=isa)
            ours = compiled.save(Path(folder) / "ours.tw")
            compile_s = time.perf_counter() - start
            entrants = [Entrant("tilewright", "tilewright", ours, compile_s, accuracy=accuracy)]
            entrants += [
                Entrant(peer, peer, path, accuracy=peer_precision(peer, accuracy), **narrowed(isa))
                for peer in peers
            ]
            plan = BenchPlan(num_threads, duration_s)
            comparison = compare_engines(entrants, feed, plan, model=name, expected=expected)
            yield {
                **provenance(),
                **comparison.to_json(),
                "compile_s": compile_s,
                "roofline": roofline(compiled.program, feed, num_threads, isa_by_name(isa or HOST)),
                "seed": SEED,
                "accuracy": accuracy,
                "isa": isa_by_name(isa or HOST).name,
                "peers_isa": isa if narrowed(isa) else None,
                "is_quantized": is_quantized,
                "warnings": list(comparison.machine.warnings()),
                "is_busy": comparison.machine.is_busy,
            }


def narrowed(isa: str | None) -> Mapping[str, Any]:
    """What keeps peers to the instruction set of ours; nothing where this machine has no more."""
    name = isa_by_name(isa or HOST).name
    return {} if name == host_isa().name else _NARROWED.get(name, {})


@cache
def limits(num_threads: int, isa: Isa) -> MachineLimits:
    """What this machine can do, looked at once; where constants stay depends on the model."""
    return MachineLimits.measure(num_threads, isa)


def roofline(program: Program, feed: Any, num_threads: int, isa: Isa) -> dict[str, Any]:
    """The share of the machine's limits that a run reaches, and by which kernels most of the rest is lost.

    `lost` gives, for the two ways of computing that are furthest from their limits in sum, the share of the
    run that they would save if they reached them.
    """
    profile = profile_program(
        program,
        feed,
        num_threads=num_threads,
        duration_s=PROFILE_S,
        limits=limits(num_threads, isa).with_constants,
    )
    lost: Counter[str] = Counter()
    for kernel in profile.kernels:
        operator = next(iter(kernel.operators), "reorder")
        if len(kernel.operators) > 1 and kernel.template.startswith("fused"):
            operator = "chain"
        label = f"{operator} by {kernel.template}"
        lost[label] += max(0.0, kernel.median_ns - kernel.limit_ns) / profile.run_ns  # type: ignore[assignment]  # counts may be floats
    lost["between kernels"] = profile.between_ns / profile.run_ns  # type: ignore[assignment]
    return {
        "share": profile.limit_ns / profile.run_ns,
        "bound_share": dict(profile.bound_share),
        "lost": dict(lost.most_common(2)),
    }


def built(name: str, seed: int = SEED) -> Any:
    """The network of a name such as `resnet18`, `resnet18@112` or, of eight samples, `resnet18@112x8`."""
    network, at, sizes = name.partition("@")
    if not at:
        return zoo.build(network, seed=seed)
    size, _, batch = sizes.partition("x")
    is_image = len(next(iter(zoo.entry(network).input_shapes.values()))) == 4  # a cache has four axes, too
    return zoo.build(
        network, seed=seed, batch=int(batch or 1), **{"image" if is_image else "sequence": int(size)}
    )


def wait_for_idle(limit_s: float) -> None:
    """Wait until other programs have finished, but no longer than `limit_s`."""
    until = time.monotonic() + limit_s
    while (busy_share(LOOK_S) or 0.0) > BUSY_SHARE and time.monotonic() < until:
        pass


def tables(rows: list[dict[str, Any]], peers: list[str]) -> str:
    """A table for each set with rows, the networks of no set last; then means and what was measured where."""
    parts = [conditions(rows)] if rows else []
    sets = (QUANTIZED,) if any(row.get("is_quantized") for row in rows) else (*SETS, BATCHED)
    in_sets = {name for one in sets for name in one.networks}
    for one in sets:
        own = [row for row in rows if row["model"] in one.networks]
        if own:
            title = f"### {one.title}: at least {one.goal:.2f} times"
            parts.append(f"{title}\n\n{short_table(own, one.goal)}\n{details(own, peers, one.goal)}")
    others = [row for row in rows if row["model"] not in in_sets]
    if others:
        parts.append(f"### Others\n\n{short_table(others, None)}\n{details(others, peers, None)}")
    return "\n".join([*parts, summary(rows, peers)])


def conditions(rows: list[dict[str, Any]]) -> str:
    """What is compared with what: the accuracy and the instruction set of ours, the types of peers."""
    if any(row.get("is_quantized") for row in rows):
        isas = ", ".join(sorted({row["isa"] for row in rows}))
        return f"tilewright's code for {isas}; every engine runs the same quantised file.\n"
    ours = sorted({f"accuracy `{row['accuracy']}`, code for {row['isa']}" for row in rows})
    theirs = {f"{c['engine']} in {c['accuracy']}" for row in rows for c in row["contestants"][1:]}
    kept = sorted({row["peers_isa"] for row in rows if row.get("peers_isa")})
    told = f" They are kept to {', '.join(kept)}, too." if kept else ""
    return f"tilewright at {'; '.join(ours)}; beside {', '.join(sorted(theirs)) or 'no peer'}.{told}\n"


def short_table(rows: list[dict[str, Any]], goal: float | None) -> str:
    """What most readers want: our time, and how much longer the faster peer takes."""
    lines = [
        "| network | threads | tilewright ms | faster peer / tilewright | goal |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        ours, least = row["contestants"][0], least_ratio(row)
        ratio = "-" if least is None else f"{spread(least)}, {least['verdict']}"
        cells = [named(row), str(row["num_threads"]), number(ours, "median_ms"), ratio, verdict(least, goal)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def details(rows: list[dict[str, Any]], peers: list[str], goal: float | None) -> str:
    """The whole table, folded."""
    summary = "each peer, errors, memory, time to compile, and what bounds the network"
    text = table(rows, peers, goal)
    return f'<details markdown="1"><summary>{summary}</summary>\n\n{text}\n</details>\n'


def named(row: dict[str, Any]) -> str:
    """The network, marked where the machine was busy."""
    return f"{row['model']}{' *' if row['is_busy'] else ''}"


def verdict(least: dict[str, Any] | None, goal: float | None) -> str:
    """Whether the goal is met beside the faster peer."""
    if least is None or goal is None:
        return "-"
    return "met" if least["median"] >= goal else "missed"


def table(rows: list[dict[str, Any]], peers: list[str], goal: float | None) -> str:
    heads = ["network", "threads", "tilewright ms", "error", "MB"]
    for peer in peers:
        heads += [f"{peer} ms", "error", "MB", f"{peer} / tilewright"]
    heads += ["faster peer / tilewright", "goal", "compile s", "% of roofline", "bottlenecks"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        ours, *others = row["contestants"]
        cells = [named(row), str(row["num_threads"]), *figures(ours)]
        for other in others:
            ratio = other.get("ratio")
            cells += [*figures(other), spread(ratio) if ratio else other.get("error") or "-"]
        least = least_ratio(row)
        cells.append("-" if least is None else f"{least['median']:.2f}, {least['verdict']}")
        cells.append(verdict(least, goal))
        cells += [f"{row['compile_s']:.1f}", f"{100 * row['roofline']['share']:.0f} %"]
        cells.append("; ".join(f"{what} {100 * of:.0f} %" for what, of in row["roofline"]["lost"].items()))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def least_ratio(row: dict[str, Any]) -> dict[str, Any] | None:
    """The ratio to the fastest of the others."""
    ratios = [other["ratio"] for other in row["contestants"][1:] if other.get("ratio")]
    return min(ratios, key=lambda ratio: ratio["median"], default=None)


def spread(ratio: dict[str, Any]) -> str:
    return f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def summary(rows: list[dict[str, Any]], peers: list[str]) -> str:
    """Geometric means over undisturbed rows, and the conditions."""
    lines: list[str] = []
    quiet = [row for row in rows if not row["is_busy"]]
    for threads in sorted({row["num_threads"] for row in rows}):
        own = [row for row in quiet if row["num_threads"] == threads]
        ratios = {
            peer: [
                other["ratio"]["median"]
                for row in own
                for other in row["contestants"][1:]
                if other["engine"] == peer and other.get("ratio")
            ]
            for peer in peers
        }
        if len(peers) > 1:
            ratios["faster peer"] = [least["median"] for row in own if (least := least_ratio(row))]
        for peer, values in ratios.items():
            if values:
                mean = math.exp(sum(map(math.log, values)) / len(values))
                lines.append(
                    f"Geometric mean, {peer} / tilewright, {threads} thread{'s' if threads > 1 else ''}, "
                    f"{len(values)} networks: {mean:.2f}\n"
                )
    if len(quiet) < len(rows):
        lines.append(
            f"{len(rows) - len(quiet)} rows marked * were measured on a busy machine and are in no mean.\n"
        )
    shares = [100 * (r["machine"]["busy_share_before"] or 0.0) for r in rows]
    latencies = [
        r["machine"]["core_latency_before_ns"] for r in rows if r["machine"]["core_latency_before_ns"]
    ]
    if rows:
        lines.append(
            f"{rows[0]['machine']['cpu_name']}, {rows[0]['machine']['num_cores']} cores; others used "
            f"{min(shares, default=0):.0f}-{max(shares, default=0):.0f} % of them; core to core "
            f"{min(latencies, default=0):.0f}-{max(latencies, default=0):.0f} ns. "
            + ", ".join(f"{c['engine']} {c['version']}" for c in rows[0]["contestants"])
            + f"; commits {', '.join(sorted({row['measured']['commit'] for row in rows}))}. "
            "Times are medians in ms; a ratio above 1 means that tilewright is faster, with a 95 % interval "
            "over the rounds; errors are against float64, relative to the largest value; MB is the most "
            "memory that the process had. "
            "The limits of a network are those of its kernels as they were chosen, summed: products at the "
            "measured peak of the unit they run on, or their bytes at the speed of where they stay between "
            "runs, whichever takes longer."
        )
    return "\n".join(lines) + "\n"


def figures(contestant: dict[str, Any]) -> list[str]:
    """Time, error, memory."""
    peak = contestant.get("peak_bytes")
    return [number(contestant, "median_ms"), error(contestant), f"{peak / 1e6:.0f}" if peak else "-"]


def number(contestant: dict[str, Any], key: str) -> str:
    return "-" if contestant.get(key) is None else f"{contestant[key]:.2f}"


def error(contestant: dict[str, Any]) -> str:
    return "-" if contestant.get("max_error") is None else f"{contestant['max_error']:.1e}"


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument(
        "--networks", help="names, by commas, as in resnet18@112; default: all that a table has"
    )
    parser.add_argument("--batches", help="six networks at so many samples each, by commas, as in 8,32")
    parser.add_argument("--quantized", action="store_true", help="the networks quantised to bytes")
    parser.add_argument("--accuracy", default="default", help="ours: strict, default, relaxed or fast")
    parser.add_argument(
        "--isa", help="instruction set that ours keeps to; default: all that this machine has"
    )
    parser.add_argument("--threads", default="1,2", help="numbers of threads, by commas")
    parser.add_argument("--duration", type=float, default=6.0, help="seconds for each row")
    parser.add_argument("--peers", default="onnxruntime,openvino", help="by commas")
    parser.add_argument(
        "--wait", type=float, default=60.0, help="seconds to wait for an idle machine, at most"
    )
    parser.add_argument("--limit", type=float, help="begin no network after so many seconds")
    parser.add_argument("--page")
    parser.add_argument("--marker", default="table", help="the name of the markers there")
    parser.add_argument("--picture", type=Path, help="an SVG file for the ratios on the most threads")
    parser.add_argument("--output", default=Path("benchmarks/results/zoo"))


def main(arguments: Namespace) -> None:
    """Measure what is missing, and print."""
    started_s = time.monotonic()
    peers = [p for p in arguments.peers.split(",") if p]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    samples = arguments.output.with_suffix(".json")
    rows: list[dict[str, Any]] = json.loads(samples.read_text()) if samples.exists() else []
    done = {(r["model"], r["num_threads"]) for r in rows}
    asked = (arguments.accuracy, isa_by_name(arguments.isa or HOST).name, arguments.quantized)
    if any((row["accuracy"], row["isa"], row.get("is_quantized", False)) != asked for row in rows):
        raise SystemExit(f"{samples} is of another accuracy, instruction set or type: give another --output")
    sets = (QUANTIZED,) if arguments.quantized else SETS
    networks = arguments.networks.split(",") if arguments.networks else [n for s in sets for n in s.networks]
    if arguments.batches and not arguments.networks:
        asked_batches = arguments.batches.split(",")
        networks = [name for name in BATCHED.networks if name.rpartition("x")[2] in asked_batches]
    for name in networks:
        threads = [n for n in map(int, arguments.threads.split(",")) if (name, n) not in done]
        is_over = arguments.limit is not None and time.monotonic() - started_s > arguments.limit
        if not threads or is_over:
            continue
        wait_for_idle(arguments.wait)
        settings = (arguments.duration, arguments.accuracy, arguments.isa, arguments.quantized)
        for row in measure(name, peers, threads, *settings):
            rows.append(row)
            write_atomically(samples, json.dumps(rows).encode())
            write_atomically(arguments.output.with_suffix(".md"), tables(rows, peers).encode())
            print(table([row], peers, None).splitlines()[2], file=sys.stderr, flush=True)
    text = tables(rows, peers)
    print(text)
    if arguments.page is not None:
        write_atomically(
            arguments.page, with_table(arguments.page.read_text(), text, arguments.marker).encode()
        )
    if arguments.picture is not None:
        draw(arguments.picture, rows)


def draw(path: Path, rows: list[dict[str, Any]]) -> None:
    """How many times longer the faster peer takes, of each network on the most threads."""
    from benchmarks.pictures import Ratio, write_ratio_chart

    most = max(row["num_threads"] for row in rows)
    ratios = [
        Ratio(row["model"], least["low"], least["median"], least["high"])
        for row in rows
        if row["num_threads"] == most and not row["is_busy"] and (least := least_ratio(row)) is not None
    ]
    write_ratio_chart(path, f"the faster peer's time over tilewright's, {most} threads", ratios)
