"""From planned nests to one kernel: arguments, chunks, and the loop over the items of a chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod

import numpy as np

from tilewright.arrays import distinct
from tilewright.ir.expr import FUNCTIONS, Call, Expr, Read, reads_of, substitute
from tilewright.ir.nest import Dim, Nest, Operand, RowsOf
from tilewright.records import dataclass
from tilewright.targets.cpu.cut import choose_num_chunks
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import REPORTS, IndexCheck, Kernel, OperandKey, reports_operand
from tilewright.targets.cpu.kernel_function import kernel_function
from tilewright.targets.cpu.loopnest.plan import NOTHING_CHOSEN, Chosen, LoopNestPlan, plan_nest, slides
from tilewright.targets.cpu.loopnest.tiles import NestEmitter
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.exprgen import storage_type
from tilewright.targets.llvm.frame import Frame, Reports
from tilewright.targets.llvm.loads import load_read
from tilewright.targets.llvm.refs import LinearNest, Ref, block_name, split_dim
from tilewright.targets.llvm.values import Int, Val

# Items per chunk at which chunks are balanced well enough, and loops may stay inside an item.
_ITEMS_PER_CHUNK = 4
# A part of the vector loop that is an item of its own has at least this many vectors.
_MIN_BLOCK_VECTORS = 16
_SCRATCH_ALIGN_BYTES = 64
# What becomes of totals is worth a nest of its own from so many operations on: an exponential takes them.
_MIN_APART_FLOP = 12


@dataclass(frozen=True, slots=True)
class Split:
    """A loop of `extent` iterations cut into blocks of `size`, the last of which may be shorter."""

    dim: str
    size: int
    extent: int


@dataclass(frozen=True, slots=True)
class Region:
    """Nests that run one after the other for every item of the loops they share.

    `shared` are those loops with their extents, outermost first. Where `block` counts blocks of which the
    last is shorter, `last_block` has the nests for it. `scratch` are the temporaries that live in an
    item. With `rows`, the last shared loop counts blocks of `rows.size` iterations of an outer loop of all
    nests. `chosen` says more of how the nests run.
    """

    shared: tuple[tuple[str, int], ...]
    nests: tuple[LinearNest, ...]
    last_block: tuple[LinearNest, ...] | None = None
    scratch: Mapping[OperandKey, int] = field(default_factory=dict)  # elements
    operations: int = 0
    rows: Split | None = None
    block: str = ""
    chosen: Chosen = NOTHING_CHOSEN

    @property
    def row_loop(self) -> RowsOf | None:
        """Of the outermost shared loop, if it is one over rows in every nest: items are in its order."""
        name = self.shared[0][0] if self.shared else None
        found = {d.rows for nest in self.nests for d in nest.dims if d.name == name}
        return found.pop() if len(found) == 1 else None

    @property
    def num_items(self) -> int:
        """Iterations of the shared loops together."""
        product = 1
        for _, extent in self.shared:
            product *= extent
        return product

    @property
    def num_chunks(self) -> int:
        """Into how many chunks the items are cut: as chosen, else by the work alone."""
        if self.chosen.chunks is not None:
            return min(self.chosen.chunks, self.num_items)
        return choose_num_chunks(self.num_items, self.operations)


def single_region(nest: LinearNest, isa: Isa, chosen: Chosen = NOTHING_CHOSEN) -> Region:
    """One nest: outer loops are the items, and blocks of the vector loop where those are too few."""
    return replace(_cut_into_items(nest, isa, chosen), chosen=chosen)


def _cut_into_items(nest: LinearNest, isa: Isa, chosen: Chosen) -> Region:
    plan = plan_nest(nest, isa, chosen=chosen)
    extents, operations = nest.extents, nest_operations(nest)
    if nest.write.data:
        # Later iterations may overwrite earlier ones, so their order must stay.
        return Region((), (nest,), operations=operations)
    wanted = (chosen.chunks or choose_num_chunks(1 << 30, operations)) * _ITEMS_PER_CHUNK
    if chosen.chunks == 1:
        wanted = 1  # loops stay loops, where items are numbers that are taken apart
    apart = _finished_apart(nest, plan, wanted, operations)
    if apart is not None:
        return apart
    shared: list[tuple[str, int]] = []
    items = 1
    for dim in plan.outer:
        if items >= wanted:
            break
        shared.append((dim, extents[dim]))
        items *= extents[dim]
    window = _window_loop(nest, plan)
    if window is not None and plan.vector is not None:
        size = _cached_block(nest, plan, window, isa)
        if chosen.block is not None:
            size = _chosen_block(nest, plan, chosen.block)
        if size is not None:
            before = plan.outer[: plan.outer.index(window)]
            shared = [(d, extents[d]) for d in (*before, window)]
            made = split_region(tuple(shared), (nest,), plan.vector, size, operations=operations)
            # Blocks outside the rows of the window: a block's rows stay in the first cache.
            *outer, row, block = made.shared
            return replace(made, shared=(*outer, block, row))
    size = None if items >= max(1, wanted // 2) else _block_size(nest, plan, -(-wanted // items))
    if chosen.block is not None:
        size = _chosen_block(nest, plan, chosen.block)
    if size is None or plan.vector is None:
        return Region(tuple(shared), (nest,), operations=operations)
    return split_region(tuple(shared), (nest,), plan.vector, size, operations=operations)


def _finished_apart(nest: LinearNest, plan: LoopNestPlan, wanted: int, operations: int) -> Region | None:
    """A block's totals first, then what becomes of them, if that is worth two nests.

    Totals that lanes are folded into come one by one: a sigmoid of each takes as long as one of a vector.
    """
    finish, refs = nest.finish, nest.all_refs()
    if not plan.reduces_lanes or finish is None or _cost_flop(finish) < _MIN_APART_FLOP:
        return None
    guarded = {n for r in refs for g in r.guards for n in g.form.dims()}
    row = next((d for d in reversed(nest.parallel) if nest.write.coefficient(d.name) == 1), None)
    if row is None or row.name in guarded or row.extent < 2 * plan.lanes or any(r.data for r in refs):
        return None
    if any(r.tables for r in refs) or nest.write.operand.dtype is not nest.body.result:
        return None
    numbers = {old: new for new, old in enumerate(sorted(reads_of(finish)), start=1)}
    body = substitute(
        finish, lambda r: replace(r, index=numbers[r.index]), acc=Read(0, nest.write.operand.dtype)
    )
    made = LinearNest(
        nest.parallel,
        (nest.write, *(nest.refs[old] for old in numbers)),
        nest.write,
        body,
        None,
        None,
        None,
        nest.iters,
    )
    shared = tuple((d.name, d.extent) for d in nest.parallel if d is not row)
    blocks = -(-wanted // max(1, prod(extent for _, extent in shared)))
    size = -(-row.extent // blocks // plan.lanes) * plan.lanes
    both = replace(nest, finish=None), made
    size = max(size, 2 * plan.lanes)
    if size >= row.extent:
        return Region(shared, both, operations=operations)
    return split_region(shared, both, row.name, size, operations=operations)


def _cost_flop(expr: Expr) -> int:
    return sum(FUNCTIONS[x.function].cost_flop for x in expr.walk() if isinstance(x, Call))


def split_region(
    shared: tuple[tuple[str, int], ...],
    nests: Sequence[LinearNest],
    dim: str,
    size: int,
    *,
    operations: int = 0,
) -> Region:
    """A region whose items are also blocks of `size` iterations of `dim`."""
    extent = nests[0].extents[dim]
    full, rest = divmod(extent, size)
    blocks = (block_name(dim), full + (1 if rest else 0))
    whole = tuple(split_dim(n, dim, size, size) for n in nests)
    last = tuple(split_dim(n, dim, size, rest) for n in nests) if rest else None
    return Region((*shared, blocks), whole, last, operations=operations, block=blocks[0])


def _window_loop(nest: LinearNest, plan: LoopNestPlan) -> str | None:
    """The innermost outer loop along which reads overlap."""
    if nest.combine is None or plan.reduces_lanes:
        return None
    sliding = [d for d in plan.outer if any(slides(r, d, nest) for r in nest.refs)]
    return sliding[-1] if sliding else None


def _cached_block(nest: LinearNest, plan: LoopNestPlan, window: str, isa: Isa) -> int | None:
    """Iterations of the vector loop for which the rows that neighbouring windows share stay cached.

    None where all of them fit, and where the tensors come from beyond the second cache: there whole rows
    stream better (measured: a 3x3 pool of 64 channels at 112 x 112 takes 1.5 times as long in blocks).
    """
    assert plan.vector is not None
    extents = nest.extents
    column_bytes, tensor_bytes = 0, _tensor_bytes(nest.write)
    for ref in nest.refs:
        c = ref.coefficient(plan.vector)
        if plan.vector in {n for g in ref.guards for n in g.form.dims()} | {t.dim for t in ref.tables}:
            return None
        if c == 1 and slides(ref, window, nest):
            tensor_bytes += _tensor_bytes(ref)
            inside = [d for d in nest.dims if d.role == "reduce" or d.name == plan.row]
            column_bytes += num_places(ref, inside) * storage_type(ref.operand.dtype).element_bytes
    if column_bytes == 0 or tensor_bytes > isa.caches.l2_bytes:
        return None
    unit = plan.lanes * plan.num_vectors
    most = max(unit, isa.caches.l1_bytes * 2 // 3 // column_bytes // unit * unit)
    extent = extents[plan.vector]
    if most >= extent:
        return None
    even = [size for size in range(most, most // 2, -unit) if extent % size == 0]
    return even[0] if even else most


def _tensor_bytes(ref: Ref) -> int:
    return ref.operand.num_elements * storage_type(ref.operand.dtype).element_bytes


def num_places(ref: Ref, dims: Sequence[Dim]) -> int:
    """Different elements that an access touches while `dims` run."""
    places = np.zeros(1, np.int64)
    for dim in dims:
        steps = ref.coefficient(dim.name) * np.arange(dim.extent)
        places = distinct(np.add.outer(places, steps))
    return len(places)


def _block_size(nest: LinearNest, plan: LoopNestPlan, wanted: int) -> int | None:
    """Iterations of a vector-loop block that gives about `wanted` blocks, or None if it is not to be cut."""
    if plan.vector is None or not can_block(nest, plan):
        return None
    extent = nest.extents[plan.vector]
    unit = plan.lanes * plan.num_vectors
    reduced = 1
    for d in nest.reduce:
        reduced *= d.extent
    least = unit if reduced > 1 else max(unit, plan.lanes * _MIN_BLOCK_VECTORS)
    size = max(least, -(-extent // wanted))
    size = -(-size // unit) * unit
    # A divisor nearby saves the code for a shorter last block.
    for candidate in range(size, size * 2, unit):
        if extent % candidate == 0:
            size = candidate
            break
    return size if size < extent else None


def can_block(nest: LinearNest, plan: LoopNestPlan) -> bool:
    """Whether blocks of the vector loop may be items: nothing depends on where in the loop they stand."""
    guarded = {n for r in nest.refs for g in r.guards for n in g.form.dims()}
    tables = {t.dim for r in nest.all_refs() for t in r.tables}
    return plan.vector is not None and not plan.reduces_lanes and plan.vector not in guarded | tables


def _chosen_block(nest: LinearNest, plan: LoopNestPlan, size: int) -> int | None:
    """Blocks of about so many iterations, whole register tiles, or None for none."""
    if plan.vector is None or not can_block(nest, plan) or size <= 0:
        return None
    unit = plan.lanes * plan.num_vectors
    size = -(-size // unit) * unit
    return size if size < nest.extents[plan.vector] else None


def nest_operations(nest: Nest | LinearNest) -> int:
    """Work of a nest in scalar operations: what its expressions cost and what it moves."""
    iterations, outputs = 1, 1
    for d in nest.dims:
        iterations *= d.extent
        outputs *= d.extent if d.role == "parallel" else 1
    body = _cost_flop(nest.body)
    finish = 0 if nest.finish is None else _cost_flop(nest.finish)
    num_reads = len(nest.reads if isinstance(nest, Nest) else nest.refs)
    return iterations * max(1, body, num_reads) + outputs * finish


def regions_kernel(regions: Sequence[Region], isa: Isa) -> Kernel:
    """One kernel for regions that do not depend on each other: each has its own chunks, in order."""
    operands: dict[OperandKey, Operand] = {}
    for region in regions:
        for nest in region.nests:
            for ref in nest.all_refs():
                if ref.operand.key not in region.scratch:
                    operands.setdefault(ref.operand.key, ref.operand)
    checks = _checks(regions)
    if checks:
        made = reports_operand(len(checks))
        operands[made.key] = made
    chunks = [r.num_chunks for r in regions]
    e = Emitter(triple=isa.triple, attributes=isa.function_attributes)
    scratch_bytes = 0
    has_rows = any(region.row_loop is not None for region in regions)
    with kernel_function(e, tuple(operands.values()), has_rows=has_rows) as function:
        pointers = dict(zip(operands, function.pointers, strict=True))
        num_rows = function.num_rows()
        reports = Reports(pointers.get((REPORTS, 0)), checks)

        def from_region(number: int, first: int) -> None:
            nonlocal scratch_bytes
            following = first + chunks[number]

            def here() -> None:
                nonlocal scratch_bytes
                slices, used_bytes = _scratch_pointers(e, regions[number], function.scratch)
                scratch_bytes = max(scratch_bytes, used_bytes)
                own = e.index(e.sub(function.chunk, first))
                _items(
                    e, regions[number], isa, {**pointers, **slices}, num_rows, reports, own, chunks[number]
                )

            if number == len(regions) - 1:
                here()
            else:
                mine = e.compare("slt", function.chunk, following)
                e.if_(mine, here, lambda: from_region(number + 1, following))

        from_region(0, 0)
    return function.kernel(
        "nest", num_chunks=sum(chunks), template="loop-nest", scratch_bytes=scratch_bytes, checks=checks
    )


def _checks(regions: Sequence[Region]) -> tuple[IndexCheck, ...]:
    """What must be looked at of indices that are data, each once."""
    refs = (ref for r in regions for n in (*r.nests, *(r.last_block or ())) for ref in n.all_refs())
    return tuple(dict.fromkeys(t.check for ref in refs for t in ref.data if t.check is not None))


def _scratch_pointers(e: Emitter, region: Region, scratch: Val) -> tuple[dict[OperandKey, Val], int]:
    """Where an item's slices of temporaries lie, and the bytes they take together."""
    pointers = {}
    used_bytes = 0
    for key, elements in region.scratch.items():
        pointers[key] = e.gep(scratch, used_bytes)
        operand = next(r.operand for n in region.nests for r in n.all_refs() if r.operand.key == key)
        size = elements * storage_type(operand.dtype).element_bytes
        used_bytes += -(-size // _SCRATCH_ALIGN_BYTES) * _SCRATCH_ALIGN_BYTES
    return pointers, used_bytes


def _items(
    e: Emitter,
    region: Region,
    isa: Isa,
    pointers: Mapping[OperandKey, Val],
    num_rows: Val | None,
    reports: Reports,
    chunk: Val,
    num_chunks: int,
) -> None:
    fixed = frozenset(name for name, _ in region.shared)
    rows = region.rows
    plain = frozenset({rows.dim}) if rows else frozenset()

    def emitters(some: Sequence[LinearNest]) -> list[NestEmitter]:
        return [NestEmitter(n, plan_nest(n, isa, fixed, plain, region.chosen), isa) for n in some]

    whole, last = emitters(region.nests), emitters(region.last_block or ())
    total: Int = region.num_items
    row_loop = region.row_loop
    if row_loop is not None and num_rows is not None:
        inside = region.num_items // region.shared[0][1]
        total = e.mul(e.iterations(row_loop, num_rows), inside)

    def nests(emitters: Sequence[NestEmitter], values: Mapping[str, Int]) -> None:
        for emitter in emitters:
            based = [pointers[r.operand.key] for r in emitter.nest.all_refs()]
            frame = Frame.start(e, emitter.nest, based, reports, load_read)
            for name, value in values.items():
                frame = frame.bind(name, value)
            emitter.emit(frame)

    def item(index: Int, _: list[Val]) -> None:
        shared = region.shared
        indices = e.digits(index, [extent for _, extent in shared])
        values = {name: number for (name, _), number in zip(reversed(shared), indices, strict=True)}
        if rows is not None and rows.extent % rows.size:
            left = e.sub(rows.extent, e.mul(values[region.shared[-1][0]], rows.size))
            for emitter in whole:
                emitter.limits = {rows.dim: e.min(left, rows.size)}
        if not last:
            nests(whole, values)
            return
        block, blocks = region.block, dict(region.shared)[region.block]
        is_last = e.compare("eq", values[block], blocks - 1)
        e.if_(is_last, lambda: nests(last, {**values, block: blocks - 1}), lambda: nests(whole, values))

    if num_chunks == 1:
        e.loop(0, total, 1, item)
        return
    if num_chunks == total:
        item(chunk, [])
        return
    low, high = e.piece(chunk, num_chunks, total)
    e.loop(low, high, 1, item, nonempty=row_loop is None)
