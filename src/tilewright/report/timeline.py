"""The page of a simulated run: what levels of memory hold and what units do, over the same time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tilewright.report import figure
from tilewright.report.lanes import (
    STYLE,
    Lane,
    LaneBlock,
    Rectangle,
    Span,
    Time,
    band_lane,
    block_lanes,
    map_lane,
    picture,
    stack_lane,
)
from tilewright.text.formatting import counted, format_bytes
from tilewright.text.printable import html_text

if TYPE_CHECKING:
    from tilewright.steps import SimulatedCost
    from tilewright.targets.simulated import (
        LevelOverTime,
        PlannedBuffer,
        PlannedInstance,
        PlannedStep,
        Timeline,
        UnitRun,
    )

_HELD = {
    "placed": ("#6f9bd1", "placed buffers"),
    "resident": ("#a8632a", "weights that stay"),
    "weights": ("#e08a2e", "weights in use or kept"),
    "prefetched": ("#f6cf9b", "weights fetched ahead"),
    "tiles": ("#5aa469", "tiles on their way"),
}
_DOES = {
    "fetch": ("#f3b562", "fetch weights"),
    "weights": ("#d9741a", "weights to the cores"),
    "load": ("#5aa469", "load operands"),
    "move": ("#9467bd", "move between cores"),
    "compute": ("#34618f", "compute"),
    "store": ("#c44e52", "store results"),
}
_SUBGRAPHS = (
    "#bcd5ea", "#dccbe9", "#cfe8c4", "#f9d9e6", "#e6dcc0", "#c5e8e4", "#dadada", "#f1edb0", "#c9cdf2",
    "#e9c9c1",
)  # fmt: skip
_MAX_ROWS = 4  # of steps that overlap
_MAX_TOLD_STEPS = 4_000  # beyond, labels of steps say less
_MAX_NAMED_SUBGRAPHS = 24
_UNSEEN = 1e-4  # of the whole time


def run_page(
    timeline: Timeline, cost: SimulatedCost, said: Sequence[tuple[str, str]], more: Sequence[str] = ()
) -> str:
    """A page that needs no network; `said` are rows of a table: the figures of the run. `more` are parts
    behind the picture."""
    time = Time.of(cost.time_s)
    pictured = _Run(timeline, time)
    parts = [
        f"<style>{STYLE}</style>",
        figure.facts(said),
        figure.key([entry for kind, entry in _HELD.items() if any(kind in x.held for x in timeline.levels)]),
        figure.key(
            [entry for what, entry in _DOES.items() if any(run.what == what for run in timeline.runs)]
        ),
        picture(time, list(pictured.lanes(cost))),
        figure.note(
            "One batch on one cluster, as simulated. Dashed: the whole capacity of the level. Slices are "
            "subgraph.slice; point at them, at steps, buffers and runs for names and bytes."
        ),
        pictured.subgraph_table(),
        *more,
    ]
    return figure.page(f"{timeline.network} on {timeline.machine}", parts)


class _Run:
    """A timeline on its way to a picture."""

    def __init__(self, timeline: Timeline, time: Time) -> None:
        self.timeline, self.time, self.plan = timeline, time, timeline.plan

    def lanes(self, cost: SimulatedCost) -> Iterator[Lane]:
        yield self.time.lane()
        yield band_lane("subgraphs", self.time, self._stretches())
        yield band_lane("slices", self.time, self._slices())
        yield from self._step_lanes()
        for level in self.timeline.levels:
            if self._is_drawn(level):
                yield from self._level_lanes(level)
        yield from self._unit_lanes(cost.utilization)
        yield self.time.lane()

    def _is_drawn(self, level: LevelOverTime) -> bool:
        """Main memory, which always holds the results, only where it holds something else."""
        here = [b for b in self.plan.buffers if b.level == level.level.name and b.size_bytes]
        return any(not b.is_result for b in here) or any(kind != "placed" for kind in level.held)

    def _colour(self, subgraph: int) -> str:
        return _SUBGRAPHS[subgraph % len(_SUBGRAPHS)]

    def _ends(self, subgraph: int) -> str:
        """The first and the last operator."""
        nodes = self.timeline.subgraphs[subgraph].nodes
        return nodes[0] if len(nodes) == 1 else f"{nodes[0]} … {nodes[-1]}"

    def _spans_of_instances(self) -> list[tuple[PlannedInstance, float, float]]:
        """Slices with the time from the beginning of their first results to the end of their steps."""
        times: dict[int, tuple[float, float]] = {}
        for step in self.plan.steps:
            start_s, end_s = times.get(step.instance, (step.start_s, step.end_s))
            times[step.instance] = (min(start_s, step.start_s), max(end_s, step.end_s))
        instances = self.plan.instances
        return [(instances[i], *span) for i, span in times.items() if instances[i].kind == "instance"]

    def _slices(self) -> Iterator[Span]:
        for instance, start_s, end_s in self._spans_of_instances():
            name = f"{instance.subgraph}.{instance.index}"
            factor = self.timeline.subgraphs[instance.subgraph].factor
            label = (
                f"slice {instance.index} of {factor} of subgraph {instance.subgraph}: "
                f"{self._ends(instance.subgraph)}\n{_ms(start_s, end_s)}"
            )
            yield Span(start_s, end_s, self._colour(instance.subgraph), name, label)

    def _stretches(self) -> Iterator[Span]:
        """Slices of one subgraph that follow each other, together."""
        stretches: list[tuple[int, float, float]] = []
        for instance, start_s, end_s in self._spans_of_instances():
            if stretches and stretches[-1][0] == instance.subgraph:
                start_s = stretches.pop()[1]
            stretches.append((instance.subgraph, start_s, end_s))
        for subgraph, start_s, end_s in stretches:
            text = f"{subgraph}: {self._ends(subgraph)}"
            num_operators = len(self.timeline.subgraphs[subgraph].nodes)
            label = f"subgraph {text} ({counted(num_operators, 'operator')})\n{_ms(start_s, end_s)}"
            yield Span(start_s, end_s, self._colour(subgraph), text, label)

    def _step_lanes(self) -> list[Lane]:
        """Steps, those that overlap in rows of their own."""
        rows: list[list[LaneBlock]] = []
        ends: list[float] = []
        for step in sorted(self.plan.steps, key=lambda s: (s.start_s, s.end_s)):
            if step.end_s <= step.start_s:
                continue
            free = next((row for row, end_s in enumerate(ends) if end_s <= step.start_s), len(rows))
            if free == len(rows):
                if len(rows) == _MAX_ROWS:
                    continue
                rows.append([])
                ends.append(0.0)
            colour = self._colour(self.plan.instances[step.instance].subgraph)
            rows[free].append(LaneBlock(step.start_s, step.end_s, colour, self._told(step)))
            ends[free] = step.end_s
        names = ["<b>steps</b>", *[""] * (len(rows) - 1)]
        return block_lanes(self.time, list(zip(names, rows, strict=False)))

    def _told(self, step: PlannedStep) -> str:
        """What a step is, reads and writes."""
        instance = self.plan.instances[step.instance]
        lines = [f"step {step.number} of {instance.subgraph}.{instance.index}: {step.name}"]
        lines.append(_ms(step.start_s, step.end_s))
        if len(self.plan.steps) > _MAX_TOLD_STEPS:
            return "\n".join(lines)
        if len(step.operators) > 1:
            lines.append("operators " + _few(step.operators))
        if step.reads:
            lines.append("reads " + _few([self._read(r.value, r.buffer) for r in step.reads]))
        if step.weights:
            size_bytes = sum(w.size_bytes for w in step.weights)
            lines.append(
                f"weights {_few([w.name or 'rows' for w in step.weights])}: {format_bytes(size_bytes)}"
            )
        if step.writes:
            lines.append("writes " + _few([self._where(self.plan.buffers[i]) for i in step.writes]))
        return "\n".join(lines)

    def _read(self, value: str, buffer: int | None) -> str:
        return f"{value} (input)" if buffer is None else self._where(self.plan.buffers[buffer])

    def _where(self, buffer: PlannedBuffer) -> str:
        return f"{buffer.value} ({format_bytes(buffer.size_bytes)}, {buffer.level})"

    def _level_lanes(self, level: LevelOverTime) -> Iterator[Lane]:
        told = level.level
        colours = [_HELD[kind][0] for kind in level.held]
        yield stack_lane(told.name, told.title, self.time, colours, level.totals(), told.capacity_bytes)
        here = [b for b in self.plan.buffers if b.level == told.name and b.size_bytes]
        if here:
            height = 70 if len(here) > 3 else 34
            title = f"places of buffers\nin {format_bytes(told.peak_bytes)}"
            yield map_lane(title, self.time, list(self._places(here)), height)

    def _places(self, buffers: Iterable[PlannedBuffer]) -> Iterator[Rectangle]:
        instances, steps = self.plan.instances, self.plan.steps
        for b in buffers:
            maker, last = steps[b.first_step], steps[b.last_step]
            spilled = ", spilled" if b.is_spilled else ""
            label = (
                f"{b.value}: {format_bytes(b.size_bytes)} at {b.offset_bytes} of {b.level}{spilled}\n"
                f"made by step {maker.number} ({maker.name}), read until step {last.number} ({last.name})\n"
                f"{_ms(b.start_s, b.end_s)}"
            )
            colour = self._colour(instances[maker.instance].subgraph)
            yield Rectangle(b.start_s, b.end_s, b.offset_bytes, b.offset_bytes + b.size_bytes, colour, label)

    def _unit_lanes(self, utilization: Mapping[str, float]) -> list[Lane]:
        """Units that move first, then those that compute, the busiest first."""
        runs: dict[str, list[UnitRun]] = {unit: [] for unit in self.timeline.units}
        for run in self.timeline.runs:
            runs[run.unit].append(run)
        movers = {run.unit for run in self.timeline.runs if run.what != "compute"}
        units = sorted(runs, key=lambda unit: (unit not in movers, -utilization.get(unit, 0.0), unit))
        rows = []
        for unit in units:
            name = f"<b>{html_text(unit)}</b> {100 * utilization.get(unit, 0.0):.0f} %"
            rows.append((name, [self._run_block(together) for together in self._joined(runs[unit])]))
        return block_lanes(self.time, rows)

    def _joined(self, runs: Sequence[UnitRun]) -> list[list[UnitRun]]:
        """Runs of one unit, those together that do the same for one step without a gap that can be seen."""
        joined: list[list[UnitRun]] = []
        for run in sorted(runs, key=lambda r: r.start_s):
            last = joined[-1][-1] if joined else None
            is_same = last is not None and (last.step, last.what, last.name) == (run.step, run.what, run.name)
            if is_same and last is not None and run.start_s - last.end_s < self.time.end_s * _UNSEEN:
                joined[-1].append(run)
            else:
                joined.append([run])
        return joined

    def _run_block(self, runs: Sequence[UnitRun]) -> LaneBlock:
        first, last = runs[0], runs[-1]
        step = self.plan.steps[first.step]
        size_bytes = sum(run.size_bytes for run in runs)
        moved = f" {format_bytes(size_bytes)}" if size_bytes else ""
        name = f" of {first.name}" if first.name else ""
        tiles = sorted({run.tile for run in runs if run.tile >= 0})
        tile = (
            f", tile {tiles[0]}" if len(tiles) == 1 else f", tiles {tiles[0]} to {tiles[-1]}" if tiles else ""
        )
        what = f"{first.what}{moved}{name}: step {step.number} ({step.name}){tile}"
        label = f"{what}\n{_ms(first.start_s, last.end_s)}"
        return LaneBlock(first.start_s, last.end_s, _DOES.get(first.what, ("#999",))[0], label)

    def subgraph_table(self) -> str:
        """Which subgraph is which."""
        rows = [
            (number, s.nodes[0], s.nodes[-1], len(s.nodes), s.factor, "x".join(map(str, s.binding)) or "-")
            for number, s in enumerate(self.timeline.subgraphs)
        ]
        heads = ("subgraph", "first operator", "last operator", "operators", "slices", "cores")
        table = figure.html_table(heads, rows)
        if len(rows) <= _MAX_NAMED_SUBGRAPHS:
            return table
        return f"<details><summary>{counted(len(rows), 'subgraph')}</summary>{table}</details>"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _ms(start_s: float, end_s: float) -> str:
    return f"{start_s * 1e3:.4g} to {end_s * 1e3:.4g} ms"
