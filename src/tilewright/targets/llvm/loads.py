"""Loads of all kinds: contiguous, thinned out, in a repeated pattern, gathered; with padding and tails.

No load touches memory outside its operand: lanes in the padding or beyond the end are masked.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.targets.llvm.exprgen import from_storage, storage_type, stored_literal
from tilewright.targets.llvm.frame import Frame, LookedAt
from tilewright.targets.llvm.refs import Guard, Ref, TableTerm
from tilewright.targets.llvm.values import I32, I64, PTR, Type, Val, vec, vector_literal

# Strides up to which whole vectors are loaded and thinned out instead of gathering lane by lane.
MAX_THINNED_STRIDE = 4


def load_read(frame: Frame, read: int, ref: Ref, open_guards: Sequence[Guard]) -> Val:
    """The value of a read in its compute type; `open_guards` are those that must be tested at run time."""
    e = frame.emitter
    dtype = ref.operand.dtype
    fill = stored_literal(0 if ref.fill is None else ref.fill, dtype)
    if frame.lanes > 1 and not frame.varies(read):
        return e.splat(frame.scalar().load(read), frame.lanes)
    stored = storage_type(dtype, frame.lanes)
    mask = inside_lanes(frame, ref, open_guards)
    pointer = frame.pointer(read)
    if frame.lanes == 1:
        raw = e.load(stored, pointer) if mask is None else e.masked_load(stored, pointer, mask, fill=fill)
        return from_storage(e, raw, dtype)
    assert frame.vector is not None
    c = ref.coefficient(frame.vector.dim)
    linear = not any(t.dim == frame.vector.dim for t in ref.tables) and frame.all_resolved(read)
    pattern = None if linear or mask is not None else _pattern(frame, read, ref)
    if pattern is not None:
        raw = _load_pattern(frame, read, ref, stored, pattern)
    elif linear and c == 1:
        raw = _load_contiguous(frame, stored, pointer, mask, fill)
    elif linear and mask is None and (c == -1 or 2 <= c <= MAX_THINNED_STRIDE):
        raw = _load_thinned(frame, stored, pointer, c)
    else:
        raw = _gather(frame, read, ref, stored, pointer, mask, fill)
    return from_storage(e, raw, dtype)


def inside_lanes(frame: Frame, ref: Ref, open_guards: Sequence[Guard]) -> Val | None:
    """One i1 per lane (or one for all if scalar) that says what may be read, None if everything."""
    e, mask = frame.emitter, None
    for guard in open_guards:
        # In 32 bits where they hold it: a place far beside the operand must not look like one inside.
        reach = max(map(abs, guard.form.bounds(frame.nest.extents)), default=0)
        reach += frame.lanes * max((abs(c) for _, c in guard.form.terms), default=0)
        narrow = (frame.lanes > 1 or e.narrow_guards) and max(reach, guard.extent) < 2**31
        type = (I32 if narrow else I64).with_lanes(frame.lanes)
        key = ("mask", guard, frame.vector, tuple(frame.bound.get(n) for n in guard.form.dims()))
        inside = frame.memo.get(key)
        if inside is None:
            inside = frame.memo.put(key, e.icmp("ult", frame.lane_form(guard.form, type), guard.extent))
        mask = inside if mask is None else e.and_(mask, inside)
    for table in ref.tables:
        if table.valid is None:
            continue
        valid = _valid_lanes(frame, table)
        mask = valid if mask is None else e.and_(mask, valid)
    if mask is not None and frame.active < frame.lanes:
        mask = e.and_(mask, e.lane_mask(frame.lanes, frame.active))
    return mask


def _valid_lanes(frame: Frame, table: TableTerm) -> Val:
    e = frame.emitter
    assert table.valid is not None
    flags = [int(v) for v in table.valid]
    entry = frame.table_entry(flags, "i8", frame.index(table.dim))
    if frame.is_vector(table.dim):
        return e.icmp("ne", e.load(vec("i8", frame.lanes), entry), 0)
    return e.splat(e.icmp("ne", e.load(vec("i8"), entry), 0), frame.lanes)


def _load_contiguous(frame: Frame, type: Type, pointer: Val, mask: Val | None, fill: int | float) -> Val:
    e = frame.emitter
    if mask is not None:
        return e.masked_load(type, pointer, mask, fill=fill)
    return _load_leading(frame, type, pointer, frame.active)


def _load_leading(frame: Frame, type: Type, pointer: Val, count: int) -> Val:
    """The first `count` lanes from memory, zero in the others."""
    e = frame.emitter
    if count == type.lanes:
        return e.load(type, pointer)
    if count == 1:
        return e.insert(e.zero(type), e.load(type.scalar, pointer), 0)
    return e.masked_load(type, pointer, count)


def _load_thinned(frame: Frame, type: Type, pointer: Val, stride: int) -> Val:
    """Every `stride`-th element from whole vectors; the last one stops at the last element wanted."""
    e, lanes = frame.emitter, type.lanes
    if stride == -1:
        first = e.op(f"getelementptr {type.element}, ptr {pointer}, i64 {1 - frame.active}", PTR)
        whole = _load_contiguous(frame, type, first, None, 0)
        order = [max(frame.active - 1 - lane, 0) for lane in range(lanes)]
        return e.shuffle(whole, None, order)
    needed = stride * (frame.active - 1) + 1
    made: Val | None = None
    for start in range(0, needed, lanes):
        count = min(lanes, needed - start)
        at = e.gep(pointer, start, type.element)
        part = _load_leading(frame, type, at, count)
        if made is None:
            made = part
            picked = [min(lane * stride, lanes - 1) for lane in range(lanes)]
            if needed <= lanes:
                return e.shuffle(part, None, picked)
            first_part = True
            continue
        order = []
        for lane in range(lanes):
            position = lane * stride - start
            if 0 <= position < lanes:
                order.append(lanes + position)
            else:
                order.append(min(lane * stride, lanes - 1) if first_part else lane)
        made = e.shuffle(made, part, order)
        first_part = False
    assert made is not None
    return made


def _gather(
    frame: Frame, read: int, ref: Ref, type: Type, pointer: Val, mask: Val | None, fill: int | float
) -> Val:
    e, lanes = frame.emitter, type.lanes
    assert frame.vector is not None
    dim = frame.vector.dim
    offsets = vector_literal("i64", [ref.coefficient(dim) * i for i in range(lanes)])
    wide = vec("i64", lanes)
    for table in ref.tables:
        if table.dim == dim:
            entry = frame.table_entry(table.offsets, "i64", frame.index(dim))
            offsets = e.iadd(offsets, e.load(wide, entry))
    looked_at: list[LookedAt] = []
    for number, term in enumerate(ref.data):
        if (read, number) not in frame.resolved:
            index = frame.wrapped(frame.load(term.read), term, looked_at, mask)
            offsets = e.iadd(offsets, e.imul(index, term.stride))
    frame.reports.note(e, looked_at)
    places = e.op(f"getelementptr {type.element}, ptr {pointer}, {offsets.typed}", vec("ptr", lanes))
    where = e.lane_mask(lanes, frame.active) if mask is None else mask
    name = f"{type.text} @llvm.masked.gather.{type.suffix}.v{lanes}p0("
    e.declare(f"declare {name}<{lanes} x ptr>, <{lanes} x i1>, {type.text})")
    call = f"call {name}<{lanes} x ptr> align {type.element_bytes} {places}, {where.typed}, "
    return e.op(call + f"{e.constant(type, fill).typed})", type)


def _pattern(frame: Frame, read: int, ref: Ref) -> tuple[int, ...] | None:
    """Elements between the first lane and each lane, if every vector of the loop sees the same few.

    That is how an image is enlarged by a whole factor: lanes repeat neighbouring elements.
    """
    assert frame.vector is not None
    dim, lanes = frame.vector.dim, frame.vector.lanes
    if ref.data or any(t.dim == dim and t.valid is not None for t in ref.tables):
        return None
    extent, c = frame.nest.extents[dim], ref.coefficient(dim)
    places = [c * i + sum(t.offsets[i] for t in ref.tables if t.dim == dim) for i in range(extent)]
    first = tuple(p - places[0] for p in places[:lanes])
    for start in range(0, extent, lanes):
        here = [p - places[start] for p in places[start : start + lanes]]
        if here != list(first[: len(here)]):
            return None
    return first if min(first) >= 0 and max(first) < lanes else None


def _load_pattern(frame: Frame, read: int, ref: Ref, type: Type, pattern: tuple[int, ...]) -> Val:
    e = frame.emitter
    assert frame.vector is not None
    dim = frame.vector.dim
    pointer, offset = frame.pointers[read]
    for table in ref.tables:
        if table.dim == dim:
            pointer, offset = frame.through_table(pointer, offset, ref, table, frame.index(dim))
    pointer = frame.moved(pointer, ref, offset)
    used = pattern[: frame.active]
    whole = _load_leading(frame, type, pointer, max(used) + 1)
    return e.shuffle(whole, None, [used[min(lane, len(used) - 1)] for lane in range(type.lanes)])
