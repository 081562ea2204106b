"""The paper's tables and figures of our outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.report.figure import Bars, bar_chart
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.ios.complexity import figure_5, figure_13, table_1
from tilewright.reproduce.ios.drawing import stages_drawn
from tilewright.reproduce.ios.example import figure_2, figure_8
from tilewright.reproduce.ios.frameworks import figure_12, frameworks, frameworks_here
from tilewright.reproduce.ios.measured import Measurements
from tilewright.reproduce.ios.paper import (
    BATCH_GAINS,
    BATCHES,
    BLOCK_GAINS,
    DEVICES,
    FRAMEWORK_DEVICES,
    GAIN_RANGE,
    LAST_BLOCK,
    MAIN_DEVICE,
    PRUNED_MS,
    PRUNINGS,
    SCHEDULES_MS,
    TABLE_3_BATCHES,
    TABLE_3_DEVICES,
)
from tilewright.reproduce.ios.runs import BOTH, SCHEDULES, SEQUENTIAL, IosOutcome, PlannedStage
from tilewright.reproduce.ios.trends import figure_1
from tilewright.reproduce.on_device import exhibit_on_device, timing_text
from tilewright.text.formatting import counted

_SPECIALISED = "Inception V3"
_FIGURE_6_NAMES = {MAIN_DEVICE: "Figure 6", "rtx2080ti": "Figure 14"}


def all_of(measured: Measurements) -> Sequence[Exhibit]:
    """Figure 6 for each machine; of pruning and of this processor what ran."""
    of_pruning = (figure_9(measured),) if measured.pruned else ()
    of_processor = (figure_6_here(measured), frameworks_here(measured)) if measured.processor else ()
    return (
        figure_1(measured.trends),
        figure_2(measured.example),
        figure_5(),
        table_1(measured),
        table_2(measured),
        *(figure_6(measured, device) for device in DEVICES),
        *of_processor,
        *((figure_6_on_device(measured),) if measured.device else ()),
        *(frameworks(measured, device) for device in FRAMEWORK_DEVICES),
        figure_8(measured.example),
        *of_pruning,
        table_3(measured),
        figure_10(measured),
        figure_11(measured),
        figure_12(measured),
        figure_13(),
        figure_16(measured),
    )


def table_2(measured: Measurements) -> Exhibit:
    """Blocks and operators."""
    return Exhibit(
        "Table 2",
        "the networks",
        "Operators are the authors' schedule units: each convolution with its activation, each separable "
        "convolution, each pool and each sum or concatenation counts once. What the paper counts as a block "
        "it does not say; ours are those of the released code.",
        tuple(
            Figure(f"{n.name}, operators", measured.counts[n.name].num_units, n.num_operators)
            for n in measured.networks
        ),
        heads=("network", "blocks", "the paper's", "operators", "the paper's", "main operator"),
        rows=tuple(
            (
                n.name,
                str(measured.counts[n.name].num_blocks),
                str(n.num_blocks),
                str(measured.counts[n.name].num_units),
                str(n.num_operators),
                n.unit,
            )
            for n in measured.networks
        ),
        basis=Basis.COUNTED,
    )


def figure_6(measured: Measurements, device: str) -> Exhibit:
    """Schedules compared on a described machine; figure 14 on the RTX 2080 Ti."""
    outcomes = [(n.name, measured.schedules[device, n.name]) for n in measured.networks]
    normalised = tuple(
        Bars(name, tuple(_fastest_ns(o) / o.schedules[name].time_ns for _, o in outcomes))
        for name in SCHEDULES
    )
    low, high = GAIN_RANGE
    said = {
        MAIN_DEVICE: (
            f"The paper's text has IOS-Both at {low} to {high} times the sequential schedule (and at 1.6 on "
            "Inception V3), Greedy good on RandWire and NasNet and worse than Sequential on "
            "SqueezeNet, IOS-Merge "
            "equal to Sequential where separable convolutions do not merge. Kernels here have the "
            "blocks that the "
            "names of cuDNN's say, at the full rate of the multiprocessors: they are faster than "
            "cuDNN's, so that "
            "launches weigh more; and concurrency costs nothing but what is described, so that "
            "Inception gains more. The paper's numbers are of milliseconds in the authors' repository, whose "
            "chart the figure is. "
            "On NasNet some plain convolutions merge, so that IOS-Merge gains a little."
        ),
        "rtx2080ti": (
            "The text of the paper says 1.1 to 1.5 times. RandWire and NasNet stay below: a multiprocessor "
            "holds half the threads of a V100's, so that depthwise convolutions fill them all."
        ),
        "k80": (
            "The paper has no such figure for the K80. Its 13 multiprocessors are full of almost every "
            "kernel, so that little is left to gain but by merging; with kernels of Kepler's time, which "
            "reach far less of its rates, the paper's own K80 takes 13.87 ms for what takes a third of that "
            "here."
        ),
    }
    return Exhibit(
        _FIGURE_6_NAMES.get(device, f"Figure 6 on {device}"),
        f"schedules compared at batch 1 on {device}, simulated; throughput over that of the best",
        said[device],
        tuple(
            Figure(
                f"{name}, {schedule} over Sequential",
                o.gain(schedule),
                _papers_gain(name, schedule) if device == MAIN_DEVICE else None,
            )
            for name, o in outcomes
            for schedule in SCHEDULES[1:]
        ),
        bar_chart("", "normalised throughput", [name for name, _ in outcomes], normalised),
        ("network", *(f"{name}, ms (gain)" for name in SCHEDULES), "stage costs asked", "of r and s"),
        tuple(_schedules_row(name, o) for name, o in outcomes),
        basis=Basis.SIMULATED,
    )


def _papers_gain(network: str, schedule: str) -> float | None:
    """From the authors' milliseconds; None of schedules that the paper has not."""
    times_ms = SCHEDULES_MS[network]
    return times_ms[SEQUENTIAL] / times_ms[schedule] if schedule in times_ms else None


