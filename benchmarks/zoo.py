"""The zoo beside onnxruntime and OpenVINO: every network, in turns, in one table.

    python benchmarks/zoo.py --threads 1,2 --duration 6 --output benchmarks/results/zoo

Writes `OUTPUT.json` (all samples) after each network, so that an interrupted run goes on where it stopped,
and `OUTPUT.md` (the table) at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

from tilewright import zoo
from tilewright.benchmark import Entrant, Plan, compare_engines
from tilewright.files import write_atomically
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.dtype import DType
from tilewright.ir.interpret import run_graph

# The convolutional networks and BERT, over which the speed goals are stated.
DEFAULT_NETWORKS = (
    "resnet18", "resnet34", "resnet50", "resnext50_32x4d", "vgg16", "inception_v3", "densenet121",
    "googlenet", "squeezenet1_0", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_large", "mnasnet1_0",
    "shufflenet_v2_x1_0", "efficientnet_b0", "mobilevit_s", "convnext_tiny", "vit_b_16", "bert_tiny",
    "minilm_l6", "bert_base", "yolov4_tiny", "yolov5s", "yolox_nano", "yolox_tiny", "yolox_s", "conformer_s",
    "dlrm_s", "resnet18_tailor", "ios_inception_v3", "ios_squeezenet", "ios_randwire", "ios_nasnet_a",
)  # fmt: skip


def measure(name: str, peers: list[str], num_threads: int, duration_s: float) -> dict[str, Any]:
    model = zoo.build(name)
    feed = zoo.example_inputs(model, 0)
    expected = list(run_graph(load_onnx(model), feed, dtype=DType.FLOAT64).values())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        entrants = [Entrant(engine, engine, path) for engine in ("tilewright", *peers)]
        plan = Plan(num_threads, duration_s)
        comparison = compare_engines(entrants, feed, plan, model=name, expected=expected)
    return comparison.to_json()


def table(rows: list[dict[str, Any]], peers: list[str]) -> str:
    heads = ["network", "threads", "tilewright ms", "error"]
    for peer in peers:
        heads += [f"{peer} ms", f"{peer} error", f"{peer} / tilewright", "verdict"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    ratios: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        ours, *others = row["contestants"]
        cells = [row["model"], str(row["num_threads"]), number(ours, "median_ms"), error(ours)]
        for other in others:
            cells += [number(other, "median_ms"), error(other)]
            ratio = other.get("ratio")
            if ratio is None:
                cells += ["-", other.get("error") or "-"]
                continue
            ratios.setdefault((other["engine"], row["num_threads"]), []).append(ratio["median"])
            cells += [f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})", ratio["verdict"]]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for (peer, threads), values in sorted(ratios.items()):
        mean = math.exp(sum(map(math.log, values)) / len(values))
        lines.append(
            f"Geometric mean, {peer} / tilewright, {threads} threads, {len(values)} networks: {mean:.2f}"
        )
    loads = [r["machine"]["load_before"] for r in rows if r["machine"]["load_before"] is not None]
    latencies = [
        r["machine"]["core_latency_before_ns"] for r in rows if r["machine"]["core_latency_before_ns"]
    ]
    if rows:
        lines.append("")
        lines.append(
            f"{rows[0]['machine']['cpu_name']}, {rows[0]['machine']['num_cores']} cores; load before each "
            f"{min(loads):.1f}-{max(loads):.1f}; core to core "
            f"{min(latencies, default=0):.0f}-{max(latencies, default=0):.0f} ns. "
            + ", ".join(f"{c['engine']} {c['version']}" for c in rows[0]["contestants"])
        )
    return "\n".join(lines) + "\n"


def number(contestant: dict[str, Any], key: str) -> str:
    return "-" if contestant.get(key) is None else f"{contestant[key]:.2f}"


def error(contestant: dict[str, Any]) -> str:
    return "-" if contestant.get("max_error") is None else f"{contestant['max_error']:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(DEFAULT_NETWORKS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--duration", type=float, default=6.0)
    parser.add_argument("--peers", default="onnxruntime")
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
            row = measure(name, peers, threads, arguments.duration)
            rows.append(row)
            write_atomically(samples, json.dumps(rows).encode())
            print(table([row], peers).splitlines()[2], file=sys.stderr, flush=True)
    text = table(rows, peers)
    write_atomically(arguments.output.with_suffix(".md"), text.encode())
    print(text)


if __name__ == "__main__":
    main()
