"""A described machine as tables for people."""

from __future__ import annotations

from tilewright.hardware.components import components_of
from tilewright.hardware.machine import Level, Machine, TensorKind, Unit
from tilewright.results import Table
from tilewright.text.formatting import format_bytes, format_count


def machine_tables(machine: Machine) -> tuple[Table, ...]:
    """What a machine computes with and stores in, and where the numbers come from."""
    rates, energies = ("read rate", "write rate"), ("read energy", "write energy")
    heads = ("level", "number", "capacity", "holds", "word", *rates, *energies)
    title = "memory, from the outermost level in; per instance, energy per access"
    levels = tuple(_level(machine, level) for level in reversed(machine.levels))
    tables = [Table(heads, levels, title, (1, 2, 4, 5, 6, 7, 8), (8, 6, 4, 3))]
    if machine.units:
        columns = ("unit", "kind", "number", "reads", "rate of one per cycle", "in all")
        units = tuple(_unit(machine, unit) for unit in machine.units)
        tables.append(Table(columns, units, "compute units", (2,), (3, 5)))
    tables.append(Table(("", ""), tuple(_facts(machine))))
    sources = list(machine.sources.items())
    if machine.energy_source:
        sources.append(("all other energies", machine.energy_source))
    if sources:
        tables.append(Table(("number or part", "source"), tuple(sources)))
    return tuple(tables)


def _level(machine: Machine, level: Level) -> tuple[str, ...]:
    holds = "all" if len(level.holds) == len(TensorKind) else ", ".join(level.holds)
    shares = "".join(f"; {format_bytes(s.capacity_bytes)} {', '.join(s.holds)}" for s in level.shares)
    capacity = "unlimited" if level.capacity_bytes is None else format_bytes(level.capacity_bytes)
    access_bits = level.word_bits * level.words_per_access
    word = f"{level.word_bits} b" if level.words_per_access == 1 else f"{level.word_bits} of {access_bits} b"
    return (
        level.name,
        f"{machine.num_instances(level):,}",
        capacity,
        holds + shares,
        word,
        _rate(level.read_bytes_per_s, level.read_bytes_per_cycle),
        _rate(level.write_bytes_per_s, level.write_bytes_per_cycle),
        _energy(level.read_pj),
        _energy(level.write_pj),
    )


def _rate(per_s: float | None, per_cycle: float | None) -> str:
    if per_s is not None:
        return f"{format_count(per_s)}B/s"
    return "-" if per_cycle is None else f"{per_cycle:g} B/cycle"


def _energy(energy_pj: float | None) -> str:
    return "-" if energy_pj is None else f"{energy_pj:.4g} pJ"


def _unit(machine: Machine, unit: Unit) -> tuple[str, ...]:
    rates = [f"{r:g} {t} multiply-adds" for t, r in unit.macs_per_cycle.items()]
    rates += [f"{r:g} {t} operations" for t, r in unit.ops_per_cycle.items()]
    if unit.vector_bytes:
        rates.append(f"vectors of {' or '.join(map(str, unit.vector_bytes))} bytes")
    if unit.between is not None:
        rates.append(f"{' and '.join(unit.between)}: {_rate(unit.bytes_per_s, unit.bytes_per_cycle)}")
    clock = machine.clock_hz
    fastest = max(unit.macs_per_cycle.values(), default=0.0)
    in_all = ""
    if clock is not None and fastest:
        in_all = f"{format_count(2 * fastest * machine.num_units(unit) * clock)}op/s"
    reads = unit.level or machine.innermost.name
    return unit.name, unit.kind, f"{machine.num_units(unit):,}", reads, ", ".join(rates), in_all


def _facts(machine: Machine) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if machine.num_cores > 1:
        clusters = f"{machine.num_clusters} clusters of " if machine.num_clusters > 1 else ""
        facts.append(("cores", f"{clusters}{machine.num_cores_per_cluster:,}"))
    if machine.instructions is not None:
        executes = machine.instructions
        facts.append(("instructions", f"{executes.processor}, {len(executes.features)} features"))
    if machine.clock_hz is not None:
        facts.append(("clock", f"{format_count(machine.clock_hz)}Hz"))
    if machine.max_power_w is not None:
        facts.append(("power at most", f"{machine.max_power_w:g} W"))
    if machine.static_power_w is not None:
        facts.append(("power while idle", f"{machine.static_power_w:g} W"))
    stated = [*((x.name, x.axes) for x in machine.levels), *((x.name, x.axes) for x in machine.units)]
    for name, axes in stated:
        if axes:
            along = (f"{', '.join(axis.dims)} over {axis.size}" for axis in axes)
            facts.append((f"dataflow of {name}", "; ".join(along)))
    for level in machine.levels:
        for form in level.formats:
            facts.append((f"zeros in {level.name}", f"{', '.join(form.holds)} kept by {form.kind}"))
    for unit in machine.units:
        if unit.zeros:
            ways = ", ".join(f"{way}s {kind}s" for kind, way in unit.zeros.items())
            facts.append((f"zeros of {unit.name}", ways))
    if machine.densities:
        facts.append(("not zero", ", ".join(f"{d:g} of {k}s" for k, d in machine.densities.items())))
    if machine.technology_nm is not None and any(unit.macs_per_cycle for unit in machine.units):
        components = components_of(machine)
        parts = ", ".join(f"{c.name} {c.area_mm2:.3g}" for c in components)
        total = sum(c.area_mm2 for c in components)
        facts.append((f"area at {machine.technology_nm:g} nm", f"{total:.3g} mm², estimated: {parts}"))
    for network in machine.networks:
        shape = f" of {' x '.join(map(str, network.shape))}" if network.shape else ""
        rate = _rate(network.bytes_per_s, network.bytes_per_cycle)
        multicast = ", multicast" if network.has_multicast else ""
        speed = "" if rate == "-" else f", {rate}"
        ends = f"between {network.inner} and {network.outer}"
        facts.append((f"network {network.name}", f"{network.kind}{shape} {ends}{speed}{multicast}"))
    if machine.threads is not None:
        facts.append(
            ("threads", f"{machine.threads.max_per_block} per block, {machine.threads.max_per_core} per core")
        )
    for name, value in machine.overheads:
        if value:
            facts.append((name.removesuffix("_ns").replace("_", " "), f"{value / 1000:g} µs"))
    return facts or [("facts", "none beside the tables")]
