"""Copies of tiles to shared memory: asynchronous, in chunks that are converted on the way, or by elements.

What is multiplied as it is stored is copied asynchronously, sixteen bytes at a time where neighbours along
the depth lie so. Else a thread loads as many steps of a row as sixteen bytes of the tile hold, converts and
stores them at once: the loads are issued before a step multiplies, the store follows the step, so that
multiplying hides the way to memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import ceil, gcd, prod

import numpy as np

from tilewright.ir.nest import Dim
from tilewright.records import dataclass
from tilewright.targets.cuda.emitter import CudaEmitter
from tilewright.targets.cuda.loopnest.generate import NestCode
from tilewright.targets.cuda.products.match import Product, Side
from tilewright.targets.cuda.products.multiply import Multiplier, multiplier
from tilewright.targets.cuda.products.pack import padded_rows
from tilewright.targets.cuda.products.tiles import (
    CHUNK_BYTES,
    PITCH_BYTES,
    ROW_BYTES,
    ProductPlan,
    num_aligned,
    way_of,
)
from tilewright.targets.llvm.exprgen import from_storage, storage_type
from tilewright.targets.llvm.frame import Frame, Reports
from tilewright.targets.llvm.layout import OperandKey
from tilewright.targets.llvm.loads import inside_lanes, load_read
from tilewright.targets.llvm.refs import Guard, LinearNest
from tilewright.targets.llvm.values import Bool, Int, Val, vec

_MAX_TABLE_BYTES = 16 * 1024
"""Of 64 KiB that a kernel's constants have."""

Held = tuple[Val, Val, Bool]
"""A value that is loaded, where in shared memory it will be stored, and whether it will be."""


class TileKernel:
    """A kernel of tiles as it is written: which thread and part of the sum this is, and where things are."""

    def __init__(
        self, e: CudaEmitter, product: Product, plan: ProductPlan, pointers: Mapping[OperandKey, Val]
    ) -> None:
        self.e, self.product, self.plan, self.pointers = e, product, plan, pointers
        self.thread = e.thread()
        self.multiplier: Multiplier = multiplier(e, plan, product.dtype)
        part = e.block("z") if product.num_batch * plan.num_splits > 1 else 0
        self.part, self.batch = e.urem(part, plan.num_splits), e.udiv(part, plan.num_splits)
        if plan.num_splits == 1:
            self.part, self.batch = 0, part
        self.tiles = e.shared_array(plan.shared_bytes)

    def start(self, linear: LinearNest) -> Frame:
        """A frame of one factor alone, in its batch."""
        places = [self.pointers[ref.operand.key] for ref in linear.all_refs()]
        frame = Frame.start(self.e, linear, places, Reports(None, ()), load_read)
        return self.bound(frame.inner(), self.product.batch, self.batch)

    def bound(self, frame: Frame, dims: Sequence[Dim], number: Int) -> Frame:
        """A frame in which loops have the indices of one of their combinations."""
        for dim, index in zip(dims, self.e.digits_of(number, [d.extent for d in dims]), strict=True):
            frame = frame.bind(dim.name, index)
        return frame

    def below(self, place: Int, extent: int, tile: int) -> Bool:
        """Whether a row exists; known where tiles divide it."""
        return True if extent % tile == 0 else self.e.compare("slt", place, extent)

    def is_step(self, step: Int) -> Bool:
        """Whether a step of the depth exists, in this part of it."""
        plan, num_steps = self.plan, self.product.num_steps
        if num_steps % (plan.depth * plan.num_splits) == 0:
            return True
        return self.e.compare("slt", step, num_steps)


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """What a thread copies of a tile at each step: a place in the tile, and where it comes from.

    `frame` has the row bound, `is_row` says whether there is one; its step is `low` and `apart` more. Threads
    that are left over have a piece that is not in the tile: `is_in_tile`.
    """

    frame: Frame
    is_row: Bool
    is_in_tile: Bool
    row: Int
    low: Int
    apart: int


@dataclass(frozen=True, slots=True, eq=False)
class _StepTables:
    """What each so many steps of the depth add to an address, in elements, and to what guards compare."""

    unit: int
    offsets: Val
    guards: Mapping[Guard, Val]


