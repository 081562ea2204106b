"""Where the time of a run goes: each kernel in context, beside what this machine could do.

The generated main stores a time stamp before and after each step, so a kernel is measured as it runs: with
the caches as the kernels before it left them. Kernels of one stage run side by side and share one row. A
kernel's limit is the longer of two times: its products at the peak of the unit that computes them, and its
bytes at the speed of where they lie, constants in memory (they are cold: a run reads each once), activations
in the caches.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from tilewright.benchmark.statistics import quantile
from tilewright.errors import UnsupportedOp
from tilewright.ir.graph import Value
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.lower import KernelLaunch, LoweredModel, PackedTensor, Storage, Table
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.cpu.topology import probe_bandwidth, probe_fma_peak, probe_tile_peak

Array = np.ndarray[Any, Any]
Bound = Literal["compute", "memory", "overhead"]

# A step that takes this many times its limit is held back by neither arithmetic nor memory.
OVERHEAD_FACTOR = 4.0
_CACHED_BYTES = 1 << 20
_LEAST_RUNS = 5
_LOOKS = 3
_WARMUP_RUNS = 3


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """What this machine does at best with so many threads, measured."""

    num_threads: int
    fma_flop_per_s: float
    tile_flop_per_s: float | None
    memory_bytes_per_s: float
    cache_bytes_per_s: float

    @classmethod
    def measure(cls, num_threads: int) -> MachineLimits:
        """A few seconds: of several looks the best, since a busy machine only ever shows less than it can."""
        tiles = [probe_tile_peak(num_threads) for _ in range(_LOOKS)]
        rates = [t.peak_flop_per_s for t in tiles if t is not None]
        cached = _CACHED_BYTES * num_threads
        return cls(
            num_threads=num_threads,
            fma_flop_per_s=max(probe_fma_peak(num_threads).peak_flop_per_s for _ in range(_LOOKS)),
            tile_flop_per_s=max(rates, default=None),
            memory_bytes_per_s=max(probe_bandwidth(num_threads).read_bytes_per_s for _ in range(_LOOKS)),
            cache_bytes_per_s=max(
                probe_bandwidth(num_threads, cached).read_bytes_per_s for _ in range(_LOOKS)
            ),
        )

    def compute_ns(self, kernel: Kernel) -> float:
        """The time of a kernel's products at the peak of the units that they run on.

        A kernel that calls others spends it as their products do.
        """
        if not kernel.macs:
            return 0.0
        parts = [part for part in kernel.parts if part.macs]
        if not parts:
            return 2e9 * kernel.macs / self.peak_flop_per_s(kernel.template)
        of_parts = sum(self.compute_ns(part) for part in parts)
        return of_parts * kernel.macs / sum(part.macs for part in parts)

    def peak_flop_per_s(self, template: str) -> float:
        """Of the unit that a template's products run on, in operations of the plain product.

        Winograd's F(n, 3) makes (n + 2)² products of 9n²; the matrix unit makes as many as the name says, and
        bytes run at twice its rate for bfloat16. Vectors of bytes hold four times as many as floats.
        """
        name, _, number = template.partition("-")
        if name == "winograd":
            size = int(number)
            return self.fma_flop_per_s * 9 * size**2 / (size + 2) ** 2
        if name == "matrix" and self.tile_flop_per_s is not None:
            return self.tile_flop_per_s / int(number)
        if template == "integer-tiles" and self.tile_flop_per_s is not None:
            return 2 * self.tile_flop_per_s
        return self.fma_flop_per_s * (4 if template == "integer-vnni" else 1)


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One step: its kernel, or the kernels that run side by side. Times are over all runs.

    `flop` counts products (two operations each); `constant_bytes` weights and tables, `activation_bytes` what
    is read and written of everything else, each tensor once.
    """

    id: str
    template: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    median_ns: float
    low_ns: float
    high_ns: float
    share: float
    flop: int
    constant_bytes: int
    activation_bytes: int
    limit_ns: float
    bound: Bound
    notes: tuple[str, ...]

    @property
    def gflop_per_s(self) -> float:
        """Rate of its products."""
        return self.flop / self.median_ns if self.median_ns else 0.0

    @property
    def of_limit(self) -> float:
        """Share of the speed that the machine would allow."""
        return self.limit_ns / self.median_ns if self.median_ns else 0.0


