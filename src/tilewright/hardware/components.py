"""What parts of a chip take, by tables: area of buffers and multipliers, energy of accesses by size.

Areas are those of 45 nm, whatever a machine is made in: they compare designs. They are of bits and arithmetic
alone; wires between parts, control and interfaces come on top and are most of a real chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log

from tilewright.hardware.machine import Machine
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

_Table = Sequence[tuple[float, float]]
# Bytes, and pJ of an access to 64 bits: 10 pJ of 8 KiB, 20 pJ of 32 KiB, 100 pJ of 1 MiB.
_ACCESS_PJ: _Table = ((8 << 10, 10.0), (32 << 10, 20.0), (1 << 20, 100.0))
# Bytes, and µm² of a macro with one port: width by height of its outline.
_MACRO_UM2: _Table = (
    (56, 10.64 * 36.40),
    (256, 20.14 * 61.60),
    (4096, 152.57 * 113.40),
    (9984, 206.91 * 219.80),
)
_FLIP_FLOP_UM2 = 5.98 * (45 / 40) ** 2
# Bits of an operand, and µm².
_INTEGER_MULTIPLIER_UM2: _Table = ((8, 282.0), (32, 3495.0))
_INTEGER_ADDER_UM2: _Table = ((8, 36.0), (16, 67.0), (32, 137.0))
_FLOAT_MULTIPLIER_UM2: _Table = ((16, 1640.0), (32, 7700.0))
_FLOAT_ADDER_UM2: _Table = ((16, 1360.0), (32, 4184.0))
_INTEGER_SUM_BITS = 32
# Bits of an operand, and pJ.
_INTEGER_MULTIPLIER_PJ: _Table = ((8, 0.2), (32, 3.1))
_INTEGER_SUM_PJ = 0.1
_FLOAT_MULTIPLIER_PJ: _Table = ((16, 1.1), (32, 3.7))
_FLOAT_ADDER_PJ: _Table = ((16, 0.4), (32, 0.9))
_TABLE_BITS = 64  # of an access in `_ACCESS_PJ`
_OFF_CHIP_PJ = 1300.0  # of so many bits from DRAM, the lower end of what is published


@dataclass(frozen=True, slots=True)
class Component:
    """A part of a machine with all its instances; `name` is a level's or a unit's."""

    name: str
    num_instances: int
    area_mm2: float
    source: str


def components_of(machine: Machine) -> tuple[Component, ...]:
    """Multipliers and on-chip levels from the inside out; the outermost level is off the chip.

    Raises:
        MachineError: nothing multiplies and accumulates.
    """
    unit, _, dtype, rate = fastest_multipliers(machine)
    num_multipliers = round(machine.num_units(unit) * rate)
    arithmetic_mm2 = num_multipliers * multiplier_um2(dtype) * 1e-6
    listed = [Component(unit.name, num_multipliers, arithmetic_mm2, ARITHMETIC_SOURCE)]
    for level in machine.levels[:-1]:
        if level.capacity_bytes is not None:
            count = machine.num_instances(level)
            area_mm2 = count * buffer_um2(level.capacity_bytes) * 1e-6
            listed.append(Component(level.name, count, area_mm2, BUFFER_SOURCE))
    return tuple(listed)


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
    """The machine, with energies of these tables if it gives none at all.

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
        table_pj = _OFF_CHIP_PJ if is_off_chip else _power_law(_ACCESS_PJ, level.capacity_bytes or 0)
        access_pj = table_pj * level.word_bits * level.words_per_access / _TABLE_BITS
        levels.append(level.model_copy(update={"read_pj": access_pj, "write_pj": access_pj}))
    units = [
        unit.model_copy(update={"mac_pj": multiplication_pj(dtype)}) if unit is worker else unit
        for unit in machine.units
    ]
    return machine.model_copy(
        update={"levels": tuple(levels), "units": tuple(units), "energy_source": ENERGY_SOURCE}
    )


def multiplication_pj(dtype: str) -> float:
    """Energy of a multiplication and its addition; integers are summed in 32 bits, floats as they are.

    >>> round(multiplication_pj("int8"), 3), round(multiplication_pj("float32"), 3)
    (0.3, 4.6)
    """
    bits = _bits(dtype)
    if "float" in dtype:
        return _power_law(_FLOAT_MULTIPLIER_PJ, bits) + _power_law(_FLOAT_ADDER_PJ, bits)
    return _power_law(_INTEGER_MULTIPLIER_PJ, bits) + _INTEGER_SUM_PJ


def _bits(dtype: str) -> float:
    return float("".join(c for c in dtype if c.isdigit()) or 8)


def access_scale(from_bytes: float, to_bytes: float) -> float:
    """How many times the energy of an access is that of a buffer of another size.

    >>> access_scale(8 << 10, 32 << 10), access_scale(1 << 20, 8 << 10)
    (2.0, 0.1)
    """
    return round(_power_law(_ACCESS_PJ, to_bytes) / _power_law(_ACCESS_PJ, from_bytes), 12)


def _power_law(table: _Table, at: float) -> float:
    """Between the points of the table a power law, beyond them that of the nearest two."""
    for (low, low_value), (high, high_value) in pairwise(table):
        if at <= high or high == table[-1][0]:
            power = log(high_value / low_value) / log(high / low)
            return float(low_value * (at / low) ** power)
    raise AssertionError(at)
