"""What one cluster of a machine can hold, level by level."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from tilewright.hardware.machine import Level, Machine
from tilewright.hardware.parts import TensorKind

_LOCAL_SHARE, _SHARED_SHARE = Fraction(1, 5), Fraction(1, 4)
"""What of a level is kept free for weights and tiles on their way where the machine says nothing of it: as
much as the vendor of the STCP920 does, 256 KiB of 1,280 KiB in a core and 2 MiB of 8 MiB in the buffer that
they share."""


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
