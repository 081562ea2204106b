"""The zoo beside onnxruntime and OpenVINO: every network, in turns, in one table.

    python benchmarks/zoo.py --threads 1,2 --duration 6 --page docs/benchmarks.md

Writes `OUTPUT.json` (all samples) and `OUTPUT.md` (the table) after each network, so that an interrupted run
goes on where it stopped; in the end the table goes into `--page`. Before each measurement it waits for the
machine to be idle; a row measured on a busy machine all the same is marked `*`, and the geometric means leave
it out.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tilewright import zoo
from tilewright.benchmark import Entrant, Plan, compare_engines
from tilewright.benchmark.api import expected_outputs
from tilewright.benchmark.machine_state import BUSY_SHARE, busy_share
from tilewright.files import write_atomically
from tilewright.frontend.onnx import load_onnx

# The convolutional networks and BERT, over which the speed goals are stated.
DEFAULT_NETWORKS = (
    "resnet18", "resnet34", "resnet50", "resnext50_32x4d", "vgg16", "inception_v3", "densenet121",
    "googlenet", "squeezenet1_0", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_large", "mnasnet1_0",
    "shufflenet_v2_x1_0", "efficientnet_b0", "mobilevit_s", "convnext_tiny", "vit_b_16", "bert_tiny",
    "minilm_l6", "bert_base", "yolov4_tiny", "yolov5s", "yolox_nano", "yolox_tiny", "yolox_s", "conformer_s",
    "dlrm_s", "resnet18_tailor", "ios_inception_v3", "ios_squeezenet", "ios_randwire", "ios_nasnet_a",
)  # fmt: skip


SEED = 0
LOOK_S = 1.0


def measure(name: str, peers: list[str], num_threads: int, duration_s: float) -> dict[str, Any]:
    """One row: figures, samples, versions, the state of the machine, and the commit measured."""
    model = zoo.build(name, seed=SEED)
    feed = zoo.example_inputs(model, SEED)
    graph = load_onnx(model)
    expected = expected_outputs(graph, feed, [o.name for o in graph.outputs])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        entrants = [Entrant(engine, engine, path) for engine in ("tilewright", *peers)]
        plan = Plan(num_threads, duration_s)
        comparison = compare_engines(entrants, feed, plan, model=name, expected=expected)
    return {
        **comparison.to_json(),
        "seed": SEED,
        "commit": commit(),
        "warnings": list(comparison.machine.warnings()),
        "is_busy": comparison.machine.is_busy,
    }


def commit() -> str:
    """The commit measured, with a plus sign if files were changed since."""
    git = ["git", "-C", str(Path(__file__).parent)]
    found = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    changed = subprocess.run([*git, "status", "--porcelain", "../src"], capture_output=True, check=False)
    return found.stdout.strip() + ("+" if changed.stdout else "")


def wait_for_idle(limit_s: float) -> None:
    """Wait until other programs have finished, but no longer than `limit_s`."""
    until = time.monotonic() + limit_s
    while (busy_share(LOOK_S) or 0.0) > BUSY_SHARE and time.monotonic() < until:
        pass


def table(rows: list[dict[str, Any]], peers: list[str]) -> str:
    heads = ["network", "threads", "tilewright ms", "error"]
    for peer in peers:
        heads += [f"{peer} ms", f"{peer} error", f"{peer} / tilewright", "verdict"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    ratios: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        ours, *others = row["contestants"]
        mark = " *" if row["is_busy"] else ""
        cells = [row["model"] + mark, str(row["num_threads"]), number(ours, "median_ms"), error(ours)]
        for other in others:
            cells += [number(other, "median_ms"), error(other)]
            ratio = other.get("ratio")
            if ratio is None:
                cells += ["-", other.get("error") or "-"]
                continue
            if not row["is_busy"]:
                ratios.setdefault((other["engine"], row["num_threads"]), []).append(ratio["median"])
            cells += [f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})", ratio["verdict"]]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for (peer, threads), values in sorted(ratios.items()):
        mean = math.exp(sum(map(math.log, values)) / len(values))
        lines.append(
            f"Geometric mean, {peer} / tilewright, {threads} thread{'s' if threads > 1 else ''}, "
            f"{len(values)} networks: {mean:.2f}\n"
        )
    num_busy = sum(row["is_busy"] for row in rows)
    if num_busy:
        lines.append(f"{num_busy} rows marked * were measured on a busy machine and are in no mean.\n")
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
            + f"; commits {', '.join(sorted({row['commit'] for row in rows}))}. Times are medians in ms; a "
            "ratio above 1 means that tilewright is faster, with a 95 % interval over the rounds; errors are "
            "against float64, relative to the largest value."
        )
    return "\n".join(lines) + "\n"


def number(contestant: dict[str, Any], key: str) -> str:
    return "-" if contestant.get(key) is None else f"{contestant[key]:.2f}"


def error(contestant: dict[str, Any]) -> str:
    return "-" if contestant.get("max_error") is None else f"{contestant['max_error']:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(DEFAULT_NETWORKS), help="names, by commas")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, by commas")
    parser.add_argument("--duration", type=float, default=6.0, help="seconds for each row")
    parser.add_argument("--peers", default="onnxruntime", help="onnxruntime,openvino")
    parser.add_argument(
        "--wait", type=float, default=60.0, help="seconds to wait for an idle machine, at most"
    )
    parser.add_argument("--page", type=Path, help="a page to put the table in, between its markers")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/zoo"))
    arguments = parser.parse_args()
    peers = [p for p in arguments.peers.split(",") if p]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    samples = arguments.output.with_suffix(".json")
    rows: list[dict[str, Any]] = json.loads(samples.read_text()) if samples.exists() else []
    done = {(r["model"], r["num_threads"]) for r in rows}
    for name in arguments.networks.split(","):
        for threads in map(int, arguments.threads.split(",")):
            if (name, threads) in done:
                continue
            wait_for_idle(arguments.wait)
            row = measure(name, peers, threads, arguments.duration)
            rows.append(row)
            write_atomically(samples, json.dumps(rows).encode())
            write_atomically(arguments.output.with_suffix(".md"), table(rows, peers).encode())
            print(table([row], peers).splitlines()[2], file=sys.stderr, flush=True)
    text = table(rows, peers)
    print(text)
    if arguments.page is not None:
        write_atomically(arguments.page, with_table(arguments.page.read_text(), text).encode())


def with_table(page: str, text: str) -> str:
    """The page with another table between its markers."""
    head, _, rest = page.partition("<!-- table -->\n")
    _, _, tail = rest.partition("<!-- end -->\n")
    return f"{head}<!-- table -->\n{text}<!-- end -->\n{tail}"


if __name__ == "__main__":
    main()