def _fastest_ns(outcome: IosOutcome) -> float:
    return min(planned.time_ns for planned in outcome.schedules.values())


def _schedules_row(name: str, outcome: IosOutcome) -> tuple[str, ...]:
    both = outcome.schedules[BOTH]
    gap = both.time_ns / both.bound_ns - 1 if both.bound_ns else 0.0
    return (
        name,
        *(f"{outcome.schedules[s].time_ns / 1e6:.3f} ({outcome.gain(s):.2f})" for s in SCHEDULES),
        f"{both.num_asked:,} in {both.cpu_s:.1f} s",
        "least" if both.is_proven else f"within {gap:.0%}",
    )


def figure_6_here(measured: Measurements) -> Exhibit:
    """Schedules compared on this processor."""
    times = {
        f"{name}, {counted(threads, 'thread')}": found
        for (threads, name), found in measured.processor.items()
    }
    rows, figures = [], []
    for network, found in times.items():
        sequential_ms = found[SEQUENTIAL].median_ms
        by_schedule = [found[schedule] for schedule in SCHEDULES]
        texts = (f"{timing_text(t)} ({sequential_ms / t.median_ms:.2f})" for t in by_schedule)
        rows.append((network, *texts))
        gain = sequential_ms / found[BOTH].median_ms
        figures.append(Figure(f"{network}, IOS-Both over Sequential", gain, None))
    return Exhibit(
        "Figure 6 here",
        "schedules compared at batch 1 on this processor, measured: medians with quartiles",
        "Whole models run in turns. Schedules are planned by the cost model of the processor, kernels share "
        "its threads. With one thread nothing can be gained but by merging; with two, as much as "
        "kernels leave of the second.",
        tuple(figures),
        bar_chart(
            "",
            "ms",
            list(times),
            [
                Bars(schedule, tuple(found[schedule].median_ms for found in times.values()))
                for schedule in SCHEDULES
            ],
            is_logarithmic=True,
        ),
        ("network", *(f"{schedule}, ms (gain)" for schedule in SCHEDULES)),
        tuple(rows),
        basis=Basis.MEASURED,
    )


def figure_6_on_device(measured: Measurements) -> Exhibit:
    """Schedules compared on the device that was asked for."""
    return exhibit_on_device(
        "Figure 6 on a GPU here",
        "A model is a graph of kernels. Schedules are planned by the cost model of the described GPU, and "
        "IOS-M cuts kernels for the multiprocessors that groups get.",
        measured.device,
        BOTH,
        SEQUENTIAL,
    )


def figure_9(measured: Measurements) -> Exhibit:
    """What pruning costs and saves."""
    rows = []
    figures = []
    for network in measured.networks:
        for pruning in PRUNINGS:
            found = measured.pruned.get((network.name, pruning))
            if found is None:
                continue
            both = found.schedules[BOTH]
            rows.append(
                (
                    network.name,
                    *map(str, pruning),
                    f"{both.time_ns / 1e6:.3f}",
                    f"{PRUNED_MS[network.name, pruning]:.2f}",
                    f"{found.gain():.2f}",
                    f"{both.num_asked:,}",
                    f"{both.cpu_s:.1f}",
                    "least" if both.is_proven else f"within {both.time_ns / both.bound_ns - 1:.0%}",
                )
            )
            if pruning == (1, 8):
                figures.append(
                    Figure(f"{network.name}, gain with r=1, s=8", found.gain(), network.pruned_gain)
                )
    return Exhibit(
        "Figure 9",
        f"at most r operators in a group and s groups in a stage, on {MAIN_DEVICE}",
        "A smaller r and s make the search shorter and the schedule no faster, as in the paper, whose search "
        "measures on the GPU and takes up to 90 minutes; here stages are priced by simulation. Where a "
        "search did not close, a smaller space may even give a faster schedule. The paper's milliseconds are "
        "from the authors' repository.",
        tuple(figures),
        "".join(_pruning_chart(measured, what) for what in ("ms", "CPU s of the search")),
        ("network", "r", "s", "ms", "the paper's", "gain", "stage costs asked", "CPU s", "of r and s"),
        tuple(rows),
        basis=Basis.SIMULATED,
    )


