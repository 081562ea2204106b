"""Knobs of a subgraph's forms: the choices of its products and loop nests, and what each can be set to."""

from __future__ import annotations

from math import log2

from tilewright.planning.choice import Choice
from tilewright.records import dataclass
from tilewright.targets.cpu.loopnest.choose import TEMPLATE as LOOPS

# Parameters of loop nests that say how these are cut into pieces.
_PIECES = ("block", "chunks", "item_rows")


@dataclass(frozen=True, slots=True)
class Work:
    """A product or loop nests of nodes at these positions, and the ways to make them, the usual one first.

    The first `num_listed` are worth measuring whatever others take. Loop nests (`is_loops`) have a choice
    within blocks only where they multiply and add up (`is_inner`).
    """

    positions: frozenset[int]
    signature: str
    ways: tuple[Choice, ...]
    num_listed: int
    is_loops: bool = False
    is_inner: bool = True

    @property
    def tiles(self) -> tuple[Choice, ...]:
        """Register tiles among the ways, the best estimate first, in whatever pieces: blocks are pieces."""
        if self.is_loops:
            kept = (tuple(p for p in way.parameters if p[0] not in _PIECES) for way in self.ways)
            # Within a block nothing runs on several threads.
            return tuple(dict.fromkeys(Choice.of(LOOPS, **dict(parameters), chunks=1) for parameters in kept))
        tiles = (
            Choice.of(way.template, rows=rows, vectors=vectors)
            for way in self.ways
            if (rows := way.get("rows")) is not None and (vectors := way.get("vectors")) is not None
        )
        return tuple(dict.fromkeys(tiles))


@dataclass(frozen=True, slots=True)
class Knob:
    """A choice of a kernel: its name, the usual setting (where nothing is chosen), the other settings.

    The first `num_listed` of the others are worth measuring in any case.
    """

    name: str
    usual: Choice | None
    others: tuple[Choice, ...]
    num_listed: int


def distance(one: Choice, other: Choice) -> float:
    """How different two ways are: parameters by how often one is twice the other; other algorithms are far.

    >>> distance(Choice.of("loop-nest", rows=8), Choice.of("loop-nest", rows=2, chunks=1))
    3.0
    """
    numbers, others = dict(one.parameters), dict(other.parameters)
    apart = float(len(numbers.keys() ^ others.keys()))
    if one.algorithm != other.algorithm:
        return 100.0 + apart
    shared = ((numbers[name], others[name]) for name in numbers.keys() & others.keys())
    return apart + sum(abs(log2(max(a, 0.5)) - log2(max(b, 0.5))) for a, b in shared)
