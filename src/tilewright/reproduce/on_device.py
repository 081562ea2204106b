"""A paper's plans on a GPU: run in turns where there is one; for the emulated one estimated and counted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tilewright.benchmark.statistics import Timing
from tilewright.report.figure import Bars, bar_chart
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.in_turns import SECONDS, Plans, Run, feed_of, in_turns

if TYPE_CHECKING:
    from tilewright.target_ref import TargetRef


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A plan on a GPU: its estimate on the described one, what was counted of it, and its times if it ran."""

    estimate_ns: float
    num_kernels: int
    num_stages: int
    arena_bytes: int
    timing: Timing | None = None

    @property
    def median_ms(self) -> float:
        """What it took, or is estimated to take."""
        return self.estimate_ns / 1e6 if self.timing is None else self.timing.median_ms


def planned_on(
    network: str, size: Mapping[str, int], device: TargetRef, plans: Plans, seconds: float = SECONDS
) -> dict[str, OnDevice]:
    """A network of the zoo by each plan on a device, run from inputs on the host to outputs there.

    On the emulated one nothing runs: its time says nothing of a GPU.

    Raises:
        DeviceError: there is no such device; says what to do.
    """
    from tilewright import zoo
    from tilewright.compiler import compile_graph
    from tilewright.frontend.onnx import load_onnx
    from tilewright.options import options_of
    from tilewright.planner import cost_of
    from tilewright.targets.cuda.code import CudaCode

    graph = load_onnx(zoo.build(network, **size))
    feed = feed_of(graph)
    found: dict[str, OnDevice] = {}
    runs: dict[str, Run] = {}
    with contextlib.ExitStack() as stack:
        for name, fields in plans.items():
            code = compile_graph(graph, options_of({**fields, "target": device})).code
            kernels = [kernel for step in code.steps for kernel in step.kernels]
            stages = len(code.program.schedule.stages)
            assert isinstance(code, CudaCode)
            found[name] = OnDevice(cost_of(code.program), len(kernels), stages, code.arena_bytes)
            if not device.is_emulated:
                executable = code.load(None)
                stack.callback(executable.close)
                runs[name] = partial(executable.run, feed)
        timings = in_turns(runs, seconds)
    return {name: replace(plan, timing=timings.get(name)) for name, plan in found.items()}


def timing_text(timing: Timing) -> str:
    """A median with its quartiles, in ms."""
    low_ms, high_ms = (timing.percentile_ms(percent) for percent in (25, 75))
    return f"{timing.median_ms:.2f} [{low_ms:.2f}, {high_ms:.2f}]"


def exhibit_on_device(
    name: str, said: str, found: Mapping[str, Mapping[str, OnDevice]], ours: str, base: str
) -> Exhibit:
    """Plans of networks compared on a GPU: times of those that ran, beside estimates and counts.

    Figures are how many times faster `ours` is than `base`.
    """
    is_measured = any(plan.timing for plans in found.values() for plan in plans.values())
    heads: tuple[str, ...] = ("network", "plan", "estimated ms", "kernels", "stages", "arena, bytes")
    if is_measured:
        title = "plans on a GPU of this machine, measured: medians with quartiles, beside estimates"
        said = f"Whole models run in turns, from inputs on the host to outputs there. {said}"
        heads = (*heads[:2], "measured ms (gain)", *heads[2:])
    else:
        title = "plans for a GPU, estimated and counted: nothing was measured"
        said = (
            "The emulated GPU has no times: these are estimates by the rates of the described GPU, and "
            f"counts of what was compiled for it. {said}"
        )
    names = dict.fromkeys(plan for plans in found.values() for plan in plans)
    return Exhibit(
        name,
        title,
        said,
        tuple(
            Figure(f"{network}, {ours} over {base}", plans[base].median_ms / plans[ours].median_ms, None)
            for network, plans in found.items()
        ),
        bar_chart(
            "",
            "ms" if is_measured else "estimated ms",
            list(found),
            [Bars(plan, tuple(plans[plan].median_ms for plans in found.values())) for plan in names],
            is_logarithmic=True,
        ),
        heads,
        tuple(_rows(found, base)),
        basis=Basis.MEASURED if is_measured else Basis.ESTIMATED,
    )


def _rows(found: Mapping[str, Mapping[str, OnDevice]], base: str) -> Iterator[tuple[str, ...]]:
    for network, plans in found.items():
        for name, plan in plans.items():
            gain = plans[base].median_ms / plan.median_ms
            estimate = f"{plan.estimate_ns / 1e6:.4f}"
            if plan.timing is None:
                times: tuple[str, ...] = (f"{estimate} ({gain:.2f})",)
            else:
                times = (f"{timing_text(plan.timing)} ({gain:.2f})", estimate)
            counts = (plan.num_kernels, plan.num_stages, plan.arena_bytes)
            yield (network, name, *times, *(f"{count:,}" for count in counts))
