"""What work costs on a described accelerator: parts of a network are simulated alone.

Of kernels that are launched separately each is simulated once; stages of them are timed from its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tilewright.cost.base import Estimate, KernelWork
from tilewright.cost.energy import EnergyTable
from tilewright.errors import MachineError
from tilewright.hardware.machine import Machine
from tilewright.ir.extract import part_of
from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import RegionMaps, kernel_structure
from tilewright.partition.base import PartitionProblem, Reason, build_partition
from tilewright.partition.layers import layer_of
from tilewright.partition.merge_siblings import MergedWork
from tilewright.planning import Bound, Provenance, Quality, Status
from tilewright.schedule.base import Group, Instance, Schedule, Stage
from tilewright.schedule.lanes import LanedWork
from tilewright.schedule.space import SCHEDULES
from tilewright.targets.npu.ports import ports_of
from tilewright.targets.npu.simulate import GRAPHTURBO, Policy, Simulation, static_power_w
from tilewright.targets.npu.stage_times import KernelTasks, stage_seconds
from tilewright.targets.npu.work import Works

SOURCE = "simulator"
UNPRICED = Quality(0.0, "ns", Status.FEASIBLE, (Bound(0.0, SCHEDULES, "nothing"),))
"""Of a schedule that is to be priced."""
_MAX_PLACES = 8


def estimate_of(simulation: Simulation, *, has_energies: bool = True) -> Estimate:
    """The simulated time of one cluster, and its energy where the machine `has_energies`."""
    energy_pj = sum(simulation.energy_pj.values()) if has_energies else None
    return Estimate(simulation.time_s * 1e9, simulation.lower_bound_s * 1e9, SOURCE, energy_pj)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel that is launched on its own. `energy_pj` is what it takes beside the static power."""

    estimate: Estimate
    occupied_ns: tuple[float, ...]
    energy_pj: float
    tasks: KernelTasks


Simulate = Callable[[Schedule, bool], Simulation]
"""Simulates a schedule: as the machine runs it, or as kernels that are launched separately."""


