"""What tiling chains of a model jointly gives: what each moves past the outermost level, with which tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil

from tilewright.cost.energy import source_of
from tilewright.hardware.machine import Machine
from tilewright.mapping.chains.solve import ChainObjective, ChainSolution, Segment
from tilewright.mapping.results import energy_line, energy_text
from tilewright.results import Result, Table, about, in_json


@dataclass(frozen=True, slots=True)
class ChainLoop:
    """A loop of a joint tiling, from the outermost: the iterations that one step has of it."""

    dim: str
    extent: int
    tile: int


@dataclass(frozen=True, slots=True)
class ChainValue:
    """A value under a joint tiling: from which loop inwards it is retained, and the words kept for it.

    `retained_from` is the place of the loop in the order, 0 for the outermost; their number where every step
    makes or reads it anew; -1 where it is read word by word.
    """

    value: str
    kind: str
    retained_from: int
    held_words: int


@dataclass(frozen=True, slots=True)
class ChainPart:
    """Operators that run together; without loops one that runs alone, mapped by itself, or streams.

    `cycles` and `energy_pj` are null where only traffic counts.
    """

    nodes: tuple[str, ...]
    moved_words: int
    macs: int
    cycles: int | None
    energy_pj: float | None
    loops: tuple[ChainLoop, ...]
    values: tuple[ChainValue, ...]


@dataclass(frozen=True, slots=True)
class ChainFigures:
    """What operators take: words past the outermost level, and null for the rest where only these count."""

    moved_words: int
    cycles: int | None
    energy_pj: float | None

    def plus(self, other: ChainFigures) -> ChainFigures:
        """Of these operators and others after them."""
        cycles, energy_pj = None, None
        if self.cycles is not None and other.cycles is not None:
            cycles = self.cycles + other.cycles
        if self.energy_pj is not None and other.energy_pj is not None:
            energy_pj = self.energy_pj + other.energy_pj
        return ChainFigures(self.moved_words + other.moved_words, cycles, energy_pj)


@dataclass(frozen=True, slots=True)
class MappedChain:
    """One chain. `separate` is what its operators take one by one, each as well as it can."""

    solution: ChainSolution = field(metadata=about(hidden=True))

    @property
    @in_json
    def figures(self) -> ChainFigures:
        """What the chain takes."""
        return figures_of(self.solution.segments)

    @property
    @in_json
    def separate(self) -> ChainFigures:
        """What its operators take one by one."""
        return figures_of(self.solution.separate)

    @property
    @in_json
    def bound_words(self) -> int:
        """What comes in and goes out, once: no joint tiling moves fewer."""
        return self.solution.bound_words

    @property
    @in_json
    def bound(self) -> float:
        """What no joint tiling beats in the objective's unit: words, cycles, or pJ."""
        return self.solution.bound

    @property
    @in_json
    def saved(self) -> float:
        """The share that the chain saves of what its operators take one by one, of the objective."""
        return self.solution.saved

    @property
    @in_json
    def is_whole_search(self) -> bool:
        """Whether all joint tilings were looked at: where only traffic counts, the answer is the best one."""
        return self.solution.is_whole

    @property
    @in_json
    def parts(self) -> tuple[ChainPart, ...]:
        """What runs together, in order."""
        return tuple(map(_part, self.solution.segments))


@dataclass(frozen=True, slots=True)
class ChainTotal:
    """The whole model: its chains, operators in none of them, and those that sum no products, streamed."""

    fused: ChainFigures
    separate: ChainFigures


def figures_of(segments: Sequence[Segment]) -> ChainFigures:
    """The sums over segments."""
    costs = [segment.cost for segment in segments if segment.cost is not None]
    is_priced = len(costs) == len(segments)
    return ChainFigures(
        sum(segment.moved_words for segment in segments),
        sum(cost.cycles for cost in costs) if is_priced else None,
        sum(cost.energy_pj for cost in costs) if is_priced else None,
    )


