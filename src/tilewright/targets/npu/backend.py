"""One network on one accelerator: what plans of it cost, which are worth trying, and their simulation."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import TypeVar

from tilewright.cost.base import Estimate
from tilewright.cost.energy import EnergyTable
from tilewright.errors import BudgetExceeded, Outclassed
from tilewright.families import MEMORY_PLANNERS
from tilewright.hardware.capacity import local_capacity_bytes
from tilewright.hardware.element_types import ElementTypes
from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.region import Region, volume
from tilewright.joint.launched.content import Numbered
from tilewright.known_facts import KnownFacts
from tilewright.memory.base import MemoryPlan, MemoryPlanner
from tilewright.memory.check import check_memory
from tilewright.memory.scopes import ScopePlan
from tilewright.options import Options
from tilewright.partition.base import Partition
from tilewright.partition.split import Split
from tilewright.planning import UNLIMITED, Budget, Limits, Meter, Provenance, Quality, Rule, Spec, Status
from tilewright.planning.checking import require_right
from tilewright.planning.member_options import with_options
from tilewright.planning.portfolio import Recipe
from tilewright.program import Program
from tilewright.progress import Progress, after_the_end
from tilewright.schedule.base import PriceSchedule, Schedule, Stage
from tilewright.schedule.binding import Scope
from tilewright.schedule.core_groups import CoreGroups, core_groups_of
from tilewright.schedule.instances import InstanceGraph, Kind
from tilewright.schedule.launches import Launch, launches_of
from tilewright.schedule.scheduled import instances_of
from tilewright.steps import MemoryInfo
from tilewright.system.gc_tuning import collected_rarely
from tilewright.targets.base import (
    Backend,
    Improved,
    LaunchedParts,
    MakeProgram,
    Placement,
    Target,
)
from tilewright.targets.npu.box_bound import bound_in_time
from tilewright.targets.npu.check_plan import check_plan
from tilewright.targets.npu.code import NpuCode
from tilewright.targets.npu.costs import SOURCE, UNPRICED, NpuCosts, estimate_of
from tilewright.targets.npu.layer_times import LayerTimes
from tilewright.targets.npu.mapped_products import MappedBy
from tilewright.targets.npu.names import Names
from tilewright.targets.npu.nest_judge import NestJudge, improved
from tilewright.targets.npu.plan import SimulatedPlan, simulated, simulated_order
from tilewright.targets.npu.policy import Launching
from tilewright.targets.npu.recipes import GRAPHTURBO, for_less_memory, worth_trying
from tilewright.targets.npu.simulate import Policy, Simulation
from tilewright.targets.npu.tile_mapping import MapperName
from tilewright.targets.npu.tiles import Tiler
from tilewright.targets.npu.tilings import JointTilings
from tilewright.targets.npu.variants import BY_RULE, PlanFigures, Variants
from tilewright.targets.npu.work import Works
from tilewright.targets.validate import require_valid_program

_T = TypeVar("_T")


class NpuBackend(Backend):
    """A plan is simulated once, under whatever names it is asked for."""

    default_recipe = GRAPHTURBO
    types: ElementTypes

    def __init__(
        self,
        target: Target,
        machine: Machine,
        types: ElementTypes,
        policy_of: Callable[[str], Policy],
        tiler_of: Callable[[str], Tiler],
        mapper: MapperName,
        mapped_by: MappedBy,
        graph: Graph,
        options: Options,
    ) -> None:
        super().__init__(target, graph, options)
        self.machine, self.types, self._policy_of = machine, types, policy_of
        self._tiler_of, self._mapper = functools.cache(tiler_of), mapper
        self.works = Works(machine, types, mapped_by)
        self._has_energies = EnergyTable.of(machine).missing is None
        source = f"{SOURCE}, energies by model:{machine.name}" if self._has_energies else SOURCE
        self.costs = NpuCosts(
            machine, self.works, self.analysis.maps, self._part_simulation, policy_of(""), source
        )
        self.runs_lanes = policy_of("").launches == "each subgraph"
        self._variants = Variants(machine, is_launched=self.runs_lanes)
        num_cores = machine.num_cores_per_cluster
        self.limits = Limits(num_cores, options.max_memory_bytes, num_cores)
        # The last ones, and of all of them what they cost and how full buffers get.
        self._instances: OrderedDict[Hashable, InstanceGraph] = OrderedDict()
        self._plans: OrderedDict[Hashable, SimulatedPlan] = OrderedDict()
        self._scopes: OrderedDict[Hashable, ScopePlan] = OrderedDict()
        self._right: set[Hashable] = set()  # which plans were checked
        self._first_check: tuple[float, int] | None = None  # what it took, and runs of units that it is of
        self._known_steps, self._nodes = KnownFacts(), frozenset(graph.nodes)
        self._estimates: dict[Hashable, Estimate] = {}
        self._figures_of_plans: dict[Hashable, PlanFigures] = {}
        self._outclassed: dict[Hashable, Outclassed] = {}
        self._taken: dict[Recipe, str] = {}  # of two orders that a recipe asks for
        self._least_by_blocks: dict[bool, dict[str, float]] = {}
        self._least_s = inf  # of all plans so far that memory is large enough for
        self._least_judged = inf  # what a plan of a search over kernels costs
        self._figures: dict[Recipe, PlanFigures] = {}

    def without_searches(self) -> tuple[str, Backend]:
        """With GraphTurbo's rule in place of searches for mappings."""
        target = with_options(self.target, Spec.parse(f"npu{{{BY_RULE}}}"))
        return BY_RULE, target.backend(self.graph, self.options)

    @property
    def num_simulated(self) -> int:
        """How many plans that differ were simulated."""
        return len(self._estimates)

    def price(self, recipe: Recipe, *, only_better: bool = False) -> PriceSchedule:
        """The simulated time and energy of a whole schedule: units overlap what stages do.

        With `only_better`, where time is the objective, a schedule that is seen to take more than one before
        is `Outclassed`.
        """

        def estimate(partition: Partition, stages: Sequence[Stage], splits: Sequence[Split]) -> Estimate:
            provenance = Provenance("to be priced")
            schedule = Schedule(partition, tuple(stages), UNPRICED, provenance, tuple(splits))
            is_latency = self.options.objective == "latency"
            most_s = self._least_s if only_better and is_latency else inf
            return self._estimates[self._simulate(schedule, recipe, is_known=True, most_s=most_s)]

        return estimate

    @property
    def launched_parts(self) -> LaunchedParts | None:
        """Parts are simulated alone; in one program their units overlap."""
        if self._policy_of("").launches != "each subgraph" or self.options.objective != "latency":
            return None

        def priced(memory: str) -> PriceSchedule:
            placer = MEMORY_PLANNERS.get(memory)

            def estimate(partition: Partition, stages: Sequence[Stage], splits: Sequence[Split]) -> Estimate:
                schedule = Schedule(partition, tuple(stages), UNPRICED, Provenance(SOURCE), tuple(splits))
                simulation = self._part_simulation(schedule, is_launched=True, memory=placer)
                return estimate_of(simulation, has_energies=self._has_energies)

            return estimate

        overheads = self.machine.overheads
        times = LayerTimes(self.works, self.graph, self.analysis.maps)
        return LaunchedParts(
            priced,
            overheads.kernel_launch_ns,
            overheads.join_ns,
            self._floors_ns,
            times.of,
            self.works.cores_worth,
            self._tilings.of,
        )

    @cached_property
    def _tilings(self) -> JointTilings:
        def bytes_of(value: Value, region: Region) -> int:
            return volume(region) * self.types.stored(value.dtype).size_bytes

        return JointTilings(self.works, self.machine, bytes_of)

    def _floors_ns(self) -> tuple[float, ...]:
        """Of the unit that has most to do, what it does for each node."""
        seconds: dict[str, dict[Node, float]] = {}
        graph, maps = self.graph, self.analysis.maps
        for node, works in self.works.least_of_nodes(graph.nodes, graph.outputs, maps, in_blocks=True):
            for work in works:
                of_unit = seconds.setdefault(work.unit, {})
                of_unit[node] = of_unit.get(node, 0.0) + work.seconds
        busiest = max(seconds.values(), key=lambda of_unit: sum(of_unit.values()), default={})
        return tuple(busiest.get(node, 0.0) * 1e9 for node in self.graph.nodes)

    def recipes(self, partition: Callable[[str], Partition]) -> Iterable[Recipe]:
        """The paper's own first."""
        return worth_trying(partition, self.analysis, local_capacity_bytes(self.machine))

    @property
    def first_partitions(self) -> Sequence[str]:
        """Those that plan with less of the cores' buffers, where there are several samples, of which slices
        then hold fewer."""
        return () if self.graph.num_samples == 1 else for_less_memory(local_capacity_bytes(self.machine))

    def variants(self, best: Recipe) -> Iterable[Recipe]:
        """Others that place and run a plan otherwise, and may be better for what is known of it."""
        figures = self._figures.get(best)
        return () if figures is None else self._variants.of(best, figures, self._taken)

    def placements(self, recipe: Recipe) -> Iterable[Recipe]:
        """Another rule of what leaves a full buffer, where something does; other mappers, where layers are
        tiled by one."""
        figures = self._figures.get(recipe)
        return () if figures is None else self._variants.placements(recipe, figures, self._mapper)

    def planned_memory(self, program: Program) -> MemoryInfo | None:
        """Where a program's values lie, by the names of the machine's file."""
        memory = super().planned_memory(program)
        return None if memory is None else Names.of(self.machine).memory(memory)

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
        """A search over kernels, slices, orders and places; none on a graph that merging made."""
        if best.graph is not self.graph:
            return Improved(best)
        judge, ways = self.nest_judge, self._variants.ways(best.recipe)

        def check(program: Program) -> SimulatedPlan:
            return self.plan(program.schedule, program.recipe)

        is_joint = self.options.plan == "joint" and self.options.objective == "latency"
        is_bounded = is_joint and not self.runs_lanes  # kernels that are launched have bounds of their own
        most_s, whole = None, Budget(UNLIMITED, deadline_s=budget.deadline_s).start()
        if is_bounded and budget.deadline_s is not None:
            most_s = _SHARE_OF_BOUND * budget.deadline_s
            budget = replace(budget, deadline_s=budget.deadline_s - most_s)
        found = improved(judge, best, seeds, make, check, self._more_to_check_s, budget, ways, progress)
        if most_s is not None and whole.left_s is not None:  # the check of what was found may take long
            most_s = min(most_s, whole.left_s)
        if not is_bounded or (most_s is not None and most_s < _LEAST_OF_BOUND_S):
            return found
        most = min(_BOXES_OF_TRIAL * budget.max_evaluations, UNLIMITED)
        meter = Budget(most, deadline_s=most_s).start(is_interruptible=True)
        with after_the_end(meter):
            return replace(found, program=self._bounded(found.program, meter))

    def _bounded(self, program: Program, meter: Meter) -> Program:
        """A program with the highest bound that is there in time of plans whose layers are computed in grids
        of boxes, or whose work waits as in this one, if it is higher."""
        plan, quality = self.plan(program.schedule, program.recipe), program.schedule.quality
        bound = bound_in_time(plan, self.works, self.graph, meter)
        if bound is None or bound.value <= quality.highest.value:
            return program
        if program.recipe.execution.startswith(BY_RULE):  # by searched mappings boxes may take less
            bound = replace(bound, space=bound.space.keeping(Rule(f"with {BY_RULE}")))
        cut_off = quality.status is Status.CUT_OFF
        quality = Quality.of(quality.cost, *quality.bounds, bound, unit=quality.unit, cut_off=cut_off)
        return replace(program, schedule=replace(program.schedule, quality=quality))

    @functools.cached_property
    def nest_judge(self) -> NestJudge:
        """What prices plans of the search over kernels, slices, orders and places."""
        numbered, seed = Numbered(self.graph), self.options.seed
        return NestJudge(self.partition_problem, numbered, self.types, self.works, self._judged, seed)

    def _judged(
        self, schedule: Schedule, recipe: Recipe, most: float, known: InstanceGraph | None = None
    ) -> tuple[SimulatedPlan, float]:
        """A plan of a schedule and its cost, with its instances if they are known. What costs least so far is
        kept, as a program is made of it; a plan that is kept is not simulated again.

        Raises:
            Outclassed: it costs more than `most`.
            InfeasibleMapping: it fits nowhere.
            BudgetExceeded: main memory holds too much.
        """
        instances, order = instances_of(schedule, self.types, known, self.analysis.maps)
        most_s = most * 1e-9 if self.options.objective == "latency" else inf
        ran = self._ran(schedule, instances, recipe)
        key = _key_of(schedule, order, ran, recipe)
        planned = self._plans.get(key)
        if planned is None:
            planned = self._simulated(instances, order, ran, recipe, most_s)
        self._require_memory(planned.scopes)
        cost = estimate_of(planned.simulation, has_energies=self._has_energies).cost(self.options.objective)
        if cost < self._least_judged:
            self._least_judged = cost
            self._keep_plan(key, planned, recipe)
        return planned, cost

    def _ran(
        self, schedule: Schedule, instances: InstanceGraph, recipe: Recipe
    ) -> tuple[Sequence[Launch], CoreGroups | None]:
        """The kernels of a schedule, or the groups of cores that run its one program, if there are some."""
        if self._policy_of(recipe.execution).launches == "each subgraph":
            return launches_of(schedule, instances), None
        return (), core_groups_of(schedule, instances, self.machine.num_cores_per_cluster)

    def _simulated(
        self,
        instances: InstanceGraph,
        order: Sequence[int],
        ran: tuple[Sequence[Launch], CoreGroups | None],
        recipe: Recipe,
        most_s: float,
    ) -> SimulatedPlan:
        """Instances in an order, placed and run as a recipe says, checked if all plans are.

        Raises:
            Outclassed: they take more than `most_s`.
        """
        policy, (launches, cores) = self._policy_of(recipe.execution), ran
        planned = simulated_order(
            instances,
            order,
            self.machine,
            self.types,
            MEMORY_PLANNERS.get(recipe.memory),
            policy,
            self._least_seconds(policy.launches),
            launches,
            self._tiler_of(recipe.execution),
            most_s,
            cores,
            self.works,
            known=self._known_steps,
        )
        if self.options.verify:
            self._require_right(planned, recipe)
        return planned

    def place(self, program: Program, *, progress: Progress | None = None) -> Placement:
        """Which buffers live in which level, from when to when.

        Raises:
            BudgetExceeded: more lies in main memory than `options.max_memory_bytes`.
        """
        key = self._simulate(program.schedule, program.recipe, is_known=True)
        if key not in self._scopes:
            self._simulate(program.schedule, program.recipe)
        scopes = self._scopes[key]
        if program.recipe.schedule == GRAPHTURBO.schedule:
            self._taken[program.recipe] = program.schedule.provenance.note
        self._require_memory(scopes)
        return Placement(scopes.timeline.problem, scopes.memory)

    def _require_memory(self, scopes: ScopePlan) -> None:
        needed, most = scopes.levels[Scope.MAIN].peak_bytes, self.options.max_memory_bytes
        if most is not None and needed > most:
            raise BudgetExceeded(
                f"main memory holds {needed} bytes of values but may hold {most}. "
                "Try a larger --max-memory or a smaller batch."
            )

    def generate(self, program: Program, *, progress: Progress | None = None) -> NpuCode:
        """The simulated plan."""
        planned = self.plan(program.schedule, program.recipe)
        require_valid_program(program, allows_slices=True)
        return NpuCode(program, planned, self.machine)

    def plan(self, schedule: Schedule, recipe: Recipe) -> SimulatedPlan:
        """Bind, place, simulate and check a schedule.

        Raises:
            InfeasibleMapping: it fits nowhere; names level and bytes.
            InternalError: the plan is wrong.
        """
        key = self._simulate(schedule, recipe)
        planned = self._plans[key]
        if not self.options.verify and key not in self._right:  # else each was checked when it was made
            clock = Budget().start().clock
            start_s = clock()
            self._require_right(planned, recipe)
            self._right.add(key)
            self._first_check = self._first_check or (clock() - start_s, len(planned.simulation.runs))
        return planned

    def _more_to_check_s(self, num_runs: int) -> float:
        """How much longer a plan of so many runs of units takes to check than the first one, for which time
        is set aside; negative where it takes less."""
        if self._first_check is None:
            return 0.0
        took_s, first_runs = self._first_check
        return took_s * (num_runs / max(1, first_runs) - 1)

    def _require_right(self, planned: SimulatedPlan, recipe: Recipe) -> None:
        """Refuse a plan in which a checker finds a fault; one of its places is the memory planner's."""
        scopes = planned.scopes
        MEMORY_PLANNERS.verified(
            recipe.memory, scopes.memory, MemoryPlan, lambda plan: check_memory(scopes.timeline.problem, plan)
        )
        what = f"the plan {str(recipe)!r} of {self.graph.name!r} on {self.machine.name}"
        with collected_rarely():  # a run has thousands of parts
            require_right(what, lambda: check_plan(planned, self.machine))

    def _simulate(
        self, schedule: Schedule, recipe: Recipe, is_known: bool = False, most_s: float = inf
    ) -> Hashable:
        """The key of a schedule's plan, which is there afterwards; if `is_known`, its cost and places are.

        Raises:
            Outclassed: it takes more than `most_s`.
        """
        cut, maps = _cut_of(schedule), self.analysis.maps
        instances, order = instances_of(schedule, self.types, self._instances.get(cut), maps)
        _keep(self._instances, cut, instances, _NUM_PLACED_KEPT)
        ran = self._ran(schedule, instances, recipe)
        key = _key_of(schedule, order, ran, recipe)
        if key in self._plans or (is_known and key in self._estimates):
            self._figures[recipe] = self._figures_of_plans[key]
            return key
        if key in self._outclassed and most_s < inf:
            raise self._outclassed[key]
        try:
            planned = self._simulated(instances, order, ran, recipe, most_s)
        except Outclassed as error:
            self._outclassed[key] = Outclassed(str(error))
            raise
        levels, most_bytes = planned.scopes.levels, self.options.max_memory_bytes
        if most_bytes is None or levels[Scope.MAIN].peak_bytes <= most_bytes:
            self._least_s = min(self._least_s, planned.simulation.time_s)
        self._keep_plan(key, planned, recipe)
        return key

    def _keep_plan(self, key: Hashable, planned: SimulatedPlan, recipe: Recipe) -> None:
        """Know a plan again: what it costs, where values lie, and, for a while, all of it."""
        levels = planned.scopes.levels
        _keep(self._plans, key, planned, _NUM_PLANS_KEPT)
        _keep(self._scopes, key, planned.scopes, _NUM_PLACED_KEPT)
        self._figures[recipe] = self._figures_of_plans[key] = PlanFigures(
            levels[Scope.LOCAL].peak_bytes,
            levels[Scope.SHARED].peak_bytes,
            planned.scopes.spilled_bytes,
            is_mapped=any(s.tiling.bound_s > 0 or s.tiling.is_mapped for s in planned.simulation.steps),
            is_waiting=self._waits(planned, self._policy_of(recipe.execution)),
        )
        self._estimates[key] = estimate_of(planned.simulation, has_energies=self._has_energies)

    def _waits(self, planned: SimulatedPlan, policy: Policy) -> bool:
        """Whether one program runs subgraphs nearly whole on all of several cores, and every unit waits at
        times: more instances are then nothing new, and nothing is faster than a unit that never waits."""
        in_groups = planned.bindings.cores is not None
        if in_groups or policy.launches != "once" or self.machine.num_cores_per_cluster == 1:
            return False
        num_instances = sum(node.kind is Kind.INSTANCE for node in planned.instances.nodes)
        is_busy = max(planned.simulation.utilization.values(), default=1.0) >= _BUSY
        return not is_busy and num_instances < _FEW_INSTANCES * len(planned.partition.subgraphs)

    def _least_seconds(self, launches: Launching) -> dict[str, float]:
        """Of all plans that launch kernels so."""
        in_blocks = launches == "each subgraph"
        if in_blocks not in self._least_by_blocks:
            self._least_by_blocks[in_blocks] = self.works.least_seconds(
                self.graph, self.analysis.maps, converts=self.types.keeps_border, in_blocks=in_blocks
            )
        return self._least_by_blocks[in_blocks]

    def _part_simulation(
        self, schedule: Schedule, is_launched: bool, memory: MemoryPlanner | None = None
    ) -> Simulation:
        # Of a part only what it says are the network's inputs and results lie as the file's types say.
        is_border = is_launched and bool(schedule.partition.border)
        types, policy = self.types if is_border else self.types.inside, self._policy_of("")
        maps, known = self.analysis.maps, self._known_steps
        if schedule.partition.graph.nodes[0] not in self._nodes:  # it was rewritten
            maps, known = maps.of_copies(), KnownFacts()
        if not is_launched:
            return simulated(
                schedule,
                self.machine,
                policy=policy,
                types=types,
                tiler=self._tiler_of(""),
                maps=maps,
                works=self.works,
            ).simulation
        # Its bound is not asked for: company makes no kernel faster.
        policy = replace(policy, launches="each subgraph")
        instances, order = instances_of(schedule, types, maps=maps)
        launches = launches_of(schedule, instances)
        return simulated_order(
            instances,
            order,
            self.machine,
            types,
            memory,
            policy=policy,
            least_seconds={},
            launches=launches,
            tiler=self._tiler_of(""),
            works=self.works,
            known=known,
            keeps="tasks" if len(launches) == 1 else "runs",
        ).simulation


