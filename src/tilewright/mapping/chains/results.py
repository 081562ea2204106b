"""What tiling chains of a model jointly gives: what each moves past the outermost level, with which tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil

from tilewright.hardware.machine import Machine
from tilewright.mapping.chains.solve import ChainObjective, ChainSolution, Segment
from tilewright.mapping.results import WithEnergies, energy_line, energy_text
from tilewright.planning import Status
from tilewright.results import Table, about


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
    nested: str = field(
        default="",
        metadata=about(
            "Of a nested tiling its loops with their tiles, and in brackets what runs in a step of them; "
            "empty where all operators have the same loops."
        ),
    )


@dataclass(frozen=True, slots=True)
class ChainFigures:
    """What operators take: words past the outermost level, and null for the rest where only these count."""

    moved_words: int
    cycles: int | None
    energy_pj: float | None

    def plus(self, other: ChainFigures, times: int = 1) -> ChainFigures:
        """Of these operators and others after them, these so many times."""
        cycles, energy_pj = None, None
        if self.cycles is not None and other.cycles is not None:
            cycles = self.cycles + times * other.cycles
        if self.energy_pj is not None and other.energy_pj is not None:
            energy_pj = self.energy_pj + times * other.energy_pj
        return ChainFigures(self.moved_words + times * other.moved_words, cycles, energy_pj)

    def less(self, other: ChainFigures) -> ChainFigures:
        """Of these operators without others among them."""
        return self.plus(other, -1)


@dataclass(frozen=True, slots=True)
class MappedChain:
    """A chain of operators that follow each other: how it is cut, and what it takes."""

    figures: ChainFigures
    separate: ChainFigures = field(metadata=about("What its operators take one by one, each at its best."))
    bound_words: int = field(metadata=about("What comes in and goes out, once: no joint tiling moves fewer."))
    bound: float = field(
        metadata=about("Of the objective, in words, cycles or pJ: lower bound of all joint tilings.")
    )
    bound_searched: float = field(
        metadata=about("Lower bound of the tiles that are searched, however the chain is cut.")
    )
    gap: float | None = field(
        metadata=about("Of the objective: above `bound_searched`, relative to it; null where that is 0.")
    )
    saved: float = field(
        metadata=about("The share of what its operators take one by one that it saves, of the objective.")
    )
    status: str = field(metadata=about("How the search ended: optimal, feasible, cut off."))
    optimal_among: str | None = field(metadata=about("The tilings of which it is proven to be the best."))
    is_whole_search: bool = field(
        metadata=about(
            "Whether all joint tilings of the tiles that are searched were looked at: where only traffic "
            "counts, the answer is the best of these."
        )
    )
    num_tilings: int = field(
        metadata=about("How many were looked at, of all cuts; chains alike count them too.")
    )
    seconds: float = field(
        metadata=about("Time that it took; of chains that are alike the first one has it.")
    )
    parts: tuple[ChainPart, ...] = field(metadata=about("What runs together, in order."))

    @classmethod
    def of(cls, solution: ChainSolution) -> MappedChain:
        """A chain's solution in words."""
        quality = solution.quality
        searched = quality.bounds[-1]
        return cls(
            figures=figures_of(solution.segments),
            separate=figures_of(solution.separate),
            bound_words=solution.bound_words,
            bound=solution.bound,
            bound_searched=searched.value,
            gap=quality.gap_to(searched) if searched.value > 0 else None,
            saved=solution.saved,
            status=str(quality.status),
            optimal_among=quality.among,
            is_whole_search=solution.is_whole,
            num_tilings=solution.num_tilings,
            seconds=solution.seconds,
            parts=tuple(map(part_of, solution.segments)),
        )


@dataclass(frozen=True, slots=True)
class ChainTotal:
    """The whole model in sequence: its chains, and all other operators, mapped or streamed one by one."""

    fused: ChainFigures
    separate: ChainFigures = field(metadata=about("Where the operators of chains run one by one, too."))
    bound: float = field(
        metadata=about("Of the objective: lower bound of the tiles that are searched, of these chains.")
    )
    others: ChainFigures = field(metadata=about("Of these, what operators in no chain take."))
    bound_others: float = field(metadata=about("Of the objective: lower bound of all their mappings."))


def figures_of(segments: Sequence[Segment]) -> ChainFigures:
    """The sums over segments."""
    costs = [segment.cost for segment in segments if segment.cost is not None]
    is_priced = len(costs) == len(segments)
    return ChainFigures(
        sum(segment.moved_words for segment in segments),
        sum(cost.cycles for cost in costs) if is_priced else None,
        sum(cost.energy_pj for cost in costs) if is_priced else None,
    )


