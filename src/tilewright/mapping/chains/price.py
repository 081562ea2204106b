"""What a joint tiling costs in cycles and energy: what its steps do, mapped onto the levels further in.

Each operator's share of a step is an operator of its own, whose operands wait on chip: it is mapped by
`exact`. What passes the outermost level is as the plan counts it, but for weights that are not kept on chip:
these pass as often as the mapping of a step reads them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, inf, prod

import numpy as np

from tilewright.cost.base import Objective
from tilewright.cost.bound import energy_bound_pj, num_mac_units, transfer_cycles
from tilewright.cost.options import CostOptions
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import ALL_KINDS, Level, Machine, TensorKind
from tilewright.ir.derive import is_pointwise, nest_flops, nests_of
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Nest
from tilewright.ir.region import Interval, Region, dim_intervals
from tilewright.loops.problem import Problem
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.chains.chain import Chain, ChainPart
from tilewright.mapping.chains.plan import STREAMED, ChainPlan, PartCount, count_parts
from tilewright.mapping.chains.search import ValueOf, Values
from tilewright.mapping.chains.tables import Counts
from tilewright.mapping.checked import solved
from tilewright.mapping.constraints import Constraints, NoLoop
from tilewright.mapping.exact import Exact
from tilewright.mapping.network import Products, problem_of, products_of, stream, with_dense_outputs
from tilewright.planning import UNLIMITED, Budget

_AMPLE_BYTES = 1 << 50
_QUICK = Exact(max_points=3_000, max_search_states=20_000)
"""Mapper of what has no mapping when time is up: a search that ends soon, however busy the processor is."""


@dataclass(frozen=True, slots=True)
class ChainCost:
    """What operators cost together, and the words that they read and write past the outermost level."""

    cycles: int
    energy_pj: float
    read_words: int
    written_words: int

    @property
    def moved_words(self) -> int:
        """Read and written."""
        return self.read_words + self.written_words


@dataclass(frozen=True, slots=True)
class _Work:
    """What the levels inside do. `outer_reads` are words of weights read past the outermost level, the other
    words are those of the level where values wait."""

    cycles: float = 0.0
    energy_pj: float = 0.0
    outer_reads: float = 0.0
    stored_reads: float = 0.0
    stored_writes: float = 0.0

    def plus(self, other: _Work, times: float = 1.0) -> _Work:
        """This and other work, that so many times."""
        return _Work(
            self.cycles + times * other.cycles,
            self.energy_pj + times * other.energy_pj,
            self.outer_reads + times * other.outer_reads,
            self.stored_reads + times * other.stored_reads,
            self.stored_writes + times * other.stored_writes,
        )


@dataclass(frozen=True, slots=True)
class _Counted:
    """A plan with its parts' counts; weights that are `passing` each step reads past the outermost level as
    often as its mapping asks for them."""

    chain: Chain
    plan: ChainPlan
    counts: Sequence[PartCount]
    passing: frozenset[Value]


class Pricer:
    """Prices plans on a machine, whose values wait in `level`. Equal shares of steps are mapped once."""

    def __init__(
        self,
        machine: Machine,
        level: Level,
        objective: Objective,
        cost_options: CostOptions,
        deadline_s: float,
    ) -> None:
        self.machine, self.level, self.objective = machine, level, objective
        self.cost_options, self.deadline_s, self.end_s = cost_options, deadline_s, inf
        self.inside = inside_machine(machine, level)
        self.with_passing_weights = _with_passing_weights(machine, level)
        self._known: dict[tuple[object, ...], _Work | None] = {}

    def price(self, chain: Chain, plan: ChainPlan, end_s: float = inf) -> ChainCost | None:
        """What a plan costs; None where a share of a step cannot be mapped, or not before `end_s`."""
        self.end_s = end_s
        counted = _Counted(chain, plan, count_parts(chain, plan), self._passing_weights(chain, plan))
        work = _Work()
        for place, part in enumerate(chain.parts):
            node = _maker(chain, part)
            if node is None or is_pointwise(node):
                continue
            further = self._making(counted, place, node)
            if further is None:
                return None
            work = work.plus(further)
        return self._total(counted, work)

    def _passing_weights(self, chain: Chain, plan: ChainPlan) -> frozenset[Value]:
        multiplied = {value for node in chain.nodes for value in _weights_of(node)}
        return frozenset(
            part.value
            for part, depth in zip(chain.parts, plan.depths, strict=True)
            if part.kind == "constant"
            and part.value in multiplied
            and (depth == STREAMED or TensorKind.WEIGHT not in self.level.holds)
        )

    def _making(self, counted: _Counted, place: int, node: Node) -> _Work | None:
        """What all steps do to make one part; None where a share of a step cannot be mapped."""
        chain, plan = counted.chain, counted.plan
        part, count = chain.parts[place], counted.counts[place]
        work = _Work()
        for nest in nests_of(node):
            products = products_of(node, nest)
            if products is None:
                if nest_flops(nest) > 0:
                    share = count.fresh_words / max(1, part.num_words)
                    work = work.plus(self._streamed(nest), share)
                continue
            is_passing = _weights_in(node, products) in counted.passing
            shares = (
                _anchor_shares(chain, plan) if part.kind == "result" else _shares(part, count, plan, nest)
            )
            for share_of_step, number in shares:
                problem = problem_of(node, share_of_step)
                mapped = None if problem is None else self._mapped(problem, is_passing)
                if mapped is None:
                    return None
                work = work.plus(mapped, number)
        return work

    def _streamed(self, nest: Nest) -> _Work:
        """An operator that sums no products: its operands pass the level where values wait once."""
        passed = stream(nest, self.inside)
        return _Work(float(passed.cycles), passed.energy_pj)

    def _mapped(self, problem: Problem, is_passing: bool) -> _Work | None:
        key = problem.dims, problem.operands, is_passing
        if key not in self._known:
            if time.monotonic() > self.end_s:
                return None
            self._known[key] = self._solve(problem, is_passing)
        return self._known[key]

    def _solve(self, problem: Problem, is_passing: bool) -> _Work | None:
        """The best mapping of an operator whose operands wait on chip, but for weights that pass."""
        machine = self.with_passing_weights if is_passing else self.inside
        problem = with_dense_outputs(problem)
        absent = [NoLoop(machine.outermost.name, dim) for dim, extent in problem.dims if extent > 1]
        task = MappingProblem(
            problem,
            machine,
            self.objective,
            self.cost_options,
            constraints=Constraints.of(absent if is_passing else ()),
        )
        answer = best_mapping(task, self.deadline_s) or best_mapping(task, mapper=_QUICK)
        if answer is None:
            return None
        cost = answer.cost
        stored = cost.levels[int(is_passing)].tensors
        energy_pj, outer_reads = cost.energy_pj, 0
        if is_passing:
            # The other operands are there already: what the outermost level does for them is no part of it.
            outer = cost.levels[0].tensors
            kinds = {operand.name: operand.kind for operand in problem.operands}
            energy_pj -= sum(t.energy_pj for n, t in outer.items() if kinds[n] is not TensorKind.WEIGHT)
            fills = sum(-(-t.fills // self.level.words_per_access) for t in stored.values())
            energy_pj -= fills * self.level.write_access_pj
            outer_reads = sum(
                t.reads * t.num_instances for n, t in outer.items() if kinds[n] is TensorKind.WEIGHT
            )
        return _Work(
            float(cost.cycles),
            energy_pj,
            float(outer_reads),
            float(sum(t.reads for t in stored.values())),
            float(sum(t.updates for t in stored.values())),
        )

    def _total(self, counted: _Counted, work: _Work) -> ChainCost:
        """Everything together: what the levels inside do, and what comes in and goes out."""
        chain, order = counted.chain, counted.plan.tiling.order
        result, made = chain.parts[0], counted.counts[0]
        steps_words = result.num_still_words(order) * prod(side.total for side in made.needed)
        added_reads = max(0, steps_words - result.num_words)  # partial sums that a later step adds to
        energy_pj = work.energy_pj + added_reads * read_pj(self.level)
        energy_pj += chain.written_words * self._outgoing_pj()
        read_words, stored_writes = ceil(work.outer_reads), work.stored_writes
        if not self.cost_options.elides_first_fills:
            stored_writes += result.num_words
        for part, count in zip(chain.parts, counted.counts, strict=True):
            if part.kind in ("input", "constant") and part.value not in counted.passing:
                kind = TensorKind.INPUT if part.kind == "input" else TensorKind.WEIGHT
                energy_pj += count.fresh_words * self._incoming_pj(kind)
                read_words += count.fresh_words
                stored_writes += count.fresh_words if kind in self.level.holds else 0
        outermost = self.machine.outermost
        cycles = max(
            ceil(work.cycles),
            transfer_cycles(self.machine, outermost, read_words, chain.written_words),
            transfer_cycles(
                self.machine, self.level, ceil(work.stored_reads) + added_reads, ceil(stored_writes)
            ),
        )
        return ChainCost(cycles, energy_pj, read_words, chain.written_words)

    def _incoming_pj(self, kind: TensorKind) -> float:
        """Of a word that comes from the outermost level to where values wait, or past it."""
        total = read_pj(self.machine.outermost)
        for level in self._levels_on_the_way():
            if kind in level.holds:
                total += write_pj(level) + (0.0 if level is self.level else read_pj(level))
        return total

    def _outgoing_pj(self) -> float:
        """Of a word of the result; its place is filled first, unless that is elided."""
        total = write_pj(self.machine.outermost)
        if not self.cost_options.elides_first_fills:
            total += sum(write_pj(x) for x in self._levels_on_the_way() if TensorKind.OUTPUT in x.holds)
        return total

    def _levels_on_the_way(self) -> Sequence[Level]:
        """From the level where values wait outwards, without the outermost one."""
        return self.machine.levels[self.machine.levels.index(self.level) : -1]

    def least(self, chain: Chain) -> ValueOf:
        """What plans cost at least, in the objective's unit, by the words they move and what they compute."""
        written = chain.written_words
        outermost = self.machine.outermost
        if self.objective == "latency":
            num_units = num_mac_units(self.machine)

            def least_cycles(moved_words: Counts, num_macs: Counts) -> Values:
                passed = least_transfer_cycles(self.machine, moved_words - written, written)
                return np.maximum(num_macs / num_units, passed)

            return least_cycles
        inside_pj, inside_macs = self._least_inside(chain)
        fixed_pj = inside_pj + written * write_pj(outermost)

        def least_pj(moved_words: Counts, num_macs: Counts) -> Values:
            more_macs = np.maximum(num_macs - inside_macs, 0)
            return (moved_words - written) * read_pj(outermost) + fixed_pj + more_macs * self.machine.mac_pj

        return least_pj

    def _least_inside(self, chain: Chain) -> tuple[float, int]:
        """(Energy that the levels inside and the units take at least, multiply-accumulates in it)."""
        free = self.inside.outermost.model_copy(update={"read_pj": 0.0, "write_pj": 0.0})
        machine = self.inside.model_copy(update={"levels": (*self.inside.levels[:-1], free)})
        energy_pj, num_macs = 0.0, 0
        for part in chain.parts:
            node = _maker(chain, part)
            for nest in () if node is None else nests_of(node):
                needed = _part_of(nest, part.whole)
                problem = None if node is None or needed is None else problem_of(node, needed)
                if problem is not None:
                    energy_pj += energy_bound_pj(problem, machine, self.cost_options)
                    num_macs += problem.num_macs
        return energy_pj, num_macs


