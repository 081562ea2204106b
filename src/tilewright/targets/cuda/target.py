"""The GPU as a target: a program becomes kernels, a graph of them, a plan of memory, and an executable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from tilewright.errors import BudgetExceeded, UsageError
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import find_machine
from tilewright.ir.fuse import FusedNodes
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.nest import Opaque
from tilewright.ir.ops import describe
from tilewright.memory import MEMORY_PLANNERS, MemoryPlan, check_memory
from tilewright.memory.base import ARENA, MemoryLevel, MemoryProblem
from tilewright.options import Options
from tilewright.partition.base import Partition
from tilewright.planning import Infeasible, Limits, option
from tilewright.planning.portfolio import PLAIN_RECIPE, Recipe
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.schedule.base import Schedule
from tilewright.targets.base import Backend, Placement, Support, require_supported
from tilewright.targets.cuda.arena import GraphArena, GraphBuffer, Solve, place_in_graph
from tilewright.targets.cuda.code import CudaCode
from tilewright.targets.cuda.costs import GpuCosts
from tilewright.targets.cuda.devices import DeviceName
from tilewright.targets.cuda.graph import Edges, PlannedGraph, plan_graph
from tilewright.targets.cuda.lower import Lowered, Tensor, lower_partition
from tilewright.targets.cuda.placed import PlacedModel
from tilewright.targets.cuda.ptx import gpu_isa
from tilewright.targets.cuda.rates import rates_of
from tilewright.targets.cuda.stored import CudaStore
from tilewright.targets.llvm.exprgen import unsupported_function
from tilewright.targets.validate import require_valid_program

logger = logging.getLogger(__name__)

_MOST_GROUPS = 8
"""Kernels side by side beyond this find no multiprocessor that is idle."""


@dataclass(frozen=True, slots=True)
class CudaTarget:
    """Generated kernels on an NVIDIA GPU, a model as one graph of them."""

    device: DeviceName = option("driver", "The GPU of this host, or its emulation on the processor.")
    ordinal: int = option(0, "The number of the GPU, as CUDA_VISIBLE_DEVICES leaves them.")
    gpu: str = option("h200", "The described GPU that kernels are cut and schedules are priced for.")
    edges: Edges = option("stages", "What orders kernels: stages and groups of the schedule, or data alone.")
    cubins: bool = option(False, "Keep assembled kernels in artifacts, too (needs the extra cuda-check).")

    name: ClassVar[str] = "cuda"
    is_measurable: ClassVar[bool] = False
    runs_slices: ClassVar[bool] = False
    runs_steps: ClassVar[bool] = False

    @property
    def code_store(self) -> CudaStore | None:
        """PTX is kept for a driver; the emulation runs no PTX."""
        return CudaStore(self, self.cubins, self.ordinal) if self.device == "driver" else None

    @property
    def machine(self) -> Machine:
        """The described GPU.

        Raises:
            UsageError: it describes no GPU.
        """
        machine = find_machine(self.gpu)
        if machine.threads is None:
            raise UsageError(f"target cuda: machine {self.gpu!r} has no threads; give a GPU, such as h200.")
        return machine

    def supports(self, node: Node) -> Support:
        """Operators without nests run on the host, and say so."""
        if not (of_types := Support.of_types(node)):
            return of_types
        description = describe(node)
        if isinstance(description, Opaque):
            return Support.on_host(f"runs on the host: {description.reason}")
        for nest in description:
            for expr in (nest.body, nest.init, nest.finish):
                reason = None if expr is None else unsupported_function(expr)
                if reason is not None:
                    return Support.on_host(f"runs on the host: {reason}")
        return Support.yes()

    def code_of(self, program: Program) -> CudaCode:
        """The kernels of a program and their graph."""
        return self.backend(program.graph, program.options).generate(program)

    def backend(self, graph: Graph, options: Options) -> CudaBackend:
        """What plans and compiles a graph.

        Raises:
            UsageError: the hint needs energies, which are unknown, or code for what is no GPU is asked for.
        """
        for name in options.isas:
            gpu_isa(name)
        if options.isas and self.device == "emulated":
            raise UsageError(f"target cuda: the emulated GPU runs no PTX; leave out --isa {options.isa}.")
        if options.hint in ("energy", "edp"):
            raise UsageError(
                f"hint {options.hint}: energy is unavailable on the cuda target; give --hint latency."
            )
        return CudaBackend(self, graph, options)


class CudaBackend(Backend):
    """Kernels are lowered before values are placed: only then is known what memory they need."""

    def __init__(self, target: CudaTarget, graph: Graph, options: Options) -> None:
        super().__init__(target, graph, options)
        self.cuda = target
        self._fuse = FusedNodes()
        self._last: tuple[Schedule, Recipe, PlacedModel] | None = None

    @cached_property
    def limits(self) -> Limits:  # type: ignore[override]
        """Groups of a stage share the multiprocessors."""
        num_cores = self.cuda.machine.num_cores_per_cluster
        return Limits(num_groups=_MOST_GROUPS, num_cores=num_cores, queued=True)

    @cached_property
    def costs(self) -> GpuCosts:  # type: ignore[override]
        """What the templates' cuts cost on the described GPU."""
        return GpuCosts(self.cuda.machine, rates_of(self.cuda.machine), self.options.accuracy, self._fuse, {})

    def recipes(self, partition: Callable[[str], Partition]) -> Iterable[Recipe]:
        """Kernel after kernel, and side by side what may be."""
        return PLAIN_RECIPE, replace(PLAIN_RECIPE, schedule="greedy")

    def variants(self, best: Recipe) -> Iterable[Recipe]:
        """Of IOS, also with the multiprocessors that kernels are cut for chosen together with groups."""
        return (replace(best, schedule="ios{moldable=true}"),) if best.schedule == "ios" else ()

    def place(self, program: Program, *, progress: Progress | None = None) -> Placement:
        """One arena for what lies between kernels, by the edges of their graph.

        Raises:
            BudgetExceeded: it would be larger than `options.max_memory_bytes`.
        """
        placed = self._place(program, progress)
        return Placement(placed.problem, placed.memory)

    def _place(self, program: Program, progress: Progress | None) -> PlacedModel:
        """The model placed; once for a program that is placed and then generated."""
        if self._last is not None and self._last[0] is program.schedule and self._last[1] == program.recipe:
            return self._last[2]
        placed = self._placed(program, progress)
        self._last = program.schedule, program.recipe, placed
        return placed

    def _placed(self, program: Program, progress: Progress | None) -> PlacedModel:
        graph = program.graph
        for node in graph.nodes:
            require_supported(self.target, node)
        lowered = lower_partition(
            program.partition,
            self.costs.rates,
            accuracy=self.options.accuracy,
            num_multiprocessors=_multiprocessors(program, self.limits.num_cores),
            fuse=self._fuse if graph is self.graph else None,
            progress=progress,
        )
        planned = plan_graph(lowered, program.schedule, self.cuda.edges)
        name = program.recipe.memory

        def solve(problem: MemoryProblem) -> MemoryPlan | Infeasible:
            plan = MEMORY_PLANNERS.get(name).solve(problem, self.options.search_budget)
            if isinstance(plan, Infeasible):
                return plan
            return MEMORY_PLANNERS.verified(name, plan, MemoryPlan, lambda p: check_memory(problem, p))

        durations_ns = [self.costs.work_ns(node.work) for node in planned.nodes]
        placed = place_tensors(graph, lowered, planned, durations_ns, solve, self.options.max_memory_bytes)
        if isinstance(placed, Infeasible):
            raise BudgetExceeded(str(placed))
        return placed

    def generate(self, program: Program, *, progress: Progress | None = None) -> CudaCode:
        """The kernels of a program, which was checked, and its graph.

        Raises:
            UnsupportedOp: a node that this target declines.
        """
        require_valid_program(program)
        placed = self._place(program, progress)
        for operator in placed.host_operators:
            node = operator.node
            logger.warning("%s %r runs on the host: %s.", node.op_type, node.name, operator.reason)
        return CudaCode(program, placed, self.costs, self.cuda.device, self.cuda.ordinal)