def _pruning_chart(measured: Measurements, what: str) -> str:
    networks = [n.name for n in measured.networks if (n.name, PRUNINGS[0]) in measured.pruned]
    bars = []
    for r, s in PRUNINGS:
        found = [measured.pruned[name, (r, s)].schedules[BOTH] for name in networks]
        values = (both.time_ns / 1e6 if what == "ms" else both.cpu_s for both in found)
        bars.append(Bars(f"r={r}, s={s}", tuple(values)))
    return bar_chart("", what, networks, bars) if networks else ""


def table_3(measured: Measurements) -> Exhibit:
    """Schedules made for one batch or device on the others."""
    is_papers = measured.specialised.name == _SPECIALISED
    figures = []
    rows = []
    for on in BATCHES:
        times_ms = [sum(measured.batches[on, made_for]) / 1e6 for made_for in BATCHES]
        paper = [TABLE_3_BATCHES[on, made_for] for made_for in BATCHES]
        rows.append((f"batch {on}", *(_times(t, p, is_papers) for t, p in zip(times_ms, paper, strict=True))))
        for made_for, time_ms, paper_ms in zip(BATCHES, times_ms, paper, strict=True):
            if made_for != on:
                figures.append(
                    Figure(
                        f"batch {on} with the schedule for {made_for}, loss in %",
                        100 * (time_ms * 1e6 / sum(measured.batches[on, on]) - 1),
                        100 * (paper_ms / TABLE_3_BATCHES[on, on] - 1) if is_papers else None,
                    )
                )
    pair = ("k80", MAIN_DEVICE)
    for device in pair:
        times_ms = [sum(measured.devices[device, made_for]) / 1e6 for made_for in pair]
        paper = [TABLE_3_DEVICES[device, made_for] for made_for in pair]
        cells = [
            f"for {made_for}: {_times(t, p, is_papers)}"
            for made_for, t, p in zip(pair, times_ms, paper, strict=True)
        ]
        rows.append((f"{device}, batch 1", *cells, ""))
        other = pair[device == pair[0]]
        figures.append(
            Figure(
                f"{device} with the schedule for {other}, loss in %",
                100 * (sum(measured.devices[device, other]) / sum(measured.devices[device, device]) - 1),
                100 * (TABLE_3_DEVICES[device, other] / TABLE_3_DEVICES[device, device] - 1)
                if is_papers
                else None,
            )
        )
    return Exhibit(
        "Table 3",
        f"{measured.specialised.name}: executed on (rows) with the schedule for (columns), ms (the paper's)",
        "A schedule costs more where it was not made for the batch or the device, as in the paper: the least "
        "of each row is its own column. What one for a large batch loses at batch 1 is far more than in the "
        "paper, since at large batches these kernels fill the machine and its schedule is nearly sequential. "
        "What the K80 loses with the schedule for the V100 are joins of groups that wait for "
        "multiprocessors.",
        tuple(figures),
        heads=("executed on", *(f"for batch {b}" for b in BATCHES)),
        rows=tuple(rows),
        basis=Basis.SIMULATED,
    )


def _times(time_ms: float, paper_ms: float, is_papers: bool) -> str:
    return f"{time_ms:.2f} ({paper_ms:.2f})" if is_papers else f"{time_ms:.2f}"


