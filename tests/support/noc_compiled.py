"""Packets through the compiled network of `cost.noc`, as `noc_flits` sends them through the plain one."""

from __future__ import annotations

import numpy as np
from tests.support.noc_flits import Delivery, Packet, check_packets

from tilewright.arrays import Array
from tilewright.cost.noc.compiled import network_cycle, network_state, wiring
from tilewright.cost.noc.mesh import NUM_PORTS, Mesh
from tilewright.errors import InternalError
from tilewright.machine_code import compiled


@compiled
def _deliver(
    trees: Array,
    behind: Array,
    terminal: Array,
    entrance: Array,
    buffers: Array,
    filled: Array,
    held_by: Array,
    turns: Array,
    on_links: Array,
    lengths: Array,
    ready: Array,
    order: Array,
    first: Array,
    arrivals: Array,
    link_flits: Array,
    entered: Array,
) -> bool:
    """Deliver packets; `order[first[t]:first[t + 1]]` are those of a terminal. False if all stands still."""
    num_terminals, depth = entrance.shape[0], buffers.shape[2]
    at, flit_at = first[:-1].copy(), np.zeros(num_terminals, np.int64)
    sent = np.full(num_terminals, -1, np.int64)
    moved = np.zeros((filled.size, 3), np.int64)
    arrived = np.zeros((num_terminals, 2), np.int64)
    cycle = num_expected = 0
    for i in range(arrivals.shape[0]):
        for j in range(arrivals.shape[1]):
            num_expected += arrivals[i, j] == 0
    while num_expected:
        next_ready = -1
        for end in range(num_terminals):
            sent[end] = -1
            if at[end] == first[end + 1]:
                continue
            packet = order[at[end]]
            if ready[packet] > cycle:
                next_ready = ready[packet] if next_ready < 0 else min(next_ready, ready[packet])
                continue
            if filled[entrance[end, 0], entrance[end, 1]] >= depth:
                continue
            is_tail = flit_at[end] == lengths[packet] - 1
            sent[end] = packet * 4 + (flit_at[end] == 0) + 2 * is_tail
            flit_at[end] = 0 if is_tail else flit_at[end] + 1
            at[end] += is_tail
            entered[end] += 1
        num_arrived, has_changed = network_cycle(
            trees,
            behind,
            terminal,
            entrance,
            buffers,
            filled,
            held_by,
            turns,
            on_links,
            sent,
            moved,
            arrived,
            link_flits,
        )
        cycle += 1
        for i in range(num_arrived):
            if arrived[i, 1] & 2:
                arrivals[arrived[i, 1] >> 2, arrived[i, 0]] = cycle
                num_expected -= 1
        if not has_changed:
            if next_ready < 0:
                return False
            cycle = next_ready
    return True


def deliver(mesh: Mesh, packets: tuple[Packet, ...]) -> Delivery:
    """Packets through the network, cycle by cycle: what arrives when, and how many flits each link passes."""
    check_packets(mesh, packets)
    num_terminals = mesh.num_elements + 1
    trees = np.zeros((len(packets), mesh.num_elements), np.int64)
    arrivals = np.full((len(packets), num_terminals), -1, np.int64)
    for number, packet in enumerate(packets):
        for router, ports in mesh.tree(packet.source, packet.destinations).items():
            trees[number, router] = ports
        arrivals[number, list(packet.destinations)] = 0
    sources = np.array([packet.source for packet in packets], np.int64)
    first = np.searchsorted(np.sort(sources), np.arange(num_terminals + 1))
    link_flits = np.zeros((mesh.num_elements, NUM_PORTS), np.int64)
    entered = np.zeros(num_terminals, np.int64)
    is_done = _deliver(
        trees,
        *wiring(mesh),
        *network_state(mesh),
        np.array([packet.num_flits for packet in packets], np.int64),
        np.array([packet.ready_cycle for packet in packets], np.int64),
        np.argsort(sources, kind="stable"),
        first.astype(np.int64),
        arrivals,
        link_flits,
        entered,
    )
    if not is_done:
        raise InternalError("the network stands still.")
    return Delivery(
        tuple({int(t): int(row[t]) for t in np.nonzero(row >= 0)[0]} for row in arrivals),
        tuple(tuple(int(x) for x in row) for row in link_flits),
        tuple(int(x) for x in entered),
    )
