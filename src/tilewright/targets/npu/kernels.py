"""Kernels that a machine launches separately: on how many cores each runs, and what of the chip is its own.

A kernel takes the cores that its work fills, and holds them from its launch to its end, together with the
same share of what the cores of a cluster have in common on the chip. Main memory is shared by all. Lanes of a
kernel have some of its cores each, with the same share of what these hold beside what lies in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.errors import InfeasibleMapping
from tilewright.hardware.capacity import local_capacity_bytes, shared_capacity_bytes
from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Node, Value
from tilewright.ir.region import Region
from tilewright.known_facts import KnownFacts
from tilewright.memory.instances import InstanceStep
from tilewright.memory.scopes import PlacedBuffer, ScopePlan
from tilewright.schedule.binding import Binding, Bindings, Scope, extents, plain_binding
from tilewright.schedule.launches import Launch
from tilewright.targets.npu.blocks import Blocks
from tilewright.targets.npu.groups import passing_bytes
from tilewright.targets.npu.pools import PoolSizes, level_bytes
from tilewright.targets.npu.work import Works


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: in which stage and group, on how many cores of a cluster, with what beside placed buffers.

    `share` is that of its cores among all.
    """

    number: int
    stage: int
    group: int
    num_cores: int
    share: float
    pools: PoolSizes


@dataclass(frozen=True, slots=True)
class StepLane:
    """Some of a kernel's cores, on which a step runs while others run beside it.

    `section` and `number` name it within the kernel. `share` is that of its cores among all, `pools` is what
    its cores hold beside placed buffers, and what of the shared buffer passes for it alone; all lanes of its
    section together have `section_bytes` of that.
    """

    section: int
    number: int
    num_cores: int
    share: float
    pools: PoolSizes
    section_bytes: int


@dataclass(frozen=True, slots=True)
class Distribution:
    """In how many parts along each axis a result lies in cores, how many cores compute it, and in which
    blocks of threads, where the machine has such."""

    binding: Binding
    num_cores: int
    blocks: Blocks | None


class StepCores:
    """How the operators of a kernel's steps are distributed over cores.

    The operator with the most work says how many help; others of the same step, which run tile by tile with
    it, take no more.
    """

    def __init__(self, plan: ScopePlan, bindings: Bindings, works: Works, known: KnownFacts) -> None:
        self._plan, self._bindings, self._works, self._known = plan, bindings, works, known
        self._leading: dict[InstanceStep, tuple[tuple[int, ...], Distribution]] = {}

    def of(self, step: InstanceStep, node: Node, regions: Mapping[Value, Region]) -> Distribution:
        """How what a node of a step makes of these regions is distributed."""
        shape, distribution = self.leading(step, regions)
        region = next(regions[v] for v in node.results() if v in regions)
        if extents(region) == shape:
            return distribution
        num_cores = distribution.num_cores
        return self._known.of(
            ("spread", node, extents(region), num_cores),
            lambda: distribution_of(self._works, node, region, num_cores),
        )

    def leading(
        self, step: InstanceStep, regions: Mapping[Value, Region]
    ) -> tuple[tuple[int, ...], Distribution]:
        """Shape of what the operator with the most work makes, and how that is distributed."""
        if step not in self._leading:
            self._leading[step] = self._leading_of(step, regions)
        return self._leading[step]

    def _leading_of(
        self, step: InstanceStep, regions: Mapping[Value, Region]
    ) -> tuple[tuple[int, ...], Distribution]:
        most = self._bindings.cores_of(step.node, step.layer)
        made = [(n, regions[v]) for n in step.operators for v in n.results() if v in regions]
        key = ("leading", step.operators, tuple(extents(r) for _, r in made), most)
        return self._known.of(key, lambda: leading_of(self._works, made, most))

    def most(self, launch: Launch, regions_of: Callable[[InstanceStep], Mapping[Value, Region]]) -> int:
        """How many cores the steps of a kernel fill at most, or lanes have that run at the same time;
        `regions_of` are those of all values of a step."""
        found = [1, *(sum(lane.num_cores for lane in section) for section in launch.sections)]
        for node in launch.nodes:
            for number in self._plan.steps_of(node):
                step = self._plan.steps[number]
                if step.operators:
                    found.append(self.leading(step, regions_of(step))[1].num_cores)
        return max(found)


