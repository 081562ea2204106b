"""Mapping onto a GPU: blocks of threads of several sizes, each a machine of its own, and the best of them.

Any mapper searches on the views of `hardware/block_view.py` as on other machines: a view fixes how many
threads share the registers of a block, so what they hold together is right by construction. CoSA is asked
for one size: its program has rows for the product of threads and registers, as the paper says. Answers are
counted with the warps that they use. What divides badly over the multiprocessors is mapped padded, too.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from math import ceil, inf, prod

from tilewright.cost.base import Objective
from tilewright.cost.bound import check_smallest_tiles, energy_bound_pj, latency_bound_cycles
from tilewright.cost.count import Cost
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.objective import UNITS, measure, rank
from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.errors import InfeasibleMapping, InternalError
from tilewright.hardware.block_view import BlockView, block_limits, block_view
from tilewright.hardware.machine import Machine
from tilewright.hardware.operator_view import operator_view
from tilewright.loops.mapping import Mapping
from tilewright.loops.problem import Problem
from tilewright.mapping.base import MAPPINGS, UNPADDED, Mapper, MappingProblem, MappingSolution, Sampler
from tilewright.mapping.check import check_mapping
from tilewright.mapping.cosa import Cosa
from tilewright.mapping.exact import Exact
from tilewright.mapping.exact.padding import bound_padded
from tilewright.mapping.exact.ports import least_port_cycles
from tilewright.mapping.factors import divisors
from tilewright.mapping.launch import Launch, in_whole_warps, launch_of
from tilewright.planning import Bound, Budget, Infeasible, Quality, Rule, Status
from tilewright.planning.checking import require_right
from tilewright.progress import checkpoint


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
    problem: Problem,
    machine: Machine,
    mapping: Mapping,
    cost_options: CostOptions = TIMELOOP,
    known: tuple[BlockView, Cost] | None = None,
) -> tuple[Cost, Launch]:
    """The estimated cost of a mapping onto a GPU, in cycles of the GPU, and how it is launched.

    `known` is its cost in the cycles of some view, which is not counted anew where that is the mapping's.

    Raises:
        UsageError: loops of unknown dims or levels, or factors that do not cover the problem.
        InfeasibleMapping: more threads, registers or words than a block has; says by how much.
    """
    view = view_of(machine, mapping)
    if known is not None and known[0].machine is view.machine:
        cost = known[1]
    else:
        cost = evaluate(problem, view.machine, mapping, cost_options)
    launch = launch_of(problem, view, mapping, cost_options)
    levels = tuple(replace(level, cycles=view.real_cycles(level.cycles)) for level in cost.levels)
    cycles = view.real_cycles(cost.cycles)
    compute_cycles = view.real_cycles(cost.compute_cycles)
    # Cycles of the GPU are whole ones: what rounding adds is not used.
    used = cost.utilization * view.share_at_work * cost.cycles * view.cycle_length / cycles
    real = replace(
        cost,
        cycles=cycles,
        compute_cycles=compute_cycles,
        utilization=used,
        levels=levels,
    )
    return real, launch


def solve_blocks(
    mapper: Mapper,
    problem: Problem,
    machine: Machine,
    objective: Objective,
    cost_options: CostOptions,
    budget: Budget,
    num_trials: int | None = None,
    *,
    verify: bool = False,
) -> MappingSolution | Infeasible:
    """The best mapping onto a GPU over the sizes of blocks; CoSA's one answer, for its mappers.

    A sampler looks at `num_trials` legal mappings over all sizes, if they are given. The bounds are those of
    the whole GPU: no mapping of any block beats them. With `verify`, the answer for each size is checked.

    Raises:
        InfeasibleMapping: not even one iteration fits a block of one warp.
    """
    started = time.perf_counter()
    tried = _Tried(problem, machine, objective, cost_options, verify)
    if isinstance(mapper, Cosa):
        _check_smallest(tried.whole_block(), problem, cost_options)
        _take_cosa(tried, mapper, budget, started)
        if tried.best is not None:
            return tried.answer(mapper, started)
        # What it answers does not fit in whole warps.
    views = _views(problem, machine, cost_options)
    # Blocks of other sizes, and layers padded otherwise, are CoSA's to know.
    is_short = isinstance(mapper, Exact) and mapper.is_short
    asks_cosa = isinstance(mapper, Exact) and objective != "energy"
    of_sizes = budget
    if asks_cosa and budget.deadline_s is not None:
        of_sizes = replace(budget, deadline_s=_SHARE_OF_SIZES * budget.deadline_s)
    if isinstance(mapper, Exact) and not mapper.pads and objective == "latency":
        views = tried.most_promising(views, *((_NUM_FASTER, inf) if is_short else (1, _CLEARLY)))
    for number, view in enumerate(views):
        checkpoint()
        if isinstance(mapper, Exact) and is_short and tried.is_within(_NEARLY, pads=mapper.pads):
            break
        searcher = mapper
        if num_trials is not None and isinstance(mapper, Sampler):
            of_view = (num_trials - tried.num_evaluations) // (len(views) - number)
            if of_view < 1:  # fewer trials than sizes: the last ones have them
                continue
            searcher = mapper.limited(of_view)
        known = isinstance(mapper, Exact) and tried.best is not None
        bound = tried.bound_of(view, pads=mapper.pads) if isinstance(mapper, Exact) and known else 0.0
        if tried.is_hopeless(view, bound, _NEARLY if is_short else 1.0):
            continue
        left_s = _left_s(of_sizes, started)
        if left_s is not None:
            if left_s <= 0 and tried.best is not None:
                tried.is_cut_off = True
                break
            left_s = max(left_s, 0.01) / min(2, len(views) - number)
        if isinstance(mapper, Exact) and known:
            tried.improve(view, mapper, _within(budget, left_s), bound)
            continue
        answer = searcher.solve(tried.task(view, problem), _within(budget, left_s))
        tried.prove(view, answer)
        tried.take(view, answer)
    for program in _programs(mapper) if asks_cosa else ():
        left_s = _left_s(budget, started)
        if isinstance(mapper, Exact) and tried.is_within(_FAR if mapper.is_short else 1.0, pads=mapper.pads):
            break
        if left_s is not None and left_s <= 0:
            tried.is_cut_off = True
            break
        with suppress(InfeasibleMapping):
            _take_cosa(tried, program, budget, started, pads=isinstance(mapper, Exact) and mapper.pads)
    return tried.answer(mapper, started)


def _programs(mapper: Mapper) -> tuple[Cosa, ...]:
    """What is asked beside a mapper: a search of few partial mappings has no time for the published code's
    program, which is hardly ever better than the paper's."""
    is_short = isinstance(mapper, Exact) and mapper.is_short
    return (Cosa("paper"),) if is_short else (Cosa("paper"), Cosa())


