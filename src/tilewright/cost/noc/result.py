"""What the simulator says of a mapping."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.cost.noc.mesh import LOCAL, WEST
from tilewright.results import about, in_json


@dataclass(frozen=True, slots=True)
class NocResult:
    """Cycles of one operator with its network and DRAM; estimated, as every simulation is.

    `cycles` is `compute_cycles` plus all `wait_cycles`: by tensor, how long the elements had nothing to do
    until its words were there; `Drain` while the last but one tile of partial sums had not left; `End` after
    the last step. `sent_flits` (headers included) are what the memory sent of each tensor, of the output
    partial sums that come back; `returned_flits` is what elements sent to the memory and to each other.
    `link_flits[router][port]` is what left each router by each port, in the order local, north, east, south,
    west; the memory is west of router 0. DRAM's flits have no headers. `hop_energy_pj` is that of the links
    from router to router, where the machine gives their energy, in no other figure.
    """

    cycles: int
    compute_cycles: int
    wait_cycles: dict[str, int] = field(
        metadata=about(
            "By tensor; Drain: for free space for partial sums; End: until the last result was in DRAM."
        )
    )
    num_steps: int = field(metadata=about(key="steps"))
    num_elements_used: int = field(metadata=about(key="elements_used"))
    sent_flits: dict[str, int] = field(metadata=about("What the memory sent, by tensor."))
    returned_flits: int = field(metadata=about("What the elements sent to the memory and to each other."))
    link_flits: tuple[tuple[int, ...], ...] = field(
        metadata=about("What left each router, row by row: into its element, north, east, south, west.")
    )
    dram_read_flits: int
    dram_written_flits: int
    num_simulated_steps: int = field(
        default=0, metadata=about("The others repeated one of them exactly.", key="simulated_steps")
    )
    hop_energy_pj: float = field(
        default=0.0,
        metadata=about(
            "Of the links from router to router, in no other figure; 0 where the machine gives none."
        ),
    )

    @property
    def num_hop_flits(self) -> int:
        """Flits over links from router to router; those over several links count for each."""
        to_terminals = sum(ports[LOCAL] for ports in self.link_flits) + self.link_flits[0][WEST]
        return sum(sum(ports) for ports in self.link_flits) - to_terminals

    @in_json
    def memory_utilization(self) -> float:
        """Share of the cycles in which the memory sent a flit: the port that binds most mappings."""
        return sum(self.sent_flits.values()) / self.cycles

    @property
    def busiest_link(self) -> tuple[int, int, float]:
        """Router, port and utilisation of the link with most flits; the first of equals."""
        flits, router, port = max(
            ((n, -r, -p) for r, ports in enumerate(self.link_flits) for p, n in enumerate(ports))
        )
        return -router, -port, flits / self.cycles
