"""Groups of cores of one program: what is free of their buffers, and which weights they hold there.

A group that needs a weight more than once brings it into its cores' buffers once, where it stays to the end,
as far as half of what placed buffers leave free goes. So weights of the layers that a group runs cross the
port of its cores once, however many instances pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.hardware.machine import Machine
from tilewright.memory.scopes import ScopePlan, core_spaces
from tilewright.schedule.binding import Scope
from tilewright.schedule.core_groups import CoreGroups
from tilewright.targets.npu.pools import PoolSizes, level_bytes
from tilewright.targets.npu.residents import Residents
from tilewright.targets.npu.tiles import Passage

_PARTS = 8  # in which what passes beside other things passes the shared buffer
_SHARE = 2  # of what is free, weights that are held take one part in so many


@dataclass(frozen=True, slots=True, eq=False)
class StepGroup:
    """The cores of a step: how many, which share of all, what of their buffers and of the shared one is free
    for what passes, what all groups have in common of the latter, and the keys of the weights that they hold.
    """

    number: int
    num_cores: int
    share: float
    pools: PoolSizes
    common_bytes: int
    held: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Fetch:
    """A weight that a group needs for a step, and what it takes of the cores' buffers in all its copies."""

    group: int
    key: str
    held_bytes: int


def free_bytes(plan: ScopePlan, cores: CoreGroups, machine: Machine) -> tuple[int, ...]:
    """What placed buffers leave of the buffers of each group's cores."""
    of_core_bytes = level_bytes(machine).local_bytes // machine.num_cores_per_cluster
    sizes = []
    for group, space in zip(cores.groups, core_spaces(cores, machine), strict=True):
        local = (b for b in plan.buffers if b.scope is Scope.LOCAL and b.size_bytes)
        ends = (b.end_bytes for b in local if cores.of_nodes[b.node] == group.number)
        taken_bytes = max(ends, default=space.offset_bytes) - space.offset_bytes
        sizes.append(group.num_cores * of_core_bytes - taken_bytes)
    return tuple(sizes)


def step_groups(
    cores: CoreGroups, free: Sequence[int], residents: Residents, machine: Machine
) -> tuple[StepGroup, ...]:
    """The groups as steps know them; residents that lie in the cores take an equal part of each core."""
    steps = []
    num_cores = machine.num_cores_per_cluster
    for group, free_of_group in zip(cores.groups, free, strict=True):
        held = residents.held[group.number] if residents.held else {}
        resident_bytes = -(-residents.local_bytes * group.num_cores // num_cores)
        left = free_of_group - resident_bytes - sum(held.values())
        share = group.num_cores / num_cores
        pools = PoolSizes(left, int(passing_bytes(residents.pools.shared_bytes) * share))
        common_bytes = residents.pools.shared_bytes - passing_bytes(residents.pools.shared_bytes)
        steps.append(StepGroup(group.number, group.num_cores, share, pools, common_bytes, frozenset(held)))
    return tuple(steps)


def passing_bytes(shared_bytes: int) -> int:
    """What of the shared buffer is divided among groups for what passes, so that none waits for another.

    The rest holds weights that all groups read.
    """
    return shared_bytes // _SHARE


def with_equal_parts(
    residents: Residents, cores: CoreGroups, free: Sequence[int], num_cores: int
) -> Residents:
    """The pools from which weights are taken that stay in all cores: as much of each as the fullest has."""
    least = min(f * num_cores // g.num_cores for f, g in zip(free, cores.groups, strict=True))
    return replace(residents, pools=replace(residents.pools, local_bytes=least))


def held_weights(
    fetches: Iterable[Fetch], free: Sequence[int], *, stays: bool
) -> tuple[Mapping[str, int], ...]:
    """The weights that each group holds, with the bytes that they take of its cores' buffers.

    Those that save the most for each byte first: needed most often, then the largest. `stays`: they are there
    when the program starts, so that holding those pays, too, that are needed once. O(fetches log fetches).
    """
    size_bytes: dict[tuple[int, str], int] = {}
    times: dict[tuple[int, str], int] = {}
    for fetch in fetches:
        place = fetch.group, fetch.key
        size_bytes[place] = max(size_bytes.get(place, 0), fetch.held_bytes)
        times[place] = times.get(place, 0) + 1
    held: tuple[dict[str, int], ...] = tuple({} for _ in free)
    left = [size // _SHARE for size in free]
    for place in sorted(size_bytes, key=lambda p: (-times[p], -size_bytes[p], p)):
        group, key = place
        if size_bytes[place] <= left[group] and (stays or times[place] > 1):
            held[group][key] = size_bytes[place]
            left[group] -= size_bytes[place]
    return held


def bringing(size_bytes: int, group: StepGroup) -> Passage:
    """How a weight comes to the cores that hold it: at once, by way of the shared buffer as a whole where it
    takes no more than half of that. Its place in the cores is no part of what passes there."""
    is_small = _SHARE * size_bytes <= group.common_bytes
    outer_held_bytes = size_bytes if is_small else min(size_bytes, max(1, group.pools.shared_bytes // _PARTS))
    return Passage(size_bytes, size_bytes, 0, True, outer_held_bytes)
