"""What a target is: it says which operators it runs, and turns a program into something that runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tilewright.arguments import NOWHERE
from tilewright.arrays import Array
from tilewright.content_pool import ContentPool
from tilewright.cost.base import CostModel
from tilewright.cost.roofline import NOMINAL
from tilewright.errors import BudgetExceeded, UnsupportedOp
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.joint.launched.times import TileJointly, TimeLayers
from tilewright.memory import MEMORY_PLANNERS, memory_problem
from tilewright.memory.base import MemoryPlan, MemoryProblem
from tilewright.memory.check import check_memory
from tilewright.options import Options
from tilewright.partition.analysis import Analysis
from tilewright.partition.base import Partition, PartitionProblem, priced_at
from tilewright.planning import Budget, Infeasible, Limits, Meter
from tilewright.planning.portfolio import PLAIN_RECIPE, Attempt, Recipe
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.schedule.base import PriceSchedule, Schedule, Stage, StageBench
from tilewright.steps import STORED_TUNING, MemoryInfo, SimulatedCost, StepInfo, TuningInfo, TuningSettings
from tilewright.target_ref import TargetRef
from tilewright.targets.simulated import MappedCosts, NetworkPlan, SimulatedNetwork, Timeline
from tilewright.targets.stored import StoredCode, StoredParts

if TYPE_CHECKING:
    from tilewright.hardware.element_types import ElementTypes
    from tilewright.hardware.machine import Machine

_WITHOUT_KERNELS = frozenset({DType.STRING, DType.COMPLEX64, DType.COMPLEX128})


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a target runs an operator. `reason` says why not, or with which restriction it does.

    `is_on_host`: it runs in Python through the reference implementation instead of generated code.

    >>> str(Support.no("group=3 needs channels % 3 == 0"))
    'no: group=3 needs channels % 3 == 0'
    """

    is_supported: bool
    reason: str = ""
    is_on_host: bool = False

    @classmethod
    def yes(cls, reason: str = "") -> Support:
        """It runs; `reason` tells what is worth knowing."""
        return cls(True, reason)

    @classmethod
    def on_host(cls, reason: str) -> Support:
        """It runs in Python, because there is no code for it."""
        return cls(True, reason, is_on_host=True)

    @classmethod
    def no(cls, reason: str) -> Support:
        """It does not run."""
        return cls(False, reason)

    @classmethod
    def of_types(cls, node: Node) -> Support:
        """Whether kernels can hold the values that a node reads and makes."""
        for value in (*node.operands(), *node.results()):
            if value.dtype in _WITHOUT_KERNELS:
                return cls.no(
                    f"{value.name!r} holds {value.dtype} values, which only the interpreter runs; give "
                    "--target interpreter, or keep them outside the model"
                )
        return cls.yes()

    def __bool__(self) -> bool:
        return self.is_supported

    def __str__(self) -> str:
        verdict = "yes" if self.is_supported else "no"
        return f"{verdict}: {self.reason}" if self.reason else verdict


class Executable(Protocol):
    """A compiled program. Safe to run from several threads at a time."""

    def run(self, feed: Mapping[str, Array], into: Mapping[str, Array] = NOWHERE) -> dict[str, Array]:
        """Outputs by name for inputs by name: in the arrays of `into` where it has one, else in new ones.

        An array of `into` is contiguous and writeable, as its output is, and shares no memory with another.

        Raises:
            UsageError: the feed does not fit the program's inputs.
        """
        ...

    def close(self) -> None:
        """Give back what it holds; later runs are refused. To close once more does nothing.

        Raises:
            UsageError: the calling thread is in the middle of a run.
        """
        ...


class Code(Protocol):
    """What a target made of a program, before it is loaded."""

    @property
    def program(self) -> Program:
        """The program as it was generated: with the forms that its subgraphs really have."""
        ...

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """What runs, in order."""
        ...

    @property
    def memory_info(self) -> MemoryInfo | None:
        """What memory it needs; None where nothing is planned."""
        ...

    def load(self, num_threads: int | None) -> Executable:
        """Make it run in this process."""
        ...


