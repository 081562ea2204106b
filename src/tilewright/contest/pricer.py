"""The contest's machine as the joint search asks it: which blocks there are, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain, combinations
from math import inf
from typing import Any

from tilewright.bit_sets import bits, union
from tilewright.contest.least import least_time, least_time_of_set
from tilewright.contest.problem import MAX_STEPS, ContestProblem
from tilewright.contest.rules import Step
from tilewright.contest.subgraph import Subgraph, analyse, is_connected, sinks_of
from tilewright.contest.tiling import MAX_WALKED_STEPS, NONE, Tiling, best_tiling
from tilewright.contest.walk import SMALL
from tilewright.contest.walker import compiled, fast_walk
from tilewright.joint.base import Block, Mask
from tilewright.planning import Bound, Rule, Space

SCHEDULES, KEPT = "schedules", "tensors retained at once"

MAX_KEPT, MAX_KEPT_OF_FEW = 2, 3
"""Tensors that one step keeps for the next; in small graphs."""


class ContestPricer:
    """Costs of subgraphs under the contest's rules; layers are operators, in the file's order."""

    def __init__(self, problem: ContestProblem, *, is_exhaustive: bool = False) -> None:
        self.problem = problem
        self.is_exhaustive = is_exhaustive
        self._subgraphs: dict[Mask, Subgraph | None] = {}
        self._tilings: dict[Block, Tiling] = {}
        self._cases: dict[Any, Tiling] = {}
        self._least_times: dict[Any, float] = {}
        self._all_roles: dict[Mask, dict[int, tuple[tuple[int, int, int], ...]]] = {}
        self._basics: dict[Mask, tuple[float, int]] = {}
        is_small = len(problem.operators) <= SMALL
        self._most_kept = (MAX_KEPT_OF_FEW if is_small else MAX_KEPT) if is_exhaustive else 1
        self._walk: Callable[..., tuple[float, int]] = fast_walk if is_small else compiled
        count = range(len(problem.operators))
        self._predecessors = [
            union(1 << problem.maker[t] for t in problem.operators[i].inputs if t in problem.maker)
            for i in count
        ]
        self._neighbours = [self._neighbours_of(i) for i in count]

    @property
    def num_layers(self) -> int:
        """Operators of the graph."""
        return len(self.problem.operators)

    @cached_property
    def goal(self) -> Mask:
        """Operators that make outputs of the graph."""
        return union(1 << self.problem.maker[t] for t in self.problem.results)

    @property
    def space(self) -> Space:
        """Schedules of any connected subgraphs, with operators computed again at will."""
        sides = (
            "with the least sides for their numbers of tiles"
            if self.is_exhaustive
            else "with halved sides of tiles"
        )
        return Space(
            SCHEDULES,
            (
                Rule(sides),
                Rule("with tiles in snakes"),
                Rule(KEPT, self._most_kept),
                Rule("tiles and steps of a subgraph", MAX_STEPS),
                Rule("of these where slices of a tensor may be the same", MAX_WALKED_STEPS),
            ),
        )

    @property
    def least_space(self) -> Space:
        """Lower bounds hold for any granularity and order."""
        sizes = sorted(self.problem.size(t) for t in self.problem.maker if t in self.problem.users)
        is_any = sum(sizes[: self._most_kept + 1]) > self.problem.capacity or len(sizes) <= self._most_kept
        return Space(SCHEDULES, () if is_any else (Rule(KEPT, self._most_kept),))

    @cached_property
    def bound(self) -> Bound:
        """Work that fills the array in every step, or compulsory elements over the bandwidth."""
        problem = self.problem
        compute = sum(map(self.floor, range(self.num_layers)))
        inputs = [t for t in problem.users if t not in problem.maker]
        moved = sum(map(problem.size, inputs)) + sum(map(problem.size, problem.results))
        return Bound(
            max(compute, moved / problem.bandwidth), Space(SCHEDULES), "work, inputs and outputs of the graph"
        )

    def predecessors(self, layer: int) -> Mask:
        """Operators whose results an operator reads."""
        return self._predecessors[layer]

    def neighbours(self, layer: int) -> Mask:
        """Operators with a tensor in common."""
        return self._neighbours[layer]

    def _neighbours_of(self, i: int) -> Mask:
        operator = self.problem.operators[i]
        found = self._predecessors[i]
        for t in (*operator.inputs, operator.output):
            found |= union(1 << j for j in self.problem.users.get(t, ()))
        return found & ~(1 << i)

    def floor(self, layer: int) -> float:
        """The compute time of an operator's own tiles, each filling the array."""
        operator = self.problem.operators[layer]
        native_w, native_h, _ = self.problem.native
        area = self.problem.widths[operator.output] * self.problem.heights[operator.output]
        return operator.cost * area / (native_w * native_h)

    def subgraph(self, layers: Mask) -> Subgraph | None:
        """What a subgraph asks for; None if it breaks a rule at any granularity."""
        if layers not in self._subgraphs:
            self._subgraphs[layers] = analyse(self.problem, bits(layers))
        return self._subgraphs[layers]

    def blocks(self, layers: Mask) -> Iterator[Block]:
        """Ways to run a subgraph: which of its inputs are resident, and which results it retains."""
        problem = self.problem
        members = list(bits(layers))
        sinks = sinks_of(problem, members)
        if len({(problem.widths[t], problem.heights[t]) for t in sinks}) != 1:
            return
        if not is_connected(problem, members):
            return
        reads = union(self._predecessors[i] for i in members) & ~layers
        stores = union(1 << problem.maker[t] for t in sinks)
        # A tensor that fills the memory leaves no room for what it is used with.
        room = problem.capacity - 1
        inputs = [i for i in bits(reads) if self._size(i) <= room]
        outputs = [
            i for i in members if self._size(i) <= room and problem.operators[i].output in problem.users
        ]
        for resident in _choices(inputs, self._most_kept):
            held = sum(map(self._size, resident))
            if held > room:
                continue
            for kept in _choices(outputs, self._most_kept):
                if held + sum(map(self._size, kept)) > problem.capacity:
                    continue
                keeps = union(1 << i for i in kept)
                yield Block(layers, reads, union(1 << i for i in resident), stores & ~keeps, keeps)

    def _size(self, operator: int) -> int:
        return self.problem.size(self.problem.operators[operator].output)

    def least_of(self, layers: Mask) -> float:
        """The lower bound where whatever fits the memory is resident or retained."""
        sinks = sinks_of(self.problem, bits(layers))
        if len({(self.problem.widths[t], self.problem.heights[t]) for t in sinks}) != 1:
            return inf
        subgraph = self.subgraph(layers)
        return inf if subgraph is None else least_time_of_set(self.problem, subgraph)

    def _least(self, layers: Mask) -> tuple[float, int]:
        """Compute time, and elements that come in from outside."""
        basics = self._basics.get(layers)
        if basics is None:
            members = list(bits(layers))
            outside = {t for i in members for t in self.problem.operators[i].inputs}
            outside -= {self.problem.operators[i].output for i in members}
            basics = (sum(map(self.floor, members)), sum(map(self.problem.size, outside)))
            self._basics[layers] = basics
        return basics

    def least(self, block: Block) -> float:
        """Work of its operators and elements that pass its border, whatever the granularity."""
        basics = self._least(block.layers)
        moved = (
            basics[1] - sum(map(self._size, bits(block.resident))) + sum(map(self._size, bits(block.stores)))
        )
        return max(basics[0], moved / self.problem.bandwidth)

    def tight_least(self, block: Block) -> float:
        """The lower bound at the numbers of tiles for which it is lowest."""
        subgraph = self.subgraph(block.layers)
        if subgraph is None:
            return inf
        resident, retained = self._tensors(block.resident), self._tensors(block.keeps)
        key = (block.layers, self._roles(block.layers, resident), self._roles(block.layers, retained))
        known = self._least_times.get(key)
        if known is None:
            known = least_time(self.problem, subgraph, resident, retained)
            self._least_times[key] = known
        return known

    def _roles(self, layers: Mask, tensors: frozenset[int]) -> tuple[Any, ...]:
        """What tensors are to a subgraph: those of equal roles may change places in its time."""
        if not tensors:
            return ()
        roles = self._all_roles.get(layers)
        if roles is None:
            subgraph = self.subgraph(layers)
            assert subgraph is not None
            roles = dict.fromkeys(subgraph.sinks, ((-1, -1, -1),))
            for tensor, rows, columns, depth in subgraph.loads:
                roles[tensor] = (*roles.get(tensor, ()), (rows, columns, depth))
            self._all_roles[layers] = roles
        widths, heights = self.problem.widths, self.problem.heights
        return tuple(sorted((widths[t], heights[t], roles.get(t, ())) for t in tensors))

    def price(self, block: Block) -> float:
        """The time at the best granularity."""
        return self.tiling(block).time

    def tiling(self, block: Block) -> Tiling:
        """The best granularity of a block."""
        found = self._tilings.get(block)
        if found is None:
            subgraph = self.subgraph(block.layers)
            if subgraph is None:
                found = NONE
            else:
                found = best_tiling(
                    self.problem,
                    subgraph,
                    resident=self._tensors(block.resident),
                    retained=self._tensors(block.keeps),
                    is_exhaustive=self.is_exhaustive,
                    walker=self._walk,
                    known=self._cases,
                )
            self._tilings[block] = found
        return found

    def _tensors(self, layers: Mask) -> frozenset[int]:
        return frozenset(self.problem.operators[i].output for i in bits(layers))

    def steps(self, blocks: Iterable[Block]) -> list[Step]:
        """A plan as the contest writes it."""
        found = []
        for block in blocks:
            subgraph, tiling = self.subgraph(block.layers), self.tiling(block)
            assert subgraph is not None
            assert tiling.time < inf
            retained = tuple(sorted(self._tensors(block.keeps)))
            found.append(Step(subgraph.operators, tiling.granularity, retained, tiling.order(subgraph)))
        return found


def _choices(members: list[int], most: int) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(members, n) for n in range(min(most, len(members)) + 1))
