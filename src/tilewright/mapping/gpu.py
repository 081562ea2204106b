"""Mapping onto a GPU: blocks of threads of several sizes, each a machine of its own, and the best of them.

Any mapper searches on the views of `hardware/block_view.py` as on other machines: a view fixes how many
threads share the registers of a block, so what they hold together is right by construction. CoSA is asked
once: its program has rows for the product of threads and registers, as the paper says. Answers are counted
with the warps that they use.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import inf

from tilewright.cost.count import Cost
from tilewright.cost.nest_analysis import evaluate
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.block_view import BlockView, block_limits, block_view
from tilewright.hardware.machine import Machine
from tilewright.hardware.operator_view import operator_view
from tilewright.mapping.base import (
    TIMELOOP,
    Mapper,
    Mapping,
    MappingProblem,
    MappingSolution,
    Objective,
    Rules,
    Sampler,
)
from tilewright.mapping.bound import check_smallest_tiles, energy_bound_pj, latency_bound_cycles
from tilewright.mapping.cosa import Cosa
from tilewright.mapping.launch import Launch, in_whole_warps, launch_of
from tilewright.mapping.objective import UNITS, measure, rank
from tilewright.mapping.problem import Problem
from tilewright.planning import Budget, Infeasible, Quality, Status


def block_sizes(view: BlockView) -> tuple[int, ...]:
    """Numbers of threads that are tried first, the smallest first.

    As many as work at once, and the next two powers of two: more threads would wait for each other and have
    fewer registers each. What a machine hides behind waiting threads is not modelled.
    """
    at_once = view.num_at_once
    power = 1 << at_once.bit_length()
    return tuple(sorted({in_whole_warps(size, view.threads) for size in (at_once, power, 2 * power)}))


def view_of(machine: Machine, mapping: Mapping) -> BlockView:
    """The view of the blocks that a mapping launches, idle threads of its last warp included."""
    limits = block_limits(machine)
    threads = 1
    for loops, kind, loop in mapping.loops():
        if loops.level == limits.shared and kind == "spatial":
            threads *= loop.factor
    return block_view(machine, in_whole_warps(threads, limits))


def evaluate_blocks(
    problem: Problem, machine: Machine, mapping: Mapping, rules: Rules = TIMELOOP
) -> tuple[Cost, Launch]:
    """The estimated cost of a mapping onto a GPU, in cycles of the GPU, and how it is launched.

    Raises:
        UsageError: loops of unknown dims or levels, or factors that do not cover the problem.
        InfeasibleMapping: more threads, registers or words than a block has; says by how much.
    """
    view = view_of(machine, mapping)
    cost = evaluate(problem, view.machine, mapping, rules)
    launch = launch_of(problem, view, mapping, rules)
    levels = tuple(replace(level, cycles=view.real_cycles(level.cycles)) for level in cost.levels)
    compute_cycles = view.real_cycles(cost.compute_cycles)
    real = replace(
        cost,
        cycles=view.real_cycles(cost.cycles),
        compute_cycles=compute_cycles,
        utilization=cost.utilization * view.share_at_work,
        levels=levels,
    )
    return real, launch


def solve_blocks(
    mapper: Mapper,
    problem: Problem,
    machine: Machine,
    objective: Objective,
    rules: Rules,
    budget: Budget,
    num_trials: int | None = None,
) -> MappingSolution | Infeasible:
    """The best mapping onto a GPU over the sizes of blocks; CoSA's one answer, for its mappers.

    A sampler looks at `num_trials` legal mappings over all sizes, if they are given. The bounds are those of
    the whole GPU: no mapping of any block beats them.

    Raises:
        InfeasibleMapping: not even one iteration fits a block of one warp.
    """
    started = time.perf_counter()
    tried = _Tried(problem, machine, objective, rules)
    if isinstance(mapper, Cosa):
        limits = block_limits(machine)
        view = block_view(machine, limits.max_per_block, shares_registers=False)
        _check_smallest(view, problem, rules)
        tried.take(view, mapper.solve(tried.task(view), budget))
        if tried.best is not None:
            return tried.answer(mapper, started)
        # What it answers does not fit in whole warps.
    views = _views(problem, machine, rules)
    for number, view in enumerate(views):
        own, one = budget, mapper
        if num_trials is not None and isinstance(mapper, Sampler):
            of_view = (num_trials - tried.num_evaluations) // (len(views) - number)
            if of_view < 1:  # fewer trials than sizes: the last ones have them
                continue
            one = mapper.limited(of_view)
        if budget.deadline_s is not None:
            rest_s = budget.deadline_s - (time.perf_counter() - started)
            if rest_s <= 0 and tried.best is not None:
                tried.is_cut_off = True
                break
            own = replace(budget, deadline_s=max(rest_s, 0.01) / (len(views) - number))
        tried.take(view, one.solve(tried.task(view), own))
    return tried.answer(mapper, started)


@dataclass(slots=True)
class _Tried:
    """The best of the answers so far, counted on the GPU itself."""

    problem: Problem
    machine: Machine
    objective: Objective
    rules: Rules
    best: MappingSolution | None = None
    cost: Cost | None = None
    launch: Launch | None = None
    refused: Infeasible | None = None
    num_sizes: int = 0
    num_evaluations: int = 0
    bound_of_sizes: float = inf
    is_cut_off: bool = False

    def task(self, view: BlockView) -> MappingProblem:
        """What a mapper is asked."""
        return MappingProblem(self.problem, view.machine, self.objective, self.rules, view.threads)

    def take(self, view: BlockView, found: MappingSolution | Infeasible) -> None:
        """Keep an answer if it is the best one."""
        if isinstance(found, Infeasible):
            self.refused = found
            return
        try:
            cost, launch = evaluate_blocks(self.problem, self.machine, found.mapping, self.rules)
        except InfeasibleMapping:
            return
        self.num_sizes += 1
        self.num_evaluations += found.provenance.num_evaluations
        self.is_cut_off |= found.quality.status is Status.CUT_OFF
        longer = 1.0 if self.objective == "energy" else view.cycle_length
        self.bound_of_sizes = min(self.bound_of_sizes, found.quality.bound * longer)
        if self.cost is None or self._rank(cost) < self._rank(self.cost):
            self.best, self.cost, self.launch = found, cost, launch

    def _rank(self, cost: Cost) -> tuple[float, float]:
        return rank(self.objective, cost.cycles, cost.energy_pj)

    def answer(self, mapper: Mapper, started: float) -> MappingSolution | Infeasible:
        """The best answer with its launch in `details`, or why there is none."""
        best, cost, launch = self.best, self.cost, self.launch
        if best is None or cost is None or launch is None:
            name = block_limits(self.machine).registers
            return self.refused or Infeasible(f"level {name}", 0, 0, (self.problem.name,))
        largest = block_view(self.machine, block_limits(self.machine).max_per_block).machine
        bound_cycles = latency_bound_cycles(self.problem, operator_view(self.machine).machine)
        bound_energy_pj = energy_bound_pj(self.problem, largest)
        value = measure(self.objective, cost.cycles, cost.energy_pj)
        bound = measure(self.objective, bound_cycles, bound_energy_pj)
        sizes = f"best of {self.num_sizes} sizes of blocks" if self.num_sizes > 1 else "one size of blocks"
        return replace(
            best,
            cost=cost,
            quality=Quality.of(value, bound=bound, unit=UNITS[self.objective], cut_off=self.is_cut_off),
            provenance=replace(
                best.provenance,
                num_evaluations=self.num_evaluations,
                note=f"{best.provenance.note}; {sizes}",
            ),
            seconds=time.perf_counter() - started,
            details={
                **best.details,
                "threads": launch.num_threads,
                "blocks": launch.num_blocks,
                "shared_bytes": launch.shared_bytes,
                "registers_per_thread": launch.registers_per_thread,
                "bound_of_sizes": min(value, self.bound_of_sizes),
            },
            bound_cycles=bound_cycles,
            bound_energy_pj=bound_energy_pj,
        )


def _views(problem: Problem, machine: Machine, rules: Rules) -> list[BlockView]:
    """Views of the sizes whose registers take at least the tiles of one iteration.

    Raises:
        InfeasibleMapping: not even a block of one warp has that many registers.
    """
    warp = block_view(machine, in_whole_warps(1, block_limits(machine)))
    views = [block_view(machine, size) for size in block_sizes(warp)]
    found = [view for view in views if _takes(view, problem, rules)]
    size = views[0].num_threads
    while not found and size > warp.num_threads:
        size = in_whole_warps(size // 2, warp.threads)
        found = [view for view in (block_view(machine, size),) if _takes(view, problem, rules)]
    if not found:
        _check_smallest(warp, problem, rules)
    return found


def _check_smallest(view: BlockView, problem: Problem, rules: Rules) -> None:
    try:
        check_smallest_tiles(problem, view.machine, rules)
    except InfeasibleMapping as error:
        raise InfeasibleMapping(
            f"a block of {view.num_threads} threads of {view.machine.name}: {error} Its threads limit "
            f"what a block has of {view.threads.shared}, and a thread of {view.threads.registers}."
        ) from None


def _takes(view: BlockView, problem: Problem, rules: Rules) -> bool:
    try:
        check_smallest_tiles(problem, view.machine, rules)
    except InfeasibleMapping:
        return False
    return True