def best_mapping(
    task: MappingProblem, deadline_s: float | None = None, mapper: Exact | None = None
) -> MappingSolution | None:
    """The best mapping; None where there is none, or not in time."""
    try:
        answer = solved(mapper or Exact(), task, Budget(UNLIMITED, deadline_s=deadline_s))
    except InfeasibleMapping:
        return None
    return answer if isinstance(answer, MappingSolution) else None


def least_transfer_cycles(machine: Machine, read_words: Counts, written_words: int) -> Values:
    """`transfer_cycles` of the outermost level for many numbers of words read, not rounded."""
    outermost = machine.outermost
    word_bytes = outermost.word_bits / 8
    read_rate, write_rate = machine.read_bytes_per_cycle(outermost), machine.write_bytes_per_cycle(outermost)
    read = np.multiply(read_words, 0.0 if read_rate is None else word_bytes / read_rate, dtype=np.float64)
    written = 0.0 if write_rate is None else written_words * word_bytes / write_rate
    together = np.add if outermost.has_shared_port else np.maximum
    cycles: Values = together(read, written)
    return cycles


def inside_machine(machine: Machine, level: Level) -> Machine:
    """A machine whose outermost level is the one where values wait, with all operands in it."""
    place = machine.levels.index(level)
    around = level.model_copy(update={"capacity_bytes": None, "shares": (), "holds": ALL_KINDS})
    return _with_levels(machine, (*machine.levels[:place], around))