@runtime_checkable
class SharingCode(Protocol):
    """Code that can be loaded beside others of the same model without a second copy of its constants."""

    def load_sharing(self, num_threads: int | None, pool: ContentPool) -> Executable:
        """As `load`; equal constants are held once by all that share the pool."""
        ...


@runtime_checkable
class ReleasingCode(Protocol):
    """Code that can be loaded without a second copy of the constants of its program."""

    def load_releasing(
        self, num_threads: int | None, pool: ContentPool | None = None
    ) -> tuple[Executable, Callable[[], None]]:
        """As `load_sharing`, while the program lacks constants of the code; and what gives them back."""
        ...


@runtime_checkable
class SimulatedCode(Code, Protocol):
    """Code of a machine that is described: what a run of it would take is simulated."""

    @property
    def cost(self) -> SimulatedCost:
        """Time, bytes and energy."""
        ...

    def network(self) -> SimulatedNetwork:
        """The plan and its cost."""
        ...

    def plan(self) -> NetworkPlan:
        """All that one cluster does, for generators of code."""
        ...

    def timeline(self) -> Timeline:
        """What every unit does when."""
        ...

    def mapped_costs(self) -> MappedCosts:
        """Sums of products of the plan beside their mappings."""
        ...


class LoadableCode(Protocol):
    """Code that was stored. Each run has an arena of so many bytes."""

    @property
    def arena_bytes(self) -> int: ...  # noqa: D102

    def load(self, num_threads: int | None) -> Executable:
        """Make it run in this process."""
        ...


class CodeStore(Protocol):
    """How code of one target is kept, and loaded again."""

    def pack(self, code: Any) -> tuple[StoredCode, ...]:
        """What is kept of code that the target generated: of each kind of machine that was asked for."""
        ...

    def refusal(self, made_for: Mapping[str, str]) -> str | None:
        """Why code made for this cannot be used here; None if it can.

        Raises:
            FieldError: something is missing in what it was made for.
        """
        ...

    def adapted(self, program: Program, made_for: Mapping[str, str]) -> Program:
        """The program as it is to be generated here, of code that was made for this."""
        ...

    def unpack(self, parts: StoredParts) -> LoadableCode:
        """Code that may be loaded here. What runs is trusted, the facts about it are checked.

        Raises:
            FieldError: facts that are missing, of another type, or do not fit each other or the model.
        """
        ...


class MakeProgram(Protocol):
    """Orders and places a partition as a recipe says, whatever it says of partitions."""

    def __call__(self, partition: Partition, recipe: Recipe, *, stages: Sequence[Stage] = ()) -> Program:
        """The program; in these stages of the partition's slices, if any are given."""
        ...


MakeOfStages = Callable[[Sequence[Stage]], Program]
"""Places a partition in stages that were chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedParts:
    """What parts of a network cost alone on a machine that launches kernels one by one, where plans cost the
    sum of their parts.

    `price` asks for the planner of memory that places the values of a part. `floors_ns` are, for each node of
    the graph, seconds of one unit that every plan takes; `layer_times` what layers take within kernels that
    run them whole; several kernels of a stage take `join_ns` beside.
    `cores_worth` says how many cores would take as long for a node's result if they had equal parts of it and
    nothing else, `tilings` which joint tilings of nodes, from which these results leave, should take least.
    """

    price: Callable[[str], PriceSchedule]
    launch_ns: float
    join_ns: float
    floors_ns: Callable[[], tuple[float, ...]]
    layer_times: TimeLayers
    cores_worth: Callable[[Node], float]
    tilings: TileJointly


@dataclass(frozen=True, slots=True, eq=False)
class Improved:
    """What a search came to: the plan and everything that was tried."""

    program: Program
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the values between kernels lie: what was asked, and the answer."""

    problem: MemoryProblem
    plan: MemoryPlan


