"""Which nests share their outer loops, so that one kernel runs all of them item by item.

An item of the loops that nests share runs through all of them while its slices of temporaries stay in cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.ir.nest import Affine, Lookup, Nest
from tilewright.targets.cpu.cut import choose_num_chunks
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined, Layout, Layouts, OperandKey
from tilewright.targets.cpu.loopnest.plan import NOTHING_CHOSEN, Chosen, lanes_for
from tilewright.targets.cpu.loopnest.region import Region, Split, nest_operations
from tilewright.targets.llvm.exprgen import storage_type
from tilewright.targets.llvm.refs import LinearNest, linearise, simplify, split_dim
from tilewright.targets.llvm.shared_loops import SharedLoop, accesses_of, passed_values, renamed, shared_loops

# Slices of temporaries larger than this leave the core's caches: then nests run as kernels of their own.
_MAX_SCRATCH_BYTES = 512 * 1024
# Fewer items than this keep cores idle when there is much to do.
_MIN_ITEMS = 4
_MUCH_WORK_OPERATIONS = 1 << 20
# Rows that pass through a nest together, as long as their temporaries take less than this.
_MAX_ROWS = 8
_ROWS_BYTES = 16 * 1024
_LINE_BYTES = 64
# Vectors of a shared contiguous loop that stay inside an item.
_BLOCK_VECTORS = 4


def fused_region(
    nests: Sequence[Nest], others: Sequence[Nest], layouts: Layouts, isa: Isa, chosen: Chosen = NOTHING_CHOSEN
) -> Region | None:
    """One region for nests that share loops, or None where separate kernels are better.

    `others` are the nests outside: a temporary that one of them touches does not live in an item.
    """
    loops = shared_loops(nests)
    outside = {a.operand.key for n in others for a in (n.write, *n.reads)}
    private = [k for k in passed_values(nests) if k[0] == "local" and k not in outside]
    inner = _contiguous_loop(nests, loops, layouts)
    size = 0
    if inner is not None:
        size = min(inner.extent, lanes_for(isa, "float", inner.extent) * _BLOCK_VECTORS)
        if size == inner.extent or _has_table(nests, inner):
            # It stays a loop of every nest, whole.
            loops = tuple(loop for loop in loops if loop is not inner)
            inner = None
    rows = None if inner is not None or not loops or _has_table(nests, loops[-1]) else loops[-1]
    if rows is not None:
        size = _rows_per_item(nests, loops, private, rows.extent, sum(map(nest_operations, nests)))
        size = min(chosen.item_rows or size, rows.extent)
        rows = rows if size > 1 else None
    strides, elements = _slices(nests, loops, inner or rows, size, private, innermost=rows is None)
    linear = []
    for nest in nests:
        made = linearise(nest, layouts, strides)
        assert not isinstance(made, Declined)
        linear.append(made)
    operations = sum(nest_operations(n) for n in linear)
    block = inner or rows
    named = [_under_shared_names(n, loops, block, position) for position, n in enumerate(linear)]
    bytes_of = sum(
        elements[a.operand.key] * storage_type(a.operand.dtype).element_bytes
        for n in nests
        for a in (n.write,)
        if a.operand.key in elements
    )
    items = 1
    for loop in loops:
        items *= loop.extent
    shared = tuple((_name(i), loop.extent) for i, loop in enumerate(loops) if loop not in (inner, rows))
    keep = frozenset(name for name, _ in shared)
    if rows is not None:
        items //= size
        region = _blocked(named, shared, keep | {_INNER}, size, elements, operations, loop_inside=True)
    elif inner is None:
        region = Region(shared, tuple(simplify(n, keep) for n in named), None, elements, operations)
    else:
        items *= -(-inner.extent // size)
        region = _blocked(named, shared, keep, size, elements, operations)
    if bytes_of > _MAX_SCRATCH_BYTES or (items < _MIN_ITEMS and operations > _MUCH_WORK_OPERATIONS):
        return None
    return replace(region, chosen=chosen)


_INNER = "shared/inner"


def _name(position: int) -> str:
    return f"shared/{position}"


def _blocked(
    nests: Sequence[LinearNest],
    shared: tuple[tuple[str, int], ...],
    keep: frozenset[str],
    size: int,
    elements: Mapping[OperandKey, int],
    operations: int,
    *,
    loop_inside: bool = False,
) -> Region:
    """Items that are also blocks of one shared loop; temporaries have one block of it.

    With `loop_inside` that loop stays a simple loop of every nest, and a shorter last block shortens it.
    """
    extent = nests[0].extents[_INNER]
    full, rest = divmod(extent, size)
    block = f"{_INNER}/b"

    def cut(nest: LinearNest, extent: int) -> LinearNest:
        nest = split_dim(nest, _INNER, size, extent)
        refs = [
            replace(r, form=Affine(tuple(t for t in r.form.terms if t[0] != block), r.form.offset))
            if r.operand.key in elements
            else r
            for r in nest.all_refs()
        ]
        return simplify(replace(nest, refs=tuple(refs[:-1]), write=refs[-1]), keep | {block})

    last = tuple(cut(n, rest) for n in nests) if rest and not loop_inside else None
    rows = Split(_INNER, size, extent) if loop_inside else None
    loops = (*shared, (block, full + (1 if rest else 0)))
    return Region(loops, tuple(cut(n, size) for n in nests), last, elements, operations, rows, block)


def _contiguous_loop(
    nests: Sequence[Nest], loops: Sequence[SharedLoop], layouts: Layouts
) -> SharedLoop | None:
    """The shared loop along which the last nest writes neighbouring elements, if there is one."""
    write = nests[-1].write
    if write.view is not None:
        strides = Layout.row_major(len(write.shape)).strides(write.shape)
    else:
        layout = layouts.get(write.operand.key, Layout.row_major(len(write.shape)))
        strides = layout.strides(write.shape)
    for loop in loops:
        axis = next(
            (i for i, x in enumerate(write.index) if isinstance(x, Affine) and loop.names[-1] in x.dims()),
            None,
        )
        if axis is not None and strides[axis] == 1 and write.index[axis] == Affine(((loop.names[-1], 1),)):
            return loop
    return None


def _has_table(nests: Sequence[Nest], loop: SharedLoop) -> bool:
    """Whether a nest uses the loop's index to look something up: then it cannot be cut into blocks."""
    return any(
        isinstance(index, Lookup) and index.dim == name
        for nest, name in zip(nests, loop.names, strict=True)
        for access in (*nest.reads, nest.write)
        for index in access.index
    )


