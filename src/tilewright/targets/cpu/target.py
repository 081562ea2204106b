"""The CPU target: a program becomes kernels, a memory plan, one main, and an executable."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from functools import cached_property
from statistics import median
from typing import Any, ClassVar

from tilewright.cost.energy import EnergyTable
from tilewright.errors import BudgetExceeded, InputError, ModelRejected, UnsupportedOp, UsageError
from tilewright.hardware.host import host_machine
from tilewright.hardware.instruction_sets import HOST
from tilewright.hardware.machine import Machine
from tilewright.hardware.probe import num_threads_default, resolve_threads
from tilewright.ir.control_flow import CONTROL_FLOW
from tilewright.ir.fuse import FusedNodes
from tilewright.ir.graph import Graph, Node
from tilewright.ir.nest import Opaque, Stepwise, Walks
from tilewright.ir.ops import describe
from tilewright.memory import MEMORY_PLANNERS, MemoryPlan, check_memory
from tilewright.options import Options
from tilewright.partition.base import Partition, PartitionProblem, priced_at
from tilewright.planning import Budget, Infeasible, Limits, Meter, Status, option
from tilewright.planning.member_options import with_options
from tilewright.planning.portfolio import PLAIN_RECIPE, Attempt, Recipe
from tilewright.private_files import default_cache_directory
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.schedule import SCHEDULERS
from tilewright.schedule.base import Schedule, ScheduleProblem, StageBench
from tilewright.steps import STORED_TUNING, TuningInfo, TuningSettings
from tilewright.target_ref import TargetRef
from tilewright.targets import base
from tilewright.targets.base import Backend, Improved, MakeProgram, Support, require_supported
from tilewright.targets.cpu.costs.energies import CpuEnergyCosts
from tilewright.targets.cpu.costs.model import CpuCosts
from tilewright.targets.cpu.forms import Cuts, Group, choose_forms
from tilewright.targets.cpu.image.code import CpuCode, PlacedModel, main_steps, passthrough
from tilewright.targets.cpu.image.image import CpuImage
from tilewright.targets.cpu.image.stored import CpuStore
from tilewright.targets.cpu.isa import Isa, calibrated, isa_by_name, isa_of
from tilewright.targets.cpu.lower.arrange import Barriers, arrange
from tilewright.targets.cpu.lower.check_places import check_places
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import LoweredPartition
from tilewright.targets.cpu.lower.storage import (
    Arrangements,
    Placement,
    Weights,
    arena_bytes,
    caller_homes,
    memory_problem,
    place_reports,
)
from tilewright.targets.cpu.runtime.executable import TensorSpec
from tilewright.targets.cpu.runtime.main_code import FIRST_CALLER_BASE, build_main
from tilewright.targets.cpu.runtime.pool import runtime_object
from tilewright.targets.cpu.tune.bench import MAX_WEIGHT_BYTES, random_feed
from tilewright.targets.cpu.tune.block_race import fastest_groups
from tilewright.targets.cpu.tune.context import context_on
from tilewright.targets.cpu.tune.race import race
from tilewright.targets.cpu.tune.stage_costs import CpuStageBench
from tilewright.targets.cpu.tune.tuner import Untuned, stored_tuning, tune
from tilewright.targets.llvm.cache import ObjectCache
from tilewright.targets.llvm.codegen import CompileJob, compile_objects
from tilewright.targets.validate import require_valid_program
from tilewright.tuning.samples import is_faster

logger = logging.getLogger(__name__)

MIN_ESTIMATED_GAIN = 0.05
"""Share of the time that another recipe must be estimated to save to replace the default."""

_SIDE_BY_SIDE = replace(PLAIN_RECIPE, schedule="greedy")
_STAGES = replace(PLAIN_RECIPE, schedule="ios{search=beam}")  # the proof would take the time of the race
# Of a budget that is a time, the share for the race of recipes; and its seconds under other budgets.
_RACE_SHARE = 0.1
_RACE_S = 2.4


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """Generated code on the processor of this machine."""

    barriers: Barriers = option(
        "stages", "Where groups of a stage wait: behind the stage, or behind each kernel (strict)."
    )
    energies: str | None = option(
        None, "A machine file with sourced energies of this processor, for --hint energy and edp."
    )

    name: ClassVar[str] = "cpu"
    is_measurable: ClassVar[bool] = True
    runs_slices: ClassVar[bool] = False
    runs_steps: ClassVar[bool] = True
    code_store: ClassVar[CpuStore] = CpuStore()

    @classmethod
    def named(cls, target: TargetRef) -> CpuTarget:
        """The target with the options that it is named with."""
        return with_options(cls(), target)

    @property
    def machine(self) -> Machine:
        """This host."""
        return host_machine()

    def isa(self, options: Options) -> Isa:
        """What generated code may use: all that the machine has, or what the options keep it to; of several
        instruction sets, the first that the machine has.

        Raises:
            UsageError: an instruction set that is unknown, or that the machine lacks.
        """
        names = options.isas
        runs_here = (name for name in names if len(names) == 1 or isa_by_name(name).runs_on_host)
        name = next(runs_here, next(iter(names), None))
        isa = isa_of(self.machine, name)
        measures = name in (None, HOST) and not (options.frozen or options.no_cache)
        return calibrated(isa, self.machine) if measures else isa

    def backend(self, graph: Graph, options: Options) -> CpuBackend:
        """What plans and compiles a graph.

        Raises:
            UsageError: the hint needs energies, which this target cannot tell.
        """
        if options.hint in ("energy", "edp") and self.energies is None:
            raise UsageError(
                f"hint {options.hint}: energy is unavailable on the cpu target, which knows no energies of "
                'its own; give a machine file that says them, -t "cpu{energies=FILE}", or --hint latency.'
            )
        return CpuBackend(self, graph, options)

    def supports(self, node: Node) -> Support:
        """Operators without nests run on the host, and say so."""
        if not (of_types := Support.of_types(node)):
            return of_types
        description = describe(node)
        if isinstance(description, Opaque) and not isinstance(description, Stepwise | Walks):
            if node.op_type in CONTROL_FLOW:
                return Support.yes(description.reason)
            return Support.on_host(f"runs on the host: {description.reason}")
        return Support.yes()

    def generate(
        self,
        program: Program,
        *,
        profile: bool = False,
        trace: bool = False,
        progress: Progress | None = None,
        arrangements: Arrangements | None = None,
        lowering: LoweredPartition | None = None,
        placed: PlacedModel | None = None,
    ) -> CpuCode:
        """Lower, place and compile a program; `profile` adds time stamps of steps, `trace` also of chunks.

        `arrangements` are shared by calls for the same graph that rearrange its constants alike. `lowering`
        is that of the program's partition, where another schedule of it was lowered before; `placed` is the
        program itself, where that was lowered and placed.

        Raises:
            UnsupportedOp: a node that this target declines.
            BudgetExceeded: the arena would be larger than `options.max_memory_bytes`.
        """
        isa = self.isa(program.options)
        placed = placed or self.place(
            program, isa, progress=progress, arrangements=arrangements, lowering=lowering
        )
        image = self._image(program, placed, isa, profile=profile, trace=trace, progress=progress)
        return CpuCode(
            placed.program,
            isa,
            placed.lowered,
            image,
            placed.memory,
            placed.problem,
            placed.weights,
            functools.partial(self._images, program, isa, image, placed.weights),
        )

    def code_here(self, code: CpuCode) -> CpuCode:
        """Code of the same program that runs here: the oracle of code for other machines."""
        return code

    def _images(
        self, program: Program, isa: Isa, image: CpuImage, weights: Weights
    ) -> list[tuple[CpuImage, Weights]]:
        """What is kept of a program's code: for this instruction set, and for the others that were asked for.

        What was measured on this one says nothing of those; what was on machines of theirs counts.
        """
        images: dict[str, tuple[CpuImage, Weights]] = {}
        for name in program.options.isas or (isa.name,):
            other = isa_by_name(name)
            if other.name == isa.name:
                cache = _object_cache(program.options)
                images[isa.name] = (replace(image, runtime=runtime_object(isa, cache=cache)), weights)
            elif other.name not in images:
                emitting = EmittingTarget(self.barriers, record=other)
                placed = emitting.tuned(program.unmeasured())
                emitted = self._image(placed.program, placed, other, with_runtime=True)
                images[other.name] = (emitted, placed.weights)
        return list(images.values())

    def _image(
        self,
        program: Program,
        placed: PlacedModel,
        isa: Isa,
        *,
        profile: bool = False,
        trace: bool = False,
        with_runtime: bool = False,
        progress: Progress | None = None,
    ) -> CpuImage:
        """The code of a placed program, compiled."""
        options = program.options
        main = build_main(placed.steps, isa, profile=profile, trace=trace)
        kernels = placed.kernels
        jobs = [CompileJob(k.text, k.needs_optimizer) for k in kernels.values()]
        jobs.append(CompileJob(main.ir_text))
        cache = _object_cache(options)
        report = None if progress is None else functools.partial(progress, "kernels")
        objects = compile_objects(
            jobs,
            isa,
            cache=cache,
            num_processes=num_threads_default(),
            progress=report,
            frozen=options.frozen,
        )
        return CpuImage(
            isa_name=isa.name,
            triple=isa.triple,
            features=isa.features,
            inputs=tuple(TensorSpec.of(v) for v in program.graph.inputs),
            outputs=tuple(TensorSpec.of(v) for v in program.graph.outputs),
            passthrough=passthrough(program.graph),
            main=main,
            objects=tuple(objects),
            constants=placed.weights,
            host_steps=placed.host_steps,
            arena_bytes=placed.arena_bytes,
            scratch_bytes=placed.scratch_bytes,
            index_checks=placed.index_checks,
            row_axes=placed.row_axes,
            rows_share=placed.rows_share,
            body_options=program.options if placed.host_steps else None,
            runtime=runtime_object(isa, cache=cache) if with_runtime else None,
            rates=isa.rates_digest,
        )

    def place(
        self,
        program: Program,
        isa: Isa,
        *,
        progress: Progress | None = None,
        arrangements: Arrangements | None = None,
        lowering: LoweredPartition | None = None,
        has_rows: bool = True,
    ) -> PlacedModel:
        """Lower a program for an instruction set and give every tensor its address; nothing is compiled.

        `lowering` is that of the program's partition, where another schedule of it was lowered before; see
        `lower_partition` for `has_rows`.

        Raises:
            UnsupportedOp: a node that this target declines.
            BudgetExceeded: the arena would be larger than `options.max_memory_bytes`.
        """
        graph, options = program.graph, program.options
        for node in graph.nodes:
            require_supported(self, node)
        if lowering is None:
            lowering = lower_partition(
                program.partition, isa, progress, accuracy=options.accuracy, has_rows=has_rows
            )
        lowered = arrange(lowering, program.schedule, self.barriers)
        problem, names = memory_problem(lowered, graph, options.max_memory_bytes)
        with MEMORY_PLANNERS.using(program.recipe.memory) as planner:
            plan = planner.solve(problem, options.search_budget)
        if isinstance(plan, Infeasible):
            raise BudgetExceeded(str(plan))

        def check(plan: MemoryPlan) -> Sequence[object]:
            violations = check_memory(problem, plan)
            if violations or not lowered.has_concurrency:
                return violations
            return check_places(lowered, {root: plan.offsets[name] for root, name in names.items()})

        plan = MEMORY_PLANNERS.verified(program.recipe.memory, plan, MemoryPlan, check)
        bases = {v: FIRST_CALLER_BASE + i for i, v in enumerate(graph.inputs)}
        for position, value in enumerate(graph.outputs):
            bases.setdefault(value, FIRST_CALLER_BASE + len(graph.inputs) + position)
        weights = Weights(arrangements)
        homes, reports = caller_homes(lowered, graph), place_reports(lowered, arena_bytes(plan.peak_bytes))
        rows_base = FIRST_CALLER_BASE + len(graph.inputs) + len(graph.outputs)
        placement = Placement(lowered, bases, plan.offsets, names, homes, weights, reports, rows_base)
        steps, host_steps = main_steps(lowered, placement)
        program = program.with_partition(lowering.partition)
        return PlacedModel(program, lowered, tuple(steps), tuple(host_steps), weights, plan, problem)


@dataclass(frozen=True, slots=True)
class EmittingTarget(CpuTarget):
    """The processor of another machine, which code is made for that does not run here."""

    record: Isa = field(kw_only=True)

    def isa(self, options: Options) -> Isa:
        """What the code may use, which this host need not have."""
        return self.record

    def code_here(self, code: CpuCode) -> CpuCode:
        """The same program with what this host has, as accurate as can be."""
        if self.record.runs_on_host:
            return code
        options = replace(code.program.options, isa=None, accuracy="strict")
        return CpuTarget(self.barriers).generate(replace(code.program.unmeasured(), options=options))

    def tuned(self, program: Program) -> PlacedModel:
        """The program as measurements on machines of its own found it best, where there are any."""
        placed = self.place(program, self.record)
        info = stored_tuning(self, Untuned(placed.program, self.record, placed.lowered))
        if info is None or not info.changes:
            return placed
        tuned = replace(placed.program.with_forms(info.forms), tuned=tuple(info.lines()))
        return self.place(tuned, self.record)


def _object_cache(options: Options) -> ObjectCache | None:
    return None if options.no_cache else ObjectCache(options.cache_dir or default_cache_directory())


class CpuBackend(Backend):
    """Kernels are lowered before values are placed: only then is known what memory they need."""

    def __init__(self, target: CpuTarget, graph: Graph, options: Options) -> None:
        super().__init__(target, graph, options)
        self.cpu = target
        self.isa = target.isa(options)
        self._fuse = FusedNodes()
        self._kernels: dict[Partition, LoweredPartition] = {}
        self._placed: dict[Schedule, PlacedModel] = {}
        self._unformed: dict[Partition, tuple[PartitionProblem, Partition]] = {}  # what forms were chosen for

    @cached_property
    def limits(self) -> Limits:  # type: ignore[override]
        """The threads of a run are the cores that groups share: on a single one there is one group."""
        num_cores = resolve_threads(self.options.num_threads)
        most_groups = Backend.limits.num_groups if num_cores > 1 else 1
        return replace(Backend.limits, num_cores=num_cores, num_groups=most_groups)

    @cached_property
    def costs(self) -> CpuCosts:  # type: ignore[override]
        """What the templates estimate, on the threads that a run has."""
        num_cores = self.limits.num_cores
        accuracy, barriers = self.options.accuracy, self.cpu.barriers
        facts = self.graph, self.cpu.machine, self.isa, num_cores, accuracy, self._fuse, barriers
        if self.cpu.energies is None:
            return CpuCosts(*facts)
        return CpuEnergyCosts(*facts, energies=EnergyTable.read(self.cpu.energies))

    def refine(
        self, problem: PartitionProblem, partition: Partition, *, progress: Progress | None = None
    ) -> Partition:
        """Each subgraph gets its form; those that one kernel is estimated to compute faster become one.

        All are lowered, which no schedule changes, so that from now on they cost what their kernels do.
        """
        refined = self._formed(problem, choose_forms(problem, partition, self.costs.blocks), progress)
        self._unformed[refined] = problem, partition
        return refined

    def _formed(
        self, problem: PartitionProblem, partition: Partition, progress: Progress | None = None
    ) -> Partition:
        """A partition with forms, lowered."""
        subgraphs = tuple(replace(subgraph) for subgraph in partition.subgraphs)
        partition = replace(partition, subgraphs=subgraphs)
        return self._noted(problem, partition, self._lower(partition, progress))

    def _noted(
        self, problem: PartitionProblem, partition: Partition, lowering: LoweredPartition
    ) -> Partition:
        """The partition at the costs of its kernels, which are remembered."""
        self.costs.lowered(partition.subgraphs, lowering.work)
        is_cut_off = partition.quality.status is Status.CUT_OFF
        quality = problem.quality_of(partition.subgraphs, cut_off=is_cut_off)
        price = priced_at(quality)
        partition = replace(partition, price=price)
        self._kernels[partition] = replace(lowering, partition=replace(lowering.partition, price=price))
        return partition

    def recipes(self, partition: Callable[[str], Partition]) -> Iterable[Recipe]:
        """Kernel after kernel; and side by side what may be, where the estimate is sure that it pays."""
        yield PLAIN_RECIPE
        plain = partition(PLAIN_RECIPE.partition)
        side_by_side = self._side_by_side(plain)
        if side_by_side is not None:
            sequential_ns = sum(self.costs.kernel(subgraph).time_ns for subgraph in plain.subgraphs)
            if side_by_side.quality.cost < (1 - MIN_ESTIMATED_GAIN) * sequential_ns:
                yield _SIDE_BY_SIDE

    def _side_by_side(self, partition: Partition) -> Schedule | None:
        """The schedule in which stages run what they can; None where nothing can run beside anything."""
        if all(len(partition.successors(subgraph)) <= 1 for subgraph in partition.subgraphs):
            return None
        problem = ScheduleProblem(partition, cost=self.costs, limits=self.limits, seed=self.options.seed)
        schedule = SCHEDULERS.get(_SIDE_BY_SIDE.schedule).solve(problem, self.options.search_budget)
        if isinstance(schedule, Infeasible) or len(schedule.stages) == len(partition.subgraphs):
            return None
        return schedule

    def improve(
        self,
        best: Program,
        make: MakeProgram,
        budget: Budget,
        *,
        seeds: Iterable[Partition | Schedule] = (),
        default: Program | None = None,
        progress: Progress | None = None,
    ) -> Improved:
        """Another recipe instead, or other fused blocks, if that wins a race of whole models, which takes a
        share of the budget.

        With a `default`, the plan of least estimate is one of those that have to win against it.
        """
        best, cheapest = default or best, best
        others = [] if _is_same(best, cheapest) else [cheapest]
        if self.options.frozen or not self.isa.runs_on_host:
            return Improved(best)
        if not (best.graph is not self.graph or self._side_by_side(best.partition) is None):
            others += (other for other in self._others(best, make) if not _is_same(other, cheapest))
        seconds = _RACE_S if budget.deadline_s is None else _RACE_SHARE * budget.deadline_s
        try:
            blocks = self._with_raced_blocks(best, make, seconds, progress)
            others += [] if blocks is None or any(_is_same(blocks, p) for p in (best, *others)) else [blocks]
            if not others:
                return Improved(best)
            with contextlib.ExitStack() as stack:
                executables = [
                    self.generate(program, progress=progress).load(self.options.num_threads)
                    for program in (best, *others)
                ]
                for executable in executables:
                    stack.callback(executable.close)
                incumbent_ns, *others_ns = race(executables, random_feed(best), seconds)
        except (InputError, ModelRejected, UnsupportedOp, UsageError) as error:
            logger.warning("schedules were not compared by measurement: %s", error)
            return Improved(best)
        names = (f"{p.recipe}, fused by measurement" if p is blocks else str(p.recipe) for p in others)
        attempts = tuple(
            Attempt(f"{name}, raced", p.schedule.quality.cost) for name, p in zip(names, others, strict=True)
        )
        times_ns = zip(others, others_ns, strict=True)
        faster = [(median(ns), other) for other, ns in times_ns if is_faster(ns, incumbent_ns)]
        return Improved(min(faster, key=lambda pair: pair[0])[1] if faster else best, attempts)

    def _with_raced_blocks(
        self, best: Program, make: MakeProgram, seconds: float, progress: Progress | None
    ) -> Program | None:
        """The plan with the fused blocks that a race finds fastest, region by region, of choices that are
        ready in so many seconds; None where that is one, or weights are too large to be loaded for each."""
        if best.partition not in self._unformed or best.recipe.schedule != PLAIN_RECIPE.schedule:
            return None
        problem, partition = self._unformed[best.partition]
        started_s = time.monotonic()
        cuts = Cuts.of(problem, partition, self.costs.blocks)
        arrangements = Arrangements(MAX_WEIGHT_BYTES)

        def planned(groups: Sequence[Group]) -> Program:
            return make(self._formed(problem, cuts.partition(groups), progress), best.recipe)

        codes: list[CpuCode] = []
        for groups in cuts.choices if len(cuts.choices) > 1 else ():
            codes.append(self._measured_code(arrangements, planned(groups), self.options, stamps=True))
            if codes[0].weight_bytes * len(cuts.choices) > MAX_WEIGHT_BYTES:
                return None
            if time.monotonic() - started_s > seconds:
                break
        if len(codes) < 2:
            return None
        return planned(fastest_groups(cuts, codes, random_feed(best), seconds))

    def _others(self, best: Program, make: MakeProgram) -> list[Program]:
        """What a plan is raced against: other recipes, as far as they come to other schedules."""
        programs = [best]
        for recipe in (PLAIN_RECIPE, _SIDE_BY_SIDE, _STAGES):
            if recipe == best.recipe:
                continue
            other = make(best.partition, recipe)
            if not any(_is_same(known, other) for known in programs):
                programs.append(other)
        return programs[1:]

    def place(self, program: Program, *, progress: Progress | None = None) -> base.Placement:
        """Lower the partition, once for all its schedules, and place its tensors in one arena."""
        if program.schedule not in self._placed:
            lowering = self._lowered(program.partition, progress)
            placed = self.cpu.place(program, self.isa, progress=progress, lowering=lowering)
            self._placed[program.schedule] = placed
        placed = self._placed[program.schedule]
        return base.Placement(placed.problem, placed.memory)

    def rewritten(
        self, problem: PartitionProblem, partition: Partition, *, progress: Progress | None = None
    ) -> Partition:
        """Lowered, so that it costs what its kernels do."""
        return self._noted(problem, partition, self._lower(partition, progress))

    def _lowered(self, partition: Partition, progress: Progress | None) -> LoweredPartition:
        if partition not in self._kernels:
            self._kernels[partition] = self._lower(partition, progress)
        return self._kernels[partition]

    def _lower(self, partition: Partition, progress: Progress | None) -> LoweredPartition:
        for node in partition.graph.nodes:
            require_supported(self.cpu, node)
        return lower_partition(partition, self.isa, progress, accuracy=self.options.accuracy, fuse=self._fuse)

    def generate(self, program: Program, *, progress: Progress | None = None) -> CpuCode:
        """Compile a program; another's plan is lowered and placed first."""
        require_valid_program(program)
        return self.cpu.generate(program, progress=progress, placed=self._placed.get(program.schedule))

    def stage_bench(self, partition: Partition, make: base.MakeOfStages) -> StageBench | None:
        """Runs whole models in a process of their own; none where the cache is frozen, or for code that does
        not run here."""
        if self.options.frozen or not self.isa.runs_on_host:
            return None
        return CpuStageBench(
            partition,
            self.cpu.barriers,
            context_on(self.isa, self.options.accuracy, self.limits.num_cores),
            lambda placed_for: self._lowered(placed_for, None),
            make,
            functools.partial(self._measured_code, Arrangements(MAX_WEIGHT_BYTES)),
            None if self.options.no_cache else self.options.cache_dir or default_cache_directory(),
        )

    def _measured_code(
        self, arrangements: Arrangements, program: Program, options: Options, *, stamps: bool
    ) -> CpuCode:
        """Code of a program that is only measured: it is not kept, but for its rearranged constants."""
        placed = self._placed.pop(program.schedule)
        placed = replace(placed, weights=placed.weights.sharing(arrangements))
        return self.cpu.generate(replace(program, options=options), profile=stamps, placed=placed)

    def tune(
        self,
        code: Any,
        settings: TuningSettings = STORED_TUNING,
        *,
        progress: Progress | None = None,
        meter: Meter | None = None,
    ) -> TuningInfo | None:
        """Measure how to make the kernels."""
        return tune(self.cpu, code, settings, progress=progress or _silent, meter=meter)


def _is_same(one: Program, other: Program) -> bool:
    """Whether two programs run the same kernels in the same stages."""
    if one.graph is not other.graph or one.schedule.stages != other.schedule.stages:
        return False
    kernels = ([(s.nodes, s.form) for s in program.partition.subgraphs] for program in (one, other))
    return next(kernels) == next(kernels)


def _silent(what: str, done: int, total: int) -> None:
    pass
