"""What tiling chains of a model jointly gives: what each moves past the outermost level, with which tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tilewright.mapping.chains.solve import ChainSolution, Segment
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
    """Operators that run together; without loops one that runs alone, mapped by itself, or streams."""

    nodes: tuple[str, ...]
    moved_words: int
    macs: int
    loops: tuple[ChainLoop, ...]
    values: tuple[ChainValue, ...]


@dataclass(frozen=True, slots=True)
class MappedChain:
    """One chain. `separate_words` move where its operators run one by one, each as well as it can."""

    solution: ChainSolution = field(metadata=about(hidden=True))

    @property
    @in_json
    def moved_words(self) -> int:
        """Words past the outermost level."""
        return self.solution.moved_words

    @property
    @in_json
    def separate_words(self) -> int:
        """Words where operators run one by one."""
        return self.solution.separate_words

    @property
    @in_json
    def bound_words(self) -> int:
        """What comes in and goes out, once: no joint tiling moves fewer."""
        return self.solution.bound_words

    @property
    @in_json
    def is_whole_search(self) -> bool:
        """Whether all joint tilings were looked at, so that the answer is the best of them."""
        return self.solution.is_whole

    @property
    @in_json
    def parts(self) -> tuple[ChainPart, ...]:
        """What runs together, in order."""
        return tuple(map(_part, self.solution.segments))


def _part(segment: Segment) -> ChainPart:
    names = tuple(node.name for node in segment.nodes)
    if segment.chain is None or segment.tiling is None:
        return ChainPart(names, segment.moved_words, segment.num_macs, (), ())
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
    return ChainPart(names, segment.moved_words, segment.num_macs, loops, values)


@dataclass(frozen=True, slots=True, repr=False)
class ChainsResult(Result):
    """Chains of operators tiled jointly.

    All figures are estimates. `level` holds what passes between operators.
    """

    model: str
    machine: str
    level: str
    chains: tuple[MappedChain, ...]

    def tables(self) -> Sequence[Table]:
        """A row for each part of each chain."""
        heads = ("chain", "runs together", "tiles of a step", "words", "one by one", "least", "saved")
        title = f"{self.model} on {self.machine}: words past its outermost level, values wait in {self.level}"
        return (Table(heads, tuple(self._rows()), title, (3, 4, 5, 6), (5, 2)),)

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for number, chain in enumerate(self.chains, 1):
            solution = chain.solution
            least = f"{chain.bound_words:,}{'' if chain.is_whole_search else ' (not all tilings)'}"
            figures = (f"{chain.separate_words:,}", least, f"{100 * solution.saved:.1f} %")
            for place, part in enumerate(chain.parts):
                tiles = ", ".join(f"{loop.dim} {loop.tile} of {loop.extent}" for loop in part.loops)
                row = (" + ".join(part.nodes), tiles or "whole", f"{part.moved_words:,}")
                yield (number, *row, *figures) if place == 0 else ("", *row, "", "", "")

    def __repr__(self) -> str:
        return f"ChainsResult({self.model!r}, {self.machine!r}, {len(self.chains)} chains)"
