"""From an order of instances to scopes and offsets: steps, then each level from the inside out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.hardware.capacity import local_capacity_bytes, main_capacity_bytes, shared_capacity_bytes
from tilewright.hardware.machine import Machine
from tilewright.ir.region import full_region
from tilewright.memory.scoped.base import SCOPES, LevelUse, Piece, ScopePlan, live_bytes
from tilewright.memory.scoped.expand import Draft, Timeline, expand
from tilewright.memory.scoped.pack import Packing, pack
from tilewright.memory.scoped.spill import DEFAULT_POLICY, POLICIES, Policy, move_out, spill, victim_at
from tilewright.planning import Infeasible
from tilewright.schedule.binding import Bindings, Scope
from tilewright.schedule.instances import InstanceGraph
from tilewright.suggestions import closest

Capacities = Mapping[Scope, int | None]


def place(
    graph: InstanceGraph,
    order: Sequence[int],
    bindings: Bindings,
    machine: Machine,
    policy: str = DEFAULT_POLICY,
    *,
    capacities: Capacities | None = None,
) -> ScopePlan:
    """The scope and the offset of every piece that an order of instances makes.

    A piece that does not fit its level goes to the next outer one for its whole life; the policy names which.
    `capacities` replaces those of the machine, for the scopes that it has.

    Raises:
        UsageError: there is no such policy.
        InfeasibleMapping: not even main memory is large enough.
    """
    if policy not in POLICIES:
        raise UsageError(f"there is no spill policy {policy!r}; {closest(policy, POLICIES)}.")
    limits = {**capacities_of(graph, machine), **(capacities or {})}
    timeline = expand(graph, order, bindings)
    intended = [d.scope for d in timeline.drafts]
    packings: dict[Scope, Packing] = {}
    moved: dict[Scope, list[Draft]] = {}
    for scope in SCOPES:
        here = [d for d in timeline.drafts if d.scope is scope]
        spill(timeline, scope, limits[scope], POLICIES[policy])
        packings[scope] = _packed(timeline, scope, limits[scope], POLICIES[policy], machine)
        moved[scope] = [d for d in here if d.scope is not scope]
    pieces = tuple(_piece(d, intended[d.id], packings[d.scope], timeline) for d in timeline.drafts)
    levels = {
        scope: _level_use(scope, limits[scope], packings[scope], moved[scope], pieces, len(timeline.steps))
        for scope in SCOPES
    }
    return ScopePlan(graph, tuple(order), policy, timeline.steps, pieces, MappingProxyType(levels))


def capacities_of(graph: InstanceGraph, machine: Machine) -> Capacities:
    """Bytes for pieces in each scope, of one cluster; None without a limit.

    Local: the data part of its cores' buffers together. Shared: without the share of weights; of a level that
    clusters share too, an equal part. Main: what the network's inputs and constants leave of it.
    """
    main = main_capacity_bytes(machine)
    if main is not None:
        main = max(0, main - _resident_bytes(graph))
    return {
        Scope.LOCAL: local_capacity_bytes(machine),
        Scope.SHARED: shared_capacity_bytes(machine),
        Scope.MAIN: main,
    }


def _resident_bytes(graph: InstanceGraph) -> int:
    """What lies in main memory all the time."""
    network = graph.partition.graph
    constants = (v for n in network.nodes for v in n.operands() if v.is_constant)
    resident = dict.fromkeys((*network.inputs, *constants))
    return sum(graph.bytes_of(v, full_region(v.shape)) for v in resident)


def _packed(
    timeline: Timeline, scope: Scope, capacity_bytes: int | None, policy: Policy, machine: Machine
) -> Packing:
    """Offsets within a level. While there are none that fit, one more piece leaves."""
    while True:
        here = [d for d in timeline.drafts if d.scope is scope]
        found = pack(here, capacity_bytes)
        if capacity_bytes is None or found.used_bytes <= capacity_bytes or found.culprit is None:
            return found
        if scope is Scope.MAIN:
            raise InfeasibleMapping(_too_large(here, found, capacity_bytes, machine))
        culprit = timeline.drafts[found.culprit]
        move_out(_victim(timeline, here, culprit, policy))


def _victim(timeline: Timeline, here: Sequence[Draft], culprit: Draft, policy: Policy) -> Draft:
    """Of what is live at the fullest step in the life of a piece that lies too high."""
    change: dict[int, int] = {}
    for draft in here:
        first, last = max(draft.first_step, culprit.first_step), min(draft.last_step, culprit.last_step)
        if first <= last:
            change[first] = change.get(first, 0) + draft.size_bytes
            change[last + 1] = change.get(last + 1, 0) - draft.size_bytes
    live = most = 0
    fullest = culprit.first_step
    for step in sorted(change):
        live += change[step]
        if live > most:
            most, fullest = live, step
    return victim_at(timeline, fullest, [d for d in here if d.first_step <= fullest <= d.last_step], policy)


def _too_large(here: Sequence[Draft], found: Packing, capacity_bytes: int, machine: Machine) -> str:
    largest = sorted(here, key=lambda d: (-d.size_bytes, d.id))[:3]
    return str(
        Infeasible(
            f"{machine.outermost.name} of {machine.name!r}",
            found.used_bytes,
            capacity_bytes,
            tuple(f"{d.value.name} ({d.size_bytes} bytes)" for d in largest),
            ("a smaller batch", "a machine with more memory"),
        )
    )


def _piece(draft: Draft, intended: Scope, packing: Packing, timeline: Timeline) -> Piece:
    offset = packing.offsets[draft.id]
    taken = (
        old
        for old in draft.may_take_over
        if timeline.drafts[old].scope is draft.scope and packing.offsets[old] == offset
    )
    return Piece(
        draft.id,
        draft.node,
        draft.value,
        draft.region,
        draft.size_bytes,
        draft.first_step,
        draft.last_step,
        draft.scope,
        offset,
        next(taken, None),
        draft.scope is not intended,
    )


def _level_use(
    scope: Scope,
    capacity_bytes: int | None,
    packing: Packing,
    moved: Sequence[Draft],
    pieces: Sequence[Piece],
    num_steps: int,
) -> LevelUse:
    here = [p for p in pieces if p.scope is scope]
    return LevelUse(
        scope,
        capacity_bytes,
        len(here),
        max(live_bytes(here, num_steps), default=0),
        packing.used_bytes,
        len(moved),
        sum(d.size_bytes for d in moved),
    )
