"""A mapped operator on a network on chip, cycle by cycle: a mesh of processing elements around one memory.

From section V-C, IV-A and table V of CoSA's paper: a 2-D mesh of elements (4 x 4 in the baseline), routers
with wormhole switching, X-Y ways, unicast and multicast, flits of 64 bits; transfers, computation and DRAM
run concurrently, so that congestion shows; an element computes as the analytical model says. 8-bit weights
and inputs, 24-bit partial sums. From section III-D (figure 5): elements whose tile of a tensor is the same
get it by one multicast; elements that add to the same outputs reduce them.

What the paper leaves open is assumed as follows.

* Global buffer and DRAM sit at one corner, west of the first router, behind one port of a flit per cycle
  each way. A router takes one cycle, the link behind it included, or what the machine says of a hop to the
  next router; its input buffers hold 4 flits, and one more for each cycle more of a hop, so that links stay
  busy; free capacity is known at once; arbitration goes round. A head takes all the ports of its
  multicast at once. Packets have a head flit and up to 64 bytes.
* Every buffer is double: while a tile is in use, the next one comes and the one before last has gone. (The
  published sizes look halved for it: they are taken as the mapping's capacities as they are.) The streams
  of the tensors run ahead of each other as far as that allows. All elements start a step together, when the
  last one has its words.
* Of a tile that overlaps the one before only new words are sent. Which words are new is seen from the tile
  just before alone; pixels that a stride jumps over count, as in Timeloop.
* Elements with partial sums of the same outputs pass them on along a chain, each adds its own (as Simba's
  elements do), and the last sends to the memory: 24 bits for a partial sum, which comes back later to the
  first of the chain, 8 bits for a result.
* DRAM is a channel for reads and one for writes with the machine's bandwidths, in bursts of an access (64
  bytes), taken in turn by the tensors, and a read latency of 100 cycles, or the machine's; rows and refresh
  are not modelled.
  Tensors that bypass the global buffer go from DRAM to the network through a small staging buffer; a tile of
  the buffer must be there whole before the elements get of it.
* Levels inside an element cost time only by their bandwidth, as in the analytical model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.cost.noc.result import NocResult
from tilewright.cost.noc.traffic import NocOptions

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine
    from tilewright.loops.mapping import Mapping
    from tilewright.loops.problem import Problem

__all__ = ["NocOptions", "NocResult", "simulate"]


def simulate(
    problem: Problem, machine: Machine, mapping: Mapping, options: NocOptions | None = None
) -> NocResult:
    """The cycles that a mapping takes with its network, from the first burst to the last result in DRAM.

    Repeating phases are simulated once; the result is that of simulating all of them. Without `options` the
    network is the machine's, where its description has one, else that of the paper's table V.

    Raises:
        MachineError: a machine without several elements on a mesh around one or two shared levels.
        InfeasibleMapping, UsageError: an illegal mapping, as `nest_analysis.evaluate` says it.
    """
    from tilewright.cost.noc.phases import Walk
    from tilewright.cost.noc.traffic import plan

    chosen = options or NocOptions.of(machine)
    walked = Walk(plan(problem, machine, mapping, chosen)).run()
    per_flit_pj = chosen.flit_bits / 8 * chosen.hop_pj_per_byte
    return replace(walked, hop_energy_pj=walked.num_hop_flits * per_flit_pj)
