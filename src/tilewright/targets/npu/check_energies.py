"""Independent check of a finished run's energies: levels by the bytes that move, units by their work."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import isclose, prod

from tilewright.hardware.machine import Level, Machine
from tilewright.planning import Violation
from tilewright.schedule.binding import Scope
from tilewright.targets.npu.ports import CORE_DMA, DMA
from tilewright.targets.npu.trace import Trace
from tilewright.targets.npu.work import UnitWork

_CLOSE = 1e-9


def check_energies(trace: Trace) -> Iterator[Violation]:
    """What is wrong with the energies of a run.

    Counted anew are, from runs and the machine's description: accesses of main memory, of what lies between
    it and the cores' buffers, but for what a step's mapping charges; the bytes that engines move; what units
    go through in loops of mappings, which may be more than the products; what is taken while idle. The
    cores' buffers take what mappings charge at least, and no more than that and all bytes that units and
    engines read and write there.
    """
    machine, found = trace.machine, trace.planned.simulation
    assert machine.local is not None, "such machines are refused"
    least: defaultdict[str, float] = defaultdict(float)
    least["static"] = (machine.static_power_w or 0.0) / machine.num_clusters * found.time_s * 1e12
    mac_pj = {
        unit.name: (unit.mac_pj or 0.0) * prod(machine.densities.get(kind, 1.0) for kind in unit.zeros)
        for unit in machine.units
    }
    for step in found.steps:
        charged = list(step.tiling.energy_pj)
        for work in step.works:
            least[work.unit] += work.energy_pj
            charged += work.products.inner_energy_pj().items() if work.products else ()
            if work.macs and not _is_of_products(work, mac_pj[work.unit]):
                yield Violation(
                    "energy", f"step {step.number}: {work.macs:g} products take {work.energy_pj} pJ"
                )
        for level, energy_pj in charged:
            least[level] += energy_pj
    for (unit, what), size_bytes in _moved(trace).items():
        for name, pj_per_byte in _taken(machine, unit, what):
            least[name] += pj_per_byte * size_bytes
    for name in sorted({*least, *found.energy_pj}):
        stated_pj, counted_pj = found.energy_pj.get(name, 0.0), least.get(name, 0.0)
        most_pj = counted_pj
        if name == machine.local.name:
            most_pj += _access_pj(machine.local) * found.traffic.local_read
            most_pj += _access_pj(machine.local, is_written=True) * found.traffic.local_written
        if not counted_pj * (1 - _CLOSE) <= stated_pj <= most_pj * (1 + _CLOSE):
            yield Violation(
                "energy", f"{name} takes {stated_pj:g} pJ as stated, {counted_pj:g} to {most_pj:g} as counted"
            )


def _is_of_products(work: UnitWork, mac_pj: float) -> bool:
    """Whether units take the energy of all products; as mapped, of what loops go through beyond them, too."""
    taken = work.macs
    if work.products is not None:
        loops = [prod(loop.factor for *_, loop in part.mapping.loops()) for part in work.products.parts]
        taken = work.products.share * sum(loops)
    return work.macs * (1 - _CLOSE) <= taken and isclose(work.energy_pj, taken * mac_pj, rel_tol=_CLOSE)


def _moved(trace: Trace) -> Counter[tuple[str, str]]:
    """Bytes by what moves them and what they are: `move` where levels are charged elsewhere, or are none."""
    found = trace.planned.simulation
    charged: set[tuple[int, str, object]] = set()
    for number, step in enumerate(found.steps):
        keys = ("weights", [weight.key or "" for weight in step.weights], step.tiling.weights)
        values = ("store", [store.value for store in step.stores], step.tiling.stores)
        for what, names, passages in (keys, values, ("load", range(len(step.loads)), step.tiling.loads)):
            passing = zip(names, passages, strict=True)
            charged.update((number, what, name) for name, passage in passing if passage.is_counted)
    moved: Counter[tuple[str, str]] = Counter()
    for run in trace.runs:
        what = "weights" if run.what == "fetch" else run.what
        is_held = what == "weights" and found.residents.scopes.get(run.name) is Scope.LOCAL
        is_charged = (run.step, what, run.part if what == "load" else run.name) in charged
        moved[run.unit, "move" if is_held or is_charged else what] += run.size_bytes
    return moved


def _taken(machine: Machine, unit: str, what: str) -> Iterator[tuple[str, float]]:
    """Energy of a byte that moves: of the engine, and of levels outside the cores' buffers at both ends."""
    yield unit, _engine_pj(machine, unit)
    if what == "move":
        return
    shared, main = machine.shared, machine.outermost
    is_out = what == "store"
    if unit == DMA:
        yield main.name, _access_pj(main, is_written=is_out)
        yield from (
            (level.name, _access_pj(level) + _access_pj(level, is_written=True)) for level in _passed(machine)
        )
    if shared is not None:
        yield shared.name, _access_pj(shared, is_written=is_out is (unit != DMA))


def _passed(machine: Machine) -> Sequence[Level]:
    """Levels that what comes from main memory passes on its way, such as caches."""
    names = [level.name for level in machine.levels]
    inner = max(names.index(level.name) for level in (machine.local, machine.shared) if level is not None)
    return machine.levels[inner + 1 : -1]


def _access_pj(level: Level, *, is_written: bool = False) -> float:
    """Of a byte."""
    pj = level.write_access_pj if is_written else level.read_access_pj
    return pj * 8 / (level.word_bits * level.words_per_access)


def _engine_pj(machine: Machine, unit: str) -> float:
    """Of a byte that engines share, as fast as each is."""
    inner = machine.local if unit == CORE_DMA or machine.shared is None else machine.shared
    outer = machine.outermost if unit == DMA else machine.shared
    ends = {level.name for level in (inner, outer) if level is not None}
    engines = [
        (rate * machine.num_units(engine), engine.pj_per_byte or 0.0)
        for engine in machine.units
        if set(engine.between or ()) == ends and (rate := machine.dma_bytes_per_s(engine)) is not None
    ]
    return sum(rate * pj for rate, pj in engines) / sum(rate for rate, _ in engines) if engines else 0.0