def _part(segment: Segment) -> ChainPart:
    figures = figures_of((segment,))
    names = tuple(node.name for node in segment.nodes)
    loops: tuple[ChainLoop, ...] = ()
    values: tuple[ChainValue, ...] = ()
    if segment.chain is not None and segment.tiling is not None:
        chain, plan = segment.chain, segment.tiling.plan
        loops = tuple(
            ChainLoop(chain.loops[i].name, chain.loops[i].extent, tile)
            for i, tile in zip(plan.tiling.order, plan.tiling.tiles, strict=True)
        )
        held = segment.tiling.count.held_by_part
        values = tuple(
            ChainValue(part.value.name, part.kind, depth, words)
            for part, depth, words in zip(chain.parts, plan.depths, held, strict=True)
            if part.is_held
        )
    return ChainPart(
        names, segment.moved_words, segment.num_macs, figures.cycles, figures.energy_pj, loops, values
    )


@dataclass(frozen=True, slots=True, repr=False)
class ChainsResult(Result):
    """Chains of operators tiled jointly.

    All figures are estimates. `level` holds what passes between operators; `total` is null where operators
    were named.
    """

    model: str
    machine: str
    level: str
    objective: ChainObjective
    chains: tuple[MappedChain, ...]
    total: ChainTotal | None
    description: Machine = field(metadata=about(hidden=True))

    @property
    @in_json
    def energy_source(self) -> str:
        """Where its energies come from: the machine's table, and where that has them from."""
        return source_of(self.description)

    def tables(self) -> Sequence[Table]:
        """A row for each part of each chain."""
        what = {"traffic": "words", "latency": "cycles", "energy": "energy"}[self.objective]
        heads = ("chain", "runs together", "tiles of a step", "words", what, "one by one", "least", "saved")
        skipped = 4 if self.objective == "traffic" else None
        title = f"{self.model} on {self.machine}: words past its outermost level, values wait in {self.level}"
        rows = [tuple(x for i, x in enumerate(row) if i != skipped) for row in (heads, *self._rows())]
        last = len(rows[0]) - 1
        return (Table(rows[0], tuple(rows[1:]), title, tuple(range(3, last + 1)), (last - 1, 2)),)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for number, chain in enumerate(self.chains, 1):
            least = f"{self._text(chain.bound)}{'' if chain.is_whole_search else ' (not all tilings)'}"
            separate = self._value(chain.separate)
            figures = (separate, least, f"{100 * chain.saved:.1f} %")
            for place, part in enumerate(chain.parts):
                tiles = ", ".join(f"{loop.dim} {loop.tile} of {loop.extent}" for loop in part.loops)
                value = self._value(ChainFigures(part.moved_words, part.cycles, part.energy_pj))
                row = (" + ".join(part.nodes), tiles or "whole", f"{part.moved_words:,}", value)
                yield (f"{number}", *row, *figures) if place == 0 else ("", *row, "", "", "")

    def lines(self) -> Sequence[str]:
        """The whole model, and where energies come from."""
        lines = []
        if self.total is not None:
            fused, separate = self.total.fused, self.total.separate
            lines.append(
                f"whole model: {fused.moved_words:,} words past {self.description.outermost.name}, "
                f"one by one {separate.moved_words:,}"
            )
            if self.objective != "traffic":
                lines.append(f"whole model: {self._value(fused)}, one by one {self._value(separate)}")
        return lines if self.objective == "traffic" else [*lines, energy_line(self.energy_source)]

    def _value(self, figures: ChainFigures) -> str:
        match self.objective:
            case "traffic":
                return self._text(figures.moved_words)
            case "latency":
                return self._text(figures.cycles or 0)
            case "energy":
                return self._text(figures.energy_pj or 0.0)

    def _text(self, value: float) -> str:
        """A value of the objective for people."""
        if self.objective == "energy":
            return energy_text(value, self.energy_source)
        return f"{ceil(value):,}{' cycles' if self.objective == 'latency' else ''}"

    def __repr__(self) -> str:
        return f"ChainsResult({self.model!r}, {self.machine!r}, {len(self.chains)} chains)"
