"""Where every piece of a schedule lives, from which step to which, and at what offset.

A step is one layer of an instance, or one concatenation, copy or redistribution. A piece is the region of
one value that one step makes. Its scope is the same for its whole life. Local buffers of a cluster's cores
count as one: a piece is dealt out to all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tilewright.ir.graph import Node, Value
from tilewright.ir.region import Region
from tilewright.schedule.binding import Scope
from tilewright.schedule.instances import InstanceGraph

SCOPES = (Scope.LOCAL, Scope.SHARED, Scope.MAIN)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """`region` of `value`, made by node `node` of the instance graph in step `first_step`.

    Its place is in use from `first_step` to `last_step`, both included: to the step of its last reader; that
    of a network's result to the end. `written_over` is the piece whose place it takes over, at the same
    offset: an operand of its step that dies there. `is_spilled` says that it was to live further inside.
    """

    id: int
    node: int
    value: Value
    region: Region
    size_bytes: int
    first_step: int
    last_step: int
    scope: Scope
    offset_bytes: int
    written_over: int | None
    is_spilled: bool

    @property
    def end_bytes(self) -> int:
        """The offset behind it."""
        return self.offset_bytes + self.size_bytes

    @property
    def num_steps(self) -> int:
        """For how long its place is in use."""
        return self.last_step - self.first_step + 1

    def __str__(self) -> str:
        return f"{self.value.name}@{self.node}"


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A region of a value that a step reads.

    `piece` is the id of the piece that holds it; None for an input of the network.
    """

    value: Value
    region: Region
    piece: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What happens at one time. `layer` counts the layers of the node's subgraph, from 0.

    `operators` are those of the layer; a concatenation, copy or redistribution has none. `writes` are the ids
    of the pieces that it makes.
    """

    node: int
    layer: int
    operators: tuple[Node, ...]
    reads: tuple[Read, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LevelUse:
    """What a level of memory holds in the course of a schedule.

    `capacity_bytes` is what pieces may take (None: no limit), `live_bytes` the most that is live at one step,
    `used_bytes` the end of the highest place. `spilled_bytes` and `num_spilled` are of pieces that had to
    leave it for the next outer level.
    """

    scope: Scope
    capacity_bytes: int | None
    num_pieces: int
    live_bytes: int
    used_bytes: int
    num_spilled: int
    spilled_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class ScopePlan:
    """Scope and offset of every piece. `pieces[i].id == i`; steps are numbered by their place."""

    graph: InstanceGraph
    order: tuple[int, ...]
    policy: str
    steps: tuple[Step, ...]
    pieces: tuple[Piece, ...]
    levels: Mapping[Scope, LevelUse]
    _made: Mapping[tuple[int, Value], int] = field(init=False, repr=False)
    _steps_of: Mapping[int, range] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_made", {(p.node, p.value): p.id for p in self.pieces})
        found: dict[int, range] = {}
        for number, step in enumerate(self.steps):
            first = found.get(step.node, range(number, number)).start
            found[step.node] = range(first, number + 1)
        object.__setattr__(self, "_steps_of", found)

    def piece_of(self, node: int, value: Value) -> Piece:
        """The piece of a value that a node of the instance graph makes.

        Raises:
            KeyError: the node makes no piece of it.
        """
        return self.pieces[self._made[node, value]]

    def outputs_of(self, node: int) -> tuple[Piece, ...]:
        """The pieces that a node leaves for other nodes, or as results of the network."""
        return tuple(self.piece_of(node, v) for v in self.graph.nodes[node].outputs)

    def steps_of(self, node: int) -> range:
        """The numbers of a node's steps, one after another."""
        return self._steps_of[node]

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The final scope of every node's piece, by place; of several pieces the outermost."""
        made = (self.outputs_of(n.id) for n in self.graph.nodes)
        return tuple(max((p.scope for p in pieces), key=SCOPES.index) for pieces in made)

    @property
    def num_buffers(self) -> Mapping[Scope, int]:
        """Pieces by scope: the paper's Table 3."""
        return {scope: use.num_pieces for scope, use in self.levels.items()}

    @property
    def spilled_bytes(self) -> int:
        """Bytes of all pieces that do not live where they were to live."""
        return sum(p.size_bytes for p in self.pieces if p.is_spilled)

    def live_bytes(self, scope: Scope) -> tuple[int, ...]:
        """Bytes in use in a scope at each step. A place that is taken over counts once."""
        return live_bytes([p for p in self.pieces if p.scope is scope], len(self.steps))


def live_bytes(pieces: Sequence[Piece], num_steps: int) -> tuple[int, ...]:
    """Bytes that pieces of one scope take at each step."""
    change = [0] * (num_steps + 1)
    for piece in pieces:
        # At its first step a place that is taken over still counts for the piece that leaves it, no smaller.
        change[piece.first_step + (piece.written_over is not None)] += piece.size_bytes
        change[piece.last_step + 1] -= piece.size_bytes
    return tuple(accumulate(change[:-1]))