def figure_10(measured: Measurements) -> Exhibit:
    """The schedules of the last block for two batches."""
    batches = BATCHES[:2]
    names = measured.by_batch[1].operators
    label = _last_block(names)
    pictures = []
    rows = []
    spans = {b: list(_of_block(measured.by_batch[b], label)) for b in batches}
    for batch in batches:
        stages = [measured.by_batch[batch].schedules[BOTH].stages[i] for i in spans[batch]]
        short = [name.partition(".")[2] for name in names]
        pictures.append(stages_drawn(f"{label} at batch {batch}", short, stages))
        rows += [(f"batch {batch}", str(i + 1), _stage_text(stage, short)) for i, stage in enumerate(stages)]
    figures = []
    for on, other, paper in zip(batches, reversed(batches), LAST_BLOCK, strict=True):
        own_ns = sum(measured.batches[on, on][i] for i in spans[on])
        other_ns = sum(measured.batches[on, other][i] for i in spans[other])
        what = f"at batch {on}, its schedule over that for {other}"
        is_papers = measured.specialised.name == _SPECIALISED
        figures.append(Figure(what, other_ns / own_ns, paper if is_papers else None))
    return Exhibit(
        "Figure 10",
        f"the schedules of the last block of {measured.specialised.name} for batch 1 and 32 on {MAIN_DEVICE}",
        "Groups are columns, operators that merge one box. At batch 32 kernels fill the multiprocessors, so "
        "that stages hold less, as in the paper.",
        tuple(figures),
        "".join(pictures),
        ("schedule", "stage", "groups"),
        tuple(rows),
        basis=Basis.SIMULATED,
    )


def _stage_text(stage: PlannedStage, names: Sequence[str]) -> str:
    groups = [" then ".join(names[i] for i in group) for group in stage.groups]
    return f"merged: {', '.join(groups)}" if stage.merges else " | ".join(groups)


def _last_block(names: Sequence[str]) -> str:
    """The last one with several operators."""
    labels = [name.partition(".")[0] for name in names]
    return next(label for label in reversed(labels) if labels.count(label) > 4)


def _of_block(outcome: IosOutcome, label: str) -> Iterator[int]:
    """The stages that run operators of a block, by their places."""
    for place, stage in enumerate(outcome.schedules[BOTH].stages):
        if any(outcome.operators[i].partition(".")[0] == label for group in stage.groups for i in group):
            yield place


def figure_11(measured: Measurements) -> Exhibit:
    """The gain by batch."""
    rows = [
        (
            str(batch),
            *(f"{found.schedules[s].time_ns / 1e6:.2f}" for s in (SEQUENTIAL, BOTH)),
            f"{found.gain():.3f}",
        )
        for batch, found in measured.by_batch.items()
    ]
    return Exhibit(
        "Figure 11",
        f"{measured.specialised.name} by batch on {MAIN_DEVICE}",
        "What can be gained falls with the batch, since kernels fill the multiprocessors alone. The paper's "
        "gain falls, too, but less: its kernels leave more of the machine idle at every batch; its numbers "
        "are of milliseconds in the authors' repository. TVM, TASO and TensorRT are not here.",
        tuple(
            Figure(
                f"batch {b}, IOS over Sequential",
                found.gain(),
                BATCH_GAINS[b] if measured.specialised.name == _SPECIALISED else None,
            )
            for b, found in measured.by_batch.items()
        ),
        bar_chart(
            "",
            "images per second",
            [f"batch {batch}" for batch in measured.by_batch],
            [
                Bars(
                    name,
                    tuple(b * 1e9 / found.schedules[name].time_ns for b, found in measured.by_batch.items()),
                )
                for name in (SEQUENTIAL, BOTH)
            ],
        ),
        ("batch", "Sequential, ms", "IOS-Both, ms", "gain"),
        tuple(rows),
        basis=Basis.SIMULATED,
    )


def figure_16(measured: Measurements) -> Exhibit:
    """Gains block by block."""
    found = measured.by_batch[1]
    names = found.operators
    labels = list(dict.fromkeys(name.partition(".")[0] for name in names))
    sequential = dict.fromkeys(labels, 0.0)
    for stage in found.schedules[SEQUENTIAL].stages:
        sequential[names[stage.groups[0][0]].partition(".")[0]] += stage.time_ns
    both = dict.fromkeys(labels, 0.0)
    for stage in found.schedules[BOTH].stages:
        both[names[stage.groups[0][0]].partition(".")[0]] += stage.time_ns
    gains = {label: sequential[label] / both[label] for label in labels if both[label]}
    is_papers = measured.specialised.name == _SPECIALISED
    most, whole = BLOCK_GAINS if is_papers else (None, None)
    return Exhibit(
        "Figure 16",
        f"{measured.specialised.name} block by block on {MAIN_DEVICE}: IOS-Both over Sequential",
        "Later blocks have more branches and fewer pixels, and gain more, as in the paper.",
        (
            Figure("the most of a block", max(gains.values()), most),
            Figure("the whole network", found.gain(), whole),
        ),
        bar_chart("", "gain", list(gains), (Bars("IOS-Both over Sequential", tuple(gains.values())),)),
        ("block", "Sequential, ms", "IOS-Both, ms", "gain"),
        tuple(
            (label, f"{sequential[label] / 1e6:.3f}", f"{both[label] / 1e6:.3f}", f"{gain:.2f}")
            for label, gain in gains.items()
        ),
        basis=Basis.SIMULATED,
    )