@dataclass(frozen=True, slots=True)
class Profile:
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

    @property
    def limit_ns(self) -> float:
        """Sum of the limits: a run without overheads on a machine that always reaches its peaks."""
        return sum(k.limit_ns for k in self.kernels)

    @property
    def verdict(self) -> str:
        """One line: what holds this model back."""
        largest = max(self.bound_share, key=lambda b: self.bound_share[b], default="overhead")
        shares = ", ".join(f"{100 * self.bound_share[b]:.0f} % {b}" for b in sorted(self.bound_share))
        return (
            f"mostly {_WORDS[largest]}: {shares} (of the time); the machine's limits add up to "
            f"{100 * self.limit_ns / self.run_ns:.0f} % of a run"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "kernels": [
                {**asdict(k), "gflop_per_s": k.gflop_per_s, "of_limit": k.of_limit} for k in self.kernels
            ],
            "run_ns": self.run_ns,
            "between_ns": self.between_ns,
            "limit_ns": self.limit_ns,
            "num_runs": self.num_runs,
            "limits": asdict(self.limits),
            "operator_share": dict(self.operator_share),
            "bound_share": dict(self.bound_share),
            "verdict": self.verdict,
        }

    def chrome_trace(self, model: str) -> str:
        """The steps of a median run as a trace that chrome://tracing and Perfetto open; times are in µs."""
        events: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": model}},
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "steps"}},
        ]
        start_ns = 0.0
        for kernel in self.kernels:
            arguments = {
                "made by": kernel.template,
                "GFLOP/s": round(kernel.gflop_per_s, 1),
                "bytes": kernel.constant_bytes + kernel.activation_bytes,
                "of the machine's limit": f"{100 * kernel.of_limit:.0f} %",
                "bound by": kernel.bound,
                "nodes": ", ".join(kernel.nodes),
                "how": ", ".join(kernel.notes),
            }
            events.append(
                {
                    "name": _label(kernel),
                    "cat": kernel.template,
                    "ph": "X",
                    "pid": 1,
                    "tid": 1,
                    "ts": round(start_ns / 1e3, 3),
                    "dur": round(kernel.median_ns / 1e3, 3),
                    "args": arguments,
                }
            )
            start_ns += kernel.median_ns
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})


_WORDS = {"compute": "bound by arithmetic", "memory": "bound by memory", "overhead": "held back by overheads"}


def _label(kernel: KernelTime) -> str:
    return " + ".join(kernel.operators) or kernel.template


