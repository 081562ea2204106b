"""A comparison of engines as a page: how latencies are distributed, and how they went from round to round."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from tilewright.benchmark.session import Comparison, Contestant
from tilewright.benchmark.statistics import Timing, quantile
from tilewright.report.figure import (
    Bars,
    Line,
    bar_chart,
    curves,
    drawn,
    folded,
    heading,
    html_table,
    note,
    page,
)
from tilewright.results import Table
from tilewright.text.formatting import counted

_MAX_PLACES = 400
"""Places of a line: more runs are shown by as many of their quantiles."""
_BINS = 60
_UNTIL = 0.995
"""The share of runs that a histogram shows; the rest, one by one, would leave no room for the others."""


def latency_page(comparison: Comparison, tables: Sequence[Table], lines: Sequence[str]) -> str:
    """One HTML page that needs no network; `tables` and `lines` are what is said of all in words."""
    timed = [(c.label, c.timing) for c in comparison.contestants if c.timing is not None]
    streams = "" if comparison.num_streams == 1 else f", {comparison.num_streams} runs at a time"
    threads = counted(comparison.num_threads, "thread")
    parts = [note(f"{threads}{streams}, {counted(comparison.num_rounds, 'round')} in turns.")]
    parts += [html_table(table.heads, table.rows) for table in tables]
    if timed:
        parts += _distributions(timed)
        parts += [heading("Percentiles"), drawn(_percentiles(comparison.contestants))]
        parts += [heading("Rounds"), note(_ROUNDS), drawn(_rounds(timed))]
    failed = [(c.label, c.error) for c in comparison.contestants if c.error is not None]
    if failed:
        parts += [heading("Did not run"), html_table(("engine", "why"), failed, is_words=True)]
    parts += [heading("The machine meanwhile"), *map(note, lines)]
    parts.append(folded("Medians of rounds, ms", [_round_table(timed)]))
    return page(f"Latency of {comparison.model}", parts)


_ROUNDS = (
    "Each engine ran once in each round, in an order that rotates, so that what slows the machine down slows "
    "all of them: compare within a round. With several runs at a time it is the time per run."
)


def _distributions(timed: Sequence[tuple[str, Timing]]) -> list[str]:
    counts = ", ".join(f"{len(timing.runs_ms):,} of {label}" for label, timing in timed)
    pooled = [ms for _, timing in timed for ms in timing.runs_ms]
    said = f"Latencies of all runs: {counts}. The histogram ends where {100 * _UNTIL:g} % of all runs do."
    return [
        heading("Distribution of latency"),
        note(said),
        drawn(
            curves("runs that end in time", "latency, ms", "% of runs", [_cumulative(*one) for one in timed])
        ),
        drawn(
            curves(
                "histogram",
                "latency, ms",
                "% of runs in a bin",
                [_histogram(label, timing.runs_ms, pooled) for label, timing in timed],
            )
        ),
    ]


def _cumulative(label: str, timing: Timing) -> Line:
    """How many percent of the runs a latency is enough for."""
    ordered = sorted(timing.runs_ms)
    num_places = min(len(ordered), _MAX_PLACES)
    shares = [number / max(1, num_places - 1) for number in range(num_places)]
    return Line(label, tuple((max(quantile(ordered, share), 1e-9), 100 * share) for share in shares))


def _histogram(label: str, runs_ms: Sequence[float], pooled: Sequence[float]) -> Line:
    """A line along the tops of bins, which all engines share; it begins and ends on the ground."""
    low = max(min(pooled), 1e-9)
    high = max(quantile(pooled, _UNTIL), 1.001 * low)
    width = (high - low) / _BINS
    edges = [low + width * number for number in range(_BINS + 1)]
    ordered = sorted(runs_ms)
    below = [bisect.bisect_left(ordered, edge) for edge in edges]
    below[-1] = bisect.bisect_right(ordered, high)
    points = [(edges[0], 0.0)]
    for number in range(_BINS):
        share = 100 * (below[number + 1] - below[number]) / len(ordered)
        points += [(edges[number], share), (edges[number + 1], share)]
    return Line(label, (*points, (edges[-1], 0.0)))


def _percentiles(contestants: Sequence[Contestant]) -> str:
    shown = [c for c in contestants if c.timing is not None]
    percents = shown[0].percents
    bars = [
        Bars(c.label, tuple(c.timing.percentile_ms(p) for p in percents))
        for c in shown
        if c.timing is not None
    ]
    return bar_chart(
        "latency that so many percent of the runs do not exceed", "ms", [f"p{p:g}" for p in percents], bars
    )


def _rounds(timed: Sequence[tuple[str, Timing]]) -> str:
    lines = [
        Line(label, tuple((float(number), ms) for number, ms in enumerate(timing.samples_ms, 1)))
        for label, timing in timed
    ]
    return curves("medians of rounds", "round", "ms", lines, is_logarithmic=False)


def _round_table(timed: Sequence[tuple[str, Timing]]) -> str:
    rounds = max((len(timing.samples_ms) for _, timing in timed), default=0)
    rows = [
        (
            number + 1,
            *(f"{t.samples_ms[number]:.4g}" if number < len(t.samples_ms) else "-" for _, t in timed),
        )
        for number in range(rounds)
    ]
    return html_table(("round", *(label for label, _ in timed)), rows)
