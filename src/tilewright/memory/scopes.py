"""Where everything of a schedule lives on a machine: in local buffers, a shared one, or main memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.errors import InfeasibleMapping
from tilewright.hardware.capacity import local_capacity_bytes, main_capacity_bytes, shared_capacity_bytes
from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Value
from tilewright.ir.region import Region, full_region
from tilewright.memory.base import (
    DEFAULT_ALIGNMENT_BYTES,
    LevelUse,
    MemoryLevel,
    MemoryPlan,
    MemoryPlanner,
    MemoryProblem,
    aligned,
)
from tilewright.memory.instances import SCOPES, Content, InstanceStep, Timeline, buffer_name, expand
from tilewright.memory.levels import live_bytes, measured
from tilewright.memory.spilling import LongestLiveness
from tilewright.planning import UNLIMITED, Budget, Infeasible, Status
from tilewright.schedule.binding import Bindings, Scope
from tilewright.schedule.core_groups import CoreGroups
from tilewright.schedule.instances import InstanceGraph


@dataclass(frozen=True, slots=True, eq=False)
class PlacedBuffer:
    """`region` of `value`, made by node `node` of the instance graph in step `first_step`, in its place.

    It is live from `first_step` to `last_step`, both included: to the step of its last reader; that of a
    network's result to the end. `in_place_of` is the operand of its step in whose place it is written.
    `is_spilled` says that it was to live further inside, `is_kept` that it is a copy of rows of what the node
    made, for later instances of its subgraph.
    """

    id: int
    node: int
    value: Value
    region: Region
    size_bytes: int
    first_step: int
    last_step: int
    scope: Scope
    offset_bytes: int
    in_place_of: int | None
    is_spilled: bool
    is_kept: bool = False

    @property
    def end_bytes(self) -> int:
        """The offset behind it."""
        return self.offset_bytes + self.size_bytes

    @property
    def num_steps(self) -> int:
        """For how many steps it is live."""
        return self.last_step - self.first_step + 1

    def __str__(self) -> str:
        return buffer_name(Content(self.node, self.value, self.region, self.is_kept))


@dataclass(frozen=True, slots=True, eq=False)
class ScopePlan:
    """A memory plan in the words of the schedule that it is for. `buffers[i].id == i`."""

    timeline: Timeline
    memory: MemoryPlan
    buffers: tuple[PlacedBuffer, ...] = field(init=False, repr=False)
    _made: Mapping[tuple[int, Value], int] = field(init=False, repr=False)
    _steps_of: Mapping[int, range] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffers", _placed_buffers(self.timeline, self.memory))
        object.__setattr__(self, "_made", {(b.node, b.value): b.id for b in self.buffers if not b.is_kept})
        steps_of: dict[int, range] = {}
        for number, step in enumerate(self.steps):
            first = steps_of.get(step.node, range(number, number)).start
            steps_of[step.node] = range(first, number + 1)
        object.__setattr__(self, "_steps_of", steps_of)

    @property
    def graph(self) -> InstanceGraph:
        """Whose nodes are placed."""
        return self.timeline.graph

    @property
    def order(self) -> tuple[int, ...]:
        """In which order its nodes run."""
        return self.timeline.order

    @property
    def steps(self) -> tuple[InstanceStep, ...]:
        """What happens, one after another."""
        return self.timeline.steps

    @property
    def levels(self) -> Mapping[Scope, LevelUse]:
        """What each scope holds."""
        return dict(zip(SCOPES, self.memory.uses, strict=True))

    def buffer_of(self, node: int, value: Value) -> PlacedBuffer:
        """The buffer of a value that a node of the instance graph makes.

        Raises:
            KeyError: the node makes nothing of it.
        """
        return self.buffers[self._made[node, value]]

    def outputs_of(self, node: int) -> tuple[PlacedBuffer, ...]:
        """The buffers that a node leaves for other nodes, or as results of the network."""
        return tuple(self.buffer_of(node, v) for v in self.graph.nodes[node].outputs)

    def steps_of(self, node: int) -> range:
        """The numbers of a node's steps, one after another."""
        return self._steps_of[node]

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The final scope of what every node makes, by place; of several buffers the outermost."""
        made = (self.outputs_of(n.id) for n in self.graph.nodes)
        return tuple(max((b.scope for b in buffers), key=SCOPES.index) for buffers in made)

    @property
    def num_buffers(self) -> Mapping[Scope, int]:
        """Buffers by scope: the paper's Table 3."""
        return {scope: use.num_buffers for scope, use in self.levels.items()}

    @property
    def spilled_bytes(self) -> int:
        """Bytes of all buffers that do not live where they were to live."""
        return sum(b.size_bytes for b in self.buffers if b.is_spilled)

    def live_bytes(self, scope: Scope) -> tuple[int, ...]:
        """Bytes in use in a scope at each step. What lies in place of another counts once."""
        level = SCOPES.index(scope)
        here = [b for b in self.timeline.problem.buffers if self.memory.levels[b.name] == level]
        num_steps = len(self.steps)
        return tuple(live_bytes(here, self.memory.in_place_of, num_steps)[:num_steps])


def _placed_buffers(timeline: Timeline, memory: MemoryPlan) -> tuple[PlacedBuffer, ...]:
    buffers = timeline.problem.buffers
    numbers = {b.name: number for number, b in enumerate(buffers)}
    return tuple(
        PlacedBuffer(
            number,
            content.node,
            content.value,
            content.region,
            buffer.size_bytes,
            content.first_step,
            content.last_step,
            SCOPES[memory.levels[buffer.name]],
            memory.offsets[buffer.name],
            numbers.get(memory.in_place_of.get(buffer.name, "")),
            memory.levels[buffer.name] != buffer.level,
            content.is_kept,
        )
        for number, (content, buffer) in enumerate(zip(timeline.contents, buffers, strict=True))
    )