def part_of(segment: Segment) -> ChainPart:
    """What runs together, in words."""
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
        names,
        segment.moved_words,
        segment.num_macs,
        figures.cycles,
        figures.energy_pj,
        loops,
        values,
        "" if segment.nested is None else str(segment.nested),
    )


@dataclass(frozen=True, slots=True, repr=False)
class ChainsResult(WithEnergies):
    """Chains of operators tiled jointly. All figures are estimates."""

    model: str
    machine: str
    level: str = field(metadata=about("What passes between the operators of a chain waits there."))
    objective: ChainObjective
    recomputed: float = field(
        metadata=about(
            "How much may be computed again, as a share of a chain's multiply-accumulates.", nullable=True
        )
    )
    budget_s: float = field(
        metadata=about(
            "Time for each joint tiling that is searched, for mapping its steps, and for each operator alone."
        )
    )
    chains: tuple[MappedChain, ...]
    others: tuple[ChainPart, ...] = field(
        metadata=about("Operators in no chain, in order; empty where operators were named.")
    )
    total: ChainTotal | None = field(metadata=about("Null where operators were named."))
    description: Machine = field(metadata=about(hidden=True))

    def tables(self) -> Sequence[Table]:
        """A row for each part of each chain; the whole model."""
        taken = "words", self._what, "one by one", "least", "gap", "saved"
        heads = ("chain", "runs together", "tiles of a step", *taken)
        skipped = 4 if self.objective == "traffic" else None
        title = f"{self.model} on {self.machine}: words past its outermost level, values wait in {self.level}"
        rows = [tuple(x for i, x in enumerate(row) if i != skipped) for row in (heads, *self._rows())]
        last = len(rows[0]) - 1
        table = Table(rows[0], tuple(rows[1:]), title, tuple(range(3, last + 1)), (last - 2, 2, last - 1))
        return (table,) if self.total is None else (table, self._total_table(self.total))

    @property
    def _what(self) -> str:
        return {"traffic": "words", "latency": "cycles", "energy": "energy"}[self.objective]

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for number, chain in enumerate(self.chains, 1):
            gap = "-" if chain.gap is None else f"{100 * chain.gap:.1f} %"
            ended = f", {chain.status}" if chain.status == Status.CUT_OFF else ""
            least, separate = self._text(chain.bound), self._value(chain.separate)
            figures = (separate, least, f"{gap}{ended}", f"{100 * chain.saved:.1f} %")
            for place, part in enumerate(chain.parts):
                tiles = ", ".join(f"{loop.dim} {loop.tile} of {loop.extent}" for loop in part.loops)
                value = self._value(ChainFigures(part.moved_words, part.cycles, part.energy_pj))
                tiles = tiles or part.nested or "whole"
                row = (" + ".join(part.nodes), tiles, f"{part.moved_words:,}", value)
                yield (f"{number}", *row, *figures) if place == 0 else ("", *row, "", "", "", "")

    def _total_table(self, total: ChainTotal) -> Table:
        """The model with its chains beside the model without."""
        in_chains = total.fused.less(total.others), total.separate.less(total.others)
        bounds = total.bound - total.bound_others, total.bound_others, total.bound
        counted = [
            (f"{len(self.chains)} chains", *in_chains, bounds[0]),
            (f"{len(self.others)} other operators", total.others, total.others, bounds[1]),
            ("whole model", total.fused, total.separate, bounds[2]),
        ]
        is_traffic = self.objective == "traffic"
        rows = []
        for name, fused, separate, bound in counted:
            words = f"{fused.moved_words:,}", f"{separate.moved_words:,}"
            values = () if is_traffic else (self._value(fused), self._value(separate))
            rows.append((name, *words, *values, self._text(bound)))
        heads = ("", f"words past {self.description.outermost.name}", "one by one")
        heads = (*heads, *(() if is_traffic else (self._what, "one by one")), "at least")
        return Table(heads, tuple(rows), right=tuple(range(1, len(heads))))

    def lines(self) -> Sequence[str]:
        """Where energies come from."""
        return () if self.objective == "traffic" else (energy_line(self.energy_source),)

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
        return f"{ceil(value):,}"

    def __repr__(self) -> str:
        return f"ChainsResult({self.model!r}, {self.machine!r}, {len(self.chains)} chains)"
