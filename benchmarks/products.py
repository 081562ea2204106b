"""How close the products of networks come to what this core can do, shape by shape, in context.

    python -m benchmarks products --networks bert_base,resnet50 --threads 1 --seconds 20

Every kernel is timed inside whole runs, with weights and activations as the run leaves them, and stands with
the least of its times: on a machine that others use only that is the kernel's. Between groups of runs the
peak of fused multiply-adds is measured in the same process. Appends a JSON line for each network; those that
`--output` has already, at the same options, are left out.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of
from benchmarks.zoo import built
from tilewright import zoo
from tilewright.benchmark.limits import MachineLimits
from tilewright.benchmark.work import BenchmarkWork, total_constant_bytes
from tilewright.compiler import plan
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.contraction import contraction_of
from tilewright.ir.nest import Nest
from tilewright.options import Options
from tilewright.targets.cpu.lower.lowered import HostOperator, LoweredStep
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.cpu.tune.probes import probe_fma_peak

NETWORKS = (
    "bert_base", "vit_b_16", "gpt2_small", "mlp_mixer_b16", "swin_t", "resnet50", "resnext50_32x4d",
)  # fmt: skip
RUNS_BETWEEN_PEAKS = 10
FAR_FROM_LIMIT = 0.75


def measure(
    name: str, threads: int, seconds: float, accuracy: str, isa: str | None, is_quantized: bool
) -> dict[str, Any]:
    """One network: least time of every step, summed over steps that compute the same."""
    model = built(name)
    feed = zoo.example_inputs(model, 0)
    if is_quantized:
        from tests.support.quantize import quantize

        model = quantize(model, feed)
    options = Options(threads=threads, accuracy=accuracy, isa=isa)
    program = plan(load_onnx(model), options).program
    code = CpuTarget().generate(program, profile=True)
    works = {launch: BenchmarkWork.of(launch, code.lowered) for launch in code.lowered.launches}
    limits = MachineLimits.measure(threads, code.isa).with_constants(total_constant_bytes(works.values()))
    peak = limits.fma_flop_per_s
    executable = code.load(threads)
    least: list[float] = []
    num_runs, until = 0, time.monotonic() + seconds
    while time.monotonic() < until or num_runs < RUNS_BETWEEN_PEAKS:
        if num_runs % RUNS_BETWEEN_PEAKS == 0:
            peak = max(peak, probe_fma_peak(threads, code.isa).peak_flop_per_s)
        times = [step.duration_ns for step in executable.run_profiled(feed)]
        least = list(map(min, least, times)) if least else times
        num_runs += 1
    executable.close()
    rows: dict[tuple[str, str, str], dict[str, Any]] = defaultdict(
        lambda: {"count": 0, "least_us": 0.0, "compute_us": 0.0, "memory_us": 0.0, "product_mflop": 0.0}
    )
    slowdown = limits.fma_flop_per_s / peak
    for info, step, taken_ns in zip(code.steps, code.lowered.steps, least, strict=True):
        launches = () if isinstance(step, HostOperator) else step.launches
        template = " | ".join(dict.fromkeys(k.template for k in info.kernels))
        notes = ", ".join(dict.fromkeys(n for k in info.kernels for n in k.notes))
        row = rows[template, what(step), notes]
        constants = sum(sum(works[x].constants.values()) for x in launches)
        activations = sum(works[x].activation_bytes for x in launches)
        row["count"] += 1
        row["least_us"] += taken_ns / 1e3
        row["memory_us"] += limits.read_ns(constants, activations) / 1e3
        row["compute_us"] += (
            slowdown
            * sum(
                works[x].product_share * limits.compute_ns(x.kernel)
                + 1e9 * works[x].vector_flop / limits.fma_flop_per_s
                for x in launches
            )
            / 1e3
        )
        row["product_mflop"] += sum(works[x].product_flop for x in launches) / 1e6
    return {
        "network": name, "threads": threads, "accuracy": accuracy, "isa": isa, "is_quantized": is_quantized,
        "num_runs": num_runs,
        "peak_gflop_per_s": peak / 1e9, "least_us": sum(least) / 1e3,
        "rows": [
            {"template": t, "shape": shape, "notes": notes, **row} for (t, shape, notes), row in rows.items()
        ],
    }  # fmt: skip


def what(step: LoweredStep) -> str:
    """The nests of a step: a product by its extents, anything else by its operators."""
    if isinstance(step, HostOperator):
        return step.node.op_type
    nests = [nest for launch in step.launches for nest in launch.nests]
    products = [nest for nest in nests if contraction_of(nest) is not None]
    names = "+".join(dict.fromkeys(node.op_type for launch in step.launches for node in launch.nodes))
    return f"{names[:40]} {'; '.join(map(extents, products))}" if products else names[:80]


def extents(nest: Nest) -> str:
    """Rows, columns and sums, `x` between dims of each."""
    summed = "x".join(str(d.extent) for d in nest.reduce_dims)
    kept = "x".join(str(d.extent) for d in nest.parallel_dims if d.extent > 1)
    return f"{kept} sum {summed}"


def table(result: dict[str, Any], least_share: float = 0.005) -> str:
    """The shapes by time: share of the network, of the limit, and whether that is too little."""
    lines = [
        f"### {result['network']}, {result['threads']} thread(s): {result['least_us'] / 1e3:.2f} ms, "
        f"{result['peak_gflop_per_s']:.0f} GFLOP/s at best",
        "",
        "| shape | made by | times | of the run | us each | GFLOP/s | of the limit | bound by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(result["rows"], key=lambda row: -row["least_us"]):
        share = row["least_us"] / result["least_us"]
        if share < least_share:
            continue
        limit = max(row["compute_us"], row["memory_us"])
        of_limit = limit / row["least_us"]
        mark = " far" if of_limit < FAR_FROM_LIMIT else ""
        lines.append(
            f"| {row['shape']} | {row['template']} ({row['notes']}) | {row['count']} | {100 * share:.1f} % | "
            f"{row['least_us'] / row['count']:.1f} | {1e3 * row['product_mflop'] / row['least_us']:.0f} | "
            f"{100 * of_limit:.0f} %{mark} | {'compute' if limit == row['compute_us'] else 'memory'} |"
        )
    limit = sum(max(row["compute_us"], row["memory_us"]) for row in result["rows"])
    return "\n".join([*lines, "", f"All steps: {100 * limit / result['least_us']:.0f} % of the limits.", ""])


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--networks", default=",".join(NETWORKS), help="by commas, as in bert_base@384")
    parser.add_argument("--threads", default="1", help="numbers of threads, by commas")
    parser.add_argument("--accuracy", default="default")
    parser.add_argument("--isa", help="instruction set to keep to; default: all that this machine has")
    parser.add_argument("--quantized", action="store_true", help="the networks quantised to bytes")
    parser.add_argument("--seconds", type=float, default=20.0, help="of runs, for each network")
    parser.add_argument("--output", default=Path("benchmarks/results/products.jsonl"))
    parser.add_argument("--page")


def main(arguments: Namespace) -> None:
    """Measure what is missing, and print."""
    results = rows_of(arguments.output)
    done = {(r["network"], r["threads"], r["accuracy"], r["isa"], r["is_quantized"]) for r in results}
    for name in arguments.networks.split(","):
        for threads in map(int, arguments.threads.split(",")):
            if (name, threads, arguments.accuracy, arguments.isa, arguments.quantized) in done:
                continue
            result = measure(
                name, threads, arguments.seconds, arguments.accuracy, arguments.isa, arguments.quantized
            )
            append_row(arguments.output, result)
            results.append(result)
            print(table(result), file=sys.stderr, flush=True)
    tables = "\n".join(map(table, results))
    if arguments.page is not None:
        arguments.page.write_text(tables)
    print(tables)
