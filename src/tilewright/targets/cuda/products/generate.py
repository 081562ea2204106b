"""The kernel of a product: tiles of both factors come to shared memory stage by stage, and are multiplied.

One loop for every kind: while a stage is multiplied, copies of later ones are under way. A factor is copied
sixteen bytes at a time where neighbours along the depth lie so, else element by element; asynchronously where
it is multiplied in the type in which it is stored, else through registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

from tilewright.ir.expr import Read, reads_of, substitute
from tilewright.ir.nest import Access, Dim, Nest, Operand, affine, operands_of
from tilewright.options import Accuracy
from tilewright.records import dataclass
from tilewright.targets.cuda.emitter import CudaEmitter
from tilewright.targets.cuda.kernel import Context, Kernel, KernelArg
from tilewright.targets.cuda.loopnest import lower_loops
from tilewright.targets.cuda.loopnest.generate import NestCode
from tilewright.targets.cuda.loopnest.plan import aligned_lanes
from tilewright.targets.cuda.products.match import (
    Product,
    Side,
    match_made_product,
    match_product,
    without_factors,
)
from tilewright.targets.cuda.products.multiply import Multiplier, multiplier
from tilewright.targets.cuda.products.pack import packed, packed_sums, padded_rows
from tilewright.targets.cuda.products.tiles import (
    PITCH_BYTES,
    ROW_BYTES,
    Choice,
    ProductPlan,
    plan_made,
    plan_product,
)
from tilewright.targets.cuda.rates import Rates
from tilewright.targets.llvm.exprgen import combine_values, storage_type
from tilewright.targets.llvm.frame import Frame, Reports
from tilewright.targets.llvm.layout import Declined
from tilewright.targets.llvm.loads import inside_lanes, load_read
from tilewright.targets.llvm.module_text import name_by_content
from tilewright.targets.llvm.values import I32, I64, Bool, Int, Type, Val, vec

_SPLIT = "split"
_CHUNK_BYTES = 16


def lower_product(nest: Nest, context: Context) -> tuple[Kernel, ...] | Declined:
    """The kernels of a product, the last of them the one that writes its result."""
    product = match_product(nest, context.constants)
    if isinstance(product, Declined):
        return product
    plan = plan_product(product, product.kind(context.accuracy), context.rates).plan
    if plan.num_splits == 1:
        return (_kernel(product, plan),)
    partial, total = _split(nest, plan.num_splits, context.next_local)
    parts = match_product(partial, context.constants)
    end = lower_loops(total)
    if isinstance(parts, Declined) or isinstance(end, Declined):
        return (_kernel(product, replace(plan, num_splits=1)),)
    return _kernel(parts, plan), end


def lower_made_product(maker: Nest, nest: Nest, context: Context) -> Kernel | Declined:
    """One kernel of a product and of the nest that makes one of its factors, where that is estimated to be
    faster than a kernel for each."""
    product = match_made_product(maker, nest, context.constants)
    if isinstance(product, Declined):
        return product
    choice = made_choice(product, nest, context.accuracy, context.rates)
    if isinstance(choice, Declined):
        return choice
    return _kernel(product, choice.plan, maker)


def made_choice(product: Product, nest: Nest, accuracy: Accuracy, rates: Rates) -> Choice | Declined:
    """The cut of a product with what makes a factor; or why kernels of their own are better."""
    kind = product.kind(accuracy)
    together = plan_made(product, kind, rates)
    alone = match_product(nest)
    if together is None or isinstance(alone, Declined):
        return Declined("no tile has all columns: a factor would be made more than once")
    apart = plan_product(alone, kind, rates)
    factor = nest.reads[next(s.read for s in product.sides if s.is_made)].operand
    moved_ns = 2 * factor.num_elements * factor.dtype.size_bytes / rates.bytes_per_ns
    own_ns = product.made_macs / (rates.macs_per_ns["fma"] * rates.num_multiprocessors)
    if together.time_ns > apart.time_ns + rates.launch_ns + moved_ns + own_ns:
        return Declined("kernels of their own fill the machine better")
    return together


def _split(nest: Nest, num_splits: int, position: int) -> tuple[Nest, Nest]:
    """A nest whose sums are of parts of the depth, each in a plane of a temporary, and that of the planes."""
    dims = nest.parallel_dims
    shape = (num_splits, *(d.extent for d in dims))
    operand = Operand("local", position, nest.body.result, shape)
    index = tuple(affine(d.name) for d in dims)
    partial = replace(nest, write=Access(operand, (affine(0), *index)), init=None, finish=None)
    used = sorted(reads_of(nest.init, nest.finish))
    number = {old: new for new, old in enumerate(used)}
    plane = Access(operand, (affine(_SPLIT), *index))

    def moved(read: Read) -> Read:
        return Read(number[read.index], read.dtype)

    total = Nest(
        (*dims, Dim(_SPLIT, num_splits, "reduce")),
        (*(nest.reads[i] for i in used), plane),
        nest.write,
        Read(len(used), nest.body.result),
        "sum",
        None if nest.init is None else substitute(nest.init, moved),
        None if nest.finish is None else substitute(nest.finish, moved),
    )
    return partial, total


def _kernel(product: Product, plan: ProductPlan, maker: Nest | None = None) -> Kernel:
    """`maker` computes a factor, which lies in no memory."""
    nest = product.nest
    made = None if maker is None else maker.write.operand.key
    nests = [nest] if maker is None else [maker, nest]
    operands = tuple(o for o in operands_of(nests) if o.key != made)
    packs = {
        product.sides[i].ref.operand.key: packed(product, plan, i) for i in (0, 1) if product.is_packed[i]
    }
    args: list[KernelArg] = [packs.get(operand.key, operand) for operand in operands]
    if product.bytes is not None and product.bytes.zero is not None:
        args.append(packed_sums(product))
    emitter = CudaEmitter()
    num_threads = plan.tile.num_threads
    # ptxas otherwise spills some of the cores' many sums, for the sake of one block more.
    is_on_cores = plan.kind == "fma"
    with emitter.kernel(len(args), num_threads, takes_all_registers=is_on_cores) as pointers:
        by_key = {o.key: p for o, p in zip(operands, pointers, strict=False)}
        if made is not None:
            by_key[made] = pointers[0]  # of which nothing is read
        _ProductKernel(emitter, product, plan, by_key, pointers[-1]).emit()
    symbol, text = name_by_content(emitter.text(), "product")
    rows, columns = (side.num_rows for side in product.sides)
    grid = (
        -(-rows // plan.tile.rows),
        -(-columns // plan.tile.columns),
        product.num_batch * plan.num_splits,
    )
    return Kernel(
        symbol,
        text,
        grid,
        (num_threads, 1, 1),
        tuple(args),
        (nest.write.operand.key,),
        "product",
        macs=product.macs,
        shared_bytes=plan.shared_bytes,
        notes=(str(plan), *(["makes a factor as it goes"] if maker is not None else [])),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """What a thread copies of a tile at each step: a place in the tile, and where it comes from.

    `frame` has the row bound, `is_row` says whether there is one.
    """

    frame: Frame
    is_row: Bool
    row: Int
    step: Int


class _Copier:
    """Copies tiles of one factor to shared memory."""

    def __init__(
        self, kernel: _ProductKernel, side: Side, tile_rows: int, first: Int, offset_bytes: int
    ) -> None:
        self.kernel, self.side, self.offset_bytes = kernel, side, offset_bytes
        plan, ref = kernel.plan, side.ref
        self.stored = storage_type(ref.operand.dtype)
        self.is_moved = side.is_plain and self.stored.element == kernel.multiplier.element.element
        self.lanes = self._lanes()
        size_bytes = self.lanes * self.stored.element_bytes
        is_fill_zero = ref.fill is None or ref.fill == 0
        self.is_async = self.is_moved and is_fill_zero and size_bytes in (4, 8, 16)
        self.pieces = self._pieces(tile_rows, first, plan.depth)

    def _lanes(self) -> int:
        """Elements that are copied at once."""
        kernel, ref = self.kernel, self.side.ref
        innermost = kernel.product.depth[-1]
        lanes = _CHUNK_BYTES // self.stored.element_bytes
        is_guarded = any(innermost.name in guard.form.dims() for guard in ref.guards)
        is_guarded = is_guarded or bool(ref.guards and ref.fill)  # through registers, one by one
        if (
            not self.is_moved
            or is_guarded
            or ref.coefficient(innermost.name) != 1
            or innermost.extent % lanes
        ):
            return 1
        return lanes if aligned_lanes(ref, innermost.name, lanes) == lanes else 1

    def _pieces(self, tile_rows: int, first: Int, depth: int) -> list[_Piece]:
        kernel, e, side = self.kernel, self.kernel.e, self.side
        num_threads = kernel.plan.tile.num_threads
        steps = depth // self.lanes
        along_depth = self.lanes > 1 or side.ref.coefficient(kernel.product.depth[-1].name) == 1
        inner = steps if along_depth else tile_rows
        pieces: list[_Piece] = []
        frames: dict[int | str, tuple[Frame, Bool]] = {}
        start = kernel.start(side.nest, (0,), (0,))
        for number in range(-(-tile_rows * steps // num_threads)):
            if num_threads >= inner:
                low = e.urem(kernel.thread, inner)
                high = e.add(e.udiv(kernel.thread, inner), number * (num_threads // inner))
            else:
                parts = inner // num_threads
                low, high = e.add(kernel.thread, number % parts * num_threads), number // parts
            row, step = (high, low) if along_depth else (low, high)
            key = number if along_depth or num_threads < inner else "same"
            if key not in frames:
                place = e.add(first, row)
                is_row = kernel.below(place, side.num_rows, tile_rows)
                frames[key] = kernel.bound(start, side.rows, place), is_row
            frame, is_row = frames[key]
            if tile_rows * steps % num_threads:
                is_row = kernel.both(is_row, e.compare("slt", row, tile_rows))
            pieces.append(_Piece(frame, is_row, row, e.mul(step, self.lanes)))
        return pieces

    def issue(self, first_step: Int, stage: Int) -> None:
        """Copy the tile that begins at a step of the depth to the stage at an offset."""
        kernel, e = self.kernel, self.kernel.e
        fixed, moving = self._loops()
        num_moving = prod(d.extent for d in moving)
        outer, first = e.udiv(first_step, num_moving), e.urem(first_step, num_moving)
        frames: dict[int, Frame] = {}
        for piece in self.pieces:
            is_there = kernel.both(piece.is_row, kernel.is_step(e.add(first_step, piece.step)))
            key = id(piece.frame)
            if key not in frames:
                frames[key] = kernel.bound(piece.frame.inner(), fixed, outer)
            frame = kernel.bound(frames[key], moving, e.add(first, piece.step))
            offset = e.add(e.mul(piece.row, PITCH_BYTES), e.mul(piece.step, kernel.plan.element_bytes))
            target = e.shared_gep(kernel.tiles, e.add(e.add(stage, self.offset_bytes), offset))
            if self.is_async:
                self._copy(frame, is_there, target)
            else:
                self._through_registers(frame, is_there, target)

    def _loops(self) -> tuple[Sequence[Dim], Sequence[Dim]]:
        """Loops of the depth that stay at one place within a tile, and those that move."""
        depth = self.kernel.product.depth
        for position in range(len(depth) - 1, -1, -1):
            if prod(d.extent for d in depth[position:]) % self.kernel.plan.depth == 0:
                return depth[:position], depth[position:]
        return (), depth

    def _copy(self, frame: Frame, is_there: Bool, target: Val) -> None:
        kernel, e = self.kernel, self.kernel.e
        ref = self.side.ref
        open_guards = [g for g in dict.fromkeys(ref.guards) if frame.holds(g) is None]
        if frame.misses(0):
            is_there = False
        elif open_guards:
            inside = inside_lanes(frame, ref, open_guards)
            is_there = kernel.both(is_there, True if inside is None else inside)
        size_bytes = self.lanes * self.stored.element_bytes
        pointer = frame.pointer(0)
        if not isinstance(is_there, bool):
            base = frame.emitter.select(is_there, pointer, kernel.pointers[ref.operand.key])
            valid = e.select_index(is_there, size_bytes, 0)
            e.copy_async(target, base, size_bytes, e.cast("trunc", e.index(valid), "i32"))
        elif is_there:
            e.copy_async(target, pointer, size_bytes)
        else:
            e.copy_async(target, kernel.pointers[ref.operand.key], size_bytes, e.constant(vec("i32"), 0))

    def _through_registers(self, frame: Frame, is_there: Bool, target: Val) -> None:
        e, element = self.kernel.e, self.kernel.multiplier.element
        type = element.with_lanes(self.lanes)

        def load() -> list[Val]:
            here = frame.inner()
            if self.lanes > 1:
                return [e.load(type, here.pointer(0), align_bytes=type.size_bytes)]
            return [self.kernel.multiplier.as_element(self._value(here))]

        (value,) = e.if_(is_there, load, lambda: [e.zero(type)], [type])
        e.shared_store(value, target, align_bytes=type.size_bytes)

    def _value(self, frame: Frame) -> Val:
        """An element of the factor: read, or made by a nest."""
        side = self.side
        if not side.is_made:
            return frame.value(side.value)
        code = NestCode(self.kernel.e, side.nest, self.kernel.plan.tile.num_threads)
        return code.total(frame)


class _PackedCopier:
    """Copies tiles of a factor that was packed: sixteen bytes after sixteen, all of which are there."""

    is_async = True

    def __init__(
        self, kernel: _ProductKernel, side: Side, tile_rows: int, first: Int, offset_bytes: int
    ) -> None:
        self.kernel, self.offset_bytes = kernel, offset_bytes
        e, plan = kernel.e, kernel.plan
        chunks = ROW_BYTES // _CHUNK_BYTES
        row_bytes = plan.padded_steps * plan.element_bytes
        first_row = e.add(e.mul(kernel.batch, padded_rows(side, tile_rows)), first)
        num_threads = plan.tile.num_threads
        self.pieces: list[tuple[Val, Int, Bool]] = []
        for number in range(ceil(tile_rows * chunks / num_threads)):
            row = e.add(e.udiv(kernel.thread, chunks), number * (num_threads // chunks))
            chunk = e.mul(e.urem(kernel.thread, chunks), _CHUNK_BYTES)
            source = e.add(e.mul(e.add(first_row, row), row_bytes), chunk)
            pointer = e.gep(kernel.pointers[side.ref.operand.key], source)
            is_whole = tile_rows * chunks % num_threads == 0
            is_row = True if is_whole else e.compare("slt", row, tile_rows)
            self.pieces.append((pointer, e.add(e.mul(row, PITCH_BYTES), chunk), is_row))

    def issue(self, first_step: Int, stage: Int) -> None:
        """Copy the tile that begins at a step of the depth to the stage at an offset."""
        e = self.kernel.e
        moved = e.mul(first_step, self.kernel.plan.element_bytes)
        for pointer, offset, is_row in self.pieces:
            target = e.shared_gep(self.kernel.tiles, e.add(e.add(stage, self.offset_bytes), offset))

            def copy(pointer: Val = pointer, target: Val = target) -> None:
                e.copy_async(target, e.gep(pointer, moved), _CHUNK_BYTES)

            e.if_(is_row, copy)


class _ProductKernel:
    def __init__(
        self,
        e: CudaEmitter,
        product: Product,
        plan: ProductPlan,
        pointers: dict[tuple[str, int], Val],
        sums: Val,
    ) -> None:
        """`sums` is where those of a constant factor's rows lie, for products of bytes."""
        self.row_sums = sums
        self.e, self.product, self.plan, self.pointers = e, product, plan, pointers
        self.thread = e.thread()
        self.multiplier: Multiplier = multiplier(e, plan, product.dtype)

    # Places.

    def start(self, linear: object, *_: object) -> Frame:
        """A frame of one factor alone, in its batch."""
        assert hasattr(linear, "all_refs")
        places = [self.pointers[ref.operand.key] for ref in linear.all_refs()]
        frame = Frame.start(self.e, linear, places, Reports(None, ()), load_read)  # type: ignore[arg-type]
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

    def both(self, a: Bool, b: Bool) -> Bool:
        """Whether both hold."""
        if isinstance(a, bool):
            return b if a else False
        if isinstance(b, bool):
            return a if b else False
        return self.e.and_(a, b)

    # The kernel.

    def emit(self) -> None:
        """All threads of the grid."""
        e, plan, tile = self.e, self.plan, self.plan.tile
        self.first_row = e.mul(e.block("x"), tile.rows)
        self.first_column = e.mul(e.block("y"), tile.columns)
        part = e.block("z") if self.product.num_batch * plan.num_splits > 1 else 0
        self.part, self.batch = e.urem(part, plan.num_splits), e.udiv(part, plan.num_splits)
        if plan.num_splits == 1:
            self.part, self.batch = 0, part
        self.tiles = e.shared_array(plan.shared_bytes)
        rows, columns = self.product.sides
        self.copiers = (
            self._copier(0, rows, tile.rows, self.first_row, 0),
            self._copier(1, columns, tile.columns, self.first_column, tile.rows * PITCH_BYTES),
        )
        self.is_async = any(copier.is_async for copier in self.copiers)
        self._store(self._sums())

    def _copier(
        self, number: int, side: Side, tile_rows: int, first: Int, offset: int
    ) -> _Copier | _PackedCopier:
        kind = _PackedCopier if self.product.is_packed[number] else _Copier
        return kind(self, side, tile_rows, first, offset)

    def _sums(self) -> list[Val]:
        """The loop over the depth; gives what each thread added up."""
        e, plan = self.e, self.plan
        num_tiles = plan.steps_per_split
        first = e.mul(self.part, num_tiles)
        ahead = plan.num_stages - 1

        def issue(number: Int, stage: Int) -> None:
            exists = e.compare("slt", number, num_tiles)
            e.if_(exists, lambda: self._issue(e.mul(e.add(first, number), plan.depth), stage))
            if self.is_async:
                e.commit_copies()

        for number in range(ahead):
            issue(number, number * plan.stage_bytes)

        def step(number: Int, carried: list[Val]) -> Sequence[Val]:
            read, written, *sums = carried
            if self.is_async:
                e.wait_for_copies(ahead - 1)
            e.barrier()
            issue(e.add(number, ahead), written)
            made = self.multiplier.tile(self._shared(read, 0), self._shared(read, 1), self.thread, sums)
            return [self._next(read), self._next(written), *made]

        carried: list[tuple[Type, Val | int]] = [(I64, 0), (I64, ahead * plan.stage_bytes)]
        carried += [(type, 0) for type in self.multiplier.sums]
        made = e.loop(0, num_tiles, 1, step, carried)
        return made[2:]

    def _next(self, stage: Val) -> Val:
        e, plan = self.e, self.plan
        after = e.add(stage, plan.stage_bytes)
        return e.index(e.select_index(e.compare("eq", after, plan.shared_bytes), 0, after))

    def _shared(self, stage: Int, side: int) -> Val:
        e = self.e
        return e.shared_gep(self.tiles, e.add(stage, self.copiers[side].offset_bytes))

    def _issue(self, first_step: Int, stage: Int) -> None:
        for copier in self.copiers:
            copier.issue(first_step, stage)

    # The end.

    def _store(self, sums: Sequence[Val]) -> None:
        """Scale, finish and store every total of a thread, row by row."""
        e, product, tile = self.e, self.product, self.plan.tile
        rows, columns = product.sides
        linear = without_factors(product, product.linear)
        start = self.start(linear)
        if self.plan.num_splits > 1:
            plane = prod(d.extent for d in product.linear.parallel)
            pointer, offset = start.pointers[-1]
            moved = start.moved(pointer, linear.write, e.mul(self.part, plane))
            start = start._with(pointers=(*start.pointers[:-1], (moved, offset)))
        places = self.multiplier.places(self.thread)
        by_row: dict[int, list[tuple[Int, Val]]] = {}
        row_of: dict[int, Int] = {}
        for (row_key, row, column), total in zip(places, sums, strict=True):
            row_of[row_key] = row
            by_row.setdefault(row_key, []).append((column, total))
        for key, totals in by_row.items():
            place = e.add(self.first_row, row_of[key])

            def finish(totals: Sequence[tuple[Int, Val]] = totals, place: Int = place) -> None:
                frame = self.bound(start.inner(), rows.rows, place)
                for column, total in totals:
                    at = e.add(self.first_column, column)

                    def store(at: Int = at, total: Val = total, frame: Frame = frame) -> None:
                        inner = self.bound(frame.inner(), columns.rows, at)
                        self._finish(inner, self._centred(inner, total, (place, at)))

                    e.if_(self.below(at, columns.num_rows, tile.columns), store)

            e.if_(self.below(place, rows.num_rows, tile.rows), finish)

    def _centred(self, frame: Frame, total: Val, places: tuple[Int, Int]) -> Val:
        """A sum of products of bytes less what is too much by their zero point; of a split sum in its first
        part."""
        found, e = self.product.bytes, self.e
        if found is None or found.zero is None:
            return total
        rows = self.product.sides[found.known].num_rows
        place = e.add(e.mul(self.batch, rows), places[found.known])
        sums = e.load(I32, e.gep(self.row_sums, place, "i32"))
        excess = e.imul(frame.value(found.zero), sums)
        if self.plan.num_splits > 1:
            is_first = e.compare("eq", self.part, 0)
            assert not isinstance(is_first, bool)
            excess = e.select(is_first, excess, 0)
        return e.isub(total, excess)

    def _finish(self, frame: Frame, total: Val) -> None:
        nest = self.product.nest
        for scale in self.product.scales:
            total = self.e.fmul(total, frame.value(scale))
        if nest.init is not None:
            total = combine_values(self.e, "sum", self.product.dtype, frame.value(nest.init), total)
        frame.store(total if nest.finish is None else frame.value(nest.finish, total))