def place(
    graph: InstanceGraph,
    order: Sequence[int],
    bindings: Bindings,
    machine: Machine,
    planner: MemoryPlanner | None = None,
    budget: Budget = Budget(UNLIMITED),  # noqa: B008  (frozen)
) -> ScopePlan:
    """The scope and the offset of every buffer that an order of instances needs on a machine.

    A buffer that does not fit its level goes to the next outer one for its whole life; the planner, by
    default `longest-liveness`, says which. Groups of cores that work side by side have buffers of their own.

    Raises:
        UsageError: the planner's options do not fit the problem.
        InfeasibleMapping: not even main memory is large enough.
    """
    timeline = expand(graph, order, bindings, levels_of(graph, machine))
    planner = planner or LongestLiveness()
    if bindings.cores is None:
        plan = planner.solve(timeline.problem, budget)
    else:
        groups = [bindings.cores.of_nodes[content.node] for content in timeline.contents]
        spaces = core_spaces(bindings.cores, machine)
        plan = place_apart(planner, timeline.problem, groups, spaces, budget)
    if isinstance(plan, Infeasible):
        if plan.level == Scope.MAIN:
            plan = replace(plan, level=f"{machine.outermost.name} of {machine.name!r}")
        raise InfeasibleMapping(str(plan))
    return ScopePlan(timeline, plan)


def core_spaces(cores: CoreGroups, machine: Machine) -> tuple[Space, ...]:
    """Where the buffers of each group of cores lie among those of all cores of a cluster."""
    of_core_bytes = local_capacity_bytes(machine) // machine.num_cores_per_cluster
    spaces = []
    for group in cores.groups:
        start = aligned(group.first_core * of_core_bytes, DEFAULT_ALIGNMENT_BYTES)
        end = (group.first_core + group.num_cores) * of_core_bytes
        spaces.append(Space(start, max(0, end - start)))
    return tuple(spaces)


def levels_of(graph: InstanceGraph, machine: Machine) -> tuple[MemoryLevel, ...]:
    """The levels of one cluster for a network's buffers.

    Local: the data part of its cores' buffers together. Shared: without the share of weights; of a level that
    clusters share too, an equal part. Main: what the network's inputs and constants leave of it.
    """
    main = main_capacity_bytes(machine)
    if main is not None:
        main = max(0, main - _resident_bytes(graph))
    capacities = (local_capacity_bytes(machine), shared_capacity_bytes(machine), main)
    return tuple(
        MemoryLevel(str(scope), capacity) for scope, capacity in zip(SCOPES, capacities, strict=True)
    )


def _resident_bytes(graph: InstanceGraph) -> int:
    """What lies in main memory all the time."""
    network = graph.partition.graph
    constants = (v for n in network.nodes for v in n.operands() if v.is_constant)
    resident = dict.fromkeys((*network.inputs, *constants))
    return sum(graph.main_bytes_of(v, full_region(v.shape)) for v in resident)


@dataclass(frozen=True, slots=True)
class Space:
    """A part of a level."""

    offset_bytes: int
    capacity_bytes: int


def place_apart(
    planner: MemoryPlanner,
    problem: MemoryProblem,
    groups: Sequence[int],
    spaces: Sequence[Space],
    budget: Budget,
) -> MemoryPlan | Infeasible:
    """The plan in which `groups[i]` is the part of the innermost level, by its place among `spaces`, that the
    `i`-th buffer may live in.

    The planner fills each part, then what all parts leave goes to the outer levels together.
    """
    levels: dict[str, int] = {}
    plans: list[MemoryPlan] = []
    offsets: dict[str, int] = {}
    inner, *outer = problem.levels
    unlimited = tuple(MemoryLevel(level.name) for level in outer)
    for number, space in enumerate(spaces):
        of_group = {
            b.name: b for b, g in zip(problem.buffers, groups, strict=True) if (g, b.level) == (number, 0)
        }
        buffers = tuple(
            replace(b, may_reuse=tuple(name for name in b.may_reuse if name in of_group))
            for b in of_group.values()
        )
        part = MemoryProblem(buffers, (MemoryLevel(inner.name, space.capacity_bytes), *unlimited))
        plan = planner.solve(part, budget)
        if isinstance(plan, Infeasible):
            return plan
        plans.append(plan)
        levels |= plan.levels
        for name in (name for name in of_group if plan.levels[name] == 0):
            offsets[name] = space.offset_bytes + plan.offsets[name]
    left = [replace(b, level=levels.get(b.name, b.level)) for b in problem.buffers if b.name not in offsets]
    names = {b.name for b in left}
    rest = tuple(replace(b, may_reuse=tuple(n for n in b.may_reuse if n in names)) for b in left)
    plan = planner.solve(replace(problem, buffers=rest), budget)
    if isinstance(plan, Infeasible):
        return plan
    offsets |= plan.offsets
    levels |= plan.levels
    in_order = [b.name for b in problem.buffers]
    return measured(
        problem,
        {name: levels[name] for name in in_order},
        {name: offsets[name] for name in in_order},
        plan.provenance,
        cut_off=any(part.quality.status is Status.CUT_OFF for part in (*plans, plan)),
    )
