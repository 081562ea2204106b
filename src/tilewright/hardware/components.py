"""What parts of a chip take, by published tables: area, energy of accesses and operations, leakage.

Sizes and technology nodes between the points of a table follow a power law through the two nearest:
`value = low * (at / low_at) ** (log(high / low) / log(high_at / low_at))`. Areas are of bits and arithmetic
alone; wires between parts, control and interfaces come on top and are most of a real chip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Any

from tilewright.hardware.machine import Level, Machine, Unit
from tilewright.hardware.operator_view import fastest_multipliers

SOURCE = "derived: scaled by size along SRAM energies of Horowitz (ISSCC 2014, 45 nm)"
BUFFER_SOURCE = (
    "public: fakeram45 macros of 64x7, 64x32, 512x64 and 2048x39 bits (OpenROAD-flow-scripts, 45 nm); "
    "flip-flops of Aladdin (ISCA 2014, 40 nm, scaled to 45 nm) where these are smaller"
)
ENERGY_SOURCE = (
    "derived: SRAM of 8 KiB to 1 MiB, DRAM and arithmetic of Horowitz (ISSCC 2014, 45 nm) (not re-read), by "
    "size and width along power laws"
)
ARITHMETIC_SOURCE = (
    "public: Horowitz (ISSCC 2014, 45 nm), areas as listed by Sze et al. (Proc. IEEE 2017) (not re-read); "
    "other widths by a power law through two of them"
)
LIBRARY, LIBRARY_NUMBERS = (
    "derived: component library, ",
    ("read_pj", "mac_pj", "op_pj", "pj_per_byte", "hop_pj_per_byte", "static_power_w"),
)
"""How the sources of numbers begin that `with_library` gives, and which these are."""
_WHOLE_LIBRARY = "component library at "
_GOOGLE = "Horowitz (ISSCC 2014, 45 nm) and Jouppi et al. (ISCA 2021, 7 nm) (not re-read)"
_ACCELERGY = "Accelergy's tables"

_Table = Sequence[tuple[float, float]]
USUAL_NM = 45.0
_NODES = (45.0, 7.0)
# Bytes, and pJ of an access to 64 bits, at 45 nm and at 7 nm.
_ACCESS_PJ: tuple[_Table, _Table] = (
    ((8 << 10, 10.0), (32 << 10, 20.0), (1 << 20, 100.0)),
    ((8 << 10, 7.5), (32 << 10, 8.5), (1 << 20, 14.0)),
)
# Bytes, and pJ of a random access to 16 bits of a register file at 40 nm, address generators included:
# the scratchpads of 12 and 192 words in Accelergy's Eyeriss (its exercises, `04_eyeriss_like`).
_REGISTER_FILE_PJ: _Table = ((24, 0.237), (384, 1.586))
_REGISTER_FILE_NM = 40.0
_MOST_REGISTER_FILE_BYTES = 128
# pJ for each bit of DRAM, whatever the chip is made in (Accelergy's table of its CACTI plug-in).
_DRAM_PJ_PER_BIT = {"ddr3": 70.0, "lpddr": 40.0, "gddr5": 14.0, "lpddr4": 8.0, "hmc": 4.2, "hbm2": 3.9}
# pJ for each byte at 32 nm: ISAAC's bus between a buffer and its readers, its router (Accelergy's tables).
_BUS_PJ_PER_BYTE, _HOP_PJ_PER_BYTE, _LINK_NM = 0.054 * 8, 20.74 * 8 / 256, 32.0
# W for each mm²: Aladdin's adder at 40 nm takes 0.0023 pJ in 1 ns on 278 µm² (Accelergy's table).
_LEAKAGE_W_PER_MM2 = 0.0023e-3 / 278e-6
# Bytes, and µm² of a macro with one port: width by height of its outline.
_MACRO_UM2: _Table = (
    (56, 10.64 * 36.40),
    (256, 20.14 * 61.60),
    (4096, 152.57 * 113.40),
    (9984, 206.91 * 219.80),
)
_FLIP_FLOP_UM2 = 5.98 * (45 / 40) ** 2
# nm, and times the area at 45 nm (Stillmaker and Baas, Integration 58, 2017, table of areas).
_AREA_SCALE: _Table = (
    (7, 0.059), (10, 0.1), (14, 0.17), (16, 0.19), (20, 0.21), (32, 0.46), (45, 1.0), (65, 1.5), (90, 2.8),
    (130, 6.4),
)  # fmt: skip
# Bits of an operand, and µm².
_INTEGER_MULTIPLIER_UM2: _Table = ((8, 282.0), (32, 3495.0))
_INTEGER_ADDER_UM2: _Table = ((8, 36.0), (16, 67.0), (32, 137.0))
_FLOAT_MULTIPLIER_UM2: _Table = ((16, 1640.0), (32, 7700.0))
_FLOAT_ADDER_UM2: _Table = ((16, 1360.0), (32, 4184.0))
_INTEGER_SUM_BITS = 32
# Bits of an operand, and pJ, at 45 nm and at 7 nm.
_INTEGER_MULTIPLIER_PJ: tuple[_Table, _Table] = (((8, 0.2), (32, 3.1)), ((8, 0.07), (32, 1.48)))
_INTEGER_ADDER_PJ: tuple[_Table, _Table] = (((8, 0.03), (32, 0.1)), ((8, 0.007), (32, 0.03)))
_FLOAT_MULTIPLIER_PJ: tuple[_Table, _Table] = (((16, 1.1), (32, 3.7)), ((16, 0.34), (32, 1.31)))
_FLOAT_ADDER_PJ: tuple[_Table, _Table] = (((16, 0.4), (32, 0.9)), ((16, 0.16), (32, 0.38)))
_TABLE_BITS = 64  # of an access in `_ACCESS_PJ`
_OFF_CHIP_PJ = 1300.0  # of so many bits from DDR3 or DDR4, the lower end of what is published


@dataclass(frozen=True, slots=True)
class Component:
    """A part of a machine with all its instances; `name` is a level's or a unit's."""

    name: str
    num_instances: int
    area_mm2: float
    source: str

    @property
    def leakage_w(self) -> float:
        """Of all instances, as much for each area as an adder of 40 nm."""
        return self.area_mm2 * _LEAKAGE_W_PER_MM2


def components_of(machine: Machine) -> tuple[Component, ...]:
    """Multipliers and on-chip levels from the inside out; the outermost level is off the chip.

    Areas are at the machine's technology node, or at 45 nm where it gives none.

    Raises:
        MachineError: nothing multiplies and accumulates.
    """
    unit, _, dtype, rate = fastest_multipliers(machine)
    um2 = area_scale(machine.technology_nm or USUAL_NM)
    num_multipliers = round(machine.num_units(unit) * rate)
    arithmetic_mm2 = num_multipliers * multiplier_um2(dtype) * um2 * 1e-6
    listed = [Component(unit.name, num_multipliers, arithmetic_mm2, ARITHMETIC_SOURCE)]
    for level in machine.levels[:-1]:
        if level.capacity_bytes is not None:
            count = machine.num_instances(level)
            area_mm2 = count * buffer_um2(level.capacity_bytes) * um2 * 1e-6
            listed.append(Component(level.name, count, area_mm2, BUFFER_SOURCE))
    return tuple(listed)


def area_scale(nm: float) -> float:
    """Times the area at 45 nm.

    >>> area_scale(45), area_scale(7)
    (1.0, 0.059)
    """
    return _power_law(_AREA_SCALE, nm)


def buffer_um2(capacity_bytes: float) -> float:
    """Area of a buffer with one port: flip-flops, or a macro where that is smaller; larger ones in banks.

    >>> round(buffer_um2(1)), round(buffer_um2(4096)), round(buffer_um2(2 * 9984) / buffer_um2(9984), 3)
    (61, 17301, 2.0)
    """
    smallest_bytes, smallest_um2 = _MACRO_UM2[0]
    largest_bytes, largest_um2 = _MACRO_UM2[-1]
    if capacity_bytes >= largest_bytes:
        macro_um2 = largest_um2 * capacity_bytes / largest_bytes
    elif capacity_bytes <= smallest_bytes:
        macro_um2 = smallest_um2
    else:
        macro_um2 = _power_law(_MACRO_UM2, capacity_bytes)
    return min(8 * capacity_bytes * _FLIP_FLOP_UM2, macro_um2)


def multiplier_um2(dtype: str) -> float:
    """Area of a multiplier and its adder; integers are summed in 32 bits, floats as they are.

    >>> multiplier_um2("int8"), multiplier_um2("float32")
    (419.0, 11884.0)
    """
    bits = _bits(dtype)
    if "float" in dtype:
        return _power_law(_FLOAT_MULTIPLIER_UM2, bits) + _power_law(_FLOAT_ADDER_UM2, bits)
    return _power_law(_INTEGER_MULTIPLIER_UM2, bits) + _power_law(_INTEGER_ADDER_UM2, _INTEGER_SUM_BITS)


def with_energies(machine: Machine) -> Machine:
    """The machine, with energies of these tables at 45 nm if it gives none at all.

    Raises:
        MachineError: nothing multiplies and accumulates.
    """
    parts = [*(level.read_pj for level in machine.levels), *(unit.mac_pj for unit in machine.units)]
    if any(energy_pj is not None for energy_pj in parts):
        return machine
    worker, _, dtype, _ = fastest_multipliers(machine)
    levels = []
    for level in machine.levels:
        is_off_chip = level is machine.outermost or level.capacity_bytes is None
        kind = level.component or ("ddr" if is_off_chip else "sram")
        access_pj, _ = _of_access(level, kind, USUAL_NM)
        levels.append(level.model_copy(update={"read_pj": access_pj, "write_pj": access_pj}))
    units = [
        unit.model_copy(update={"mac_pj": multiplication_pj(dtype)}) if unit is worker else unit
        for unit in machine.units
    ]
    return machine.model_copy(
        update={"levels": tuple(levels), "units": tuple(units), "energy_source": ENERGY_SOURCE}
    )


def with_library(machine: Machine) -> Machine:
    """A machine that names its technology node with the energies and the leakage that it leaves out, each
    with its source; any other as it is.

    A level without a `component` is a register file up to 128 bytes, SRAM above, and DRAM if it is the
    outermost. A mover takes what a bus takes, a hop what a router takes.
    """
    nm = machine.technology_nm
    if nm is None:
        return machine
    sources: dict[str, str] = {}
    changed: dict[str, list[Any]] = {"levels": [], "units": [], "networks": []}

    def put(listed: str, part: Any, energies: Mapping[str, tuple[float, str]]) -> None:
        number = len(changed[listed])
        left_out = {key: found for key, found in energies.items() if getattr(part, key) is None}
        sources.update({f"{listed}[{number}].{key}": LIBRARY + how for key, (_, how) in left_out.items()})
        changed[listed].append(part.model_copy(update={key: pj for key, (pj, _) in left_out.items()}))

    for level in machine.levels:
        read_pj = _of_access(level, level.component or _usual_component(machine, level), nm)
        put("levels", level, {"read_pj": read_pj})
    for unit in machine.units:
        put("units", unit, _of_unit(unit, nm))
    for network in machine.networks:
        put("networks", network, {"hop_pj_per_byte": _of_link("ISAAC's router", _HOP_PJ_PER_BYTE, nm)})
    update: dict[str, Any] = {key: tuple(parts) for key, parts in changed.items()}
    has_multipliers = any(unit.macs_per_cycle for unit in machine.units)
    if machine.static_power_w is None and has_multipliers:
        update["static_power_w"] = sum(component.leakage_w for component in components_of(machine))
        density = f"{_LEAKAGE_W_PER_MM2 * 1e3:.3g} mW for each mm²"
        sources["static_power_w"] = f"{LIBRARY}leakage, {density}: Aladdin's adder in {_ACCELERGY}, 40 nm"
    if machine.energy_source is None or machine.energy_source.startswith(_WHOLE_LIBRARY):
        update["energy_source"] = f"{_WHOLE_LIBRARY}{nm:g} nm, formulas in targets FILE --table"
    return machine.model_copy(update={**update, "sources": {**machine.sources, **sources}})


def _usual_component(machine: Machine, level: Level) -> str:
    if level is machine.outermost or level.capacity_bytes is None:
        return "ddr"
    return "register-file" if level.capacity_bytes <= _MOST_REGISTER_FILE_BYTES else "sram"


def _of_access(level: Level, component: str, nm: float) -> tuple[float, str]:
    """Energy of an access to a level, and how it follows from which table."""
    bits, size = level.word_bits * level.words_per_access, level.capacity_bytes or 0
    if component == "ddr":
        return _OFF_CHIP_PJ * bits / _TABLE_BITS, f"{bits}/64 x 1300 pJ of DDR3 or DDR4: {_GOOGLE}"
    if component in _DRAM_PJ_PER_BIT:
        bit_pj = _DRAM_PJ_PER_BIT[component]
        return bit_pj * bits, f"{bits} bits x {bit_pj:g} pJ of {component}: {_ACCELERGY}"
    if component == "register-file":
        base, scale = _power_law(_REGISTER_FILE_PJ, size), _logic_scale(_REGISTER_FILE_NM, nm)
        how = f"{bits}/16 x {base:.3g} pJ of a register file of {size} bytes at 40 nm"
        return base * bits / 16 * scale, f"{how}, x {scale:.3g} to {nm:g} nm: {_ACCELERGY}"
    base, there = _power_law(_ACCESS_PJ[0], size), _at_node(_ACCESS_PJ, size, nm)
    how = f"{bits}/64 x {base:.3g} pJ of SRAM of {size} bytes at 45 nm, x {there / base:.3g} to {nm:g} nm"
    return there * bits / _TABLE_BITS, f"{how}: {_GOOGLE}"


def _of_unit(unit: Unit, nm: float) -> dict[str, tuple[float, str]]:
    """Energies of a unit: of the fastest types that it has rates for."""
    found = {}
    if unit.macs_per_cycle:
        dtype = max(unit.macs_per_cycle, key=lambda name: unit.macs_per_cycle[name])
        how = f"a multiplication of {dtype} and an addition at {nm:g} nm: {_GOOGLE}"
        found["mac_pj"] = multiplication_pj(dtype, nm), how
    if unit.ops_per_cycle:
        dtype = max(unit.ops_per_cycle, key=lambda name: unit.ops_per_cycle[name])
        found["op_pj"] = addition_pj(dtype, nm), f"an addition of {dtype} at {nm:g} nm: {_GOOGLE}"
    if unit.kind == "mover":
        found["pj_per_byte"] = _of_link("ISAAC's bus", _BUS_PJ_PER_BYTE, nm)
    return found


def _of_link(name: str, pj_per_byte: float, nm: float) -> tuple[float, str]:
    scale = _logic_scale(_LINK_NM, nm)
    how = f"{pj_per_byte:.3g} pJ of {name} at 32 nm, x {scale:.3g} to {nm:g} nm: {_ACCELERGY}"
    return pj_per_byte * scale, how


def multiplication_pj(dtype: str, nm: float = USUAL_NM) -> float:
    """Energy of a multiplication and its addition; integers are summed in 32 bits, floats as they are.

    >>> round(multiplication_pj("int8"), 3), round(multiplication_pj("float32"), 3)
    (0.3, 4.6)
    >>> round(multiplication_pj("int8", 7), 3), round(multiplication_pj("int8", 16), 3)
    (0.1, 0.163)
    """
    bits = _bits(dtype)
    if "float" in dtype:
        return _at_node(_FLOAT_MULTIPLIER_PJ, bits, nm) + _at_node(_FLOAT_ADDER_PJ, bits, nm)
    return _at_node(_INTEGER_MULTIPLIER_PJ, bits, nm) + _at_node(_INTEGER_ADDER_PJ, _INTEGER_SUM_BITS, nm)


def addition_pj(dtype: str, nm: float = USUAL_NM) -> float:
    """Energy of an addition of two values of a type.

    >>> round(addition_pj("int8"), 3), round(addition_pj("float16", 7), 3)
    (0.03, 0.16)
    """
    return _at_node(_FLOAT_ADDER_PJ if "float" in dtype else _INTEGER_ADDER_PJ, _bits(dtype), nm)


def _at_node(tables: tuple[_Table, _Table], at: float, nm: float) -> float:
    """A figure that is known by size at two nodes."""
    older, newer = (_power_law(table, at) for table in tables)
    return _power_law(((_NODES[1], newer), (_NODES[0], older)), nm)


def _logic_scale(from_nm: float, to_nm: float) -> float:
    """How many times the energy of logic is that of another node: as an addition of 32 bits."""
    return addition_pj("int32", to_nm) / addition_pj("int32", from_nm)


def _bits(dtype: str) -> float:
    return float("".join(c for c in dtype if c.isdigit()) or 8)


def access_scale(from_bytes: float, to_bytes: float) -> float:
    """How many times the energy of an access is that of a buffer of another size.

    >>> access_scale(8 << 10, 32 << 10), access_scale(1 << 20, 8 << 10)
    (2.0, 0.1)
    """
    return round(_power_law(_ACCESS_PJ[0], to_bytes) / _power_law(_ACCESS_PJ[0], from_bytes), 12)


def _power_law(table: _Table, at: float) -> float:
    """Between the points of the table a power law, beyond them that of the nearest two."""
    for (low, low_value), (high, high_value) in pairwise(table):
        if at <= high or high == table[-1][0]:
            power = log(high_value / low_value) / log(high / low)
            return float(low_value * (at / low) ** power)
    raise AssertionError(at)