def _with_passing_weights(machine: Machine, level: Level) -> Machine:
    """The same with weights in the outermost level, whose rate limits a whole chain, not one of its steps."""
    place = machine.levels.index(level)
    kinds = tuple(kind for kind in level.holds if kind is not TensorKind.WEIGHT)
    ample = level.model_copy(update={"capacity_bytes": _AMPLE_BYTES, "shares": (), "holds": kinds})
    rates = ("read_bytes_per_s", "read_bytes_per_cycle", "write_bytes_per_s", "write_bytes_per_cycle")
    outermost = machine.outermost.model_copy(update=dict.fromkeys(rates))
    return _with_levels(machine, (*machine.levels[:place], ample, outermost))


def _with_levels(machine: Machine, levels: tuple[Level, ...]) -> Machine:
    names = {level.name for level in levels}
    networks = tuple(n for n in machine.networks if {n.inner, n.outer} <= names)
    return machine.model_copy(update={"levels": levels, "networks": networks, "sources": {}})


def read_pj(level: Level) -> float:
    """Energy of reading a word."""
    return level.read_access_pj / level.words_per_access / level.num_instances_per_access


def write_pj(level: Level) -> float:
    """Energy of writing a word."""
    return level.write_access_pj / level.words_per_access / level.num_instances_per_access