class ProgramCores:
    """How the operators of the steps of one program are distributed over all cores, or those of a group.

    What a kernel leaves is bound as its readers want it, or as its split says. What else there is has equal
    parts, or where the split says something is distributed in the fastest way for all operators of its step
    that make as much.
    """

    def __init__(self, plan: ScopePlan, bindings: Bindings, works: Works, known: KnownFacts) -> None:
        self._plan, self._bindings, self._works, self._known = plan, bindings, works, known

    def of(self, step: InstanceStep, node: Node, regions: Mapping[Value, Region]) -> Distribution:
        """How what a node of a step makes of these regions is distributed."""
        binding = self._binding(step, node, regions)
        return Distribution(binding, prod(binding), None)

    def _binding(self, step: InstanceStep, node: Node, regions: Mapping[Value, Region]) -> Binding:
        instance, own = self._plan.graph.nodes[step.node], self._bindings.bindings[step.node]
        num_cores = self._bindings.cores_of(step.node, step.layer)
        region = next(regions[v] for v in node.results() if v in regions)
        says = bool(self._plan.graph.splits[instance.subgraph_id].cores)
        alike = [
            n
            for n in step.operators
            if n is node or (says and any(regions.get(v) == region for v in n.results()))
        ]
        is_left = any(v in instance.outputs for n in alike for v in n.results())
        if is_left and len(own) == len(region):
            return own
        if not says:
            return plain_binding(extents(region), num_cores, self._works.axes_of(node))
        return self._known.of(
            ("fastest", *alike, region, num_cores),
            lambda: fastest_binding(self._works, alike, region, num_cores),
        )


def fastest_binding(
    works: Works, nodes: Sequence[Node], region: Region, num_cores: int, along: Collection[int] | None = None
) -> Binding:
    """How cores share a region that operators make one from another: of the ways that are the fastest for one
    of them, cut `along` some axes or any, that in which all of them take the least time."""
    ways = dict.fromkeys(works.fewest_cores(node, region, num_cores, along) for node in nodes)
    return min(ways, key=lambda way: sum(w.seconds for n in nodes for w in works.of(n, region, way)))


def leading_of(
    works: Works, made: Sequence[tuple[Node, Region]], most: int
) -> tuple[tuple[int, ...], Distribution]:
    """Of the operators of a step and what they make, the shape of what the one with the most work makes, and
    how that is distributed over no more than so many cores."""
    node, region = max(made, key=lambda pair: sum(work.seconds for work in works.of(pair[0], pair[1], None)))
    return extents(region), distribution_of(works, node, region, most)


def distribution_of(works: Works, node: Node, region: Region, most: int) -> Distribution:
    """How a part of an operator's result is distributed over no more than so many cores."""
    blocks = works.blocks(node, region, most)
    cores = most if blocks is None else blocks.num_cores
    binding = works.fewest_cores(node, region, cores)
    return Distribution(binding, prod(binding) if blocks is None else cores, blocks)


