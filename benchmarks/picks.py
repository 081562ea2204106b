"""How often the processor's cost model picks the way of a product that is the fastest when measured.

    python -m benchmarks picks --isa avx512 --page docs/tuning.md
    python -m benchmarks picks --isa avx2 --networks vit_b_16,regnet_x_400mf --losses

Each product of a network runs by itself on random operands, as it is picked and in the ways that a search
would try first: processor time of one thread, in turns, weights in a cache if they fit one. The fastest of
the others is then measured beside the pick once more, so that it is not the luckiest that counts. A pick is
right where that is not faster by more than 5 %; products count by the time that they take as picked, at all
their places. `--losses` lists the picks that are not right, and what was faster. A line for each network is
appended to `--output` as soon as it is there: the same command goes on where it was stopped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of, with_table
from benchmarks.zoo import built
from tilewright.compiler import plan
from tilewright.frontend.onnx import load_onnx
from tilewright.options import Options
from tilewright.planning import Budget
from tilewright.targets.cpu.isa import HOST, Isa, isa_by_name
from tilewright.targets.cpu.kernel import Declined, Layout
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import KernelLaunch
from tilewright.targets.cpu.product.select import lower_product, product_neighbours
from tilewright.targets.cpu.products import Product, product_signature
from tilewright.targets.cpu.target import CpuTarget
from tilewright.testing.kernel_runner import KernelRunner
from tilewright.tuning import Choice

WRONG = 0.05
NETWORKS = (
    "bert_base", "resnet50", "swin_t", "vit_b_16", "mlp_mixer_b16", "resnext50_32x4d", "mobilenet_v2",
    "densenet121", "resnet18", "inception_v3", "mnasnet1_0", "shufflenet_v2_x1_0", "squeezenet1_1", "yolov5s",
)  # fmt: skip
_ROUND_S, _LOOKS, _ROUNDS = 0.002, 5, 15
Row = dict[str, Any]


@dataclass(eq=False)
class Way:
    """A way to compute a product: its kernels, how many runs take about a round, what is said of it."""

    about: str
    runner: KernelRunner
    count: int = 1

    @classmethod
    def of(cls, product: Product, choice: Choice | None, isa: Isa, seen: set[object]) -> Way | None:
        """The kernels of a choice; None where there are none, or they were seen."""
        context = product.context
        choices = {} if choice is None else {product_signature(product.nest, context): choice}
        kernels = lower_product(product.nest, context, choices)
        if isinstance(kernels, Declined):
            return None
        code = tuple((kernel.symbol, kernel.num_chunks) for kernel in kernels)
        if code in seen:
            return None
        seen.add(code)
        nest, rng = product.nest, np.random.default_rng(0)
        operands = {
            operand.key: rng.standard_normal(operand.shape).astype(operand.dtype.numpy)
            for operand in dict.fromkeys(a.operand for a in (*nest.reads, nest.write))
        }
        about = f"{kernels[-1].template}: {', '.join(kernels[-1].notes)}"
        way = cls(about, KernelRunner(kernels, operands, context.layouts, isa))
        way.time_us()
        way.count = max(1, round(1e6 * _ROUND_S / max(way.time_us(), 1e-3)))
        return way

    def time_us(self) -> float:
        """Processor time of a run."""
        start = time.thread_time()
        for _ in range(self.count):
            self.runner()
        return 1e6 * (time.thread_time() - start) / self.count


def in_turns(ways: Sequence[Way], rounds: int) -> list[float]:
    """Median times of ways, us."""
    samples: list[list[float]] = [[] for _ in ways]
    for number in range(rounds):
        for place in (np.arange(len(ways)) + number) % len(ways):
            samples[place].append(ways[place].time_us())
    return [median(of_way) for of_way in samples]


def measured_product(product: Product, isa: Isa, most: int) -> Row | None:
    """The pick beside the fastest other way of the first `most`; None where there is no other."""
    seen: set[object] = set()
    picked = Way.of(product, None, isa, seen)
    choices = product_neighbours(product.nest, product.context)
    others = [way for choice in choices[:most] if (way := Way.of(product, choice, isa, seen)) is not None]
    if picked is None or not others:
        return None
    _, *times = in_turns([picked, *others], _LOOKS)
    best = others[times.index(min(times))]
    picked_us, best_us = in_turns([picked, best], _ROUNDS)
    shape = "x".join(str(dim.extent) for dim in product.nest.dims)
    return {
        "shape": shape,
        "picked": picked.about,
        "picked_us": picked_us,
        "best": best.about,
        "best_us": best_us,
    }


def measured(name: str, isa: Isa, most: int, known: dict[str, Row | None]) -> Row:
    """Of each product of a network the pick, and the fastest of the others; `known` are those measured."""
    options = Options(no_cache=True, threads=1, isa=isa.name)
    lowered = lower_partition(
        plan(load_onnx(built(name)), options).program.partition, CpuTarget().isa(options)
    )
    launches = [step for steps in lowered.work for step in steps if isinstance(step, KernelLaunch)]
    counts = Counter(k.signature for launch in launches for k in launch.kernel.all_kernels())
    found = []
    for signature, product in lowered.products.items():
        if counts[signature] and signature not in known:
            # By itself a product has its operands whole, not parts of larger ones.
            layouts = {key: Layout(layout.order) for key, layout in product.context.layouts.items()}
            alone = replace(product, context=replace(product.context, layouts=layouts))
            known[signature] = measured_product(alone, isa, most)
        if counts[signature] and (row := known[signature]) is not None:
            found.append({**row, "count": counts[signature]})
    return {"network": name, "isa": isa.name, "products": found}


def is_right(row: Mapping[str, Any]) -> bool:
    """Whether nothing is faster than a pick by more than is allowed."""
    return bool(row["best_us"] >= (1 - WRONG) * row["picked_us"])


def table(rows: Sequence[Row]) -> str:
    """Of each network: products with alternatives, what the picks take, and which share of that is right."""
    lines = [
        "| network | code for | products | picked ms | right, of the time | with the best ms |",
        "|---|---|---:|---:|---:|---:|",
    ]
    shares: dict[str, list[float]] = {}
    for row in rows:
        products = row["products"]
        took = sum(p["count"] * p["picked_us"] for p in products) / 1e3
        good = sum(p["count"] * p["picked_us"] for p in products if is_right(p)) / 1e3
        best = sum(p["count"] * min(p["picked_us"], p["best_us"]) for p in products) / 1e3
        if took:
            shares.setdefault(row["isa"], []).append(good / took)
            times = f"{took:.2f} | {100 * good / took:.0f} % | {best:.2f}"
            lines.append(f"| {row['network']} | {row['isa']} | {len(products)} | {times} |")
    for isa, of_isa in shares.items():
        lines.append(f"| mean | {isa} | | | {100 * sum(of_isa) / len(of_isa):.0f} % | |")
    return "\n".join(lines) + "\n"


def losses(rows: Sequence[Row]) -> str:
    """The picks that are not right, those that lose most of a network's time first."""
    found = []
    for row in rows:
        took = sum(p["count"] * p["picked_us"] for p in row["products"])
        for p in row["products"]:
            if not is_right(p):
                lost = p["count"] * (p["picked_us"] - p["best_us"]) / took
                times = f"{p['picked_us']:.1f} us as {p['picked']}; {p['best_us']:.1f} us as {p['best']}"
                found.append((lost, f"{row['network']} {row['isa']} {p['count']} of {p['shape']}: {times}"))
    return "\n".join(f"{100 * lost:.1f} % {about}" for lost, about in sorted(found, reverse=True))


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--isa", default=HOST)
    parser.add_argument("--losses", action="store_true", help="list the picks that are not right")
    parser.add_argument("--ways", type=int, default=12, help="of a product that are measured, at most")
    parser.add_argument("--limit", type=Budget.parse, help="as in 10m: begin no network after so long")
    parser.add_argument("--output", default=Path("benchmarks/results/picks.jsonl"))
    parser.add_argument("--page")


def main(arguments: Namespace) -> None:
    """Measure what is missing, print the table."""
    ends_s = time.monotonic() + (arguments.limit.deadline_s if arguments.limit else float("inf"))
    isa = isa_by_name(arguments.isa)
    known: dict[str, Row | None] = {}
    done = {(row["network"], row["isa"]) for row in rows_of(arguments.output)}
    for name in arguments.networks.split(","):
        if (name, isa.name) not in done and time.monotonic() < ends_s:
            append_row(arguments.output, measured(name, isa, arguments.ways, known))
    rows = rows_of(arguments.output)
    text = table(rows)
    print(text)
    if arguments.losses:
        print(losses(rows))
    if arguments.page:
        page = arguments.page.read_text()
        arguments.page.write_text(with_table(page, text, "picks"))