def _maker(chain: Chain, part: ChainPart) -> Node | None:
    """The operator that makes a part; None of what comes from outside."""
    if part.kind == "result":
        return chain.anchor
    return part.value.producer if part.kind == "intermediate" else None


def _weights_of(node: Node) -> Iterator[Value]:
    """The operands of a node that are weights of its sums of products."""
    for nest in nests_of(node):
        products = products_of(node, nest)
        value = None if products is None else _weights_in(node, products)
        if value is not None:
            yield value


def _weights_in(node: Node, products: Products) -> Value | None:
    operand = products.accesses["Weights"].operand
    return node.inputs[operand.position] if operand.kind == "input" else None


def _anchor_shares(chain: Chain, plan: ChainPlan) -> Iterator[tuple[Nest, int]]:
    """The anchor's nest with the extents of a step's tile, and the steps that have such a tile."""
    names = [chain.loops[i].name for i in plan.tiling.order]
    by_loop = [_by_length(side.intervals) for side in plan.tiling.sides(chain)]
    for chosen in product(*(lengths.items() for lengths in by_loop)):
        extents = {name: length for name, (length, _) in zip(names, chosen, strict=True)}
        yield _with_extents(chain.nest, extents), prod(number for _, (_, number) in chosen)


def _shares(part: ChainPart, count: PartCount, plan: ChainPlan, nest: Nest) -> Iterator[tuple[Nest, int]]:
    """A nest with the extents of what a step makes of a part, and the steps that make as much."""
    by_loop = [_by_length(side.intervals) for side in count.fresh]
    for chosen in product(*(lengths.values() for lengths in by_loop)):
        region = list(part.whole)
        for loop, (interval, _) in zip(plan.tiling.order, chosen, strict=True):
            axis = part.axis_of_loop[loop]
            if axis is not None:
                region[axis] = interval
        needed = _part_of(nest, tuple(region))
        if needed is not None:
            yield needed, prod(number for _, number in chosen)


def _by_length(intervals: Sequence[Interval]) -> dict[int, tuple[Interval, int]]:
    """Intervals that are not empty: of each length the first one, and how many there are."""
    listed: dict[int, tuple[Interval, int]] = {}
    for start, stop in intervals:
        if start < stop:
            first, number = listed.get(stop - start, ((start, stop), 0))
            listed[stop - start] = first, number + 1
    return listed


def _part_of(nest: Nest, region: Region) -> Nest | None:
    """A nest with as many iterations as make a region of the result; None if none does.

    What is for the operator itself alone is made whole.
    """
    if nest.write.operand.kind != "output":
        return nest
    intervals = dim_intervals(nest, region)
    if intervals is None:
        return None
    return _with_extents(nest, {name: stop - start for name, (start, stop) in intervals.items()})


def _with_extents(nest: Nest, extents: dict[str, int]) -> Nest:
    dims = tuple(replace(dim, extent=extents.get(dim.name, dim.extent)) for dim in nest.dims)
    return replace(nest, dims=dims)