def _multiprocessors(program: Program, num_all: int) -> list[int]:
    """For each subgraph, those that its kernels are cut for: as many as its group of the schedule gets."""
    found = [num_all] * len(program.partition.subgraphs)
    for stage in program.schedule.stages:
        for group in stage.groups:
            for instance in group.instances:
                found[instance.subgraph_id] = group.num_cores or num_all
    return found


def place_tensors(
    graph: Graph,
    lowered: Lowered,
    planned: PlannedGraph,
    durations_ns: Sequence[float],
    solve: Solve,
    max_bytes: int | None,
) -> PlacedModel | Infeasible:
    """Every tensor between kernels in the arena; edges that this needs are in the graph then."""
    outside = {lowered.root(v) for v in (*graph.inputs, *graph.outputs)}
    users: dict[Tensor, list[int]] = {}
    for number, node in enumerate(planned.nodes):
        for tensor in () if node.work is None else (*node.work.reads, *node.work.writes):
            root = lowered.root(tensor)
            is_constant = isinstance(root, Value) and root.is_constant
            if root not in outside and not is_constant and root.size_bytes:
                users.setdefault(root, []).append(number)
    names = {tensor: f"{tensor.name}#{number}" for number, tensor in enumerate(users)}
    buffers = [
        GraphBuffer(names[tensor], tensor.size_bytes, tuple(sorted(set(numbers))))
        for tensor, numbers in users.items()
    ]
    level = ARENA if max_bytes is None else MemoryLevel("arena", max_bytes)
    after = [node.after for node in planned.nodes]
    arena = place_in_graph(after, buffers, durations_ns, solve, level)
    if isinstance(arena, Infeasible):
        return arena
    offsets = {tensor: arena.plan.offsets[name] for tensor, name in names.items()}
    return PlacedModel(graph, lowered, _with_edges(planned, arena), arena.plan, buffers, offsets)


def _with_edges(planned: PlannedGraph, arena: GraphArena) -> PlannedGraph:
    nodes = list(planned.nodes)
    for first, last in arena.added:
        nodes[last] = replace(nodes[last], after=(*nodes[last].after, first))
    return PlannedGraph(tuple(nodes))
