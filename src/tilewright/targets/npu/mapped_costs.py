"""Sums of products of a simulated plan beside their mappings, each alone from main memory to main memory.

Both count with `cost/nest_analysis.py`. Where a step runs its whole mapping they agree level by level; what
is left are differences that a mapping knows nothing of, which are listed with what they take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.hardware.machine import Machine
from tilewright.ir.graph_regions import value_regions
from tilewright.targets.npu.mapped_products import MappedProducts, NodeProducts
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.ports import CORE_DMA, DMA, ports_of
from tilewright.targets.npu.simulated_step import SimulatedStep
from tilewright.targets.npu.work import Works
from tilewright.targets.simulated import MappedCosts, MappedDifference, MappedLevel, UnitRun

_PJ = 1e-12
_ROUNDING = 1e-9  # of sums of floats


def mapped_costs(planned: SimulatedPlan, machine: Machine) -> MappedCosts:
    """What a plan's sums of products cost as simulated, and as their mappings alone; of one cluster."""
    simulation, ports = planned.simulation, ports_of(machine)
    multiplying = [s for s in simulation.steps if any(w.products is not None for w in s.works)]
    mapped = list(_mapped_alone(planned, machine, multiplying))
    parts = [(part, found.share) for found in mapped for part in found.parts]
    energy_pj: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for part, share in parts:
        for level in part.cost.levels:
            own = sum(t.energy_pj for t in level.tensors.values())
            energy_pj[level.level] = energy_pj.get(level.level, 0.0) + share * own
        for name in (ports.main.name, *(() if ports.shared is None else (ports.shared.name,))):
            seconds[name] = seconds.get(name, 0.0) + share * _busy_s(part, name)
    units: dict[str, tuple[float, float, float, float]] = {}
    for step, found in zip(multiplying, mapped, strict=True):
        for work in (w for w in step.works if w.products is not None):
            before = units.get(work.unit, (0.0, 0.0, 0.0, 0.0))
            alone_s = sum(p.cycles / _clock(p) for p in found.parts) * found.share
            added = found.mac_energy_pj, work.energy_pj, alone_s, work.seconds
            units[work.unit] = (
                before[0] + added[0], before[1] + added[1], before[2] + added[2], before[3] + added[3],
            )  # fmt: skip
    busy = {ports.main.name: simulation.busy_s.get(DMA, 0.0)}
    if ports.shared is not None:
        busy[ports.shared.name] = simulation.busy_s.get(CORE_DMA, 0.0)
    names = [
        x.name for x in reversed(machine.levels) if x.name in energy_pj or x.name in simulation.energy_pj
    ]
    levels = [
        MappedLevel(
            name,
            energy_pj.get(name, 0.0) * _PJ,
            simulation.energy_pj.get(name, 0.0) * _PJ,
            seconds.get(name) if name in busy else None,
            busy.get(name),
        )
        for name in names
    ]
    levels += [
        MappedLevel(unit, a * _PJ, b * _PJ, alone_s, simulated_s)
        for unit, (a, b, alone_s, simulated_s) in units.items()
    ]
    is_whole = [step.tiling.is_mapped for step in multiplying]
    time_s = sum(share * part.cost.cycles / _clock(part) for part, share in parts)
    simulated_j = (sum(simulation.energy_pj.values()) - simulation.energy_pj.get("static", 0.0)) * _PJ
    return MappedCosts(
        len(multiplying),
        sum(is_whole),
        time_s,
        simulation.time_s,
        sum(level.mapped_j for level in levels),
        simulated_j,
        tuple(levels),
        tuple(_differences(planned, machine, levels, time_s, simulated_j)),
    )


def _mapped_alone(
    planned: SimulatedPlan, machine: Machine, steps: list[SimulatedStep]
) -> Iterator[NodeProducts]:
    """The products of each of these steps as mapped from main memory to main memory."""
    works, scopes = Works(machine, planned.types), planned.scopes
    for simulated in steps:
        step = scopes.steps[simulated.number]
        made = {scopes.buffers[i].value: scopes.buffers[i].region for i in step.writes}
        regions = value_regions(step.operators, made, planned.instances.maps)
        parts: list[MappedProducts] = []
        share = 1.0
        for node in step.operators:
            value = next((v for v in node.results() if v in regions), None)
            found = None if value is None else works.products(node, regions[value], is_whole=True)
            if found is not None:
                parts += found.parts
                share = found.share
        yield NodeProducts(tuple(parts), share)


def _clock(part: MappedProducts) -> float:
    assert part.machine.clock_hz is not None, "machines that run networks have one"
    return part.machine.clock_hz


def _busy_s(part: MappedProducts, name: str) -> float:
    """Seconds that one instance of a level takes for what a mapping moves between it and the level inside."""
    count = next((level for level in part.outer if level.level == name), None)
    if count is None:
        return 0.0
    level = part.machine.level(name)
    word_bytes = level.word_bits / 8
    read = word_bytes * sum(t.reads for t in count.tensors.values())
    written = word_bytes * sum(t.updates for t in count.tensors.values())
    rates = part.machine.read_bytes_per_s(level), part.machine.write_bytes_per_s(level)
    ways = [size / rate for size, rate in zip((read, written), rates, strict=True) if rate is not None]
    return sum(ways) if level.has_shared_port else max(ways, default=0.0)


def _covered_s(runs: Sequence[UnitRun], unit: str) -> float:
    """Seconds in which a unit runs on some cores."""
    covered_s = end_s = 0.0
    for run in sorted((r for r in runs if r.unit == unit), key=lambda r: r.start_s):
        covered_s += max(0.0, run.end_s - max(end_s, run.start_s))
        end_s = max(end_s, run.end_s)
    return covered_s


def _differences(
    planned: SimulatedPlan, machine: Machine, levels: list[MappedLevel], mapped_s: float, simulated_j: float
) -> Iterator[MappedDifference]:
    """What a simulation counts beyond mappings, or leaves out, with what that takes."""
    simulation = planned.simulation
    launch_s = machine.overheads.kernel_launch_ns * 1e-9
    num_launches = len({s.kernel.number for s in simulation.steps if s.kernel is not None}) or 1
    if launch_s:
        yield MappedDifference(f"{num_launches} launches", num_launches * launch_s, None)
    busiest_s = max((_covered_s(simulation.runs, unit) for unit in simulation.busy_s), default=0.0)
    busier = "the busiest unit: whole tiles, blocks of threads, engines that have both ways in turn"
    yield MappedDifference(busier, busiest_s - mapped_s, None)
    waiting_s = simulation.time_s - busiest_s - num_launches * launch_s
    yield MappedDifference("it waits, as for the first tile and the last", waiting_s, None)
    levels_j = sum(level.simulated_j - level.mapped_j for level in levels)
    if abs(levels_j) > _ROUNDING * simulated_j:
        what = "levels: values that stay on the chip, accesses of other operators, padding that is not moved"
        yield MappedDifference(what, None, levels_j)
    others_j = simulated_j - sum(level.simulated_j for level in levels)
    if others_j > _ROUNDING * simulated_j:
        yield MappedDifference("other operators and engines", None, others_j)
    static_pj = simulation.energy_pj.get("static", 0.0)
    if static_pj:
        yield MappedDifference("static power", None, static_pj * _PJ)
