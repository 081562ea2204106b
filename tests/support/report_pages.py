"""Reports to test: a profile and a comparison with figures that are written here, pages of small networks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.models import small_net

import tilewright as tw
from tilewright.api.pages import model_report
from tilewright.benchmark import Comparison, Contestant
from tilewright.benchmark.latency_page import latency_page
from tilewright.benchmark.limits import MachineLimits
from tilewright.benchmark.machine_state import MachineState
from tilewright.benchmark.profile import Bound, KernelTime, Profile
from tilewright.benchmark.statistics import Timing
from tilewright.report.workers import RecordedChunk, RecordedRun

LIMITS = MachineLimits(2, 100e9, 800e9, 10e9, 100e9, 200e9, 32_000, 50e9)
MAPPED = "3_14_256_256_1"
SWEPT = ["levels.PsumSpad.num_instances_per_parent=42,84,168", "levels.WeightSpad.capacity=112,448"]
MACHINE = MachineState("a processor", 2, None, 0.1, 0.2, 0.0, 0.0, None, None, None)


def profile_of(compiled: tw.CompiledModel) -> Profile:
    """Kernels that take 1, 2, 3, ... µs and are held back by each of the reasons in turn."""
    bounds: tuple[Bound, ...] = ("compute", "memory", "overhead", "host")
    kernels = tuple(
        KernelTime(
            id=step.kernels[0].id,
            template=step.kernels[0].template,
            nodes=step.kernels[0].nodes,
            operators=("Conv",),
            median_ns=1e3 * n,
            low_ns=0.9e3 * n,
            high_ns=1.2e3 * n,
            share=0.1,
            flop=10_000 * n**3,
            product_flop=9_000 * n**3,
            constant_bytes=500,
            activation_bytes=3_000,
            limit_ns=400.0 * n,
            bound=bounds[(n - 1) % 4],
            notes=(),
        )
        for n, step in enumerate(compiled.steps, 1)
    )
    run_ns = sum(k.median_ns for k in kernels) + 100.0
    shares = {"compute": 0.5, "memory": 0.5}
    return Profile(kernels, run_ns, 100.0, 10, LIMITS, {"Conv": 1.0}, shares, recorded_of(kernels))


def recorded_of(kernels: Sequence[KernelTime]) -> RecordedRun:
    """Two threads: each kernel in two chunks, of which the second takes half as long."""
    steps, chunks, start_ns = [], [], 0.0
    for step, kernel in enumerate(kernels):
        end_ns = start_ns + kernel.median_ns
        steps.append((start_ns, end_ns))
        ends = (end_ns, (start_ns + end_ns) / 2)
        chunks += [
            RecordedChunk(kernel.id, "Conv", step, n, 2, n, start_ns, end) for n, end in enumerate(ends)
        ]
        start_ns = end_ns + 10.0
    return RecordedRun(2, tuple(steps), tuple(chunks))


def comparison() -> Comparison:
    """Two engines with a tail, and one that did not run."""
    contestants = (
        Contestant("tilewright", "tilewright", timing=_timing(10.0, 0)),
        Contestant("onnxruntime", "onnxruntime", timing=_timing(12.0, 1)),
        Contestant("openvino", "openvino", error="openvino: <broken> model"),
    )
    return Comparison("net.onnx", 2, contestants, MACHINE, 30, 1)


def _timing(least_ms: float, seed: int) -> Timing:
    rng = random.Random(seed)
    rounds = [[least_ms * (1 + rng.expovariate(8)) for _ in range(51)] for _ in range(30)]
    return Timing(tuple(sorted(r)[25] for r in rounds), tuple(ms for r in rounds for ms in r))


def many_boxes(number: int) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """Boxes and arcs of a graph, as its picture takes them."""
    rng = random.Random(0)
    boxes = [
        {
            "lines": [f"k{n} loops", f"Relu  relu{n}"],
            "share": n / number**2,
            "about": [f"k{n} loops", f"Relu relu{n} -> v{n}"],
            "find": f"relu relu{n} k{n}",
        }
        for n in range(number)
    ]
    sources = [rng.randrange(max(0, n - 8), n) for n in range(1, number)]
    return boxes, [[source, n, [f"v{source}: cut"]] for n, source in enumerate(sources, 1)]


def write_pages(folder: Path) -> dict[str, Path]:
    """Every kind of report, by the verb that writes it."""
    compiled = tw.compile(small_net(), threads=1)
    texts = {
        "compile": model_report(compiled, "small"),
        "profile": model_report(compiled, "small", profile_of(compiled)),
        "explain": compiled.report().html(),
        "bench": latency_page(comparison(), (), ("nothing else ran",)),
    }
    pages = {}
    for name, text in texts.items():
        pages[name] = folder / f"{name}.html"
        pages[name].write_text(text, encoding="utf-8")
    joint = tw.simulate(small_net(), "v100", recipe="joint", budget="3trials")
    pages["joint"] = joint.save_page(folder / "joint.html")
    pages["simulate"] = tw.simulate(small_net(), recipe="graphturbo").save_page(folder / "simulate.html")
    pages["map"], pages["sweep"] = folder / "map.html", folder / "sweep.html"
    tw.map(MAPPED, mapper="cosa", plot=pages["map"])
    tw.map(MAPPED, "eyeriss", mapper="cosa", sweep=SWEPT, plot=pages["sweep"])
    return pages
