"""The network's inner loop, compiled: one cycle.

The same as `tests/support/noc_flits.py`, which says what happens and why; here it is done on arrays. A flit
is a number: the tag of its packet's tree, times 4, plus 1 for a head and 2 for a tail.
"""

from __future__ import annotations

import numpy as np

from tilewright.arrays import Array
from tilewright.cost.noc.mesh import LOCAL, NUM_PORTS, OPPOSITE, WEST, Mesh
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
