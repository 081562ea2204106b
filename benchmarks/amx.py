"""All that counts of a processor with AMX, in five minutes: rates of the unit, products, networks.

    python -m benchmarks amx --page docs/benchmarks_amx.md
    python -m benchmarks amx --emulated --networks bert_tiny --minutes 0.3      # where there is none: values

*Rates*: products of tiles and loads of tiles alone, and the steps of each way with their loads, as many
short samples in turns over some time, so that every state of the unit is seen, on one thread and on all; in
cycles of the clock that multiply-adds run at, two a cycle. *Products*: the largest of each network by every
way on one thread, in turns, beside what the model says. *Networks*: the default, the default as if the unit
were steady, AVX-512 code, `relaxed` and other engines in turns, as `variants` does. Rows are appended to
`--output`, those that are there are not measured again, and nothing begins after `--minutes`. `--emulated`
runs the same in the emulator, whose times mean nothing.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of, with_table

NETWORKS = (
    "resnet50", "inception_v3", "densenet121", "mobilenet_v2", "convnext_tiny", "vit_b_16", "bert_base",
    "swin_t", "gpt2_small", "gpt2_decode",
)  # fmt: skip
VARIANTS = ("default", "steady", "avx512", "relaxed")
PEERS = ("onnxruntime", "openvino")
TURNS_OF_A_SAMPLE, EMULATED_TURNS = 2_000, 20
# A sample that takes so many times the fastest ones was in the slow state.
SLOW = 2.0
L2_FOOTPRINT_BYTES = 1 << 20


# ---- rates


def rate_loops() -> dict[str, tuple[Callable[[Any, Any, Any], None], int]]:
    """What is repeated, by name: how it is emitted, from a pointer and the number of the turn, and how often
    it does what it is named after."""
    from tilewright.targets.cpu.product import amx
    from tilewright.targets.cpu.product.matrix.tiles import TERMS, TILE_BYTES, Block, multiply

    def dots(operation: str) -> Callable[[Any, Any, Any], None]:
        def emit(e: Any, base: Any, turn: Any) -> None:
            for sums in range(4):
                amx.dot(e, operation, sums, 4 + sums % 2, 6 + sums // 2)

        return emit

    def loads(footprint_bytes: int) -> Callable[[Any, Any, Any], None]:
        def emit(e: Any, base: Any, turn: Any) -> None:
            start = e.mul(e.urem(turn, footprint_bytes // (4 * TILE_BYTES)), 4 * TILE_BYTES)
            for tile in range(4):
                amx.load(e, 4 + tile, e.gep(base, e.add(start, tile * TILE_BYTES)), amx.TILE_BYTES_PER_ROW)

        return emit

    def step(block: Any, terms: Any) -> Callable[[Any, Any, Any], None]:
        size = terms.num_pieces * TILE_BYTES

        def emit(e: Any, base: Any, turn: Any) -> None:
            b = e.gep(base, size * block.rows)
            multiply(
                e,
                block,
                terms,
                lambda piece, i: e.gep(base, size * i + piece * TILE_BYTES),
                lambda piece, j: e.gep(b, size * j + piece * TILE_BYTES),
            )

        return emit

    found = {
        "product of bfloat16 tiles, alone": (dots("tdpbf16ps"), 4),
        "product of int8 tiles, alone": (dots("tdpbssd"), 4),
        "tile load from L1, alone": (loads(4 * TILE_BYTES), 4),
        "tile load from L2, alone": (loads(L2_FOOTPRINT_BYTES), 4),
    }
    for dot, terms in TERMS.items():
        block = Block(1, 1) if terms.is_bytes else Block(2, 2)
        products = block.rows * block.columns * terms.num_products
        found[f"product with its loads, of {dot}"] = (step(block, terms), products)
    return found


def rate_text(isa: Any, emit: Callable[[Any, Any, Any], None], turns: int) -> str:
    """A function that repeats a loop's body."""
    from tilewright.targets.cpu.product import amx
    from tilewright.targets.llvm.emitter import Emitter, Param
    from tilewright.targets.llvm.values import I64, PTR

    e = Emitter(attributes=isa.function_attributes)
    with e.function("rate", (Param("args", PTR), Param("chunk", I64), Param("scratch", PTR))) as (args, *_):
        base = e.load(PTR, args)
        amx.configure(e)
        e.loop(0, turns, 1, lambda turn, _: emit(e, base, turn))
        amx.release(e)
    return e.text()