def profile_program(
    program: Program,
    feed: Mapping[str, Array],
    *,
    num_threads: int,
    duration_s: float,
    limits: MachineLimits | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Profile:
    """Run a program with time stamps for `duration_s`, and compare its steps with the machine's limits.

    Raises:
        UnsupportedOp: operators of the program run on the host, where no stamps are taken.
    """
    progress("generating code with time stamps", 0, 1)
    code = CpuTarget().generate(program, profile=True)
    host = code.lowered.host_operators
    if host:
        names = ", ".join(sorted({h.node.op_type for h in host}))
        raise UnsupportedOp(
            f"{names}: run on the host, where no kernel is timed; `tilewright bench` times the whole model."
        )
    executable = code.load(num_threads)
    try:
        samples, runs_ns = _measure(executable, feed, duration_s, progress)
    finally:
        executable.close()
    progress("measuring this machine", 0, 1)
    limits = limits or MachineLimits.measure(num_threads)
    run_ns = statistics.median(runs_ns)
    kernels: list[KernelTime] = []
    for step, times in zip(code.steps, samples, strict=True):
        launches = code.lowered.steps[step.index]
        assert isinstance(launches, tuple)
        infos = step.kernels
        flop = sum(2 * k.macs for k in infos)
        constants, activations = _bytes(launches, code.lowered)
        compute_ns = sum(limits.compute_ns(launch.kernel) for launch in launches)
        memory_ns = 1e9 * (constants / limits.memory_bytes_per_s + activations / limits.cache_bytes_per_s)
        median = statistics.median(times)
        kernels.append(
            KernelTime(
                id=infos[0].id,
                template=" | ".join(dict.fromkeys(k.template for k in infos)),
                nodes=tuple(dict.fromkeys(n for k in infos for n in k.nodes)),
                operators=tuple(n.op_type for launch in launches for n in launch.nodes),
                median_ns=median,
                low_ns=quantile(times, 0.1),
                high_ns=quantile(times, 0.9),
                share=median / run_ns,
                flop=flop,
                constant_bytes=constants,
                activation_bytes=activations,
                limit_ns=max(compute_ns, memory_ns),
                bound=_bound(median, compute_ns, memory_ns),
                notes=tuple(dict.fromkeys(n for k in infos for n in k.notes)),
            )
        )
    total_ns = sum(k.median_ns for k in kernels)
    if total_ns > run_ns:  # medians of parts may add up to more than the median of the whole
        kernels = [replace(k, share=k.median_ns / total_ns) for k in kernels]
    by_operator: Counter[str] = Counter()
    by_bound: Counter[str] = Counter()
    for kernel in kernels:
        by_operator[kernel.operators[0] if kernel.operators else "reorder"] += kernel.share  # type: ignore[assignment]  # counts may be floats
        by_bound[kernel.bound] += kernel.share  # type: ignore[assignment]
    return Profile(
        kernels=tuple(kernels),
        run_ns=run_ns,
        between_ns=max(0.0, run_ns - total_ns),
        num_runs=len(runs_ns),
        limits=limits,
        operator_share=dict(by_operator.most_common()),
        bound_share=dict(sorted(by_bound.items())),
    )


def _measure(
    executable: Any, feed: Mapping[str, Array], duration_s: float, progress: Progress
) -> tuple[list[list[float]], list[float]]:
    """(Times of each step, times of whole runs), in nanoseconds."""
    for _ in range(_WARMUP_RUNS):
        executable.run_profiled(feed)
    samples: list[list[float]] = []
    runs_ns: list[float] = []
    started = time.perf_counter()
    while len(runs_ns) < _LEAST_RUNS or time.perf_counter() - started < duration_s:
        times = executable.run_profiled(feed)
        samples = samples or [[] for _ in times]
        for found, one in zip(samples, times, strict=True):
            found.append(one.duration_ns)
        if times:
            runs_ns.append(times[-1].start_ns + times[-1].duration_ns - times[0].start_ns)
        else:
            runs_ns.append(0.0)
        elapsed = time.perf_counter() - started
        progress("running with time stamps", min(100, int(100 * elapsed / max(duration_s, 1e-9))), 100)
    return samples, runs_ns


def _bound(median_ns: float, compute_ns: float, memory_ns: float) -> Bound:
    if median_ns > OVERHEAD_FACTOR * max(compute_ns, memory_ns):
        return "overhead"
    return "compute" if compute_ns >= memory_ns else "memory"


def _bytes(launches: Sequence[KernelLaunch], lowered: LoweredModel) -> tuple[int, int]:
    """(Of constants, of activations) that the launches pass to their kernels, each tensor once."""
    constants, activations = 0, 0
    for storage in dict.fromkeys(arg for launch in launches for arg in launch.args):
        size = _size_bytes(storage, lowered)
        if isinstance(storage, PackedTensor | Table) or (isinstance(storage, Value) and storage.is_constant):
            constants += size
        else:
            activations += size
    return constants, activations


def _size_bytes(storage: Storage, lowered: LoweredModel) -> int:
    match storage:
        case PackedTensor():
            return storage.packed.size_bytes
        case Table():
            return storage.operand.num_elements * storage.operand.dtype.size_bytes
        case Value():
            return storage.size_bytes
    local = lowered.locals[storage]
    return local.num_elements * local.dtype.size_bytes
