"""Where the time of a run goes: each kernel in context, beside what this machine could do.

The generated main stores a time stamp before and after each step, so a kernel is measured as it runs: with
the caches as the kernels before it left them. It also notes when and on which thread each chunk of a kernel
runs; a run that takes about the median is kept as it went. Kernels of one stage run side by side and share
one row; operators that run on the host have rows of their own, and no limit. A kernel's limit is the longer
of two times: its arithmetic at the peak of the unit that computes it, and its bytes at the speed of where
they lie: constants where so many of them stay from one run to the next, activations in the caches.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tilewright.arrays import Array
from tilewright.benchmark.limits import MachineLimits
from tilewright.benchmark.statistics import quantile
from tilewright.benchmark.work import BenchmarkWork, total_constant_bytes
from tilewright.cost.energy import Energy, RaplMeter, unavailable
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.report.workers import RecordedChunk, RecordedRun, trace_events
from tilewright.results import Result, about, in_json
from tilewright.steps import KernelInfo, StepInfo
from tilewright.targets.cpu.image.code import CpuCode
from tilewright.targets.cpu.lower.lowered import HostOperator, LoweredStep
from tilewright.targets.cpu.runtime.executor import RunTrace, StepTime
from tilewright.targets.cpu.target import CpuTarget
from tilewright.text.printable import json_text

Bound = Literal["compute", "memory", "overhead", "host"]

# A step that takes this many times its limit is held back by neither arithmetic nor memory.
OVERHEAD_FACTOR = 4.0
# Shorter steps overlap with their neighbours, and some of their constants stay closer than the rest: they are
# never said to be faster than their limits.
_SHORT_NS = 1000.0
_LEAST_RUNS = 5
NOT_METERED = unavailable("no counter was read")
_WARMUP_RUNS = 3
_TRACED_RUNS = 9
"""At most, and in a quarter of the duration: of them the one nearest the median is recorded."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One step: its kernel, or the kernels that run side by side, or an operator on the host.

    Times are over all runs. `flop` counts all operations as `ir.derive.flops` does, `product_flop` those of
    products (two each); `constant_bytes` what is touched of weights and tables, `activation_bytes` of
    everything else, each element once. Of what runs on the host only the time is known.
    """

    id: str
    template: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    median_ns: float
    low_ns: float
    high_ns: float
    share: float
    flop: int = field(metadata=about("All operations, by weight; `gflop_per_s` is their rate."))
    product_flop: int = field(metadata=about("Those of products, two for each."))
    constant_bytes: int
    activation_bytes: int
    limit_ns: float
    bound: Bound
    notes: tuple[str, ...]
    estimate_ns: float | None = field(
        default=None,
        metadata=about("What the cost model said before anything ran, beside the measured times."),
    )

    @in_json
    def gflop_per_s(self) -> float:
        """Rate of its operations."""
        return self.flop / self.median_ns if self.median_ns else 0.0

    @in_json
    def of_limit(self) -> float:
        """Share of the speed that the machine would allow."""
        return self.limit_ns / self.median_ns if self.median_ns else 0.0


@dataclass(frozen=True, slots=True)
class Profile(Result):
    """Every step of a run. `run_ns` is a whole run, `between_ns` what it spends between steps.

    `operator_share` sums the shares by operator type; a fused kernel counts for its first operator.
    """

    kernels: tuple[KernelTime, ...]
    run_ns: float
    between_ns: float
    num_runs: int
    limits: MachineLimits
    operator_share: Mapping[str, float]
    bound_share: Mapping[str, float]
    recorded: RecordedRun = field(metadata=about(hidden=True))
    energy: Energy = field(
        default=NOT_METERED, metadata=about("Of a run, all that the processor takes meanwhile, idle or not.")
    )

    @in_json
    def limit_ns(self) -> float:
        """Sum of the limits: a run without overheads on a machine that always reaches its peaks."""
        return sum(k.limit_ns for k in self.kernels)

    @in_json
    def verdict(self) -> str:
        """One line: what holds this model back."""
        largest = max(self.bound_share, key=lambda b: self.bound_share[b], default="overhead")
        shares = ", ".join(f"{100 * self.bound_share[b]:.0f} % {b}" for b in sorted(self.bound_share))
        return (
            f"mostly {_WORDS[largest]}: {shares} (of the time); the machine's limits add up to "
            f"{100 * self.limit_ns / self.run_ns:.0f} % of a run"
        )

    def chrome_trace(self, model: str) -> str:
        """The recorded run as a trace that chrome://tracing and Perfetto open: a track of its steps, with
        what the medians say of them, and one of each thread with the chunks of kernels that it ran.
        """
        labels = [_label(kernel.operators, kernel.template) for kernel in self.kernels]
        events = trace_events(model, self.recorded, labels, [_detail(kernel) for kernel in self.kernels])
        return json_text(json.dumps({"traceEvents": list(events), "displayTimeUnit": "ns"}))


_WORDS = {
    "compute": "bound by arithmetic",
    "memory": "bound by memory",
    "overhead": "held back by overheads",
    "host": "spent in operators on the host",
}


def _label(operators: Sequence[str], template: str) -> str:
    return " + ".join(operators) or template


def _detail(kernel: KernelTime) -> dict[str, Any]:
    """What a trace says of a step beside when it ran."""
    return {
        "kernel": kernel.id,
        "made by": kernel.template,
        "median in µs": kernel.median_ns / 1e3,
        "GFLOP/s": round(kernel.gflop_per_s, 1),
        "bytes": kernel.constant_bytes + kernel.activation_bytes,
        "of the machine's limit": f"{100 * kernel.of_limit:.0f} %",
        "bound by": kernel.bound,
        "nodes": ", ".join(kernel.nodes),
        "how": ", ".join(kernel.notes),
    }


def profile_program(
    program: Program,
    feed: Mapping[str, Array],
    *,
    num_threads: int,
    duration_s: float,
    limits: Callable[[int], MachineLimits] | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Profile:
    """Run a program with time stamps for `duration_s`, and compare its steps with the machine's limits.

    `limits` gives those of a model whose runs read so many bytes of constants; by default they are measured.
    """
    progress("generating code with time stamps", 0, 1)
    code = CpuTarget.named(program.options.target).generate(program, profile=True, trace=True)
    executable = code.load(num_threads)
    try:
        samples, runs_ns, energy = _measure(executable, feed, duration_s, progress)
        run_ns = statistics.median(runs_ns)
        trace = _traced(executable, feed, run_ns, duration_s)
    finally:
        executable.close()
    progress("measuring this machine", 0, 1)
    works = {launch: BenchmarkWork.of(launch, code.lowered) for launch in code.lowered.launches}
    total_bytes = total_constant_bytes(works.values())
    machine = (
        MachineLimits.measure(num_threads, code.isa).with_constants(total_bytes)
        if limits is None
        else limits(total_bytes)
    )
    kernels: list[KernelTime] = []
    seen: set[str] = set()
    for info, step, times in zip(code.steps, code.lowered.steps, samples, strict=True):
        launches = () if isinstance(step, HostOperator) else step.launches
        kernels.append(_kernel_time(info, step, [works[x] for x in launches], times, run_ns, machine, seen))
    total_ns = sum(k.median_ns for k in kernels)
    if total_ns > run_ns:  # medians of parts may add up to more than the median of the whole
        kernels = [replace(k, share=k.median_ns / total_ns) for k in kernels]
    by_operator: dict[str, float] = {}
    by_bound: dict[str, float] = {}
    for kernel in kernels:
        operator = kernel.operators[0] if kernel.operators else "reorder"
        by_operator[operator] = by_operator.get(operator, 0.0) + kernel.share
        by_bound[kernel.bound] = by_bound.get(kernel.bound, 0.0) + kernel.share
    return Profile(
        kernels=tuple(kernels),
        run_ns=run_ns,
        between_ns=max(0.0, run_ns - total_ns),
        num_runs=len(runs_ns),
        limits=machine,
        operator_share=dict(sorted(by_operator.items(), key=lambda item: -item[1])),
        bound_share=dict(sorted(by_bound.items())),
        recorded=_recorded(trace, code, num_threads),
        energy=energy,
    )


def _run_ns(steps: Sequence[StepTime]) -> float:
    """From the beginning of the first step to the end of the last."""
    return steps[-1].start_ns + steps[-1].duration_ns - steps[0].start_ns if steps else 0.0


def _traced(executable: Any, feed: Mapping[str, Array], run_ns: float, duration_s: float) -> RunTrace:
    """Of a few traced runs the one that takes most nearly as long as the median does."""
    num_runs = max(1, min(_TRACED_RUNS, int(0.25e9 * duration_s / max(run_ns, 1.0))))
    traces: Iterator[RunTrace] = (executable.run_traced(feed)[1] for _ in range(num_runs))
    return min(traces, key=lambda trace: abs(_run_ns(trace.steps) - run_ns))


def _recorded(trace: RunTrace, code: CpuCode, num_threads: int) -> RecordedRun:
    """A traced run, chunks by the ids of their kernels; what runs on the host is a chunk of the caller."""
    spans = tuple((step.start_ns, step.start_ns + step.duration_ns) for step in trace.steps)
    chunks: list[RecordedChunk] = []
    launched: list[list[tuple[KernelInfo, str]]] = []
    for info, step, span in zip(code.steps, code.lowered.steps, spans, strict=True):
        launched.append([])
        if isinstance(step, HostOperator):
            chunks.append(RecordedChunk(info.kernels[0].id, step.node.op_type, info.index, 0, 1, 0, *span))
            continue
        kernel_of = dict(zip(step.launches, info.kernels, strict=True))
        for launch in (x for group in step.longest_first for x in group.launches):
            kernel = kernel_of[launch]
            launched[-1].append((kernel, _label([n.op_type for n in launch.nodes], kernel.template)))
    for t in trace.chunks:
        kernel, name = launched[t.step_index][t.launch_index]
        span = (t.start_ns, t.start_ns + t.duration_ns)
        chunks.append(
            RecordedChunk(kernel.id, name, t.step_index, t.chunk, kernel.num_chunks, t.thread, *span)
        )
    return RecordedRun(num_threads, spans, tuple(chunks))


def _kernel_time(
    info: StepInfo,
    step: LoweredStep,
    works: Sequence[BenchmarkWork],
    times: Sequence[float],
    run_ns: float,
    machine: MachineLimits,
    seen: set[str],
) -> KernelTime:
    """One row. `seen` are the constants of earlier steps, which are in a cache by now."""
    median = statistics.median(times)
    launches = () if isinstance(step, HostOperator) else step.launches
    nodes = [step.node] if isinstance(step, HostOperator) else [n for x in launches for n in x.nodes]
    constants: dict[str, int] = {}
    for work in works:
        constants |= work.constants
    activation_bytes = sum(work.activation_bytes for work in works)
    compute_ns = memory_ns = 0.0
    if not isinstance(step, HostOperator):
        again_bytes = sum(size for name, size in constants.items() if name in seen)
        memory_ns = machine.read_ns(sum(constants.values()) - again_bytes, activation_bytes + again_bytes)
        compute_ns = sum(
            work.product_share * machine.compute_ns(launch.kernel)
            + 1e9 * work.vector_flop / machine.fma_flop_per_s
            for launch, work in zip(launches, works, strict=True)
        )
        seen |= constants.keys()
    limit_ns = max(compute_ns, memory_ns)
    kernels = info.kernels
    return KernelTime(
        id=kernels[0].id,
        template=" | ".join(dict.fromkeys(k.template for k in kernels)),
        nodes=tuple(dict.fromkeys(n for k in kernels for n in k.nodes)),
        operators=tuple(n.op_type for n in nodes),
        median_ns=median,
        low_ns=quantile(times, 0.1),
        high_ns=quantile(times, 0.9),
        share=median / run_ns if run_ns else 0.0,
        flop=sum(work.product_flop + work.other_flop for work in works),
        product_flop=sum(work.product_flop for work in works),
        constant_bytes=sum(constants.values()),
        activation_bytes=activation_bytes,
        limit_ns=min(limit_ns, median) if median < _SHORT_NS else limit_ns,
        bound="host" if isinstance(step, HostOperator) else _bound(median, compute_ns, memory_ns),
        notes=tuple(dict.fromkeys(n for k in kernels for n in k.notes)),
        estimate_ns=_estimate_ns(kernels),
    )


def _estimate_ns(kernels: Sequence[KernelInfo]) -> float | None:
    """Of a step: its kernels share the cores on which each of them was estimated alone."""
    estimates = [k.estimate_ns for k in kernels if k.estimate_ns is not None]
    return sum(estimates) if len(estimates) == len(kernels) else None


def _measure(
    executable: Any, feed: Mapping[str, Array], duration_s: float, progress: Progress
) -> tuple[list[list[float]], list[float], Energy]:
    """(Times of each step, times of whole runs), in nanoseconds; the energy of a run."""
    for _ in range(_WARMUP_RUNS):
        executable.run_profiled(feed)
    samples: list[list[float]] = []
    runs_ns: list[float] = []
    meter = RaplMeter.open()
    if isinstance(meter, RaplMeter):
        meter.start()
    started = time.perf_counter()
    while len(runs_ns) < _LEAST_RUNS or time.perf_counter() - started < duration_s:
        times = executable.run_profiled(feed)
        samples = samples or [[] for _ in times]
        for found, one in zip(samples, times, strict=True):
            found.append(one.duration_ns)
        runs_ns.append(_run_ns(times))
        elapsed = time.perf_counter() - started
        progress("running with time stamps", min(100, int(100 * elapsed / max(duration_s, 1e-9))), 100)
    energy = meter.stop().per_run(len(runs_ns)) if isinstance(meter, RaplMeter) else meter
    return samples, runs_ns, energy


def _bound(median_ns: float, compute_ns: float, memory_ns: float) -> Bound:
    if median_ns > OVERHEAD_FACTOR * max(compute_ns, memory_ns):
        return "overhead"
    return "compute" if compute_ns >= memory_ns else "memory"
