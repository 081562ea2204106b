"""One network on one accelerator: what plans of it cost, which are worth trying, and their simulation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from tilewright.cost.base import Estimate
from tilewright.errors import BudgetExceeded
from tilewright.families import MEMORY_PLANNERS
from tilewright.hardware.element_types import ElementTypes
from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.partition.base import Partition
from tilewright.partition.split import Split
from tilewright.planning import Budget, Limits, Provenance, Quality, Status
from tilewright.planning.portfolio import Recipe
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.schedule.base import PriceSchedule, Schedule, Stage
from tilewright.schedule.binding import Scope
from tilewright.schedule.instances import InstanceGraph
from tilewright.schedule.launches import launches_of
from tilewright.schedule.scheduled import instances_of
from tilewright.targets.base import Improved, MakeProgram, Placement, PlainBackend, Target
from tilewright.targets.npu.code import NpuCode
from tilewright.targets.npu.costs import NpuCosts, estimate_of
from tilewright.targets.npu.plan import SimulatedPlan, simulated, simulated_order
from tilewright.targets.npu.recipes import GRAPHTURBO, MEMORY, worth_trying
from tilewright.targets.npu.search import search
from tilewright.targets.npu.simulate import Policy, Simulation
from tilewright.targets.npu.work import Works


class NpuBackend(PlainBackend):
    """A plan is simulated once, whoever asks for it first, and under whatever names."""

    default_recipe = GRAPHTURBO
    types: ElementTypes

    def __init__(
        self,
        target: Target,
        machine: Machine,
        types: ElementTypes,
        policy: Policy,
        graph: Graph,
        options: Options,
    ) -> None:
        super().__init__(target, graph, options)
        self.machine, self.types, self.policy = machine, types, policy
        self.works = Works(machine, types)
        self.costs = NpuCosts(machine, self.works, self.analysis.maps, self._part_simulation)
        self.limits = Limits(num_groups=machine.num_cores_per_cluster, memory_bytes=options.max_memory_bytes)
        self._instances: dict[Hashable, InstanceGraph] = {}
        self._plans: dict[Hashable, SimulatedPlan] = {}

    @property
    def num_simulated(self) -> int:
        """How many plans that differ were simulated."""
        return len(self._plans)

    def price(self, recipe: Recipe) -> PriceSchedule:
        """The simulated time and energy of a whole schedule: units overlap what stages do."""

        def estimate(partition: Partition, stages: Sequence[Stage], splits: Sequence[Split]) -> Estimate:
            provenance = Provenance("to be priced")
            schedule = Schedule(partition, tuple(stages), _UNPRICED, provenance, tuple(splits))
            return estimate_of(self.plan(schedule, recipe.memory).simulation)

        return estimate

    def recipes(self, partition: Callable[[str], Partition]) -> Iterable[Recipe]:
        """The paper's own first."""
        return worth_trying(partition, self.analysis)

    def variants(self, best: Recipe) -> Iterable[Recipe]:
        """Another rule of what leaves a full buffer, which rarely matters."""
        return (replace(best, memory="largest-size"),) if best.memory == MEMORY else ()

    def improve(
        self, best: Program, make: MakeProgram, budget: Budget, *, progress: Progress | None = None
    ) -> Improved:
        """Local search over cut points and factors."""
        return search(self.partition_problem, best, make, budget, progress)

    def place(self, program: Program, *, progress: Progress | None = None) -> Placement:
        """Which buffers live in which level, from when to when.

        Raises:
            BudgetExceeded: more lies in main memory than `options.max_memory_bytes`.
        """
        scopes = self.plan(program.schedule, program.recipe.memory).scopes
        needed, most = scopes.levels[Scope.MAIN].peak_bytes, self.options.max_memory_bytes
        if most is not None and needed > most:
            raise BudgetExceeded(
                f"main memory holds {needed} bytes of values but may hold {most}. "
                "Try a larger --max-memory or a smaller batch."
            )
        return Placement(scopes.timeline.problem, scopes.memory)

    def generate(self, program: Program, *, progress: Progress | None = None) -> NpuCode:
        """The simulated plan."""
        planned = self.plan(program.schedule, program.recipe.memory)
        return NpuCode(program, planned, self.machine, self.num_simulated)

    def plan(self, schedule: Schedule, memory: str) -> SimulatedPlan:
        """Bind, place and simulate a schedule.

        Raises:
            InfeasibleMapping: it fits nowhere; names level and bytes.
        """
        partition = schedule.partition
        # The same layers in the same slices are the same instances, whatever was planned for.
        layers = tuple(tuple(x.nodes for x in partition.layers_of(s)) for s in partition.subgraphs)
        cut = (layers, schedule.splits, partition.in_place)
        maps = self.analysis.maps
        instances, order = instances_of(schedule, self.types, self._instances.get(cut), maps)
        self._instances[cut] = instances
        separate = self.policy.launches == "each subgraph"
        launches = launches_of(schedule, instances) if separate else ()
        key = (cut, order, launches, memory)
        if key not in self._plans:
            self._plans[key] = simulated_order(
                instances,
                order,
                self.machine,
                self.types,
                MEMORY_PLANNERS.get(memory),
                self.policy,
                self._least_seconds,
                launches,
            )
        return self._plans[key]

    @cached_property
    def _least_seconds(self) -> dict[str, float]:
        return self.works.least_seconds(self.graph, self.analysis.maps, converts=self.types.keeps_border)

    def _part_simulation(self, schedule: Schedule) -> Simulation:
        types = self.types.inside
        return simulated(schedule, self.machine, policy=self.policy, types=types).simulation


_UNPRICED = Quality(0.0, 0.0, "ns", Status.FEASIBLE)