def kernel_of(
    number: int, launch: Launch, plan: ScopePlan, bindings: Bindings, machine: Machine, num_cores: int
) -> Kernel:
    """A launch on so many cores, or on as many more as its placed buffers need."""
    of_cluster = machine.num_cores_per_cluster
    held = {scope: _held_bytes(plan, launch, bindings, scope) for scope in (Scope.LOCAL, Scope.SHARED)}
    capacities = {Scope.LOCAL: local_capacity_bytes(machine), Scope.SHARED: shared_capacity_bytes(machine)}
    for scope, capacity_bytes in capacities.items():
        if held[scope] and capacity_bytes:
            num_cores = max(num_cores, -(-held[scope] * of_cluster // capacity_bytes))
    num_cores = min(num_cores, of_cluster)
    whole = level_bytes(machine)
    pools = PoolSizes(
        whole.local_bytes * num_cores // of_cluster - held[Scope.LOCAL],
        max(0, whole.shared_bytes * num_cores // of_cluster - held[Scope.SHARED]),
    )
    return Kernel(number, launch.stage, launch.group, num_cores, num_cores / of_cluster, pools)


def lanes_of(
    kernel: Kernel, launch: Launch, plan: ScopePlan, bindings: Bindings, machine: Machine
) -> Mapping[tuple[int, int], StepLane]:
    """The lanes of a kernel, by their section and number.

    What lies in all cores takes the same part of each; what a lane makes for itself lies in its cores alone,
    from the beginning of its section to the end. Half of the shared buffer passes what lanes need, so that
    none waits for another.

    Raises:
        InfeasibleMapping: a lane's cores are too small for the buffers that lie there.
    """
    lanes: dict[tuple[int, int], StepLane] = {}
    lying_bytes: Counter[tuple[int, int] | None] = Counter()
    for buffer in _buffers_of(plan, launch.nodes) if launch.sections else ():
        if buffer.scope is Scope.LOCAL:
            lying_bytes[_lane_key(plan, bindings, launch, buffer)] += buffer.size_bytes
    for section, members in enumerate(launch.sections):
        num_cores = sum(lane.num_cores for lane in members)
        if num_cores > kernel.num_cores:
            raise InfeasibleMapping(
                f"kernel {kernel.number}: lanes take {num_cores} cores at the same time, it has "
                f"{kernel.num_cores}; give them fewer."
            )
        shared = [passing_bytes(kernel.pools.shared_bytes) * x.num_cores // num_cores for x in members]
        for number, lane in enumerate(members):
            own_bytes = lying_bytes[section, number]
            local_bytes = kernel.pools.local_bytes * lane.num_cores // kernel.num_cores - own_bytes
            if kernel.pools.shared_bytes and not shared[number]:
                raise InfeasibleMapping(
                    f"kernel {kernel.number} on {machine.name}: nothing of the shared buffer's "
                    f"{kernel.pools.shared_bytes} bytes is left for a lane; run its layers one after another."
                )
            if local_bytes < 0:
                raise InfeasibleMapping(
                    f"kernel {kernel.number} on {machine.name}: buffers of {own_bytes} bytes lie in "
                    f"{lane.num_cores} of its cores, whose buffers hold {local_bytes + own_bytes} of them; "
                    "run its layers one after another."
                )
            share = lane.num_cores / machine.num_cores_per_cluster
            pools = PoolSizes(local_bytes, shared[number])
            lanes[section, number] = StepLane(section, number, lane.num_cores, share, pools, sum(shared))
    return lanes


def _buffers_of(plan: ScopePlan, nodes: Sequence[int]) -> Iterator[PlacedBuffer]:
    """What some nodes write, step by step."""
    steps = (plan.steps[number] for node in nodes for number in plan.steps_of(node))
    return (plan.buffers[i] for step in steps for i in step.writes)


def _lane_key(
    plan: ScopePlan, bindings: Bindings, launch: Launch, buffer: PlacedBuffer
) -> tuple[int, int] | None:
    """The lane of a kernel that makes a buffer, by section and number; None: all cores, or another kernel."""
    if buffer.node != launch.nodes[-1]:
        return None
    lane = bindings.lane_of(buffer.node, plan.steps[buffer.first_step].layer)
    return None if lane is None else (lane.section, lane.number)


def _held_bytes(plan: ScopePlan, launch: Launch, bindings: Bindings, scope: Scope) -> int:
    """What the placed buffers of a kernel take of a level, from the first one's place to the last one's end;
    of the cores' buffers those that lie in all of them.

    More than what is live at a step: steps overlap, so that buffers of several are there at a time.
    """
    held = [b for b in _buffers_of(plan, launch.nodes) if b.scope is scope and b.size_bytes]
    if scope is Scope.LOCAL and launch.sections:
        held = [b for b in held if _lane_key(plan, bindings, launch, b) is None]
    if not held:
        return 0
    return max(b.end_bytes for b in held) - min(b.offset_bytes for b in held)
