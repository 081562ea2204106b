"""One network on one accelerator: what plans of it cost, which are worth trying, and their simulation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tilewright.cost.base import Estimate
from tilewright.hardware.capacity import computing_dtype
from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Graph
from tilewright.ir.graph_regions import RegionMaps
from tilewright.options import Options
from tilewright.partition.base import Partition, PartitionProblem
from tilewright.partition.split import Split
from tilewright.planning import Limits, Provenance, Quality, Status
from tilewright.planning.portfolio import PLAIN_RECIPE, Recipe
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.schedule.base import PriceSchedule, Schedule, Stage
from tilewright.steps import TuningInfo
from tilewright.targets.base import Placement
from tilewright.targets.npu.code import NpuCode
from tilewright.targets.npu.costs import NpuCosts, estimate_of
from tilewright.targets.npu.plan import Planned
from tilewright.targets.npu.schedules import plan_schedule
from tilewright.targets.npu.simulate import Policy, Simulation
from tilewright.targets.npu.work import Works

DEFAULT_RECIPE = Recipe("graphturbo", "depth-first", "longest-liveness")
"""Algorithms 1 to 4 with the paper's choices."""


class NpuBackend:
    """See `Backend`. A plan is simulated once, whoever asks for it first."""

    def __init__(self, machine: Machine, policy: Policy, graph: Graph, options: Options) -> None:
        self.machine, self.policy, self.graph, self.options = machine, policy, graph, options
        self.maps = RegionMaps()
        works = Works(machine, computing_dtype(machine))
        self.costs = NpuCosts(machine, works, self.maps, self._simulation)
        self.limits = Limits(num_groups=machine.num_cores_per_cluster, memory_bytes=options.max_memory_bytes)
        self._plans: dict[Hashable, Planned] = {}

    def price(self, recipe: Recipe) -> PriceSchedule:
        """The simulated time and energy of a whole schedule: units overlap what stages do."""

        def estimate(partition: Partition, stages: Sequence[Stage], splits: Sequence[Split]) -> Estimate:
            return estimate_of(self.plan(partition, tuple(stages), tuple(splits), recipe.memory).simulation)

        return estimate

    def recipes(self) -> Sequence[Recipe]:
        """The paper's own first."""
        return DEFAULT_RECIPE, Recipe(PLAIN_RECIPE.partition, PLAIN_RECIPE.schedule, DEFAULT_RECIPE.memory)

    def refine(self, problem: PartitionProblem, partition: Partition) -> Partition:
        """As it is."""
        return partition

    def place(self, program: Program, *, progress: Progress | None = None) -> Placement:
        """Which buffers live in which level, from when to when."""
        scopes = self._plan_of(program).scopes
        return Placement(scopes.timeline.problem, scopes.memory)

    def generate(self, program: Program, *, progress: Progress | None = None) -> NpuCode:
        """The simulated plan."""
        return NpuCode(program, self._plan_of(program))

    def tune(
        self, code: object, *, anew: bool = False, afresh: bool = False, progress: Progress | None = None
    ) -> TuningInfo | None:
        """There is nothing to measure."""
        return None

    def _plan_of(self, program: Program) -> Planned:
        schedule = program.schedule
        return self.plan(program.partition, schedule.stages, schedule.splits, program.recipe.memory)

    def plan(
        self, partition: Partition, stages: tuple[Stage, ...], splits: tuple[Split, ...], memory: str
    ) -> Planned:
        """Bind, place and simulate.

        Raises:
            InfeasibleMapping: it fits nowhere; names level and bytes.
        """
        key = (partition, stages, splits, memory)
        if key not in self._plans:
            schedule = Schedule(partition, stages, _UNPRICED, Provenance("to be priced"), splits)
            self._plans[key] = plan_schedule(schedule, self.machine, memory=memory, policy=self.policy)
        return self._plans[key]

    def _simulation(self, schedule: Schedule) -> Simulation:
        """Of a part of the network."""
        return plan_schedule(schedule, self.machine, policy=self.policy).simulation


_UNPRICED = Quality(0.0, 0.0, "ns", Status.FEASIBLE)
