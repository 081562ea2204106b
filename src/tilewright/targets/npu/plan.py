"""A schedule on a described accelerator: bound to cores, placed in its buffers, simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from tilewright.errors import Outclassed
from tilewright.hardware.element_types import ElementTypes, element_types
from tilewright.hardware.machine import Machine
from tilewright.ir.graph_regions import RegionMaps
from tilewright.known_facts import KnownFacts
from tilewright.memory.base import MemoryPlanner
from tilewright.memory.scopes import ScopePlan, place
from tilewright.partition.base import Partition
from tilewright.records import dataclass
from tilewright.schedule.base import Schedule
from tilewright.schedule.binding import Bindings, bind
from tilewright.schedule.core_groups import CoreGroups, core_groups_of
from tilewright.schedule.instances import InstanceGraph
from tilewright.schedule.launches import Launch, launches_of
from tilewright.schedule.scheduled import instances_of
from tilewright.targets.npu.bounds import steps_s, values_passing_s
from tilewright.targets.npu.lower_groups import lower_in_groups
from tilewright.targets.npu.pools import pool_sizes
from tilewright.targets.npu.residents import Residents, choose_residents
from tilewright.targets.npu.simulate import GRAPHTURBO, Keeps, Policy, Simulation, simulate
from tilewright.targets.npu.step_facts import fetches
from tilewright.targets.npu.steps import lower
from tilewright.targets.npu.tile_mapping import tiler_of
from tilewright.targets.npu.tiles import Tiler
from tilewright.targets.npu.work import Works


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedPlan:
    """The instances of a schedule in their order, where they run, where values lie, and what that costs."""

    instances: InstanceGraph
    order: tuple[int, ...]
    bindings: Bindings
    scopes: ScopePlan
    simulation: Simulation
    types: ElementTypes

    @property
    def partition(self) -> Partition:
        """Whose instances they are."""
        return self.instances.partition


def simulated(
    schedule: Schedule,
    machine: Machine,
    memory: MemoryPlanner | None = None,
    policy: Policy | None = None,
    types: ElementTypes | None = None,
    tiler: Tiler | None = None,
    maps: RegionMaps | None = None,
    works: Works | None = None,
) -> SimulatedPlan:
    """Bind, place and simulate a schedule on one cluster of a machine, by default as the machine runs it and
    keeps elements. `maps` are regions through the graph that are known, `works` is what is known of the work
    of nodes.

    Raises:
        UsageError: the schedule is not legal.
        InfeasibleMapping: it fits nowhere; names level and bytes.
    """
    types = types or element_types(machine)
    instances, order = instances_of(schedule, types, maps=maps)
    policy = policy or Policy(launches=machine.launches)
    is_launched = policy.launches == "each subgraph"
    launches = launches_of(schedule, instances) if is_launched else ()
    cores = None if is_launched else core_groups_of(schedule, instances, machine.num_cores_per_cluster)
    return simulated_order(
        instances,
        order,
        machine,
        types,
        memory,
        policy,
        launches=launches,
        tiler=tiler,
        cores=cores,
        works=works,
    )


def simulated_order(
    instances: InstanceGraph,
    order: Sequence[int],
    machine: Machine,
    types: ElementTypes,
    memory: MemoryPlanner | None = None,
    policy: Policy = GRAPHTURBO,
    least_seconds: Mapping[str, float] | None = None,
    launches: Sequence[Launch] = (),
    tiler: Tiler | None = None,
    most_s: float = inf,
    cores: CoreGroups | None = None,
    works: Works | None = None,
    *,
    known: KnownFacts | None = None,
    keeps: Keeps = "runs",
) -> SimulatedPlan:
    """The same of instances in an order. `least_seconds` is what is known of `least_seconds_of` the network,
    `launches` the kernels in that order of a policy that launches each subgraph, `tiler` what tiles steps;
    None: `tiler_of` the machine. A plan that is seen to take more than `most_s` is not simulated. `cores` are
    the groups of cores that run the nodes of one program, `works` what is known of the work of nodes on this
    machine, `known` facts of steps of other plans of the same graph. `keeps` is what the simulation does.

    Raises:
        InfeasibleMapping: not even main memory is large enough.
        Outclassed: it takes more than `most_s`.
    """
    bindings = bind(instances, order, machine.num_cores_per_cluster, launches, cores)
    scopes = place(instances, order, bindings, machine, memory)
    launch_s = 0.0 if launches else machine.overheads.kernel_launch_ns * 1e-9
    _require(launch_s + values_passing_s(scopes, machine), most_s)
    residents = Residents(pool_sizes(machine, scopes))
    tiler, works = tiler or tiler_of(machine), works or Works(machine, types)
    known = known or KnownFacts()
    if cores is None:
        if policy.resident_weights and not launches:  # a launch leaves nothing on the chip
            needed = fetches(scopes, bindings, works, known)
            weights = [(w.key, w.size_bytes) for _, w in needed if w.key is not None]
            residents = choose_residents(weights, residents.pools)
        steps = lower(scopes, bindings, works, residents, tiler, known)
    else:
        steps, residents = lower_in_groups(
            scopes, bindings, works, residents, tiler, known, stays=policy.resident_weights
        )
    _require(launch_s + steps_s(steps, residents.scopes, machine), most_s)
    if least_seconds is None:
        least_seconds = least_seconds_of(instances, works, in_blocks=bool(launches))
    simulation = simulate(steps, machine, residents, policy, least_seconds=least_seconds, keeps=keeps)
    return SimulatedPlan(instances, tuple(order), bindings, scopes, simulation, types)


_ROUNDING = 1e-9
"""By how much, in proportion, sums of the same seconds in another order may differ."""


def _require(least_s: float, most_s: float) -> None:
    if least_s > most_s * (1 + _ROUNDING):
        raise Outclassed(f"takes {least_s * 1e3:.3f} ms at least, another plan {most_s * 1e3:.3f} ms.")


def least_seconds_of(
    instances: InstanceGraph, works: Works, *, in_blocks: bool = False
) -> Mapping[str, float]:
    """Seconds that each unit takes at least, in any plan of the network; `in_blocks` as of `Works`."""
    partition = instances.partition
    converts = partition.border_bytes is not None
    return works.least_seconds(partition.graph, instances.maps, converts=converts, in_blocks=in_blocks)
