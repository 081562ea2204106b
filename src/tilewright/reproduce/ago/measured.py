"""Figures 10 to 13 from what was measured here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from tilewright.benchmark import Ratio
from tilewright.report.figure import Bars, bar_chart
from tilewright.reproduce.ago.ablation import NO_INTENSIVE, NO_REFORMER, Stack
from tilewright.reproduce.ago.latency import AGO, FLAT, UNTUNED, Raced
from tilewright.reproduce.ago.paper import FIGURE_10, FIGURE_11, FIGURE_12, FIGURE_13
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.text.formatting import counted

_ENGINES = (UNTUNED, FLAT, AGO, "onnxruntime", "openvino")
_LIBRARY = "onnxruntime"
"""Stands for the library tuned by hand, as Torch Mobile does in the paper; `flat` stands for Ansor."""

_TIMES = tuple(f"{name}, ms" for name in _ENGINES)
_HEADS = ("network", "threads", *_TIMES, "AGO over layerwise", "AGO over flat", "load")
_STACK_TIMES = ("AGO, ms", "AGO-NI, ms", "AGO-NR, ms", "untuned, ms")
_STACK_HEADS = ("subgraph", *_STACK_TIMES, "AGO over AGO-NI", "AGO over AGO-NR", "AGO over untuned")


def latency_exhibit(name: str, races: Sequence[Raced]) -> Exhibit:
    """Figure 10, 11 or 12 of what was raced for it: one thread, two threads, the new networks on both."""
    if name == "Figure 12":
        figures = [figure for race in races for figure in _of_network(race)]
        return _exhibit(name, "latency of BERT-tiny and MobileViT", races, figures)
    threads = races[0].job.num_threads
    paper = FIGURE_10 if name == "Figure 10" else FIGURE_11
    figures = [figure for size in paper for figure in _by_size(races, size, paper[size])]
    title = f"latency of classical networks, {counted(threads, 'thread')}"
    return _exhibit(name, title, races, figures)


def ablation_exhibit(stacks: Mapping[Stack, Raced]) -> Exhibit:
    """Figure 13: what intensive fusion and the reformer each bring."""
    figures: list[Figure] = []
    for name, loss in FIGURE_13.items():
        papers = [race for stack, race in stacks.items() if stack.is_papers]
        ratios = [ratio for race in papers if (ratio := race.ratio(AGO, name)) is not None]
        if ratios:
            what = f"{name}: time lost, geometric mean of {len(ratios)}"
            figures.append(Figure(what, _geomean(ratios) - 1, loss / (1 - loss)))
    rows = tuple(
        (
            stack.name,
            *(f"{race.timings[name].median_ms:.4f}" for name in (AGO, NO_INTENSIVE, NO_REFORMER, "untuned")),
            _text(race.ratio(AGO, NO_INTENSIVE)),
            _text(race.ratio(AGO, NO_REFORMER)),
            _text(race.ratio(AGO, "untuned")),
        )
        for stack, race in stacks.items()
    )
    bars = [
        Bars(name, tuple(race.timings[name].median_ms for race in stacks.values()))
        for name in (AGO, NO_INTENSIVE, NO_REFORMER)
    ]
    return Exhibit(
        "Figure 13",
        "subgraphs of two and three complex operators by AGO, without intensive fusion, without the reformer",
        "Every variant had the same budget, and all ran in turns afterwards; intervals are "
        "of 95 %. Where an interval holds 1, nothing was lost that could be told here. The paper's 2,000 "
        f"measurements were {_budget(stacks)} here.",
        tuple(figures),
        bar_chart("Latency of subgraphs", "ms", [stack.name for stack in stacks], bars),
        _STACK_HEADS,
        rows,
        basis=Basis.MEASURED,
    )


def _exhibit(name: str, title: str, races: Sequence[Raced], figures: Sequence[Figure]) -> Exhibit:
    groups = [_name(race) for race in races]
    bars = [Bars(engine, tuple(_median_ms(race, engine) for race in races)) for engine in _ENGINES]
    budget = races[0].job.budget
    return Exhibit(
        name,
        title,
        f"On this processor; each search had {_budget_text(budget.deadline_s, budget.max_evaluations)} a "
        "network, where the paper's had 20,000 measurements, a day. All ran in turns in one process, medians "
        "over all runs; ratios are round by round, with intervals of 95 %. Torch Mobile is not for this "
        f"processor: {_LIBRARY} stands for it, and for Ansor the search of products one by one that was "
        "there before.",
        tuple(figures),
        bar_chart(title, "ms", groups, bars, is_logarithmic=True),
        _HEADS,
        tuple(_row(race) for race in races),
        basis=Basis.MEASURED,
    )


def _row(race: Raced) -> tuple[str, ...]:
    medians_ms = (_median_ms(race, engine) for engine in _ENGINES)
    times = ("-" if median_ms is None else f"{median_ms:.3f}" for median_ms in medians_ms)
    over = (_text(race.ratio(AGO, other)) for other in (UNTUNED, FLAT))
    load = "-" if race.load is None else f"{race.load:.1f}"
    return (_name(race), str(race.job.num_threads), *times, *over, load)


def _median_ms(race: Raced, engine: str) -> float | None:
    timing = race.timings.get(engine)
    return None if timing is None else timing.median_ms


def _by_size(races: Sequence[Raced], size: int, paper: tuple[float, float]) -> Iterator[Figure]:
    chosen = [race for race in races if race.job.size["image"] == size]
    for other, stands_for, value in ((_LIBRARY, "Torch Mobile", paper[0]), (FLAT, "Ansor", paper[1])):
        ratios = [ratio for race in chosen if (ratio := race.ratio(AGO, other)) is not None]
        if ratios:
            what = f"{size}: AGO over {other} ({stands_for} there), geometric mean of {len(ratios)}"
            yield Figure(what, _geomean(ratios), value)


def _of_network(race: Raced) -> Iterator[Figure]:
    paper = FIGURE_12[race.job.network]
    for other, value in ((_LIBRARY, paper[0]), (FLAT, paper[1])):
        ratio = race.ratio(AGO, other)
        if ratio is not None:
            yield Figure(f"{_name(race)}: AGO over {other}", ratio.median, value)


def _geomean(ratios: Sequence[Ratio]) -> float:
    return math.exp(sum(math.log(ratio.median) for ratio in ratios) / len(ratios))


def _name(race: Raced) -> str:
    return " ".join((race.job.network, *map(str, race.job.size.values())))


def _text(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _budget(stacks: Mapping[Stack, Raced]) -> str:
    budget = next(iter(stacks.values())).job.budget
    return _budget_text(budget.deadline_s, budget.max_evaluations)


def _budget_text(deadline_s: float | None, max_evaluations: int) -> str:
    return f"{max_evaluations:,}" if deadline_s is None else f"{deadline_s:g} s"
