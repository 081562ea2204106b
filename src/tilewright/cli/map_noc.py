"""`tilewright map --noc`: mappings on a network on chip, cycle by cycle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilewright.cli.output import print_table, progress

if TYPE_CHECKING:
    from tilewright.cost.noc import NocResult
    from tilewright.hardware.machine import Machine
    from tilewright.loops.mapping import Mapping
    from tilewright.loops.problem import Problem

_PORTS = ("into element", "north of", "east of", "south of", "west of")


def on_network(pairs: Sequence[tuple[Problem, Mapping]], machine: Machine) -> list[NocResult]:
    """Every mapping simulated; equal ones once.

    Raises:
        MachineError: the machine is no mesh of elements around a memory.
    """
    from tilewright.cost.noc import simulate

    known: dict[tuple[object, ...], NocResult] = {}
    found = []
    with progress(f"simulating {len(pairs)} mappings") as update:
        for number, (problem, mapping) in enumerate(pairs):
            update(problem.name, number, len(pairs))
            key = (problem.dims, problem.operands, mapping)
            if key not in known:
                known[key] = simulate(problem, machine, mapping)
            found.append(known[key])
    return found


def noc_to_json(result: NocResult) -> dict[str, Any]:
    """One mapping's part of the report."""
    return {
        "cycles": result.cycles,
        "compute_cycles": result.compute_cycles,
        "wait_cycles": result.wait_cycles,
        "steps": result.num_steps,
        "simulated_steps": result.num_simulated_steps,
        "elements_used": result.num_elements_used,
        "sent_flits": result.sent_flits,
        "returned_flits": result.returned_flits,
        "dram_read_flits": result.dram_read_flits,
        "dram_written_flits": result.dram_written_flits,
        "hop_energy_pJ": result.hop_energy_pj,
        "memory_utilization": result.memory_utilization,
        "link_flits": result.link_flits,
    }


def print_noc(names: Sequence[str], results: Sequence[NocResult], machine: Machine) -> None:
    """What the network does to each mapping; equal rows once."""
    from tilewright.cost.noc.traffic import network_of

    rows = {}
    for name, result in zip(names, results, strict=True):
        router, port, share = result.busiest_link
        cause, waited = max(result.wait_cycles.items(), key=lambda item: item[1])
        rows[name, id(result)] = (
            name,
            f"{result.cycles:,}",
            f"{result.compute_cycles:,}",
            f"{100 * (result.cycles - result.compute_cycles) / result.cycles:.0f} %",
            f"{cause}, {waited:,}",
            f"{100 * result.memory_utilization:.0f} %",
            f"{_PORTS[port]} {router}, {100 * share:.0f} %",
            f"{result.hop_energy_pj / 1e6:,.2f} µJ",
        )
    heads = ("mapping", "cycles", "computing", "waiting", "most for", "memory's port", "busiest link", "hops")
    has_energy = any(result.hop_energy_pj for result in results)
    network = network_of(machine)
    name = "a mesh as in CoSA's paper, as the machine describes none" if network is None else network.name
    print_table(
        heads if has_energy else heads[:-1],
        [row if has_energy else row[:-1] for row in rows.values()],
        title=f"on the network, cycle by cycle: {name}",
        right=(1, 2, 3, 5, 7) if has_energy else (1, 2, 3, 5),
    )
