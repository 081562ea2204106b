"""What multiplies on a GPU, and the rates by which kernels are cut."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Literal

from tilewright.hardware.machine import Machine
from tilewright.records import dataclass

Kind = Literal["fma", "tf32", "bf16", "f16", "s8", "s8.u8", "u8.s8"]
"""What multiplies: cores of float32 and float64, or tensor cores by the type of their operands."""

BYTE_KINDS: tuple[Kind, ...] = ("s8", "s8.u8", "u8.s8")
"""Those of bytes, whose sums are int32."""

SCHEDULERS = 4
"""Warp instructions that a multiprocessor issues in a cycle."""
LOADED_BYTES_PER_CYCLE = 64
"""Bytes that a multiprocessor loads from the second cache in a cycle. Assumed."""

_REGISTERS, _SHARED_BYTES, _THREADS = 65536, 227 * 1024, 2048
"""What a multiprocessor holds, as of compute capability 9.0."""
_OF_SYSTEM_BYTES = 1024
"""Shared memory that the system takes of each block."""
_REGISTER_UNIT = 8
"""Registers of a thread come in multiples of this."""

_UNITS: Mapping[Kind, tuple[str, str]] = {
    "fma": ("vector", "float32"),
    "tf32": ("matrix", "float32"),
    "bf16": ("matrix", "bfloat16"),
    "f16": ("matrix", "float16"),
    **dict.fromkeys(BYTE_KINDS, ("matrix", "int8")),
}


@dataclass(frozen=True, slots=True)
class Rates:
    """Multiply-adds of one multiprocessor by kind, the memory's bytes, the launch of a kernel.

    `slots_per_ns` are warp instructions that one issues, `loaded_bytes_per_ns` what it loads from
    the second cache.
    """

    num_multiprocessors: int
    macs_per_ns: Mapping[Kind, float]
    bytes_per_ns: float
    launch_ns: float
    slots_per_ns: float
    loaded_bytes_per_ns: float


def rates_of(machine: Machine) -> Rates:
    """Those of a described GPU."""
    clock_hz = machine.clock_hz or 1e9
    macs: dict[Kind, float] = {}
    for kind, (unit_kind, dtype) in _UNITS.items():
        units = [unit for unit in machine.units if unit.kind == unit_kind]
        per_cycle = sum(unit.macs_per_cycle.get(dtype, 0.0) * unit.num_per_instance for unit in units)
        macs[kind] = max(per_cycle, 1.0) * clock_hz / 1e9
    return Rates(
        machine.num_cores_per_cluster,
        macs,
        (machine.levels[-1].read_bytes_per_s or 1e9) / 1e9,
        machine.overheads.kernel_launch_ns or 0.0,
        SCHEDULERS * clock_hz / 1e9,
        LOADED_BYTES_PER_CYCLE * clock_hz / 1e9,
    )


def resident_blocks(num_registers: int, shared_bytes: int, num_threads: int) -> int:
    """Blocks that a multiprocessor holds at once, by a thread's registers and a block's shared memory."""
    registers = ceil(num_registers / _REGISTER_UNIT) * _REGISTER_UNIT
    return max(
        1,
        min(
            _REGISTERS // (registers * num_threads),
            _SHARED_BYTES // (shared_bytes + _OF_SYSTEM_BYTES),
            _THREADS // num_threads,
        ),
    )
