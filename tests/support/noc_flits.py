"""The network cycle by cycle, in plain Python: what the compiled one must equal.

A router has an input buffer for each port. A packet's head asks for all the ports by which the packet leaves;
it gets all of them at once or none, and keeps them until its tail has left (wormhole switching). A flit moves
when every buffer it goes to had free capacity at the start of the cycle, flits on their way to it counted.
Through a router and over the link to the next one it takes as many cycles as the mesh says; the ways between
routers and terminals take one. Terminals take everything that arrives.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tilewright.cost.noc.mesh import LOCAL, NUM_PORTS, OPPOSITE, WEST, Mesh
from tilewright.errors import InternalError, UsageError


@dataclass(frozen=True, slots=True)
class Packet:
    """`num_flits` from a terminal to one or more others, ready to leave at a cycle."""

    source: int
    destinations: tuple[int, ...]
    num_flits: int
    ready_cycle: int = 0


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of packets: the cycle after each one's last flit arrived, by packet and destination.

    `link_flits` counts what left each router by each port; `entered_flits` what each terminal sent.
    """

    arrival_cycles: tuple[dict[int, int], ...]
    link_flits: tuple[tuple[int, ...], ...]
    entered_flits: tuple[int, ...]

    @property
    def cycles(self) -> int:
        """When the last flit was delivered."""
        return max((cycle for packet in self.arrival_cycles for cycle in packet.values()), default=0)


def check_packets(mesh: Mesh, packets: tuple[Packet, ...]) -> None:
    """Raise what the mesh cannot carry.

    Only the memory may send to several elements at once: trees from one corner cannot wait for each other in
    a circle, those from different places can.

    Raises:
        UsageError: a packet without flits or destination, an unknown terminal, several destinations from an
            element, or a terminal that sends to itself.
    """
    for number, packet in enumerate(packets):
        if packet.num_flits < 1 or not packet.destinations or packet.ready_cycle < 0:
            raise UsageError(f"packet {number}: needs a flit, a destination and a cycle from 0 on.")
        if len(set(packet.destinations)) != len(packet.destinations):
            raise UsageError(f"packet {number}: a destination is named twice.")
        for terminal in (packet.source, *packet.destinations):
            mesh.entrance(terminal)
        if packet.source in packet.destinations:
            raise UsageError(f"packet {number}: terminal {packet.source} sends to itself.")
        if len(packet.destinations) > 1 and packet.source != mesh.memory:
            raise UsageError(f"packet {number}: only the memory sends to several; split it.")


@dataclass(frozen=True, slots=True)
class Flit:
    """A piece of a packet. `tag` is the sender's; `ports` is the packet's tree (see `Mesh.tree`)."""

    tag: int
    ports: dict[int, int]
    is_head: bool
    is_tail: bool


class Router:
    """Input buffers, and which input holds which output ports."""

    def __init__(self, num_on_link: int) -> None:
        self.buffers: list[deque[Flit]] = [deque() for _ in range(NUM_PORTS)]
        # On the way to each buffer, the next to arrive first; None where a cycle sent nothing.
        self.on_links: list[deque[Flit | None]] = [deque([None] * num_on_link) for _ in range(NUM_PORTS)]
        self.held_by: list[int | None] = [None] * NUM_PORTS  # output port -> input port
        self.turn = 0  # the input that is asked first

    def num_taken(self, port: int) -> int:
        """Places of an input buffer that are taken, or will be by what is on its way."""
        return len(self.buffers[port]) + sum(flit is not None for flit in self.on_links[port])

    def held(self, port: int) -> list[int]:
        """Output ports that an input holds."""
        return [out for out in range(NUM_PORTS) if self.held_by[out] == port]