@dataclass(frozen=True, slots=True)
class NpuCosts:
    """Kernels and stages as networks of their own, from main memory to main memory; see `CostModel`."""

    machine: Machine
    works: Works
    maps: RegionMaps
    simulate: Simulate
    policy: Policy = GRAPHTURBO
    source: str = SOURCE
    proves_bounds: bool = True
    _known: dict[Hashable, Estimate] = field(init=False, repr=False, default_factory=dict)
    _kernels: dict[Hashable, _Kernel] = field(init=False, repr=False, default_factory=dict)
    _structures: dict[Hashable, int] = field(init=False, repr=False, default_factory=dict)
    _numbers: dict[KernelWork, int] = field(init=False, repr=False, default_factory=dict)

    def kernel(self, work: KernelWork, num_cores: int | None = None) -> Estimate:
        """A kernel alone, on no more than so many cores; without a number on as many as help.

        Raises:
            InfeasibleMapping: it does not fit the machine's main memory.
        """
        if self._launches_each or num_cores is not None:
            return self._launched(work, num_cores).estimate
        return self._simulated([[work]])

    def fused(self, work: KernelWork) -> Estimate:
        """As any kernel: what lies inside stays on chip as far as it fits.

        Raises:
            InfeasibleMapping: it does not fit the machine's main memory.
        """
        return self.kernel(work)

    def stage(self, groups: Sequence[Sequence[KernelWork]], num_cores: Sequence[int | None] = ()) -> Estimate:
        """Groups that run at the same time, each of them kernel after kernel.

        Where kernels are launched separately, groups share the cores and main memory; in one program kernels
        follow each other as listed on all cores, and units overlap what they can.

        Raises:
            InfeasibleMapping: they do not fit the machine's main memory.
        """
        if self._launches_each:
            return self._stage_of_launched(groups, tuple(num_cores) or (None,) * len(groups))
        return self._simulated(groups)

    def stage_facts(self, groups: Sequence[Sequence[KernelWork]]) -> Hashable:
        """In one program which values kernels share; kernels launched separately share none."""
        return () if self._launches_each else _connections(groups)

    def occupied_ns(self, work: KernelWork) -> tuple[float, ...] | None:
        """Its time, times the share of the cores that it holds; the time of main memory; and its time as
        often as it counts where cores hold no more than one, two, ... kernels of its size at a time.

        None where kernels are parts of a program.

        Raises:
            InfeasibleMapping: it does not fit the machine's main memory.
        """
        return self._launched(work).occupied_ns if self._launches_each else None

    @property
    def _has_energies(self) -> bool:
        return EnergyTable.of(self.machine).missing is None

    @property
    def _launches_each(self) -> bool:
        return self.policy.launches == "each subgraph"

    def _simulated(self, groups: Sequence[Sequence[KernelWork]]) -> Estimate:
        """Of kernels that are parts of one program."""
        key = tuple(tuple(map(self._structure, group)) for group in groups), _connections(groups)
        if key not in self._known:
            self._known[key] = estimate_of(
                self.simulate(_alone(groups), False), has_energies=self._has_energies
            )
        return self._known[key]

    def _launched(self, work: KernelWork, num_cores: int | None = None) -> _Kernel:
        """Of a kernel on its own. Company makes none faster, so its time bounds that of any stage with it."""
        key = self._structure(work), num_cores
        if key not in self._kernels:
            simulation = self.simulate(_alone([[work]], num_cores), True)
            estimate = estimate_of(simulation, has_energies=self._has_energies)
            dynamic_pj = sum(pj for what, pj in simulation.energy_pj.items() if what != "static")
            tasks = simulation.tasks
            assert tasks is not None, "they are kept"
            bounded = replace(estimate, bound_ns=estimate.time_ns, bound_pj=dynamic_pj)
            shares = _shares(tasks.num_cores, self.machine.num_cores_per_cluster)
            of_cores_ns, *as_counted_ns = (estimate.time_ns * share for share in shares)
            occupied_ns = (of_cores_ns, tasks.main_seconds * 1e9, *as_counted_ns)
            self._kernels[key] = _Kernel(bounded, occupied_ns, dynamic_pj, tasks)
        return self._kernels[key]

    def _stage_of_launched(
        self, groups: Sequence[Sequence[KernelWork]], num_cores: Sequence[int | None]
    ) -> Estimate:
        kernels = [
            [self._launched(work, cores) for work in group]
            for group, cores in zip(groups, num_cores, strict=True)
            if group
        ]
        seconds = stage_seconds([[k.tasks for k in group] for group in kernels], self.machine)
        dynamic_pj = sum(k.energy_pj for group in kernels for k in group)
        static_pj = static_power_w(self.machine) * seconds * 1e12
        energy_pj = dynamic_pj + static_pj if self._has_energies else None
        longest_ns = max(sum(k.estimate.time_ns for k in group) for group in kernels)
        occupied_ns = [k.occupied_ns for group in kernels for k in group]
        bound_ns = max(longest_ns, *map(sum, zip(*occupied_ns, strict=True)))
        return Estimate(max(seconds * 1e9, bound_ns), bound_ns, self.source, energy_pj, dynamic_pj)

    def _structure(self, work: KernelWork) -> int:
        """A number for all that costs the same."""
        if work not in self._numbers:
            lanes = (work.layers, work.sections) if isinstance(work, LanedWork) else None
            structure = kernel_structure(work.nodes, work.outputs), _is_merged(work), lanes
            self._numbers[work] = self._structures.setdefault(structure, len(self._structures))
        return self._numbers[work]

    def transfer(self, size_bytes: int, source_level: str, target_level: str) -> Estimate:
        """A copy between levels at the rate of the slowest part of the way.

        Raises:
            MachineError: there is no such level, or nothing moves data between the two.
        """
        ports = ports_of(self.machine)
        names = [self.machine.level(name).name for name in (source_level, target_level)]
        ends = {names[0], names[1]}
        seconds = []
        if ports.main.name in ends:
            seconds.append(ports.main_s(size_bytes))
        if ports.local.name in ends:
            seconds.append(ports.local_s(size_bytes))
        if not seconds:
            raise MachineError(
                f"machine {self.machine.name!r}: nothing moves data from {names[0]!r} to {names[1]!r}."
            )
        time_ns = max(seconds) * 1e9
        return Estimate(time_ns, time_ns, self.source)

    def least(self, kernels: Sequence[KernelWork], num_groups: int = 1) -> Estimate:
        """The busiest unit's work, on all cores with full tiles. Groups share the units.

        Of energy what the units take for it, and the static power meanwhile; traffic depends on the plan.
        """
        nodes = [node for work in kernels for node in work.nodes]
        inside = set(nodes)
        # Of what another of the kernels reads, only that part need be made.
        outputs = [v for w in kernels for v in w.outputs if not v.users or not inside.issuperset(v.users)]
        seconds: dict[str, float] = {}
        energy_pj = 0.0
        for work in self.works.least(nodes, outputs, self.maps, in_blocks=self._launches_each):
            seconds[work.unit] = seconds.get(work.unit, 0.0) + work.seconds
            energy_pj += work.energy_pj
        bound_s = max(seconds.values(), default=0.0)
        energy_pj += static_power_w(self.machine) * bound_s * 1e12
        known_pj = energy_pj if self._has_energies else None
        return Estimate(bound_s * 1e9, bound_s * 1e9, self.source, known_pj, energy_pj)