def _rows_per_item(
    nests: Sequence[Nest],
    loops: Sequence[SharedLoop],
    private: Sequence[OperandKey],
    extent: int,
    operations: int,
) -> int:
    """Iterations of the last shared loop that pass through one nest before the next nest starts.

    Folding the lanes of one row waits for every step; of several rows the steps overlap.
    """
    row_bytes = 1
    for key in private:
        operand = next(a.operand for n in nests for a in accesses_of(n, key))
        shape = next(a.shape for n in nests for a in accesses_of(n, key))
        gone = {loop.axes.get(key) for loop in loops}
        count = 1
        for axis, size in enumerate(shape):
            count *= 1 if axis in gone else size
        row_bytes += count * storage_type(operand.dtype).element_bytes
    others = 1
    for loop in loops[:-1]:
        others *= loop.extent
    blocks = 2 * choose_num_chunks(others * extent, operations)
    most = min(_MAX_ROWS, extent, _ROWS_BYTES // row_bytes, max(1, others * extent // blocks))
    even = [size for size in range(most, most // 2, -1) if extent % size == 0]
    return max(1, even[0] if even else most)


def _slices(
    nests: Sequence[Nest],
    loops: Sequence[SharedLoop],
    inner: SharedLoop | None,
    size: int,
    private: Sequence[OperandKey],
    *,
    innermost: bool,
) -> tuple[dict[OperandKey, tuple[int, ...]], dict[OperandKey, int]]:
    """Strides and number of elements of the slice of each private temporary that an item needs."""
    strides: dict[OperandKey, tuple[int, ...]] = {}
    elements: dict[OperandKey, int] = {}
    for key in private:
        shape = next(a.shape for n in nests for a in accesses_of(n, key))
        gone = {loop.axes[key] for loop in loops if loop is not inner and key in loop.axes}
        cut = None if inner is None else inner.axes.get(key)
        extents = [1 if axis in gone else size if axis == cut else e for axis, e in enumerate(shape)]
        # The block of the contiguous loop lies innermost: vectors run along it.
        order = list(range(len(shape)))
        if cut is not None and innermost:
            order = [axis for axis in order if axis != cut] + [cut]
        made = [0] * len(shape)
        step = 1
        operand = next(a.operand for n in nests for a in accesses_of(n, key))
        line = _LINE_BYTES // storage_type(operand.dtype).element_bytes
        for axis in reversed(order):
            if axis == cut and not innermost and step > line:
                step = -(-step // line) * line  # every row starts on a cache line
            made[axis] = 0 if axis in gone else step
            step *= extents[axis]
        strides[key], elements[key] = tuple(made), step
    return strides, elements


def _under_shared_names(
    nest: LinearNest, loops: Sequence[SharedLoop], inner: SharedLoop | None, position: int
) -> LinearNest:
    """The nest with its shared loops under the region's names."""
    mapping = {loop.names[position]: _name(i) for i, loop in enumerate(loops) if loop is not inner}
    if inner is not None:
        mapping[inner.names[position]] = _INNER
    return renamed(nest, mapping)