def rates(threads: int, seconds: float, turns: int) -> Iterator[dict[str, Any]]:
    """A row for each loop: cycles at the 10th and 90th of 100 samples, and the share of slow ones."""
    from tilewright.targets.cpu.isa import host_isa
    from tilewright.targets.cpu.runtime.pool import AlignedBuffer
    from tilewright.targets.cpu.tune.probes import probe_executor, probe_fma_peak

    isa, memory = host_isa(), AlignedBuffer(L2_FOOTPRINT_BYTES)
    loops = rate_loops()
    runs = {
        name: probe_executor(rate_text(isa, emit, turns), "rate", threads, num_chunks=threads)
        for name, (emit, _) in loops.items()
    }
    fma = probe_fma_peak(threads).peak_flop_per_s / threads
    clock_hz = fma / (2 * isa.lanes() * isa.fmas_per_cycle)
    samples: dict[str, list[float]] = {name: [] for name in loops}
    until = time.monotonic() + seconds
    while time.monotonic() < until or min(map(len, samples.values())) < 3:
        for name, run in runs.items():
            start = time.perf_counter()
            run.run([memory.address, 0])
            per_turn = (time.perf_counter() - start) / turns
            samples[name].append(per_turn * clock_hz / loops[name][1])
    for name, cycles in samples.items():
        fast, slow = np.quantile(cycles, (0.1, 0.9))
        share = sum(each > SLOW * fast for each in cycles) / len(cycles)
        yield {
            "rate": name,
            "threads": threads,
            "cycles": [round(float(fast), 1), round(float(slow), 1)],
            "slow_share": round(share, 3),
            "num_samples": len(cycles),
            "clock_ghz": round(clock_hz / 1e9, 2),
        }


# ---- products


def products(name: str, most: int) -> list[tuple[str, int, Any, Any, Any]]:
    """The largest products of a network with constant weights: shape, how often, nest, context, group."""
    from benchmarks.zoo import built
    from tilewright.frontend.onnx import load_onnx
    from tilewright.ir.fuse import NestGroup, fuse_nodes
    from tilewright.targets.cpu.isa import host_isa
    from tilewright.targets.cpu.kernel import Declined, Layout
    from tilewright.targets.cpu.product.matrix import MATRIX
    from tilewright.targets.cpu.template import Context

    found: dict[str, tuple[int, Any, Any, Any]] = {}
    count: Counter[str] = Counter()
    for node in load_onnx(built(name)).nodes:
        if node.op_type not in ("Conv", "MatMul", "Gemm"):
            continue
        group = fuse_nodes((node,), node.outputs)
        if not isinstance(group, NestGroup) or len(group.nests) != 1:
            continue
        layouts = {("output", 0): _layout(group.outputs[0].shape)}
        for i, value in enumerate(group.inputs):
            layouts["input", i] = (
                Layout.row_major(len(value.shape)) if value.is_constant else _layout(value.shape)
            )
        constants = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
        context = Context(host_isa(), layouts, constants=constants)
        problem = MATRIX.match(group.nests[0], context)
        if isinstance(problem, Declined) or problem.contraction.b.operand.key not in constants:
            continue
        shape = f"{node.op_type} {' by '.join('x'.join(map(str, v.shape)) for v in group.inputs[:2])}"
        if node.op_type == "Conv" and node.attributes.get("strides"):
            shape += f" /{node.attributes['strides'][0]}"
        count[shape] += 1
        found.setdefault(shape, (problem.num_macs, problem, context, group))
    ranked = sorted(found, key=lambda shape: -count[shape] * found[shape][0])
    return [(shape, count[shape], *found[shape][1:]) for shape in ranked[:most]]


