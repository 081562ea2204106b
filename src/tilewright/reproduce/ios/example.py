"""Figures 2 and 8: a block of four convolutions by three schedules, and how busy each keeps the machine.

The paper prints neither channels nor extents of its figure's graph. They are those of the authors' experiment
(experiments/utilization of their repository): 384 channels of 15 x 15 pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import ModelProto

from tilewright.hardware.presets import load_preset
from tilewright.report.figure import Line, curves
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.ios.drawing import stages_drawn
from tilewright.reproduce.ios.paper import FIGURE_2, FIGURE_8_GAIN, MAIN_DEVICE
from tilewright.reproduce.ios.runs import (
    BOTH,
    GREEDY,
    SEQUENTIAL,
    IosOutcome,
    PlannedStage,
    outcome_of,
    problem_of_model,
)
from tilewright.reproduce.ios.trends import peak_flop_per_s
from tilewright.zoo.builder import Builder, Tensor

if TYPE_CHECKING:
    from tilewright.schedule.base import ScheduleProblem

_CHANNELS, _SIDE = 384, 15
_SCHEDULES = (SEQUENTIAL, GREEDY, BOTH)


@dataclass(frozen=True, slots=True)
class Example:
    """Schedules of the block, work of each operator by number, and by schedule what share of the
    multiprocessors' time each stage holds."""

    outcome: IosOutcome
    num_flop: tuple[int, ...]
    held: Mapping[str, tuple[float, ...]]


def example_block(channels: int = _CHANNELS, side: int = _SIDE) -> ModelProto:
    """The graph of figure 2: b follows a, c and d stand beside them, and the last three are joined."""
    builder = Builder("figure_2", seed=0)
    x = builder.input("x", (1, channels, side, side))

    def convolution(inputs: Tensor, factor: int, name: str) -> Tensor:
        found = builder.conv(inputs, factor * channels, 3, padding=1, bias=True, name=f"block.{name}.conv")
        return builder.relu(found, name=f"block.{name}.relu")

    b = convolution(convolution(x, 1, "a"), 2, "b")
    joined = builder.concat([b, convolution(x, 1, "c"), convolution(x, 2, "d")], name="block.join.concat")
    builder.output(joined, "y")
    return builder.finish()


def example() -> Example:
    """The block on the paper's machine."""
    from tilewright.ir.derive import flops

    problem = problem_of_model(example_block(), MAIN_DEVICE)
    outcome = outcome_of(problem, _SCHEDULES)
    return Example(
        outcome,
        tuple(sum(map(flops, subgraph.nodes)) for subgraph in problem.partition.subgraphs),
        {
            name: tuple(held(problem, stage) for stage in planned.stages)
            for name, planned in outcome.schedules.items()
        },
    )


def held(problem: ScheduleProblem, stage: PlannedStage) -> float:
    """Of the multiprocessors' time in a stage what its kernels hold, as long as each takes alone."""
    from tilewright.cost.base import SharesMachine

    assert isinstance(problem.cost, SharesMachine)
    members = [i for group in stage.groups for i in group]
    works = [problem.merged(members)] if stage.merges else [problem.work(i) for i in members]
    held_ns = [times_ns[0] for work in works if (times_ns := problem.cost.occupied_ns(work)) is not None]
    return sum(held_ns) / stage.time_ns


def figure_2(found: Example) -> Exhibit:
    """Times and utilisation, stage by stage."""
    peak = peak_flop_per_s(load_preset(MAIN_DEVICE))
    names = [name.partition(".")[2] for name in found.outcome.operators]
    pictures, rows, figures = [], [], []
    for schedule, planned in found.outcome.schedules.items():
        pictures.append(stages_drawn(schedule, names, planned.stages))
        time_ms, share = FIGURE_2[schedule]
        rate = sum(found.num_flop) / planned.time_ns * 1e9
        figures += [
            Figure(f"{schedule}, ms", planned.time_ns / 1e6, time_ms),
            Figure(f"{schedule}, utilisation in %", 100 * rate / peak, share),
        ]
        rows += [(schedule, *row) for row in _rows(found, names, planned.stages, peak)]
    return Exhibit(
        "Figure 2",
        f"three schedules of a block of four convolutions on {MAIN_DEVICE}",
        "Utilisation is of the peak in float32. Which operator is which the paper shows in its image only; "
        "here b follows a, and a and c have half the channels of b and d. IOS's two stages take as long as "
        "in the paper. A convolution alone takes longer: it has 24 or 48 of the tiles that the names of "
        "cuDNN's kernels say, which leave other multiprocessors idle, and nothing cuts its sums among them. "
        "So the gain is larger than the paper's.",
        tuple(figures),
        "".join(pictures),
        ("schedule", "stage", "groups", "Gflop", "us", "Tflop/s", "utilisation"),
        tuple(rows),
        basis=Basis.SIMULATED,
    )


def _rows(
    found: Example, names: Sequence[str], stages: Sequence[PlannedStage], peak: float
) -> Iterator[tuple[str, ...]]:
    for number, stage in enumerate(stages, 1):
        num_flop = sum(found.num_flop[i] for group in stage.groups for i in group)
        rate = num_flop / stage.time_ns * 1e9
        yield (
            str(number),
            " | ".join(" then ".join(names[i] for i in group) for group in stage.groups),
            f"{num_flop / 1e9:.3f}",
            f"{stage.time_ns / 1e3:.1f}",
            f"{rate / 1e12:.2f}",
            f"{100 * rate / peak:.0f} %",
        )


def figure_8(found: Example) -> Exhibit:
    """Multiprocessors that hold blocks of threads, over the time of each schedule."""
    num_cores = load_preset(MAIN_DEVICE).num_cores_per_cluster
    means, rows, lines = {}, [], []
    for name in (SEQUENTIAL, BOTH):
        times_us = [stage.time_ns / 1e3 for stage in found.outcome.schedules[name].stages]
        at_work = [num_cores * share for share in found.held[name]]
        means[name] = sum(n * t for n, t in zip(at_work, times_us, strict=True)) / sum(times_us)
        lines.append(Line(name, tuple(_steps(at_work, times_us))))
        rows += [
            (name, str(number), f"{time_us:.1f}", f"{count:.1f}")
            for number, (count, time_us) in enumerate(zip(at_work, times_us, strict=True), 1)
        ]
    gain = means[BOTH] / means[SEQUENTIAL]
    return Exhibit(
        "Figure 8",
        f"multiprocessors at work on {MAIN_DEVICE}, sequential schedule and IOS's, block of figure 2",
        f"Of {num_cores} multiprocessors those that hold blocks of threads, in the mean of each stage; the "
        "paper samples active warps of repeated runs every 2.1 ms. Kernels of these convolutions have alike "
        "blocks, so that warps are in proportion to multiprocessors. A kernel counts for all of its time, "
        "its launch included.",
        (
            Figure("IOS over Sequential, at work in the mean", gain, FIGURE_8_GAIN),
            *(Figure(f"{name}, at work in the mean", mean, None) for name, mean in means.items()),
        ),
        curves("Multiprocessors at work", "us", "multiprocessors", lines, is_logarithmic=False),
        ("schedule", "stage", "us", "multiprocessors at work"),
        tuple(rows),
        basis=Basis.SIMULATED,
    )


def _steps(heights: Sequence[float], times: Sequence[float]) -> Iterator[tuple[float, float]]:
    """A curve that is level over each time."""
    now = 0.0
    for height, time in zip(heights, times, strict=True):
        yield now, height
        now += time
        yield now, height