_BOXES_OF_TRIAL = 4
"""Boxes that are mapped for a bound, for each trial of a budget that counts these."""
_SHARE_OF_BOUND = 0.1
"""Of the time of a search, which ends so much earlier, at most for the bound of its plan behind it."""
_LEAST_OF_BOUND_S = 0.1
"""In less time no such bound is found, and the looks at the clock are too far apart."""
_FEW_INSTANCES, _BUSY = 2, 0.9
"""Programs on groups of cores are tried where subgraphs have fewer instances, the busiest unit less work."""

_NUM_PLANS_KEPT, _NUM_PLACED_KEPT = 4, 16
"""Whole plans with all their runs, which take megabytes, and instances with their places, which take less; of
the others the estimates are kept. A search makes thousands."""


def _cut_of(schedule: Schedule) -> Hashable:
    """What decides the instances of a schedule: layers and slices, whatever was planned for."""
    partition = schedule.partition
    layers = tuple(tuple(x.nodes for x in partition.layers_of(s)) for s in partition.subgraphs)
    return layers, schedule.splits, partition.in_place


def _key_of(
    schedule: Schedule, order: Sequence[int], ran: tuple[Sequence[Launch], CoreGroups | None], recipe: Recipe
) -> Hashable:
    """What decides the simulated plan of a schedule: equal keys are of one plan."""
    return _cut_of(schedule), tuple(order), ran, recipe.memory, recipe.execution


def _keep(cache: OrderedDict[Hashable, _T], key: Hashable, item: _T, most: int) -> None:
    """Adds an item, or uses it again, and forgets what was not used for longest."""
    cache[key] = item
    cache.move_to_end(key)
    while len(cache) > most:
        cache.popitem(last=False)
