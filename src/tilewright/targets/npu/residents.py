"""Weights that stay on the chip from batch to batch, where they fit: which, and at which level.

A weight that stays is in the chip's memory once: in the shared buffer, or distributed over the cores'
buffers, from where every core that needs a part of it gets that part each time. What they take, nothing that
passes can use. So they take at most half of what placed buffers leave free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.hardware.machine import Machine
from tilewright.schedule.binding import Scope
from tilewright.targets.npu.pools import PoolSizes, level_bytes

_SHARE = 2  # of a pool, one part in so many


@dataclass(frozen=True, slots=True)
class Residents:
    """Where weights stay, by their key, and what they leave of the pools.

    `local_bytes` of `size_bytes` lie in the cores. `held` are the weights that groups of cores hold, by the
    group's number, with the bytes that they take there: from the first step that needs them on, or from batch
    to batch if they `stay`.
    """

    pools: PoolSizes
    scopes: Mapping[str, Scope] = field(default_factory=dict)
    size_bytes: int = 0
    local_bytes: int = 0
    held: tuple[Mapping[str, int], ...] = ()
    stay: bool = False


def most_resident_bytes(machine: Machine, *, in_groups: bool) -> float:
    """Bytes of weights that stay on a cluster's chip at most, of any plan: half of each level; `in_groups` of
    cores, half of these groups' buffers, and of what that leaves half again for weights of all."""
    whole = level_bytes(machine)
    shares = 1 / _SHARE, (1 - 1 / _SHARE) / _SHARE * in_groups
    return sum(shares) * whole.local_bytes + whole.shared_bytes / _SHARE


def choose_residents(fetches: Sequence[tuple[str, int]], pools: PoolSizes) -> Residents:
    """The weights that save the most bytes from main memory for each byte that they take.

    `fetches` has each weight's key and bytes, as often as a batch fetches it. The shared buffer is filled
    first, which feeds the cores as fast and takes nothing from them. O(fetches log fetches).
    """
    size_bytes = dict(fetches)
    times: dict[str, int] = {}
    for key, _ in fetches:
        times[key] = times.get(key, 0) + 1
    free = {Scope.SHARED: pools.shared_bytes // _SHARE, Scope.LOCAL: pools.local_bytes // _SHARE}
    found: dict[str, Scope] = {}
    for key in sorted(size_bytes, key=lambda k: (-times[k], -size_bytes[k], k)):
        level = next((scope for scope, left in free.items() if size_bytes[key] <= left), None)
        if level is not None:
            found[key] = level
            free[level] -= size_bytes[key]
    taken = {scope: sum(size_bytes[key] for key, where in found.items() if where is scope) for scope in free}
    left = PoolSizes(pools.local_bytes - taken[Scope.LOCAL], pools.shared_bytes - taken[Scope.SHARED])
    return Residents(left, found, sum(taken.values()), taken[Scope.LOCAL])
