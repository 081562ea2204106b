"""Vectors of any element type to and from memory, in the type they are computed in."""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.targets.cpu.arrangements import COMPACT_BYTES
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.exprgen import from_storage, storage_type, to_storage
from tilewright.targets.llvm.values import Val, vec


def load_lanes(
    e: Emitter, dtype: DType, pointer: Val, lanes: int, *, stride: int = 1, active: int | None = None
) -> Val:
    """`lanes` elements `stride` apart (0: one element in every lane); only `active` of them are touched."""
    if lanes == 1 or stride == 0:
        return e.splat(from_storage(e, e.load(storage_type(dtype), pointer), dtype), lanes)
    type = storage_type(dtype, lanes)
    partial = active is not None and active < lanes
    if stride != 1:
        loaded = e.load_strided(type, pointer, stride, active=active)
    elif partial:
        assert active is not None
        loaded = e.masked_load(type, pointer, active)
    else:
        loaded = e.load(type, pointer)
    return from_storage(e, loaded, dtype)


def load_compact(e: Emitter, pointer: Val, lanes: int) -> Val:
    """`lanes` consecutive float32 without their lowest bytes (`PanelOrder`)."""
    size = 4 * lanes
    picked = [size if i % 4 == 0 else i // 4 * COMPACT_BYTES + i % 4 - 1 for i in range(size)]
    # A whole vector of bytes, of which the last quarter belongs to the next: one instruction then puts all
    # bytes in place.
    loaded = e.load(vec("i8", size), pointer)
    return e.bitcast(e.shuffle(loaded, e.zero(loaded.type), picked), vec("float", lanes))


def store_lanes(e: Emitter, dtype: DType, value: Val, pointer: Val, *, active: int) -> None:
    """The first `active` lanes, rounded to the stored type, to consecutive elements."""
    stored = to_storage(e, value, dtype)
    if active < value.lanes:
        e.masked_store(stored, pointer, active)
    else:
        e.store(stored, pointer)