def _take_cosa(tried: _Tried, mapper: Cosa, budget: Budget, started: float, *, pads: bool = True) -> None:
    """CoSA's answers to the layer as it is, and padded, as far as time allows.

    Raises:
        InfeasibleMapping: there is no time for the first of them.
    """
    view = tried.whole_block()
    padded = spread_evenly(tried.problem, tried.machine, _MOST_PADDED) if pads else ()
    for candidate in (tried.problem, *padded):
        checkpoint()
        left_s = _left_s(budget, started)
        try:
            tried.take(view, mapper.solve(tried.task(view, candidate), _within(budget, left_s)))
        except InfeasibleMapping:
            if tried.best is None:
                raise
            tried.is_cut_off = True
            return


def spread_evenly(problem: Problem, machine: Machine, count: int) -> Iterator[Problem]:
    """The problem padded so that it divides by the multiprocessors, or by nearly all; the best ones first.

    Factors divide extents: of 13 multiprocessors a layer of powers of two uses 8. Each dim of the output goes
    to its next multiple of every number of multiprocessors; how long that takes at best is the work over the
    multiprocessors that it divides by. Only what is faster by that than the problem itself is tried.
    """
    view = block_view(machine, block_limits(machine).max_per_block)
    num_cores = view.machine.num_instances(view.machine.level(view.threads.shared))

    def least_time(candidate: Problem) -> float:
        num_outputs = prod(candidate.extents[dim] for dim in candidate.output.dims())
        used = max(n for n in range(1, num_cores + 1) if num_outputs % n == 0)
        return candidate.num_macs / used

    least_times: dict[Problem, float] = {}
    for dim in problem.output.dims():
        extent = problem.extents[dim]
        for cores in range(2, num_cores + 1):
            new = -(-extent // cores) * cores
            if extent < new <= _MOST_PADDING * extent:
                dims = tuple((d, new if d == dim else e) for d, e in problem.dims)
                padded = replace(problem, dims=dims)
                least_times[padded] = least_time(padded)
    worth = [layer for layer, time in least_times.items() if time < _CLEARLY * least_time(problem)]
    return islice(sorted(worth, key=lambda layer: least_times[layer]), count)


def least_cycles_of_sizes(problem: Problem, view: BlockView) -> dict[int, float]:
    """Least cycles of computing without padding, by the threads of a block in whole warps.

    Threads and blocks are spread over dims of the output, so that both numbers together divide its size. The
    view is that of a largest block.
    """
    machine, limits = view.machine, view.threads
    num_outputs = prod(problem.extents[dim] for dim in problem.output.dims())
    num_cores = prod(map(machine.fan_out, range(2, len(machine.levels))))
    threads = [n for n in divisors(num_outputs) if n <= limits.max_per_block]
    least: dict[int, float] = {}
    for cores in (n for n in divisors(num_outputs) if n <= num_cores):
        steps = problem.num_macs / (machine.fan_out(0) * cores)
        for used in threads:
            if num_outputs // cores % used == 0:
                size = in_whole_warps(used, limits)
                cycles = steps / used * max(1.0, size / view.num_at_once)
                least[size] = min(least.get(size, inf), cycles)
    return least


WHOLE_BLOCKS = Rule("in blocks of the sizes that were tried, all warps busy")
_MOST_PADDING = 1.25
_CLEARLY = 0.98
_FAR = 1.3  # times the bound, beyond which a short search asks CoSA
_SHARE_OF_SIZES = 0.7  # of the time, if CoSA is asked, too
_ROUNDING = 1e-9
_NEARLY = 1.015  # times the bound, within which a short search is content
_NUM_FASTER = 3  # sizes besides those that are always tried
_MOST_PADDED = 6


def _left_s(budget: Budget, started: float) -> float | None:
    return None if budget.deadline_s is None else budget.deadline_s - (time.perf_counter() - started)


def _within(budget: Budget, left_s: float | None) -> Budget:
    return budget if left_s is None else replace(budget, deadline_s=max(left_s, 0.01))


@dataclass
class _Tried:
    """The best of the answers so far, counted on the GPU itself."""

    problem: Problem
    machine: Machine
    objective: Objective
    cost_options: CostOptions
    verify: bool = False
    best: MappingSolution | None = None
    cost: Cost | None = None
    launch: Launch | None = None
    refused: Infeasible | None = None
    sizes: set[int] = field(default_factory=set)
    num_evaluations: int = 0
    bounds: dict[int, float] = field(default_factory=dict)
    is_cut_off: bool = False

    def task(self, view: BlockView, problem: Problem) -> MappingProblem:
        """What a mapper is asked; the problem may be padded."""
        return MappingProblem(problem, view.machine, self.objective, self.cost_options, view.threads)

    def whole_block(self) -> BlockView:
        """The view of the largest block, for mappers that see to its registers."""
        return block_view(self.machine, block_limits(self.machine).max_per_block, shares_registers=False)

    def take(self, view: BlockView, answer: MappingSolution | Infeasible) -> None:
        """Keep an answer if it is the best one.

        Raises:
            InternalError: it is to be verified, and a check finds a fault in it.
        """
        if isinstance(answer, Infeasible):
            self.refused = answer
            return
        if self.verify:
            what = f"the mapping of {self.problem.name} onto blocks of {view.num_threads} threads"
            task = self.task(view, self.problem)
            require_right(what, lambda: check_mapping(task, answer.mapping))
        try:
            cost, launch = self.counted(view, answer)
        except InfeasibleMapping:
            return
        self.sizes.add(view.num_threads)
        self.num_evaluations += answer.provenance.num_evaluations
        self.is_cut_off |= answer.quality.status is Status.CUT_OFF
        if self.cost is None or self._rank(cost) < self._rank(self.cost):
            self.best, self.cost, self.launch = answer, cost, launch

    def counted(self, view: BlockView, answer: MappingSolution) -> tuple[Cost, Launch]:
        """What an answer for blocks of a view costs on the GPU, and its launch.

        Raises:
            InfeasibleMapping: it does not fit in whole warps.
        """
        known = None if answer.mapping.padding(self.problem) else (view, answer.cost)
        return evaluate_blocks(self.problem, self.machine, answer.mapping, self.cost_options, known)

    @property
    def value(self) -> float:
        """Of the best answer so far."""
        return inf if self.cost is None else measure(self.objective, self.cost.cycles, self.cost.energy_pj)

    @functools.cached_property
    def bounds_of_all(self) -> tuple[int, float]:
        """(Cycles, energy) that no block of any size beats, whatever is padded."""
        view = block_view(self.machine, block_limits(self.machine).max_per_block)
        task = self.task(view, self.problem)
        roofline_cycles = latency_bound_cycles(self.problem, operator_view(self.machine).machine)
        cycles = max(roofline_cycles, int(least_port_cycles(task, view.num_at_once)))
        return cycles, energy_bound_pj(self.problem, view.machine, self.cost_options)

    @functools.cached_property
    def least_of_sizes(self) -> dict[int, float]:
        """Least cycles of computing without padding, by the threads of a block in whole warps."""
        return least_cycles_of_sizes(self.problem, self.whole_block())

    def most_promising(self, views: list[BlockView], count: int, factor: float) -> list[BlockView]:
        """These views and those of the sizes that compute fastest without padding, so many of them, in less
        than so many times the cycles of these; the fastest first."""
        least = self.least_of_sizes
        sizes = {view.num_threads for view in views}
        limit = factor * min((least.get(size, inf) for size in sizes), default=0.0)
        by_cycles = sorted(least, key=lambda size: (least[size], size))
        faster = [size for size in by_cycles if least[size] < limit and size not in sizes]
        others = (block_view(self.machine, size) for size in faster[:count])
        fitting = (view for view in others if _takes(view, self.problem, self.cost_options))
        return sorted((*views, *fitting), key=lambda view: least.get(view.num_threads, inf))

    def is_within(self, factor: float, *, pads: bool) -> bool:
        """Whether the best answer costs no more than so many times what no block of any size beats."""
        bound = measure(self.objective, *self.bounds_of_all)
        if not pads and self.objective == "latency":
            bound = max(bound, float(ceil(min(self.least_of_sizes.values()) * (1 - _ROUNDING))))
        return self.value <= factor * bound * (1 + _ROUNDING)

    def bound_of(self, view: BlockView, *, pads: bool = True) -> float:
        """What no block of a size beats, in the cycles of its view, as far as it matters beside the best
        answer."""
        if not pads and self.objective == "latency":
            least = self.least_of_sizes.get(view.num_threads, 0.0) / self._cycle_length(view)
            return float(ceil(least * (1 - _ROUNDING)))
        return bound_padded(self.task(view, self.problem), self.value / self._cycle_length(view))

    def is_hopeless(self, view: BlockView, bound: float, factor: float) -> bool:
        """Whether no block of a size, with that bound, is so many times as good as the best answer."""
        bound *= self._cycle_length(view)
        if bound * factor <= self.value:
            return False
        self.bounds[view.num_threads] = bound
        return True

    def improve(self, view: BlockView, mapper: Exact, budget: Budget, bound: float) -> None:
        """Look among blocks of a size, with that bound, for what is better than the best answer."""
        if self.best is None or self.cost is None:
            return
        in_view = replace(self.cost, cycles=int(self.cost.cycles / view.cycle_length))
        better = mapper.improve(self.task(view, self.problem), budget, self.best.mapping, in_view, bound)
        if better.answer is not None:
            self.prove(view, better.answer)
            self.take(view, better.answer)
            return
        self.bounds[view.num_threads] = better.bound_unpadded * self._cycle_length(view)
        self.sizes.add(view.num_threads)
        self.is_cut_off |= better.is_cut_off

    def _cycle_length(self, view: BlockView) -> float:
        return 1.0 if self.objective == "energy" else view.cycle_length

    def prove(self, view: BlockView, answer: MappingSolution | Infeasible) -> None:
        """Note what an answer to the layer as it is proves of blocks of a size.

        Raises:
            InternalError: the answer is better than that.
        """
        if isinstance(answer, Infeasible):
            return
        bound = max(answer.quality.bound, answer.details.get("bound_unpadded", 0.0))
        bound *= self._cycle_length(view)
        self.bounds[view.num_threads] = bound
        try:
            cost, launch = self.counted(view, answer)
        except InfeasibleMapping:
            return
        value = measure(self.objective, cost.cycles, cost.energy_pj)
        # A block that leaves warps of the view idle is counted without them: the bound is not about it, nor
        # about a padded layer.
        is_covered = self._size(launch) == view.num_threads and answer.mapping.padding(self.problem) == 0
        if is_covered and bound > value * (1 + _ROUNDING):
            raise InternalError(
                f"layer {self.problem.name}: {answer.provenance.planner} answers {value:g} "
                f"{UNITS[self.objective]} for blocks of {view.num_threads} threads and claims a least of "
                f"{bound:g}."
            )

    def _size(self, launch: Launch) -> int:
        return in_whole_warps(launch.num_threads, block_limits(self.machine))

    def _bounds(self, best: MappingSolution, launch: Launch, bound: float) -> Iterator[Bound]:
        """Lower bounds of spaces that hold the answer: all mappings, unpadded blocks of the sizes tried."""
        yield Bound(bound, MAPPINGS, "roofline and ports")
        if self._size(launch) in self.bounds and best.mapping.padding(self.problem) == 0:
            of_sizes = max(bound, min(self.bounds.values()))
            yield Bound(of_sizes, MAPPINGS.keeping(WHOLE_BLOCKS, UNPADDED), "search of each size")

    def _rank(self, cost: Cost) -> tuple[float, float]:
        return rank(self.objective, cost.cycles, cost.energy_pj)

    def answer(self, mapper: Mapper, started: float) -> MappingSolution | Infeasible:
        """The best answer with its launch in `details`, or why there is none."""
        best, cost, launch = self.best, self.cost, self.launch
        if best is None or cost is None or launch is None:
            name = block_limits(self.machine).registers
            return self.refused or Infeasible(f"level {name}", 0, 0, (self.problem.name,))
        bound_cycles, bound_energy_pj = self.bounds_of_all
        value = measure(self.objective, cost.cycles, cost.energy_pj)
        bound = measure(self.objective, bound_cycles, bound_energy_pj)
        bounds = tuple(self._bounds(best, launch, bound))
        num_sizes = len(self.sizes)
        sizes = f"best of {num_sizes} sizes of blocks" if num_sizes > 1 else "one size of blocks"
        if best.mapping.padding(self.problem) > 0:
            sizes += ", padded"
        if best.provenance.planner != mapper.name:
            sizes += f", by {best.provenance.planner}"
        return replace(
            best,
            cost=cost,
            quality=Quality.of(value, *bounds, unit=UNITS[self.objective], cut_off=self.is_cut_off),
            provenance=replace(
                best.provenance,
                planner=mapper.name,
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
                **({"bound_of_sizes": bounds[1].value} if len(bounds) > 1 else {}),
            },
            bound_cycles=bound_cycles,
            bound_energy_pj=bound_energy_pj,
        )


def _views(problem: Problem, machine: Machine, cost_options: CostOptions) -> list[BlockView]:
    """Views of the sizes whose registers take at least the tiles of one iteration.

    Raises:
        InfeasibleMapping: not even a block of one warp has that many registers.
    """
    warp = block_view(machine, in_whole_warps(1, block_limits(machine)))
    views = [block_view(machine, size) for size in block_sizes(warp)]
    fitting = [view for view in views if _takes(view, problem, cost_options)]
    size = views[0].num_threads
    while not fitting and size > warp.num_threads:
        size = in_whole_warps(size // 2, warp.threads)
        fitting = [view for view in (block_view(machine, size),) if _takes(view, problem, cost_options)]
    if not fitting:
        _check_smallest(warp, problem, cost_options)
    return fitting


def _check_smallest(view: BlockView, problem: Problem, cost_options: CostOptions) -> None:
    try:
        check_smallest_tiles(problem, view.machine, cost_options)
    except InfeasibleMapping as error:
        raise InfeasibleMapping(
            f"a block of {view.num_threads} threads of {view.machine.name}: {error} Its threads limit "
            f"what a block has of {view.threads.shared}, and a thread of {view.threads.registers}."
        ) from None


def _takes(view: BlockView, problem: Problem, cost_options: CostOptions) -> bool:
    try:
        check_smallest_tiles(problem, view.machine, cost_options)
    except InfeasibleMapping:
        return False
    return True