class FlitNetwork:
    """The routers of a mesh and what lies in them."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.routers = [Router(mesh.hop_cycles - 1) for _ in range(mesh.num_elements)]
        self.link_flits = [[0] * NUM_PORTS for _ in range(mesh.num_elements)]

    @property
    def is_empty(self) -> bool:
        """Whether no flit is under way."""
        return not any(router.num_taken(port) for router in self.routers for port in range(NUM_PORTS))

    def has_free_capacity(self, terminal: int) -> bool:
        """Whether a terminal may send a flit in this cycle."""
        router, port = self.mesh.entrance(terminal)
        return len(self.routers[router].buffers[port]) < self.mesh.fifo_flits

    def cycle(self, sent: list[tuple[int, Flit]]) -> list[tuple[int, Flit]]:
        """One cycle: terminals with free capacity send a flit each. Returns what arrives where."""
        has_space = [
            [router.num_taken(port) < self.mesh.fifo_flits for port in range(NUM_PORTS)]
            for router in self.routers
        ]
        for number, router in enumerate(self.routers):
            self._grant(number, router)
        moved: dict[tuple[int, int], Flit] = {}
        arrived: list[tuple[int, Flit]] = []
        for number, router in enumerate(self.routers):
            for port, buffer in enumerate(router.buffers):
                outputs = router.held(port)
                if not buffer or not outputs or not all(self._is_free(number, o, has_space) for o in outputs):
                    continue
                flit = buffer.popleft()
                for output in outputs:
                    self.link_flits[number][output] += 1
                    terminal = self._terminal(number, output)
                    if terminal is None:
                        moved[self.mesh.neighbour(number, output), OPPOSITE[output]] = flit
                    else:
                        arrived.append((terminal, flit))
                    if flit.is_tail:
                        router.held_by[output] = None
        for number, router in enumerate(self.routers):
            for port, on_link in enumerate(router.on_links):
                on_link.append(moved.get((number, port)))
                here = on_link.popleft()
                if here is not None:
                    router.buffers[port].append(here)
        for terminal, flit in sent:
            number, port = self.mesh.entrance(terminal)
            self.routers[number].buffers[port].append(flit)
        return arrived

    def _grant(self, number: int, router: Router) -> None:
        """Give free ports to waiting heads, in turn; the one after the last that got any is next to begin."""
        first = router.turn
        for port in ((first + i) % NUM_PORTS for i in range(NUM_PORTS)):
            buffer = router.buffers[port]
            if not buffer or not buffer[0].is_head or router.held(port):
                continue
            wanted = [out for out in range(NUM_PORTS) if buffer[0].ports[number] >> out & 1]
            if all(router.held_by[out] is None for out in wanted):
                for out in wanted:
                    router.held_by[out] = port
                router.turn = (port + 1) % NUM_PORTS

    def _is_free(self, number: int, output: int, has_space: list[list[bool]]) -> bool:
        if self._terminal(number, output) is not None:
            return True
        return has_space[self.mesh.neighbour(number, output)][OPPOSITE[output]]

    def _terminal(self, number: int, output: int) -> int | None:
        if output == LOCAL:
            return number
        return self.mesh.memory if number == 0 and output == WEST else None


def deliver(mesh: Mesh, packets: tuple[Packet, ...]) -> Delivery:
    """Send packets, those of one terminal in their order, each when it is ready and those before have left.

    Raises:
        UsageError: a packet that the mesh cannot carry.
    """
    check_packets(mesh, packets)
    network = FlitNetwork(mesh)
    waiting: list[deque[int]] = [deque() for _ in range(mesh.num_elements + 1)]
    for number, packet in enumerate(packets):
        waiting[packet.source].append(number)
    trees = [mesh.tree(p.source, p.destinations) for p in packets]
    num_sent = [0] * len(packets)
    entered = [0] * (mesh.num_elements + 1)
    arrivals: list[dict[int, int]] = [{} for _ in packets]
    cycle, last_change = 0, 0
    while any(waiting) or not network.is_empty:
        sent: list[tuple[int, Flit]] = []
        for terminal, queue in enumerate(waiting):
            if not queue or packets[queue[0]].ready_cycle > cycle or not network.has_free_capacity(terminal):
                continue
            number = queue[0]
            last = num_sent[number] == packets[number].num_flits - 1
            sent.append((terminal, Flit(number, trees[number], num_sent[number] == 0, last)))
            entered[terminal] += 1
            num_sent[number] += 1
            if last:
                queue.popleft()
        before = sum(map(sum, network.link_flits))
        arrived = network.cycle(sent)
        cycle += 1
        for terminal, flit in arrived:
            if flit.is_tail:
                arrivals[flit.tag][terminal] = cycle
        if sent or sum(map(sum, network.link_flits)) > before:
            last_change = cycle
        elif not network.is_empty and cycle > last_change + NUM_PORTS + mesh.hop_cycles:
            raise InternalError(f"the network stands still since cycle {last_change}.")
    return Delivery(tuple(arrivals), tuple(map(tuple, network.link_flits)), tuple(entered))
