"""The kernel of a product: tiles of both factors come to shared memory stage by stage, and are multiplied.

One loop for every kind: while a stage is multiplied, copies of later ones are under way. A factor is copied
sixteen bytes at a time where neighbours along the depth lie so, else element by element; asynchronously where
it is multiplied in the type in which it is stored, else through registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from tilewright.ir.nest import Nest, Operand, operands_of
from tilewright.options import Accuracy
from tilewright.targets.cuda.emitter import CudaEmitter
from tilewright.targets.cuda.kernel import Context, CountersOperand, Kernel, KernelArg, Shape
from tilewright.targets.cuda.products.copies import Held, TileKernel, copier_of
from tilewright.targets.cuda.products.match import (
    Product,
    in_blocks,
    match_made_product,
    match_product,
    without_factors,
)
from tilewright.targets.cuda.products.pack import packed, packed_sums
from tilewright.targets.cuda.products.tiles import (
    CHUNK_BYTES,
    PITCH_BYTES,
    Choice,
    ProductPlan,
    plan_made,
    plan_product,
)
from tilewright.targets.cuda.rates import Rates
from tilewright.targets.llvm.exprgen import combine_values
from tilewright.targets.llvm.frame import Frame
from tilewright.targets.llvm.layout import Declined
from tilewright.targets.llvm.module_text import name_by_content
from tilewright.targets.llvm.values import I32, Int, Type, Val


def lower_product(nest: Nest, context: Context) -> Kernel | Declined:
    """The kernel of a product."""
    product = match_product(nest, context.constants)
    if isinstance(product, Declined):
        return product
    plan = plan_product(product, product.kind(context.accuracy), context.rates).plan
    return _kernel(product, plan, position=context.next_local)


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


def _kernel(product: Product, plan: ProductPlan, maker: Nest | None = None, *, position: int = 0) -> Kernel:
    """`maker` computes a factor, which lies in no memory; `position` is that of the next temporary."""
    product = in_blocks(product, plan.depth)
    nest = product.nest
    made = None if maker is None else maker.write.operand.key
    nests = [nest] if maker is None else [maker, nest]
    operands = tuple(o for o in operands_of(nests) if o.key != made)
    packs = {
        product.sides[i].ref.operand.key: packed(product, plan, i) for i in (0, 1) if product.is_packed[i]
    }
    args: list[KernelArg] = [packs.get(operand.key, operand) for operand in operands]
    if product.has_row_sums:
        args.append(packed_sums(product))
    tile, (rows, columns) = plan.tile, (side.num_rows for side in product.sides)
    grid = (-(-rows // tile.rows), -(-columns // tile.columns), product.num_batch * plan.num_splits)
    written = [nest.write.operand.key]
    if plan.num_splits > 1:
        planes = Operand("local", position, product.dtype, (prod(grid), tile.rows, tile.columns))
        args += [planes, CountersOperand(prod(grid) // plan.num_splits)]
        written.append(planes.key)
    emitter = CudaEmitter()
    num_threads = plan.tile.num_threads
    # ptxas otherwise spills some of the cores' many sums, for the sake of one block more.
    is_on_cores = plan.kind == "fma"
    with emitter.kernel(len(args), num_threads, takes_all_registers=is_on_cores) as pointers:
        by_key = {o.key: p for o, p in zip(operands, pointers, strict=False)}
        if made is not None:
            by_key[made] = pointers[0]  # of which nothing is read
        _ProductKernel(emitter, product, plan, grid, by_key, pointers[len(operands) :]).emit()
    symbol, text = name_by_content(emitter.text(), "product")
    return Kernel(
        symbol,
        text,
        grid,
        (num_threads, 1, 1),
        tuple(args),
        tuple(written),
        "product",
        macs=product.macs,
        shared_bytes=plan.shared_bytes,
        notes=(str(plan), *(["makes a factor as it goes"] if maker is not None else [])),
    )


class _ProductKernel(TileKernel):
    def __init__(
        self,
        e: CudaEmitter,
        product: Product,
        plan: ProductPlan,
        grid: Shape,
        pointers: dict[tuple[str, int], Val],
        others: Sequence[Val],
    ) -> None:
        """`others` are where the sums of a constant factor's rows lie, for products of bytes; then, for split
        sums, planes of the parts and counters."""
        super().__init__(e, product, plan, pointers)
        self.row_sums = others[0] if product.has_row_sums else None
        self.parts = others[1:] if product.has_row_sums else others
        self.grid = grid

    # The kernel.

    def emit(self) -> None:
        """All threads of the grid."""
        e, plan, tile = self.e, self.plan, self.plan.tile
        self.first_row = e.mul(e.block("x"), tile.rows)
        self.first_column = e.mul(e.block("y"), tile.columns)
        self.copiers = (
            copier_of(self, 0, self.first_row, 0),
            copier_of(self, 1, self.first_column, tile.rows * PITCH_BYTES),
        )
        self.is_async = any(copier.is_async for copier in self.copiers)
        sums = self._sums()
        if plan.num_splits == 1:
            self._store(sums)
        else:
            self._join(sums)

    def _sums(self) -> list[Val]:
        """The loop over the depth; gives what each thread added up."""
        e, plan = self.e, self.plan
        num_tiles = plan.steps_per_split
        first = e.mul(self.part, num_tiles)
        ahead = plan.num_stages - 1

        def issue(number: Int, stage: Int) -> list[Held]:
            exists, at = e.compare("slt", number, num_tiles), e.mul(e.add(first, number), plan.depth)
            held = [one for copier in self.copiers for one in copier.load(at, stage, exists)]
            e.if_(exists, lambda: self._issue(at, stage))
            if self.is_async:
                e.commit_copies()
            return held

        def settle(held: Sequence[Held]) -> None:
            for value, target, is_stored in held:
                store = partial(e.shared_store, value, target, align_bytes=value.type.size_bytes)
                e.if_(is_stored, store)

        for number in range(ahead):
            settle(issue(number, number * plan.stage_bytes))

        def step(number: Int, carried: list[Val]) -> Sequence[Val]:
            narrow, *sums = carried[1:]
            read, written = e.cast("zext", carried[0], "i64"), e.cast("zext", narrow, "i64")
            if self.is_async:
                e.wait_for_copies(ahead - 1)
            e.barrier()
            held = issue(e.add(number, ahead), written)
            made = self.multiplier.tile(self._shared(read, 0), self._shared(read, 1), self.thread, sums)
            settle(held)
            return [self._next(carried[0]), self._next(narrow), *made]

        carried: list[tuple[Type, Val | int]] = [(I32, 0), (I32, ahead * plan.stage_bytes)]
        carried += [(type, 0) for type in self.multiplier.sums]
        made = e.loop(0, num_tiles, 1, step, carried)
        return made[2:]

    def _next(self, stage: Val) -> Val:
        e, plan = self.e, self.plan
        after = e.iadd(stage, plan.stage_bytes)
        return e.select(e.icmp("eq", after, plan.shared_bytes), 0, after)

    def _shared(self, stage: Int, side: int) -> Val:
        e = self.e
        return e.shared_gep(self.tiles, e.add(stage, self.copiers[side].offset_bytes))

    def _issue(self, first_step: Int, stage: Int) -> None:
        for copier in self.copiers:
            copier.issue(first_step, stage)

    # The end.

    def _join(self, sums: Sequence[Val]) -> None:
        """Leave the sums of a part where the last block of its tile adds up all of them, in their order."""
        e, plan = self.e, self.plan
        planes, counters = self.parts
        (across, down, _), splits = self.grid, plan.num_splits
        number = e.add(e.mul(e.add(e.mul(self.batch, down), e.block("y")), across), e.block("x"))
        type = self.multiplier.sums[0]
        lanes = CHUNK_BYTES // type.element_bytes
        chunks = [sums[i : i + lanes] for i in range(0, len(sums), lanes)]
        apart = plan.tile.num_threads * CHUNK_BYTES
        first = e.gep(
            planes, e.add(e.mul(number, splits * len(chunks) * apart), e.mul(self.thread, CHUNK_BYTES))
        )

        def at(part: Int, chunk: int) -> Val:
            return e.gep(e.gep(first, e.mul(part, len(chunks) * apart)), chunk * apart)

        for place, chunk in enumerate(chunks):
            value = e.zero(type.with_lanes(lanes))
            for lane, one in enumerate(chunk):
                value = e.insert(value, one, lane)
            e.store(value, at(self.part, place), align_bytes=CHUNK_BYTES)

        def add(part: Int, totals: list[Val]) -> list[Val]:
            loaded = [
                e.load(type.with_lanes(lanes), at(part, place), align_bytes=CHUNK_BYTES)
                for place in range(len(chunks))
            ]
            found = [e.extract(value, lane) for value in loaded for lane in range(lanes)]
            plus = e.fadd if type.is_float else e.iadd
            return [plus(total, one) for total, one in zip(totals, found, strict=True)]

        def end() -> None:
            zeros: list[tuple[Type, Val | int]] = [(type, 0)] * len(sums)
            self._store(e.loop(0, splits, 1, add, zeros))

        e.if_(e.is_last_block(e.gep(counters, e.mul(number, 4)), splits, self.tiles), end)

    def _store(self, sums: Sequence[Val]) -> None:
        """Scale, finish and store every total of a thread, row by row."""
        e, product, tile = self.e, self.product, self.plan.tile
        rows, columns = product.sides
        linear = without_factors(product, product.linear)
        start = self.start(linear)
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
        """A sum of products of bytes less what is too much by their zero point."""
        found, e = self.product.bytes, self.e
        if found is None or found.zero is None or self.row_sums is None:
            return total
        rows = self.product.sides[found.known].num_rows
        place = e.add(e.mul(self.batch, rows), places[found.known])
        sums = e.load(I32, e.gep(self.row_sums, place, "i32"))
        excess = e.imul(frame.value(found.zero), sums)
        return e.isub(total, excess)

    def _finish(self, frame: Frame, total: Val) -> None:
        nest = self.product.nest
        for scale in self.product.scales:
            total = self.e.fmul(total, frame.value(scale))
        if nest.init is not None:
            total = combine_values(self.e, "sum", self.product.dtype, frame.value(nest.init), total)
        frame.store(total if nest.finish is None else frame.value(nest.finish, total))
