"""Several nests in one kernel, row by row: softmax, normalisation, what hands on temporaries within a row.

A block of threads takes an item of the loops that the nests share through all of them. What passes between
them lies in its shared memory, if nothing else reads it; between nests the block waits for all its threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir.nest import Nest, operands_of
from tilewright.records import dataclass
from tilewright.targets.cuda.emitter import WARP, CudaEmitter
from tilewright.targets.cuda.kernel import Kernel
from tilewright.targets.cuda.loopnest.generate import NestCode
from tilewright.targets.cuda.loopnest.plan import plan_loops
from tilewright.targets.llvm.exprgen import storage_type, unsupported_function
from tilewright.targets.llvm.frame import Frame, Reports
from tilewright.targets.llvm.layout import Declined, Layout, OperandKey
from tilewright.targets.llvm.loads import load_read
from tilewright.targets.llvm.module_text import name_by_content
from tilewright.targets.llvm.refs import LinearNest, linearise, simplify
from tilewright.targets.llvm.shared_loops import SharedLoop, accesses_of, passed_values, renamed, shared_loops
from tilewright.targets.llvm.values import PTR, Int, Val

_MAX_SHARED_BYTES = 40 * 1024
_MAX_THREADS = 256
_MOST_FEWER = 8
"""How many times fewer threads than of kernels of their own are worth one launch instead of several."""
_USUAL_THREADS = 8192
_MIN_SHARED_STEPS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Nests with their shared loops under common names, and the elements of temporaries within an item."""

    nests: tuple[LinearNest, ...]
    loops: tuple[SharedLoop, ...]
    elements: dict[OperandKey, int]
    num_threads: int

    @property
    def names(self) -> list[str]:
        """Names of the shared loops."""
        return [f"shared/{i}" for i in range(len(self.loops))]

    @property
    def num_items(self) -> int:
        """Items, each of which is a block's."""
        return prod(loop.extent for loop in self.loops)


def lower_rows(nests: Sequence[Nest], others: Sequence[Nest]) -> Kernel | Declined:
    """One kernel of nests that share loops; `others` are those of the group outside."""
    rows = match_rows(nests, others)
    if isinstance(rows, Declined):
        return rows
    operands = [o for o in operands_of(nests) if o.key not in rows.elements]
    written = {nest.write.operand.key for nest in nests} - set(rows.elements)
    emitter = CudaEmitter()
    with emitter.kernel(len(operands), rows.num_threads) as pointers:
        places = {o.key: p for o, p in zip(operands, pointers, strict=True)}
        _emit(emitter, nests, rows, places)
    symbol, text = name_by_content(emitter.text(), "rows")
    return Kernel(
        symbol,
        text,
        (rows.num_items, 1, 1),
        (rows.num_threads, 1, 1),
        tuple(operands),
        tuple(sorted(written)),
        "rows",
        shared_bytes=emitter.shared_bytes,
        notes=(f"{len(nests)} nests, a block of {rows.num_threads} threads a row",),
    )


def match_rows(nests: Sequence[Nest], others: Sequence[Nest]) -> Rows | Declined:
    """The nests as rows of one kernel, or why they are none."""
    loops = shared_loops(nests)
    if not loops:
        return Declined("no loops in common")
    for nest in nests:
        for expr in (nest.body, nest.init, nest.finish):
            if expr is not None and unsupported_function(expr) is not None:
                return Declined("an expression without instructions")
    outside = {a.operand.key for n in others for a in (n.write, *n.reads)}
    private = [k for k in passed_values(nests) if k[0] == "local" and k not in outside]
    strides: dict[OperandKey, tuple[int, ...]] = {}
    elements: dict[OperandKey, int] = {}
    num_bytes = 0
    for key in private:
        access = next(a for n in nests for a in accesses_of(n, key))
        gone = {loop.axes[key] for loop in loops if key in loop.axes}
        extents = [1 if axis in gone else extent for axis, extent in enumerate(access.shape)]
        dense = Layout.row_major(len(extents)).strides(extents)
        strides[key] = tuple(0 if axis in gone else step for axis, step in enumerate(dense))
        elements[key] = prod(extents)
        num_bytes += elements[key] * storage_type(access.operand.dtype).element_bytes
    if num_bytes > _MAX_SHARED_BYTES:
        return Declined("temporaries of a row exceed shared memory")
    linear: list[LinearNest] = []
    threads = 0
    for position, nest in enumerate(nests):
        made = linearise(nest, {}, strides)
        if isinstance(made, Declined):
            return made
        if any(ref.data for ref in made.all_refs()):
            return Declined("indices that are data")
        alone = plan_loops(simplify(made))
        threads = max(threads, alone.num_blocks * alone.num_threads)
        names = {loop.names[position]: f"shared/{i}" for i, loop in enumerate(loops)}
        linear.append(simplify(renamed(made, names), frozenset(names.values())))
    num_items = prod(loop.extent for loop in loops)
    largest = max(prod(d.extent for d in n.dims) for n in linear) // num_items
    num_threads = min(_MAX_THREADS, max(WARP, -(-largest // WARP) * WARP))
    if num_items * num_threads * _MOST_FEWER < min(threads, _USUAL_THREADS):
        return Declined("too few rows to fill a GPU")
    return Rows(tuple(linear), loops, elements, num_threads)


def _emit(e: CudaEmitter, nests: Sequence[Nest], rows: Rows, places: dict[OperandKey, Val]) -> None:
    """The body of the kernel."""
    thread, item = e.thread(), e.block()
    indices = e.digits_of(item, [loop.extent for loop in rows.loops])
    for nest in nests:
        for access in (*nest.reads, nest.write):
            key = access.operand.key
            if key in rows.elements and key not in places:
                size_bytes = rows.elements[key] * storage_type(access.operand.dtype).element_bytes
                array = e.shared_array(size_bytes)
                places[key] = e.op(f"addrspacecast {array.typed} to ptr", PTR)
    partials: Val | None = None
    if rows.num_threads > WARP:
        partials = e.shared_array(8 * rows.num_threads // WARP)
    for number, linear in enumerate(rows.nests):
        if number:
            e.barrier()
        pointers = [places[ref.operand.key] for ref in linear.all_refs()]
        frame = Frame.start(e, linear, pointers, Reports(None, ()), load_read).inner()
        for name, index in zip(rows.names, indices, strict=True):
            if name in linear.extents:
                frame = frame.bind(name, index)
        _nest(e, rows, linear, frame, thread, partials)


def _nest(
    e: CudaEmitter, rows: Rows, nest: LinearNest, frame: Frame, thread: Int, partials: Val | None
) -> None:
    """One nest of an item, by all threads of the block."""
    code = NestCode(e, nest, rows.num_threads)
    dims = [d for d in nest.parallel if d.name not in rows.names]
    extents = [d.extent for d in dims]
    num_elements, num_steps = prod(extents), prod(d.extent for d in nest.reduce)

    def at(number: Int) -> Frame:
        place = frame.inner()
        for dim, index in zip(dims, e.digits_of(number, extents), strict=True):
            place = place.bind(dim.name, index)
        return place

    if num_steps >= _MIN_SHARED_STEPS and num_elements * 4 < rows.num_threads:

        def total(number: Int, _: list[Val]) -> None:
            if num_elements > 1 and partials is not None:
                e.barrier()  # the totals of the element before are read
            code.together(at(number), thread, rows.num_threads, partials)

        e.loop(0, num_elements, 1, total)
        return

    def element(number: Int, _: list[Val]) -> None:
        code.alone(at(number))

    e.loop(thread, num_elements, rows.num_threads, element)
