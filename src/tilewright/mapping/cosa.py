"""CoSA (ISCA 2021): one mixed-integer program that places every prime factor of a layer in one shot.

The paper's literal program has a binary variable for each factor, level, permutation slot and kind of loop.
This is its compact form: how many of the equal primes of a dim go to each level, spatially or temporally, and
for the permutation three classes, since a tensor gains only where the loops that it does not depend on are
innermost above the on-chip buffers. Both have the same optimum.

Two variants. `paper` is the formulation of its section III. `published` is what the published code does
(ucb-bar/cosa c4798a7), bugs and all: it keeps window loops in the outermost level, adds the stride once per
factor, leaves the global buffer out of the utilisation and weighs traffic by level.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import log2
from typing import Any, Literal

import numpy as np

from tilewright.cost.options import CostOptions
from tilewright.errors import InfeasibleMapping
from tilewright.extras import imported
from tilewright.hardware.machine import Level, TensorKind
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Operand, Problem
from tilewright.mapping.base import MappingProblem, MappingSolution, build_solution
from tilewright.mapping.factors import prime_factors
from tilewright.planning import Budget, Infeasible, Provenance, option
from tilewright.system.exit_calls import finished_before_the_end

Variant = Literal["paper", "published"]
_MIP_GAP = 1e-6
_SLACK = 1e-6  # logarithms of exact products are off by so much
# From the outermost loop inwards, where the program leaves the order open.
_USUAL_ORDER = ("G", "N", "K", "C", "Q", "P", "S", "R")


@dataclass(frozen=True, slots=True)
class Cosa:
    """CoSA's mixed-integer program, in one shot.

    Weights are those of equation 12: utilisation counts against the objective.
    """

    variant: Variant = option("published", "The paper's formulation, or the published code's.")
    compute_weight: float = option(10.0, "Weight of the compute term.")
    utilization_weight: float = option(0.1, "Weight of the buffers' utilisation.")
    traffic_weight: float = option(1.0, "Weight of the traffic term.")

    @property
    def name(self) -> str:
        """The name in the registry."""
        return "cosa" if self.variant == "published" else f"cosa-{self.variant}"

    def solve(self, problem: MappingProblem, budget: Budget) -> MappingSolution | Infeasible:
        """The mapping with the best value of CoSA's own objective; its cost is the real one.

        CoSA's optimum proves nothing of the real cost: the bound is that of `cost/bound.py`.
        `details["objective"]` is the optimum, in log2 units.
        """
        started = time.perf_counter()
        program = Program(problem, self)
        solved = program.solve(budget.deadline_s)
        if isinstance(solved, Infeasible):
            return solved
        objective, mapping = solved
        try:
            return build_solution(
                problem,
                mapping,
                Provenance(self.name, num_evaluations=1, note=f"objective {objective:.6f}"),
                seconds=time.perf_counter() - started,
                details={"objective": objective},
            )
        except InfeasibleMapping as error:
            raise InfeasibleMapping(f"{self.name} answers what does not fit, {error}") from None


@dataclass(frozen=True, slots=True)
class Place:
    """Some of the equal primes of a dim, at one level, as spatial or temporal loops."""

    dim: str
    prime: int
    is_spatial: bool
    level: int  # 0 is the innermost
    axis: int = 0  # of a block of threads


class Program:
    """The integer program of one layer on one machine."""

    def __init__(self, problem: MappingProblem, mapper: Cosa) -> None:
        self.problem: Problem = problem.problem
        self.machine = problem.machine
        self.cost_options: CostOptions = problem.cost_options
        self.block = problem.block
        self.task = problem
        self.mapper = mapper
        self.levels: tuple[Level, ...] = self.machine.levels
        self.outermost = len(self.levels) - 1
        # The level whose loops' order matters: the last one on the chip.
        self.permuted = max(0, self.outermost - 1)
        self.pinned = self._pinned_dims()
        self.places = list(self._places())

    @property
    def is_published(self) -> bool:
        """Whether the published code's objective and rows are built."""
        return self.mapper.variant == "published"

    def _pinned_dims(self) -> frozenset[str]:
        """Dims that the published code keeps outermost: windows."""
        if not self.is_published:
            return frozenset()
        (inputs,) = (o for o in self.problem.operands if o.kind is TensorKind.INPUT)
        return frozenset(dim for axis in inputs.axes if len(axis) > 1 for dim, _ in axis[1:])

    def _places(self) -> Iterator[Place]:
        for dim, extent in self.problem.dims:
            for prime, _ in prime_factors(extent):
                if dim in self.pinned:
                    yield Place(dim, prime, False, self.outermost)
                    continue
                for level in range(len(self.levels)):
                    if self.fan_out(level) > 1 and self.task.may_spread(dim, level):
                        for axis in range(len(self.axes(level))):
                            yield Place(dim, prime, True, level, axis)
                    yield Place(dim, prime, False, level)

    def fan_out(self, level: int) -> int:
        """Instances that one instance of a level feeds; the innermost feeds compute units."""
        if level == self.outermost and self.is_published:
            return 1
        return self.machine.fan_out(level)

    def axes(self, level: int) -> tuple[int, ...]:
        """Extents that the spatial loops of a level may have along each axis; of threads x, y and z.

        Where x alone holds a whole block, the other axes allow nothing more and are left out.
        """
        if self.block is None or not self.is_of_threads(level):
            return (self.fan_out(level),)
        x, *_ = extents = self.block.max_block_shape
        return (x,) if x >= self.block.max_per_block else extents

    def relevant(self, operand: Operand) -> frozenset[str]:
        """Dims that a tensor depends on, less those that the published code forgets."""
        return frozenset(operand.dims()) - (self.pinned if operand.kind is TensorKind.INPUT else frozenset())

    def size(self, operand: Operand, place: Place) -> float:
        """What one prime adds to the logarithm of a tensor's tile."""
        if place.dim not in self.relevant(operand):
            return 0.0
        stride = 1
        if self.is_published and operand.kind is TensorKind.INPUT:
            stride = next(step for axis in operand.axes for dim, step in axis if dim == place.dim)
        return log2(place.prime * stride)

    def costs(self, favoured: Operand) -> list[float]:
        """The objective's coefficients if the loops that `favoured` does not depend on are innermost."""
        return [self._cost(place, favoured) for place in self.places]

    def _cost(self, place: Place, favoured: Operand) -> float:
        log = log2(place.prime)
        total = 0.0 if place.is_spatial else self.mapper.compute_weight * log
        total -= self.mapper.utilization_weight * self._utilization(place)
        return total + self.mapper.traffic_weight * self._traffic(place, favoured)

    def _utilization(self, place: Place) -> float:
        """Equation 5: the logarithm of every kept tile at this level and outside it, on the chip."""
        last = self.permuted if self.is_published else self.outermost
        total = 0.0
        for level in range(place.level, last):
            for operand in self.kept(level):
                total += self._buffer_weight(level) * self.size(operand, place)
        return total

    def _buffer_weight(self, level: int) -> float:
        """The published code gives the weight buffer 1 % more."""
        holds_weights = [i for i in range(self.permuted) if TensorKind.WEIGHT in self.levels[i].holds]
        return 1.01 if self.is_published and holds_weights[-1:] == [level] else 1.0

    def kept(self, level: int) -> list[Operand]:
        """Tensors that a level holds."""
        return [o for o in self.problem.operands if o.kind in self.levels[level].holds]

    def _traffic(self, place: Place, favoured: Operand) -> float:
        """Equations 7 to 11: size of a transfer, unicast copies, and repetitions."""
        log = log2(place.prime)
        total = 0.0
        for operand in self.problem.operands:
            depends = place.dim in self.relevant(operand)
            if place.level < self.permuted:
                share = 0.99 * (0.8 + 0.04 * place.level) if self.is_published else 1.0
                total += share * log if depends else 0.0
            elif place.level == self.permuted and place.is_spatial:
                total += 0.99 * log if self.is_published else log if depends else 0.0
            elif place.level == self.permuted:
                total += 0.0 if operand is favoured and not depends else log
            elif not place.is_spatial:
                is_weight = operand.kind is TensorKind.WEIGHT
                total += log * (1.01 if self.is_published and is_weight else 1.0)
        return total

    def objectives(self, mapping: Mapping) -> tuple[float, float, float]:
        """(Utilisation, compute, traffic) of any mapping, in log2 units: equations 5, 6 and 11.

        The value that is minimised is their sum, weighted by equation 12, utilisation against.
        """
        utilization = compute = traffic = 0.0
        numbers = {level.name: number for number, level in enumerate(self.levels)}
        moved = self._moved_by(mapping)
        for loops, kind, loop in mapping.loops():
            number = numbers[loops.level]
            for prime, count in prime_factors(loop.factor):
                place = Place(loop.dim, prime, kind == "spatial", number)
                compute += 0.0 if place.is_spatial else count * log2(prime)
                utilization += count * self._utilization(place)
                if number != self.permuted or place.is_spatial:
                    traffic += count * self._traffic(place, self.problem.output)
        return utilization, compute, traffic + moved

    def _moved_by(self, mapping: Mapping) -> float:
        """Of every tensor the loops that repeat its transfers: from its innermost own one outwards."""
        total = 0.0
        loops = next((x for x in mapping.levels if x.level == self.levels[self.permuted].name), None)
        for operand in self.problem.operands:
            log_words = 0.0
            for loop in reversed(loops.temporal if loops else ()):
                if log_words or (loop.dim in self.relevant(operand) and loop.factor > 1):
                    log_words += log2(loop.factor)
            total += log_words
        return total

    def capacity_rows(self) -> Iterator[tuple[int, Operand, float, float]]:
        """(Level, tensor, log2 of the words it may have, log2 that it has from the start).

        None of the outermost: it holds whole tensors, however they are tiled.
        """
        for number, level in enumerate(self.levels[: self.outermost]):
            kept = self.kept(number)
            shared = {kind for share in level.shares for kind in share.holds}
            rest = [o for o in kept if o.kind not in shared]
            for operand in kept:
                capacity = level.capacity_for_bytes(operand.kind)
                if capacity is None:
                    continue
                words = capacity * 8 // level.word_bits
                if operand in rest and len(rest) > 1:
                    words //= len(rest)  # equal parts of what they share
                if number == 0:
                    words //= operand.copies
                start = 0.0 if self.is_published else _strides(operand)
                yield number, operand, log2(words) if words else -1.0, start

    def is_of_threads(self, level: int) -> bool:
        """Whether the spatial loops of a level are the threads of a block."""
        return self.block is not None and self.levels[level].name == self.block.shared

    def register_rows(self) -> Iterator[tuple[Operand, float]]:
        """(Tensor, log2 of the words of it in all threads of a block): threads times their tiles."""
        if self.block is None or self.block.max_register_bytes_per_block is None:
            return
        kept = self.kept(0)
        words = self.block.max_register_bytes_per_block * 8 // self.levels[0].word_bits // max(1, len(kept))
        for operand in kept:
            start = 0.0 if self.is_published else _strides(operand)
            yield operand, log2(max(1, words)) - start

    def solve(self, deadline_s: float | None) -> tuple[float, Mapping] | Infeasible:
        """(Optimum, mapping) over the three classes of permutations."""
        highspy = imported("highspy", "mixed-integer programs")
        for number, operand, capacity, start in self.capacity_rows():
            if capacity < start:
                level = self.levels[number]
                return Infeasible(
                    f"level {level.name}",
                    -(-int(2**start) * level.word_bits // 8),
                    level.capacity_for_bytes(operand.kind) or 0,
                    (operand.name,),
                )
        if not self.places:
            return 0.0, self._mapping([], self.problem.output)
        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("mip_rel_gap", _MIP_GAP)
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("random_seed", 0)
        if deadline_s is not None:
            solver.setOptionValue("time_limit", deadline_s)
        self._add_rows(solver, highspy)
        best: tuple[float, Operand, list[int]] | None = None
        for favoured in self.problem.operands:
            for column, cost in enumerate(self.costs(favoured)):
                solver.changeColCost(column, cost)
            with finished_before_the_end():
                solver.run()
            if solver.getModelStatus() == highspy.HighsModelStatus.kTimeLimit:
                raise InfeasibleMapping(
                    f"CoSA's program is not solved after {deadline_s:g} s; give a longer --budget."
                )
            if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
                continue
            value = float(solver.getInfo().objective_function_value)
            if best is None or value < best[0] - 1e-9:
                counts = [round(x) for x in solver.getSolution().col_value]
                best = (value, favoured, counts)
        if best is None:
            return Infeasible("the integer program", 0, 0, (self.problem.name,))
        value, favoured, counts = best
        return value, self._mapping(counts, favoured)

    def _add_rows(self, solver: Any, highspy: Any) -> None:
        inf = highspy.kHighsInf
        multiplicity = {
            (dim, prime): count for dim, extent in self.problem.dims for prime, count in prime_factors(extent)
        }
        for column, place in enumerate(self.places):
            solver.addVar(0.0, float(multiplicity[place.dim, place.prime]))
            solver.changeColIntegrality(column, highspy.HighsVarType.kInteger)

        def add(low: float, high: float, coefficients: dict[int, float]) -> None:
            if coefficients:
                columns = np.array(list(coefficients), np.int32)
                solver.addRow(low, high, len(columns), columns, np.array(list(coefficients.values())))

        for (dim, prime), count in multiplicity.items():
            terms = {i: 1.0 for i, p in enumerate(self.places) if (p.dim, p.prime) == (dim, prime)}
            add(count, count, terms)
        for level in range(len(self.levels)):
            spatial = {
                i: log2(p.prime) for i, p in enumerate(self.places) if p.is_spatial and p.level == level
            }
            add(-inf, log2(self.fan_out(level)) + _SLACK, spatial)
            for axis, extent in enumerate(self.axes(level) if self.is_of_threads(level) else ()):
                along = {i: log for i, log in spatial.items() if self.places[i].axis == axis}
                add(-inf, log2(extent) + _SLACK, along)
        for number, operand, capacity, start in self.capacity_rows():
            sizes = {i: self.size(operand, p) for i, p in enumerate(self.places) if p.level <= number}
            add(-inf, capacity - start + _SLACK, {i: size for i, size in sizes.items() if size})
        for operand, capacity in self.register_rows():
            sizes = {i: self.size(operand, p) for i, p in enumerate(self.places) if p.level == 0}
            for i, place in enumerate(self.places):
                if place.is_spatial and self.is_of_threads(place.level):
                    sizes[i] = log2(place.prime)
            add(-inf, capacity + _SLACK, {i: size for i, size in sizes.items() if size})

    def _usual_place(self, dim: str) -> tuple[int, int]:
        """Where a dim stands if nothing else decides."""
        known = _USUAL_ORDER.index(dim) if dim in _USUAL_ORDER else len(_USUAL_ORDER)
        return known, list(self.problem.extents).index(dim)

    def _mapping(self, counts: list[int], favoured: Operand) -> Mapping:
        relevant = self.relevant(favoured)
        levels: list[LevelLoops] = []
        for number in reversed(range(len(self.levels))):
            factors: dict[bool, dict[str, int]] = {True: {}, False: {}}
            for place, count in zip(self.places, counts, strict=True):
                if place.level == number and count:
                    placed = factors[place.is_spatial]
                    placed[place.dim] = placed.get(place.dim, 1) * place.prime**count
            order = sorted(factors[False], key=self._usual_place)
            if number == self.permuted:  # what the favoured tensor does not depend on comes innermost
                order.sort(key=lambda dim: dim not in relevant)
            levels.append(
                LevelLoops(
                    self.levels[number].name,
                    tuple(Loop(dim, factors[False][dim]) for dim in order),
                    tuple(
                        Loop(dim, factors[True][dim]) for dim in sorted(factors[True], key=self._usual_place)
                    ),
                )
            )
        return Mapping(tuple(levels))


def _strides(operand: Operand) -> float:
    """Log2 of the strides, which make the box of a tile that much larger at most."""
    return sum(log2(max(step for _, step in axis)) for axis in operand.axes)


def CosaPaper() -> Cosa:  # noqa: N802  # made like a class, from the registry
    """The mapper with the paper's formulation."""
    return Cosa(variant="paper")