class Backend(ABC):
    """One graph on its way through one target, under some options.

    What several plans of the graph share is done once; the graph must not change meanwhile. A machine that
    runs kernel after kernel needs to say no more than how to `generate`: values between kernels get an arena.
    A subclass replaces what its machine does in another way.
    """

    costs: CostModel = NOMINAL
    """What work costs there."""
    limits = Limits(num_groups=4)
    """What a schedule may not exceed."""
    runs_lanes: bool = False
    """Whether layers of a kernel may run at the same time, on groups of its cores."""
    default_recipe = PLAIN_RECIPE
    """What an option that names no planner stands for."""
    types: ElementTypes | None = None

    def __init__(self, target: Target, graph: Graph, options: Options) -> None:
        self.target, self.graph, self.options = target, graph, options
        self.analysis = Analysis(graph)

    @property
    def num_simulated(self) -> int:
        """How many plans that differ were simulated."""
        return 0

    def without_searches(self) -> tuple[str, Backend] | None:
        """An execution whose plans wait for no search within a kernel, nor for the compiler of its loops, but
        are worse; and the backend of the graph that has it. None: plans wait for none."""
        return None

    def price(self, recipe: Recipe, *, only_better: bool = False) -> PriceSchedule | None:
        """What whole schedules cost that are placed as a recipe says; None where stages add up.

        With `only_better`, one that is worse than another before may be refused as `Outclassed` instead.
        """
        return None

    @cached_property
    def partition_problem(self) -> PartitionProblem:
        """What partitioners are asked: the graph, for the target's machine at its costs."""
        return PartitionProblem(
            self.graph,
            self.target.machine,
            self.costs,
            self.options.objective,
            self.limits,
            self.options.seed,
            self.analysis,
            self.types,
        )

    def recipes(self, partition: Callable[[str], Partition]) -> Iterable[Recipe]:
        """What is worth trying, the default first; `partition` is what a partitioner makes of the graph.

        Layerwise and sequential is among it, so that nothing is slower than that.
        """
        return (PLAIN_RECIPE,)

    @property
    def first_partitions(self) -> Sequence[str]:
        """Partitioners whose kernels a search tries before those of other recipes, as it may try few."""
        return ()

    def variants(self, best: Recipe) -> Iterable[Recipe]:
        """What else is worth trying once the best of those is known."""
        return ()

    @property
    def launched_parts(self) -> LaunchedParts | None:
        """What parts of the network cost alone; None where plans do not cost the sum of their parts."""
        return None

    def planned_memory(self, program: Program) -> MemoryInfo | None:
        """Where a program's values lie, before anything is generated; None where nothing was placed."""
        if program.memory is None or program.memory_problem is None:
            return None
        return MemoryInfo.of(program.memory_problem, program.memory)

    def placements(self, recipe: Recipe) -> Iterable[Recipe]:
        """The same partition and order under other memory planners and mappers, where they decide anything
        in the plan that was made of a recipe; what one arena holds costs no time."""
        return ()

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
        """A plan that is no worse, searched from the best one on within a budget; `seeds` are other
        schedules or partitions of its graph, made when they are asked for.

        `default` is what the answer must not be slower than, where plans are measured.
        """
        return Improved(best)

    def refine(
        self, problem: PartitionProblem, partition: Partition, *, progress: Progress | None = None
    ) -> Partition:
        """The partition with what the target decides about it: which subgraphs one kernel computes."""
        return partition

    def rewritten(
        self, problem: PartitionProblem, partition: Partition, *, progress: Progress | None = None
    ) -> Partition:
        """A partition of another graph that computes the same, as merging makes it, with its cost stated
        anew; from now on its work is priced as that of refined partitions is."""
        return replace(partition, price=priced_at(problem.quality_of(partition.subgraphs)))

    def place(self, program: Program, *, progress: Progress | None = None) -> Placement | None:
        """Where a program's values lie; None where there is nothing to place.

        Raises:
            UnsupportedOp: a node is not supported; names it and says why.
            InfeasibleMapping: they do not fit; says what is too small.
            BudgetExceeded: more memory than `options.max_memory_bytes`.
        """
        problem = memory_problem(program.schedule, capacity_bytes=self.options.max_memory_bytes)
        with MEMORY_PLANNERS.using(program.recipe.memory) as planner:
            plan = planner.solve(problem, self.options.search_budget)
        if isinstance(plan, Infeasible):
            raise BudgetExceeded(str(plan))
        plan = MEMORY_PLANNERS.verified(
            program.recipe.memory, plan, MemoryPlan, lambda plan: check_memory(problem, plan)
        )
        return Placement(problem, plan)

    @abstractmethod
    def generate(self, program: Program, *, progress: Progress | None = None) -> Code:
        """The program's code.

        Raises:
            UnsupportedOp: a node is not supported; names it and says why.
            BudgetExceeded: the program needs more memory than its options allow.
        """

    def stage_bench(self, partition: Partition, make: MakeOfStages) -> StageBench | None:
        """What measures the stages of schedules of a partition, of programs as `make` gives them; None where
        nothing is measured."""
        return None

    def tune(
        self,
        code: Any,
        settings: TuningSettings = STORED_TUNING,
        *,
        progress: Progress | None = None,
        meter: Meter | None = None,
    ) -> TuningInfo | None:
        """How to make the kernels of a program for which `generate` made `code`; None without a budget, or
        where there is nothing to choose.

        `meter` is what is left of the budget; without one it is started here.
        """
        return None


