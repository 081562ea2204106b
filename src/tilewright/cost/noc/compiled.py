"""The network's inner loop, compiled: one cycle.

The same as `tests/support/noc_flits.py`, which says what happens and why; here it is done on arrays. A flit
is a number: the tag of its packet's tree, times 4, plus 1 for a head and 2 for a tail.
"""

from __future__ import annotations

import numpy as np

from tilewright.arrays import Array
from tilewright.cost.noc.mesh import LOCAL, NUM_PORTS, OPPOSITE, WEST, Delivery, Mesh, Packet, check_packets
from tilewright.errors import InternalError
from tilewright.machine_code import compiled


def wiring(mesh: Mesh) -> tuple[Array, Array, Array]:
    """Of each port the router and the terminal behind it, -1 for none; of each terminal its entrance."""
    behind = np.full((mesh.num_elements, NUM_PORTS), -1, np.int64)
    terminal = np.full((mesh.num_elements, NUM_PORTS), -1, np.int64)
    for router in range(mesh.num_elements):
        for port in range(NUM_PORTS):
            behind[router, port] = mesh.neighbour(router, port)
        terminal[router, LOCAL] = router
    terminal[0, WEST] = mesh.memory
    entrance = np.array([mesh.entrance(t) for t in range(mesh.num_elements + 1)], np.int64)
    return behind, terminal, entrance


def network_state(mesh: Mesh) -> tuple[Array, Array, Array, Array, Array]:
    """An empty network: flits in buffers, how many, the input that holds each output, whose turn it is; of
    each input what is on the link to it, the next to arrive first, -1 for nothing."""
    size = (mesh.num_elements, NUM_PORTS)
    return (
        np.zeros((*size, mesh.fifo_flits), np.int64),
        np.zeros(size, np.int64),
        np.full(size, -1, np.int64),
        np.zeros(mesh.num_elements, np.int64),
        np.full((*size, mesh.hop_cycles - 1), -1, np.int64),
    )


_OPPOSITE = OPPOSITE


@compiled
def network_cycle(
    trees: Array,
    behind: Array,
    terminal: Array,
    entrance: Array,
    buffers: Array,
    filled: Array,
    held_by: Array,
    turns: Array,
    on_links: Array,
    sent: Array,
    moved: Array,
    arrived: Array,
    link_flits: Array,
) -> tuple[int, bool]:
    """One cycle; `sent[terminal]` is a flit or -1. Returns how many `arrived`, and whether anything changed.

    `moved` and `arrived` receive flits with where they go.
    """
    num_routers, depth, num_on_link = buffers.shape[0], buffers.shape[2], on_links.shape[2]
    num_moved = num_arrived = 0
    has_changed = False
    for router in range(num_routers):
        first = turns[router]
        for i in range(5):
            port = (first + i) % 5
            if filled[router, port] == 0 or buffers[router, port, 0] & 1 == 0:
                continue
            wanted = trees[buffers[router, port, 0] >> 2, router]
            is_free = True
            for out in range(5):
                # An input that holds ports already is met here too: they are among those it wants.
                if wanted >> out & 1 and held_by[router, out] >= 0:
                    is_free = False
            if is_free:
                for out in range(5):
                    if wanted >> out & 1:
                        held_by[router, out] = port
                turns[router] = (port + 1) % 5
                has_changed = True
    for router in range(num_routers):
        for port in range(5):
            if filled[router, port] == 0:
                continue
            outputs = 0
            has_free_capacity = True
            for out in range(5):
                if held_by[router, out] == port:
                    outputs |= 1 << out
                    if terminal[router, out] < 0:
                        taken = filled[behind[router, out], _OPPOSITE[out]]
                        for i in range(num_on_link):
                            taken += on_links[behind[router, out], _OPPOSITE[out], i] >= 0
                        if taken >= depth:
                            has_free_capacity = False
            if outputs == 0 or not has_free_capacity:
                continue
            flit = buffers[router, port, 0]
            for out in range(5):
                if outputs >> out & 1 == 0:
                    continue
                link_flits[router, out] += 1
                if terminal[router, out] < 0:
                    moved[num_moved, 0] = behind[router, out]
                    moved[num_moved, 1] = _OPPOSITE[out]
                    moved[num_moved, 2] = flit
                    num_moved += 1
                else:
                    arrived[num_arrived, 0] = terminal[router, out]
                    arrived[num_arrived, 1] = flit
                    num_arrived += 1
                if flit & 2:
                    held_by[router, out] = -1
            # The flit goes when all have been looked at: free capacity is that of the cycle's start.
            buffers[router, port, 0] = -1
    for router in range(num_routers):
        for port in range(5):
            if filled[router, port] and buffers[router, port, 0] == -1:
                has_changed = True
                filled[router, port] -= 1
                for i in range(depth - 1):
                    buffers[router, port, i] = buffers[router, port, i + 1]
                buffers[router, port, depth - 1] = 0
    if num_on_link:
        for router in range(num_routers):
            for port in range(5):
                if on_links[router, port, 0] >= 0:
                    buffers[router, port, filled[router, port]] = on_links[router, port, 0]
                    filled[router, port] += 1
                for i in range(num_on_link - 1):
                    has_changed |= on_links[router, port, i] >= 0
                    on_links[router, port, i] = on_links[router, port, i + 1]
                has_changed |= on_links[router, port, num_on_link - 1] >= 0
                on_links[router, port, num_on_link - 1] = -1
    for i in range(num_moved):
        router, port = moved[i, 0], moved[i, 1]
        if num_on_link:
            on_links[router, port, num_on_link - 1] = moved[i, 2]
        else:
            buffers[router, port, filled[router, port]] = moved[i, 2]
            filled[router, port] += 1
    for end in range(sent.size):
        if sent[end] >= 0:
            router, port = entrance[end, 0], entrance[end, 1]
            buffers[router, port, filled[router, port]] = sent[end]
            filled[router, port] += 1
            has_changed = True
    return num_arrived, has_changed


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