def _layout(shape: tuple[int, ...]) -> Any:
    from tilewright.targets.cpu.kernel import Layout

    return Layout((0, 2, 3, 1)) if len(shape) == 4 else Layout.row_major(len(shape))


def ways(problem: Any, context: Any) -> dict[str, tuple[Any, tuple[float, ...]]]:
    """Kernels of every way, with the model's cycles in the unit's better and its worse state."""
    from tilewright.targets.cpu.kernel import Declined
    from tilewright.targets.cpu.product.contraction import CONTRACTION
    from tilewright.targets.cpu.product.contraction.choose import contraction_cycles
    from tilewright.targets.cpu.product.matrix.choose import choose_plan
    from tilewright.targets.cpu.product.matrix.cycles import chunk_parts
    from tilewright.targets.cpu.product.matrix.generate import generate_matrix
    from tilewright.targets.cpu.product.matrix.plan import Shape, plan_matrix
    from tilewright.targets.cpu.product.matrix.tiles import TERMS
    from tilewright.targets.cpu.template import lower_with
    from tilewright.tuning import Choice

    nest, isa = problem.contraction.nest, context.isa
    plain = lower_with(CONTRACTION, nest, context)
    assert not isinstance(plain, Declined)
    found = {
        "multiply-adds": (
            plain,
            (contraction_cycles(problem.contraction, Choice(CONTRACTION.name), context),),
        )
    }
    for dot, terms in TERMS.items():
        plan = choose_plan(problem, terms, isa)
        shape = Shape.of(problem, terms)
        cycles = tuple(
            chunk_parts(shape, plan, isa.matrix_rates, state, context.cold_bytes_per_cycle).total
            * plan.num_chunks
            for state in ("better", "worse")
        )
        found[dot] = ((generate_matrix(plan_matrix(problem, plan), isa),), cycles)
    return found


def product_row(
    name: str, shape: str, count: int, problem: Any, context: Any, group: Any, seconds: float
) -> dict[str, Any]:
    """One product by every way in turns, on one thread: microseconds at the 10th, 50th and 90th of 100."""
    from tilewright.testing.kernel_runner import KernelRunner

    rng = np.random.default_rng(0)
    operands = {
        ("input", i): rng.standard_normal(v.shape).astype(np.float32) if v.data is None else v.data
        for i, v in enumerate(group.inputs)
    }
    operands["output", 0] = np.zeros(group.outputs[0].shape, np.float32)
    made = ways(problem, context)
    runners = {
        way: KernelRunner(kernels, operands, context.layouts, context.isa)
        for way, (kernels, _) in made.items()
    }
    samples: dict[str, list[float]] = {way: [] for way in made}
    until = time.monotonic() + seconds
    while time.monotonic() < until or min(map(len, samples.values())) < 3:
        for way, runner in runners.items():
            start = time.perf_counter()
            runner()
            samples[way].append(1e6 * (time.perf_counter() - start))
    exact = runners["multiply-adds"].result(("output", 0)).astype(np.float64)
    largest = max(np.abs(exact).max(), 1e-30)
    return {
        "product": shape,
        "network": name,
        "count": count,
        "macs": problem.num_macs,
        "ways": {
            way: {
                "us": [round(float(x), 1) for x in np.quantile(samples[way], (0.1, 0.5, 0.9))],
                "estimated_kcycles": [round(x / 1e3, 1) for x in made[way][1]],
                "difference": float(np.abs(runner.result(("output", 0)) - exact).max() / largest),
            }
            for way, runner in runners.items()
        },
    }


# ---- the page


def tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rates, products, networks: what was measured so far."""
    from benchmarks.variants import table

    parts: list[str] = []
    of_rates = [r for r in rows if "rate" in r]
    if of_rates:
        lines = [
            "| what | threads | cycles: 10th, 90th of 100 samples | slow samples |",
            "|---|---:|---|---:|",
        ]
        for r in of_rates:
            fast, slow = r["cycles"]
            lines.append(f"| {r['rate']} | {r['threads']} | {fast}, {slow} | {100 * r['slow_share']:.0f} % |")
        clock = statistics.median(r["clock_ghz"] for r in of_rates)
        parts += ["\n".join(lines), f"{of_rates[0]['measured']['machine']}, {clock:.2f} GHz."]
    of_products = [r for r in rows if "product" in r]
    if of_products:
        names = list(of_products[0]["ways"])
        lines = [f"| network | product | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
        for r in of_products:
            base = r["ways"][names[0]]
            cells = [f"{base['us'][1]:.0f} us"]
            cells += [
                " to ".join(f"{base['us'][1] / r['ways'][way]['us'][at]:.2f}" for at in (2, 0))
                + " (model "
                + " to ".join(
                    f"{base['estimated_kcycles'][0] / x:.2f}"
                    for x in reversed(r["ways"][way]["estimated_kcycles"])
                )
                + ")"
                for way in names[1:]
            ]
            lines.append(f"| {r['network']} | {r['count']} x {r['product']} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    of_networks = [r for r in rows if "times" in r]
    if of_networks:
        parts.append(table(of_networks).rstrip())
    return "\n\n".join(parts) + "\n"


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--products", type=int, default=3, help="of each network")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a product; twice that of a comparison")
    parser.add_argument("--minutes", default=5.0)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--emulated", action="store_true", help="in the emulator: times mean nothing")
    parser.add_argument("--output", default=Path("benchmarks/results/amx.jsonl"))
    parser.add_argument("--page")


def main(arguments: Namespace) -> int:
    """What is missing, as long as there is time, then the tables; 1 on a machine without the unit."""
    if arguments.emulated:
        from tests.support.other_processor import run_as

        run_as("amx")
    from tilewright.targets.cpu.isa import host_isa

    if not host_isa().has_matrix_unit:
        print(
            f"skipped: this processor ({host_isa().cpu}), or its system, has no matrix unit; "
            "--emulated runs all of it without times that mean anything"
        )
        return 1
    start = time.monotonic()
    limit_s = 60 * arguments.minutes

    def has_time(share: float = 1.0) -> bool:
        return time.monotonic() - start < share * limit_s

    names = [name for name in arguments.networks.split(",") if name]
    all_threads = [int(n) for n in arguments.threads.split(",")]
    rows = rows_of(arguments.output)
    for threads in all_threads:
        if not any(r.get("rate") and r["threads"] == threads for r in rows) and has_time():
            turns = EMULATED_TURNS if arguments.emulated else TURNS_OF_A_SAMPLE
            for row in rates(threads, 10 * arguments.seconds, turns):
                append_row(arguments.output, row)
    done = {(r["network"], r["product"]) for r in rows if "product" in r}
    for name in names:
        if has_time(0.5):
            for shape, *others in products(name, arguments.products):
                if (name, shape) not in done and has_time(0.5):
                    append_row(arguments.output, product_row(name, shape, *others, seconds=arguments.seconds))
    from benchmarks.variants import measured, missing

    peers = [peer for peer in arguments.peers.split(",") if peer]
    for threads in reversed(all_threads):
        for name, _ in missing(rows, names, [threads]):
            if has_time():
                append_row(arguments.output, measured(name, VARIANTS, peers, threads, 2 * arguments.seconds))
    text = tables(rows_of(arguments.output))
    print(text)
    if arguments.page:
        arguments.page.write_text(with_table(arguments.page.read_text(), text, "amx"))
    return 0