def _shares(num_cores: int, of_cores: int) -> Iterator[float]:
    """What a kernel takes of the cores, then of places for it: kernels that run at the same time take no more
    than 1 of either.

    Where no more than n kernels of some size fit, those of at least that size take whole n-ths. These are
    dual feasible functions (Fekete and Schepers, 2001): a sum of floors is at most the floor of the sum.
    """
    yield num_cores / of_cores
    for num_places in range(1, _MAX_PLACES + 1):
        size = of_cores // (num_places + 1) + 1
        yield num_cores // size / (of_cores // size)


def _alone(groups: Sequence[Sequence[KernelWork]], num_cores: int | None = None) -> Schedule:
    """A stage of groups of kernels as a network of their own, in which they run in this order."""
    kernels = [work for group in groups for work in group]
    nodes = [node for work in kernels for node in work.nodes]
    inside = set(nodes)
    # What its own kernel alone reads is an output all the same: a result of the network.
    read_inside = {
        v
        for w in kernels
        for v in w.outputs
        if v.users and inside.issuperset(v.users) and not set(w.nodes).issuperset(v.users)
    }
    outputs = [v for w in kernels for v in w.outputs if v not in read_inside]
    results = dict.fromkeys(outputs or kernels[-1].outputs or kernels[-1].nodes[-1].results())
    graph = part_of(nodes, tuple(results))
    problem = PartitionProblem(graph)
    clusters = [work.nodes for work in kernels]
    partition = build_partition(
        problem,
        clusters,
        lambda producer, consumer, value, fused: _REASONS[fused],
        Provenance(SOURCE),
        quality=UNPRICED,
    )
    ids = {node: subgraph.id for subgraph in partition.subgraphs for node in subgraph.nodes}
    fixed = {
        ids[cluster[0]]: _layers(work, cluster)
        for work, cluster in zip(kernels, clusters, strict=True)
        if isinstance(work, MergedWork | LanedWork)
    }
    if fixed:
        wanted = frozenset(graph.outputs)
        layers = tuple(
            tuple(layer_of(nodes, wanted) for nodes in fixed[s.id])
            if s.id in fixed
            else partition.layers_of(s)
            for s in partition.subgraphs
        )
        partition = replace(partition, layers=layers)
    numbers = iter([ids[cluster[0]] for cluster in clusters])
    stage = Stage(
        tuple(
            Group(
                tuple(Instance(next(numbers)) for _ in group),
                num_cores,
                inside=tuple(w.sections if isinstance(w, LanedWork) else () for w in group),
            )
            for group in groups
            if group
        )
    )
    return Schedule(partition, (stage,), UNPRICED, Provenance(SOURCE))


def _layers(work: MergedWork | LanedWork, nodes: Sequence[Node]) -> Sequence[Sequence[Node]]:
    """The layers of a kernel that says which it has: merged operators are one."""
    if isinstance(work, MergedWork):
        return (nodes,)
    return [[nodes[place] for place in layer] for layer in work.layers]


def _connections(groups: Sequence[Sequence[KernelWork]]) -> tuple[tuple[int, ...], ...]:
    """For each kernel which values it reads and makes, numbered over all kernels."""
    numbers: dict[Value, int] = {}
    return tuple(
        tuple(
            numbers.setdefault(value, len(numbers))
            for value in (*(v for node in work.nodes for v in node.operands()), *work.outputs)
        )
        for group in groups
        for work in group
    )


def _is_merged(work: KernelWork) -> bool:
    """Whether a kernel writes the parts of its result where they belong, in one layer."""
    return isinstance(work, MergedWork)


_REASONS = {True: Reason.CLUSTER, False: Reason.NO_FUSION}