@runtime_checkable
class Target(Protocol):
    """One way to run programs on one machine."""

    @property
    def name(self) -> str:
        """What names it on the command line: the registry's name, a machine's preset or its file."""
        ...

    @property
    def machine(self) -> Machine:
        """What it compiles for."""
        ...

    @property
    def is_measurable(self) -> bool:
        """Whether kernels can be made in several ways, of which measurements find the best."""
        ...

    @property
    def runs_slices(self) -> bool:
        """Whether subgraphs may run as the instances that a partition splits them into."""
        ...

    @property
    def runs_steps(self) -> bool:
        """Whether it runs loops over the steps of recurrent layers, which are written out for others."""
        ...

    @property
    def code_store(self) -> CodeStore | None:
        """How an artifact keeps its code; None where that is made again from the program."""
        ...

    def supports(self, node: Node) -> Support:
        """Whether the target runs this node; never raises for a valid node."""
        ...

    def backend(self, graph: Graph, options: Options) -> Backend:
        """What plans and compiles a graph.

        Raises:
            UsageError: the options ask for what the target cannot do.
        """
        ...


@runtime_checkable
class SimulatingTarget(Target, Protocol):
    """A machine that is described: its code is `SimulatedCode`."""

    @property
    def max_batch(self) -> int:
        """The largest number of samples that is worth a plan."""
        ...

    def named_plans(self, target: TargetRef) -> Mapping[str, Options]:
        """The plans that have a name in the literature, as options of the target as it is named."""
        ...

    def batches(self, graph: Graph, batched: Sequence[Value]) -> tuple[int, ...]:
        """Numbers of samples worth a plan, ascending, of a network for `max_batch` of them.

        The first axes of `batched`, inputs of the network, count samples.

        Raises:
            InfeasibleMapping: the network cannot be planned.
        """
        ...


def require_supported(target: Target, node: Node) -> None:
    """Raise if a target declines a node.

    Raises:
        UnsupportedOp: it does; names the node and says why.
    """
    support = target.supports(node)
    if not support:
        raise UnsupportedOp(f"{node.op_type} {node.name!r}: {support.reason}.")
