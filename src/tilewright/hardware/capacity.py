"""What one cluster of a machine can hold, level by level, and as what it keeps elements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import ceil
from types import MappingProxyType

from tilewright.hardware.machine import Level, Machine
from tilewright.hardware.parts import TensorKind
from tilewright.ir.dtype import DType

_LOCAL_SHARE, _SHARED_SHARE = Fraction(1, 5), Fraction(1, 4)
"""What of a level is kept free for weights and tiles on their way where the machine says nothing of it: as
much as the vendor of the STCP920 does, 256 KiB of 1,280 KiB in a core and 2 MiB of 8 MiB in the buffer that
they share."""

_FLOATS = (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def local_capacity_bytes(machine: Machine) -> int:
    """Bytes for activations in the local buffers of one cluster together; 0 where no level is local.

    >>> from tilewright.hardware.presets import load_preset
    >>> local_capacity_bytes(load_preset("stcp920")) >> 20
    8
    """
    if machine.local is None:
        return 0
    return (_for_buffers_bytes(machine.local, _LOCAL_SHARE) or 0) * machine.num_cores_per_cluster


def shared_capacity_bytes(machine: Machine) -> int | None:
    """Bytes for activations in the shared buffer of a cluster, without the weights' share; None if unlimited.

    0 where no level is shared; of a level that clusters share too, an equal part.
    """
    if machine.shared is None:
        return 0
    capacity_bytes = _for_buffers_bytes(machine.shared, _SHARED_SHARE)
    return _cluster_bytes(machine, machine.shared, capacity_bytes)


def main_capacity_bytes(machine: Machine) -> int | None:
    """Bytes for activations in main memory, a cluster's equal part of it; None if unlimited."""
    outermost = machine.outermost
    return _cluster_bytes(machine, outermost, outermost.capacity_for_bytes(TensorKind.INPUT))


def _for_buffers_bytes(level: Level, free: Fraction) -> int | None:
    """Bytes of a level where activations may lie; where these and weights have no shares of it, `free` of
    it is left to what passes."""
    capacity_bytes = level.capacity_for_bytes(TensorKind.INPUT)
    has_shares = any({TensorKind.INPUT, TensorKind.WEIGHT} & set(share.holds) for share in level.shares)
    if capacity_bytes is None or has_shares:
        return capacity_bytes
    return capacity_bytes - ceil(capacity_bytes * free)


def _cluster_bytes(machine: Machine, level: Level, capacity_bytes: int | None) -> int | None:
    return None if capacity_bytes is None else int(capacity_bytes * machine.num_instances_per_cluster(level))


def element_sizes(
    dtypes: Iterable[DType], machine: Machine | None, float_bytes: int | None = None
) -> Mapping[str, int]:
    """Bytes of an element of each of these types, by its name; `float_bytes` replaces those of floats.

    A machine without a rate for a floating-point type keeps it in the widest that it has one for.
    """
    units = () if machine is None else machine.units
    rated = {name for unit in units for name in (*unit.macs_per_cycle, *unit.ops_per_cycle)}
    widest = max((d.size_bytes for d in _FLOATS if str(d) in rated), default=None)

    def size(dtype: DType) -> int:
        if dtype not in _FLOATS:
            return dtype.size_bytes
        if float_bytes is not None:
            return float_bytes
        return dtype.size_bytes if str(dtype) in rated or widest is None else min(widest, dtype.size_bytes)

    return MappingProxyType({str(dtype): size(dtype) for dtype in dtypes})


def computing_dtype(machine: Machine) -> DType:
    """The floating-point type that a machine multiplies fastest; float32 where it knows none."""
    known = {str(dtype): dtype for dtype in DType if dtype.is_float}
    rates = {
        known[name]: rate * unit.num_per_instance
        for unit in machine.units
        for name, rate in unit.macs_per_cycle.items()
        if name in known
    }
    return max(rates, key=lambda dtype: rates[dtype], default=DType.FLOAT32)
