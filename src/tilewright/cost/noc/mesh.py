"""The mesh: where processing elements and the memory sit, and which way packets take.

Elements are numbered row by row, each at its own router. The memory (the global buffer and, behind it, DRAM)
sits west of the router of element 0: this router has one more port. Packets go along a row first, then along
a column (X-Y). A packet for several elements takes the union of their ways, a tree, and is copied where the
ways part.
"""

from __future__ import annotations

from math import ceil, isqrt

from tilewright.errors import UsageError
from tilewright.records import dataclass

LOCAL, NORTH, EAST, SOUTH, WEST = range(5)
NUM_PORTS = 5
OPPOSITE = (LOCAL, SOUTH, WEST, NORTH, EAST)
"""The port at which the neighbour receives what leaves by a port."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Routers in rows and columns. A terminal is an element's number, or `memory`.

    `fifo_flits` is the depth of every input buffer; with 2 or more a link carries a flit each cycle. A flit
    takes `hop_cycles` through a router and over the link to the next one.
    """

    num_rows: int
    num_columns: int
    fifo_flits: int = 4
    hop_cycles: int = 1

    def __post_init__(self) -> None:
        if min(self.num_rows, self.num_columns, self.fifo_flits, self.hop_cycles) < 1:
            raise UsageError(
                f"mesh of {self.num_rows} x {self.num_columns} with buffers of {self.fifo_flits} flits and "
                f"hops of {self.hop_cycles} cycles: each is at least 1."
            )

    @classmethod
    def of(cls, num_elements: int, fifo_flits: int = 4, hop_cycles: int = 1) -> Mesh:
        """The mesh closest to a square with at least so many elements."""
        columns = isqrt(num_elements - 1) + 1 if num_elements > 1 else 1
        return cls(ceil(num_elements / columns), columns, fifo_flits, hop_cycles)

    @property
    def num_elements(self) -> int:
        """Routers, and elements if every router has one."""
        return self.num_rows * self.num_columns

    @property
    def memory(self) -> int:
        """The memory's terminal."""
        return self.num_elements

    def entrance(self, terminal: int) -> tuple[int, int]:
        """Router and port by which a terminal is attached."""
        if terminal == self.memory:
            return 0, WEST
        if not 0 <= terminal < self.num_elements:
            raise UsageError(f"terminal {terminal}: the mesh has elements 0 to {self.num_elements - 1}.")
        return terminal, LOCAL

    def neighbour(self, router: int, port: int) -> int:
        """The router behind a port that is not a terminal's."""
        return router + (0, -self.num_columns, 1, self.num_columns, -1)[port]

    def way(self, source: int, destination: int) -> list[tuple[int, int]]:
        """Routers from source to destination, each with the port by which it is left."""
        router, _ = self.entrance(source)
        goal, last_port = self.entrance(destination)
        hops = []
        while router != goal:
            step = goal % self.num_columns - router % self.num_columns
            along_row = EAST if step > 0 else WEST
            port = along_row if step else SOUTH if goal > router else NORTH
            hops.append((router, port))
            router = self.neighbour(router, port)
        return [*hops, (goal, last_port)]

    def tree(self, source: int, destinations: tuple[int, ...]) -> dict[int, int]:
        """The ports by which a packet leaves each router on its ways: a bit for each port."""
        ports: dict[int, int] = {}
        for destination in destinations:
            for router, port in self.way(source, destination):
                ports[router] = ports.get(router, 0) | 1 << port
        return ports
