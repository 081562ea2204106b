"""Knobs of a subgraph's forms: the choices of its products and loop nests, and what each can be set to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from math import log2

from tilewright.planning.choice import Choice
from tilewright.records import dataclass
from tilewright.targets.cpu.loopnest.choose import TEMPLATE as LOOPS

# Parameters of loop nests that say how these are cut into pieces.
_PIECES = ("block", "chunks", "item_rows")


Around = Callable[[Choice], tuple[Choice, ...]]
"""A setting, if it can be made, and those one decision away from it."""


def fixed(setting: Choice) -> tuple[Choice, ...]:
    """Nothing beside what is listed."""
    return ()


@dataclass(frozen=True, slots=True)
class Work:
    """A product or loop nests of nodes at these positions, and the ways to make them, the usual one first.

    The first `num_listed` are worth measuring whatever others take; `around` knows more. Loop nests
    (`is_loops`) have a choice within blocks only where they multiply and add up (`is_inner`).
    """

    positions: frozenset[int]
    signature: str
    ways: tuple[Choice, ...]
    num_listed: int
    is_loops: bool = False
    is_inner: bool = True
    around: Around = field(default=fixed, repr=False, compare=False)

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
    """A choice of a kernel: its name, the usual setting (where nothing is chosen), others, best ones first.

    The first `num_listed` of the others are worth measuring in any case; `around` knows more.
    """

    name: str
    usual: Choice | None
    others: tuple[Choice, ...]
    num_listed: int
    around: Around = field(default=fixed, repr=False, compare=False)

    def accepts(self, setting: Choice) -> bool:
        """Whether it can be set so."""
        return setting in self.others or setting in self.around(setting)[:1]

    def beside(self, setting: Choice | None, *, goes_on: bool) -> list[Choice]:
        """Other settings than this one: all that are listed, and if it `goes_on` those one decision away."""
        listed = self.others if self.usual is None else (self.usual, *self.others)
        near = self.around(setting) if goes_on and setting is not None else ()
        return [other for other in dict.fromkeys((*listed, *near)) if other != setting]


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