class Copier(ABC):
    """Copies tiles of one factor to shared memory, where they begin `offset_bytes` into a stage."""

    is_async = False
    """Whether copies are under way until they are waited for."""

    offset_bytes: int

    def load(self, first_step: Int, stage: Int, exists: Bool) -> list[Held]:
        """Begin to load the tile that begins at a step of the depth, if there is one; gives what to store."""
        return []

    @abstractmethod
    def issue(self, first_step: Int, stage: Int) -> None:
        """Copy what `load` does not, of a tile that there is."""


def copier_of(kernel: TileKernel, number: int, first: Int, offset_bytes: int) -> Copier:
    """What copies a factor, whose tile begins at its row `first`."""
    tile = kernel.plan.tile
    tile_rows = tile.columns if number else tile.rows
    way, lanes = way_of(kernel.product, number, kernel.plan.kind)
    if way == "packed":
        return _Packed(kernel, kernel.product.sides[number], tile_rows, first, offset_bytes)
    made = _Asynchronous if way == "asynchronous" else _Converted if way == "converted" else _ByElements
    return made(kernel, number, tile_rows, first, offset_bytes, lanes)


class _Unpacked(Copier):
    """A factor as it lies in memory: each thread has some rows, and `lanes` steps of them at a time."""

    def __init__(
        self, kernel: TileKernel, number: int, tile_rows: int, first: Int, offset_bytes: int, lanes: int
    ) -> None:
        self.kernel, self.number, self.offset_bytes, self.lanes = kernel, number, offset_bytes, lanes
        self.side = side = kernel.product.sides[number]
        self.stored = storage_type(side.ref.operand.dtype)
        innermost = kernel.product.depth[-1]
        # A tile then stays within the innermost loop, and one guard holds for all steps of a row.
        is_guarded = any(innermost.name in guard.form.dims() for guard in side.ref.guards)
        self.is_within = innermost.extent % kernel.plan.depth == 0 and not is_guarded
        self.pieces = self._pieces(tile_rows, first, kernel.plan.depth)
        self.steps = None if side.is_made else self._step_tables()

    def _pieces(self, tile_rows: int, first: Int, depth: int) -> list[_Piece]:
        kernel, e, side = self.kernel, self.kernel.e, self.side
        num_threads = kernel.plan.tile.num_threads
        steps = depth // self.lanes
        along_depth = side.ref.coefficient(kernel.product.depth[-1].name) == 1
        inner, outer = (steps, tile_rows) if along_depth else (tile_rows, steps)
        # Threads go along the inner axis first, by a width that divides it, then along the outer one.
        width = gcd(inner, num_threads)
        parts, height = inner // width, num_threads // width
        low, high = e.urem(kernel.thread, width), e.udiv(kernel.thread, width)
        if height == 1:
            low, high = kernel.thread, 0
        pieces: list[_Piece] = []
        frames: dict[int, tuple[Frame, Bool]] = {}
        start = kernel.start(side.nest)
        for number in range(parts * ceil(outer / height)):
            inside, outside = number % parts * width, number // parts * height
            is_in_tile: Bool = True
            beside = high
            if outside + height > outer:
                is_in_tile = e.compare("slt", e.add(high, outside), outer)
                beside = e.select_index(is_in_tile, high, 0)
            if along_depth:
                row, step, apart = e.add(beside, outside), low, inside
            else:
                row, step, apart = e.add(low, inside), beside, outside
            key = outside if along_depth else inside
            if key not in frames:
                place = e.add(first, row)
                is_row = kernel.below(place, side.num_rows, tile_rows)
                frames[key] = kernel.bound(start, side.rows, place), is_row
            frame, is_row = frames[key]
            low_step = e.mul(step, self.lanes)
            is_row = kernel.e.both(is_row, is_in_tile)
            pieces.append(_Piece(frame, is_row, is_in_tile, row, low_step, apart * self.lanes))
        return pieces

    def _places(self, first_step: Int, stage: Int) -> list[tuple[_Piece, Frame, Val]]:
        """Each piece with its source, `apart` steps before it where a tile stays within the innermost loop,
        and its target."""
        kernel, e = self.kernel, self.kernel.e
        fixed, moving = self._loops()
        num_moving = prod(d.extent for d in moving)
        outer, first = e.udiv(first_step, num_moving), e.urem(first_step, num_moving)
        frames: dict[int, Frame] = {}
        found: list[tuple[_Piece, Frame, Val]] = []
        for piece in self.pieces:
            key = id(piece.frame)
            if key not in frames:
                frames[key] = kernel.bound(piece.frame.inner(), fixed, outer)
                if self.is_within:
                    frames[key] = kernel.bound(frames[key], moving, e.add(first, piece.low))
            frame = frames[key]
            if not self.is_within:
                frame = kernel.bound(frame, moving, e.add(first, e.add(piece.low, piece.apart)))
            found.append((piece, frame, self._target(piece, stage)))
        return found

    def _sources(self, first_step: Int, stage: Int, exists: Bool) -> Iterator[tuple[Val, Bool, Val]]:
        """Of each piece the address, the operand's beginning where nothing is read, whether it is, and the
        target. Pieces of a row share both, but for a distance."""
        kernel, e = self.kernel, self.kernel.e
        base, innermost = kernel.pointers[self.side.ref.operand.key], kernel.product.depth[-1].name
        if self.steps is not None:
            yield from self._looked_up(self.steps, first_step, stage, exists)
            return
        known: dict[object, tuple[Val, Bool]] = {}
        for piece, frame, target in self._places(first_step, stage):
            key = (id(frame), str(piece.is_row))
            if key not in known:
                is_read = self._is_read(frame, kernel.e.both(exists, self._is_there(piece, first_step)))
                pointer = frame.pointer(0)
                if not isinstance(is_read, bool):
                    pointer = e.select(is_read, pointer, base)
                known[key] = (pointer if is_read is not False else base), is_read
            pointer, is_read = known[key]
            apart = piece.apart * self.side.ref.coefficient(innermost) if self.is_within else 0
            yield e.gep(pointer, apart, self.stored.element), is_read, target

    def _step_tables(self) -> _StepTables | None:
        """What steps add to addresses and guards, where loops of the depth would have to be told apart.

        An entry is of a tile that stays within the innermost loop, else of what is copied at once.
        """
        kernel, ref = self.kernel, self.side.ref
        plan, depth = kernel.plan, kernel.product.depth
        fixed, _ = self._loops()
        is_uniform = ref.coefficient(depth[-1].name) != 1  # all lanes of a warp look up the same entry
        if not (prod(d.extent for d in fixed) > 1 if self.is_within else self.lanes > 1 and is_uniform):
            return None
        names, unit = {d.name for d in depth}, plan.depth if self.is_within else self.lanes
        guards = [g for g in dict.fromkeys(ref.guards) if names.intersection(g.form.dims())]
        if any(depth[-1].name in g.form.dims() for g in guards):
            return None
        # Addresses of tiles behind the last one are computed, too.
        num_steps = plan.padded_steps + (plan.num_stages - 1) * plan.depth
        numbers = np.minimum(np.arange(num_steps // unit) * unit, kernel.product.num_steps - 1)
        indices = np.unravel_index(numbers, [d.extent for d in depth])
        columns = [
            sum(form.coefficient(d.name) * index for d, index in zip(depth, indices, strict=True))
            for form in (ref.form, *(g.form for g in guards))
        ]
        reach = max(np.abs(np.array(columns)).max(), ref.operand.num_elements)
        if 4 * len(numbers) * len(columns) > _MAX_TABLE_BYTES or reach >= 2**31:
            return None
        offsets, *parts = (kernel.e.look_up_table(np.asarray(column).tolist()) for column in columns)
        return _StepTables(unit, offsets, dict(zip(guards, parts, strict=True)))

    def _looked_up(
        self, steps: _StepTables, first_step: Int, stage: Int, exists: Bool
    ) -> Iterator[tuple[Val, Bool, Val]]:
        """See `_sources`."""
        kernel, e, ref = self.kernel, self.kernel.e, self.side.ref
        depth = kernel.product.depth
        base, innermost = kernel.pointers[ref.operand.key], depth[-1].name
        known: dict[object, tuple[Val, Bool]] = {}
        for piece in self.pieces:
            step = e.add(first_step, 0 if self.is_within else e.add(piece.low, piece.apart))
            key = (id(piece.frame), str(piece.is_row), 0 if self.is_within else piece.apart)
            if key not in known:
                entry = e.udiv(step, steps.unit)
                frame = kernel.bound(piece.frame.inner(), depth, 0)
                if self.is_within:
                    frame = kernel.bound(piece.frame.inner(), depth[:-1], 0).bind(innermost, piece.low)
                is_read: Bool = kernel.e.both(exists, kernel.e.both(piece.is_row, kernel.is_step(step)))
                for guard in dict.fromkeys(ref.guards):
                    if piece.frame.holds(guard):
                        continue
                    place = e.cast("trunc", e.index(frame.form(guard.form)), "i32")
                    if guard in steps.guards:
                        place = e.iadd(place, e.look_up(steps.guards[guard], entry))
                    is_read = kernel.e.both(is_read, e.icmp("ult", place, guard.extent))
                offset = e.cast("sext", e.look_up(steps.offsets, entry), "i64")
                pointer = e.gep(frame.pointer(0), offset, self.stored.element)
                if isinstance(is_read, Val):
                    pointer = e.select(is_read, pointer, base)
                known[key] = pointer, is_read
            pointer, is_read = known[key]
            apart = piece.apart * ref.coefficient(innermost) if self.is_within else 0
            yield e.gep(pointer, apart, self.stored.element), is_read, self._target(piece, stage)

    def _target(self, piece: _Piece, stage: Int) -> Val:
        """Where a piece lies in shared memory."""
        kernel, e = self.kernel, self.kernel.e
        offset = e.add(e.mul(piece.row, PITCH_BYTES), e.mul(piece.low, kernel.plan.element_bytes))
        offset = e.add(e.add(stage, self.offset_bytes), offset)
        return e.shared_gep(kernel.tiles, e.add(offset, piece.apart * kernel.plan.element_bytes))

    def _is_there(self, piece: _Piece, first_step: Int) -> Bool:
        """Whether the row and the step exist: all steps of a tile or none, where it stays within a loop."""
        kernel, e = self.kernel, self.kernel.e
        if self.is_within:
            return kernel.e.both(piece.is_row, kernel.is_step(first_step))
        return kernel.e.both(piece.is_row, kernel.is_step(e.add(first_step, e.add(piece.low, piece.apart))))

    def _is_read(self, frame: Frame, is_there: Bool) -> Bool:
        """The same, and that it is no padding."""
        if frame.misses(0):
            return False
        guards = [g for g in dict.fromkeys(self.side.ref.guards) if frame.holds(g) is None]
        inside = inside_lanes(frame, self.side.ref, guards) if guards else None
        return self.kernel.e.both(is_there, True if inside is None else inside)

    def _loops(self) -> tuple[Sequence[Dim], Sequence[Dim]]:
        """Loops of the depth that stay at one place within a tile, and those that move."""
        depth = self.kernel.product.depth
        for position in range(len(depth) - 1, -1, -1):
            if prod(d.extent for d in depth[position:]) % self.kernel.plan.depth == 0:
                return depth[:position], depth[position:]
        return (), depth


class _Asynchronous(_Unpacked):
    """What is multiplied as it is stored: 4, 8 or 16 bytes at a time, zeros for padding."""

    is_async = True

    def issue(self, first_step: Int, stage: Int) -> None:
        """See `Copier`."""
        e, size_bytes = self.kernel.e, self.lanes * self.stored.element_bytes
        sources = self._sources(first_step, stage, True)
        for piece, (pointer, is_read, target) in zip(self.pieces, sources, strict=True):
            valid: Val | None = None
            if is_read is not True:
                valid = e.cast("trunc", e.index(e.select_index(is_read, size_bytes, 0)), "i32")
            e.if_(piece.is_in_tile, partial(e.copy_async, target, pointer, size_bytes, valid))


class _Converted(_Unpacked):
    """Chunks of sixteen bytes of the tile, from steps that lie anywhere, in another type perhaps."""

    def load(self, first_step: Int, stage: Int, exists: Bool) -> list[Held]:
        """See `Copier`."""
        if exists is False:
            return []
        sources = self._sources(first_step, stage, exists)
        return [
            (self._chunk(pointer, is_read), target, piece.is_in_tile)
            for piece, (pointer, is_read, target) in zip(self.pieces, sources, strict=True)
        ]

    def issue(self, first_step: Int, stage: Int) -> None:
        """See `Copier`."""

    def _chunk(self, pointer: Val, is_read: Bool) -> Val:
        """Zeros where nothing is read: what is loaded then does not count."""
        e, zero = self.kernel.e, self.kernel.e.zero(vec("i32", CHUNK_BYTES // 4))
        if is_read is False:
            return zero
        made = self.kernel.multiplier.as_chunk(self._loaded(pointer))
        return made if is_read is True else e.select(is_read, made, zero)

    def _loaded(self, pointer: Val) -> list[Val]:
        """The steps one by one, as they are stored, or in the type they are computed in."""
        kernel, e, stored = self.kernel, self.kernel.e, self.stored
        apart = self.side.ref.coefficient(kernel.product.depth[-1].name)
        together = num_aligned(
            kernel.product, self.number, min(self.lanes, CHUNK_BYTES // stored.element_bytes)
        )
        found: list[Val] = []
        for lane in range(0, self.lanes, together):
            type = stored.with_lanes(together)
            at = e.gep(pointer, lane * apart, stored.element)
            value = e.load(type, at, align_bytes=type.size_bytes)
            found += [e.extract(value, i) for i in range(together)] if together > 1 else [value]
        if stored.element == kernel.multiplier.element.element:
            return found
        return [from_storage(e, value, self.side.ref.operand.dtype) for value in found]


class _ByElements(_Unpacked):
    """Values that are computed, or whose padding or neighbours forbid more at a time."""

    def issue(self, first_step: Int, stage: Int) -> None:
        """See `Copier`."""
        e, multiplier = self.kernel.e, self.kernel.multiplier
        innermost = self.kernel.product.depth[-1].name

        def zeros() -> list[Val]:
            return [e.zero(multiplier.element)]

        for piece, frame, target in self._places(first_step, stage):
            place = frame.shift(innermost, piece.apart) if self.is_within else frame

            def load(place: Frame = place) -> list[Val]:
                return [multiplier.as_element(self._value(place.inner()))]

            type = multiplier.element
            (value,) = e.if_(self._is_there(piece, first_step), load, zeros, [type])
            store = partial(e.shared_store, value, target, align_bytes=type.size_bytes)
            e.if_(piece.is_in_tile, store)

    def _value(self, frame: Frame) -> Val:
        """An element of the factor: read, or made by a nest."""
        side = self.side
        if not side.is_made:
            return frame.value(side.value)
        return NestCode(self.kernel.e, side.nest, self.kernel.plan.tile.num_threads).total(frame)


class _Packed(Copier):
    """A factor that was packed: sixteen bytes after sixteen, all of which are there."""

    is_async = True

    def __init__(self, kernel: TileKernel, side: Side, tile_rows: int, first: Int, offset_bytes: int) -> None:
        self.kernel, self.offset_bytes = kernel, offset_bytes
        e, plan = kernel.e, kernel.plan
        chunks = ROW_BYTES // CHUNK_BYTES
        row_bytes = plan.padded_steps * plan.element_bytes
        first_row = e.add(e.mul(kernel.batch, padded_rows(side, tile_rows)), first)
        num_threads = plan.tile.num_threads
        self.pieces: list[tuple[Val, Int, Bool]] = []
        for number in range(ceil(tile_rows * chunks / num_threads)):
            row = e.add(e.udiv(kernel.thread, chunks), number * (num_threads // chunks))
            chunk = e.mul(e.urem(kernel.thread, chunks), CHUNK_BYTES)
            source = e.add(e.mul(e.add(first_row, row), row_bytes), chunk)
            pointer = e.gep(kernel.pointers[side.ref.operand.key], source)
            is_whole = tile_rows * chunks % num_threads == 0
            is_row = True if is_whole else e.compare("slt", row, tile_rows)
            self.pieces.append((pointer, e.add(e.mul(row, PITCH_BYTES), chunk), is_row))

    def issue(self, first_step: Int, stage: Int) -> None:
        """See `Copier`."""
        e = self.kernel.e
        moved = e.mul(first_step, self.kernel.plan.element_bytes)
        for pointer, offset, is_row in self.pieces:
            target = e.shared_gep(self.kernel.tiles, e.add(e.add(stage, self.offset_bytes), offset))

            def copy(pointer: Val = pointer, target: Val = target) -> None:
                e.copy_async(target, e.gep(pointer, moved), CHUNK_BYTES)

            e.if_(is_row, copy)
