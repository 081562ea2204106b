"""Recognise a nest as a contraction and sort its loops by what they do.

A contraction is `out[...] = finish(init + sum a[...] * b[...])`. One output dim is contiguous in memory
and appears in only one of the two factors: it becomes the vector dim, and that factor is called B (it is
packed, or already contiguous). The other factor is A, read one scalar at a time. What is left:

* `row`: the dim whose consecutive values fill the rows of the register tile (in A and the output only);
* `outer`: all other output dims (batch, groups, heads, image rows), plain loops;
* `inner`: the summed dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir.contraction import contraction_of
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Iter, reads_of
from tilewright.ir.nest import Access, Affine, Nest
from tilewright.targets.cpu.kernel import Declined, KernelArg, Layouts
from tilewright.targets.cpu.product.loops import Spread, StridedLoop, Window
from tilewright.targets.llvm.addresses import Walk, access_walk, leaves


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """A nest as the micro-kernel sees it. Offsets and strides count elements."""

    nest: Nest
    dtype: DType
    a: Access
    b: Access
    a_read: int
    b_read: int
    extra_reads: tuple[int, ...]
    vector: StridedLoop
    row: StridedLoop
    outer: tuple[StridedLoop, ...]
    inner: tuple[StridedLoop, ...]
    windows: tuple[Window, ...]
    a_offset: int
    b_offset: int
    c_offset: int
    extra_offsets: tuple[int, ...]
    spread: Spread | None = None

    @property
    def num_macs(self) -> int:
        """Multiply-accumulates, padding taps included."""
        return self.nest.num_iterations

    def operands(self, b: KernelArg) -> tuple[KernelArg, ...]:
        """What a kernel is given that reads B as `b`: both factors, the result, the epilogue's operands."""
        extras = (self.nest.reads[i].operand for i in self.extra_reads)
        return (self.a.operand, b, self.nest.write.operand, *extras)

    def window_of(self, position: str) -> Window | None:
        """The padded axis whose output position is this dim."""
        return next((w for w in self.windows if w.position == position), None)


_FLOATS = (DType.FLOAT32, DType.FLOAT64)


def match_contraction(
    nest: Nest, layouts: Layouts, *, dtypes: tuple[DType, ...] = _FLOATS
) -> Contraction | Declined:
    """The nest as a contraction under the given memory layouts, or why it is none that we generate.

    `dtypes` are the types of products that the caller generates code for.
    """
    factors = _factors(nest)
    if isinstance(factors, Declined):
        return factors
    if nest.num_iterations == 0:
        return Declined("no iterations")
    dtype = nest.body.result
    if dtype not in dtypes:
        return Declined(f"sums of {dtype} products are left to the generic loops")
    expressions = [e for e in (nest.init, nest.finish) if e is not None]
    if any(isinstance(e, Iter) for x in expressions for e in x.walk()):
        return Declined("the epilogue uses loop indices")
    write = access_walk(nest.write, layouts)
    reads = [access_walk(access, layouts) for access in nest.reads]
    bad = next((r for r in (write, *reads) if isinstance(r, Declined)), None)
    if bad is not None:
        return bad
    strides = [r for r in reads if not isinstance(r, Declined)]
    assert not isinstance(write, Declined)
    vector = next((d.name for d in nest.parallel_dims if d.extent > 1 and write[0].get(d.name) == 1), None)
    if vector is None:
        return Declined("no output dim is contiguous in memory")
    first, second = factors
    in_first, in_second = strides[first][0].get(vector, 0) != 0, strides[second][0].get(vector, 0) != 0
    if in_first == in_second:
        return Declined("the contiguous output dim selects elements of both factors")
    b_read, a_read = (first, second) if in_first else (second, first)
    return _classify(nest, dtype, a_read, b_read, vector, strides, write)


def _factors(nest: Nest) -> tuple[int, int] | Declined:
    form = contraction_of(nest)
    if form is None:
        return Declined("not a sum of products of two reads")
    if not form.is_plain:
        return Declined("the factors are not multiplied as they are read")
    if not reads_of(nest.init, nest.finish).isdisjoint(form.reads):
        return Declined("a factor is also read by the epilogue")
    return form.reads


def _classify(
    nest: Nest, dtype: DType, a_read: int, b_read: int, vector: str, strides: Sequence[Walk], write: Walk
) -> Contraction | Declined:
    a, b = nest.reads[a_read], nest.reads[b_read]
    extra_reads = tuple(sorted(reads_of(nest.init, nest.finish)))
    if any(nest.reads[i].fill is not None and leaves(nest.reads[i], nest.extents) for i in extra_reads):
        return Declined("an epilogue operand is padded")
    if b.fill is not None and leaves(b, nest.extents):
        return Declined("the packed factor is padded")
    windows = _windows(nest, a)
    if isinstance(windows, Declined):
        return windows

    rows_of = {d.name: d.rows for d in nest.dims}

    def loop(name: str, extent: int) -> StridedLoop:
        return StridedLoop(
            extent,
            strides[a_read][0].get(name, 0),
            strides[b_read][0].get(name, 0),
            write[0].get(name, 0),
            tuple(strides[i][0].get(name, 0) for i in extra_reads),
            name,
            rows_of[name],
        )

    windowed = {w.position for w in windows} | {w.tap for w in windows}
    parallel = [loop(d.name, d.extent) for d in nest.parallel_dims if d.extent > 1 and d.name != vector]
    inner = [loop(d.name, d.extent) for d in nest.reduce_dims if d.extent > 1]
    if any(x.a == 0 and x.b == 0 for x in inner):
        return Declined("a summed dim selects no element of either factor")
    if b.operand.kind in ("output", "local") and any(w for w in windows):
        return Declined("a padded contraction of two computed tensors")
    rows = collapse([x for x in parallel if x.a and not x.b], keep=windowed)
    outer = collapse([x for x in parallel if x.b or not x.a], keep=windowed)
    row = min(rows, key=lambda x: (abs(x.c), x.name), default=None)
    if row is None:
        row = StridedLoop(1, extras=(0,) * len(extra_reads))
    outer = [*outer, *(x for x in rows if x is not row)]
    vector_loop = next(loop(d.name, d.extent) for d in nest.parallel_dims if d.name == vector)
    return Contraction(
        nest=nest,
        dtype=dtype,
        a=a,
        b=b,
        a_read=a_read,
        b_read=b_read,
        extra_reads=extra_reads,
        vector=vector_loop,
        row=row,
        outer=tuple(outer),
        inner=tuple(inner),
        windows=windows,
        a_offset=strides[a_read][1],
        b_offset=strides[b_read][1],
        c_offset=write[1],
        extra_offsets=tuple(strides[i][1] for i in extra_reads),
    )


def without_padded_rows(problem: Contraction) -> Contraction:
    """The problem with rows that no window moves along, or tiles of one row.

    The taps of a padded outer loop are bounded as it runs: one code for every row, at an edge or not.
    """
    padded = {w.position for w in problem.windows}
    loops = [x for x in problem.outer if x.a and not x.b and x.name not in padded]
    row = min(loops, key=lambda x: (abs(x.c), x.name), default=None)
    outer = (*(x for x in problem.outer if x is not row), problem.row)
    if row is None:
        row = StridedLoop(1, extras=(0,) * len(problem.extra_reads))
    return replace(problem, row=row, outer=outer)


def spread_groups(problem: Contraction, lanes: int) -> Contraction:
    """The problem with its groups in the lanes of one vector, where they fill little of it alone.

    Picking a lane takes an issue slot that a scalar read along with the multiplication does not: groups of
    half a vector gain nothing.
    """
    vector, size = problem.vector, problem.vector.extent
    if size < 2 or 2 * size > lanes or lanes % size or vector.b == 0:
        return problem
    taps = {w.tap for w in problem.windows} | {w.position for w in problem.windows}
    summed = next((x for x in problem.inner if x.a == 1 and x.extent == size and x.name not in taps), None)
    group = next((x for x in problem.outer if x.a == size and x.name not in taps), None)
    if summed is None or group is None or group.extent * size % lanes:
        return problem
    if group.b != size * vector.b or not replace(vector, a=1).collapses_into(group, ignore_b=True):
        return problem
    merged = replace(vector, a=1, name=f"{group.name}.{vector.name}", extent=size * group.extent)
    outer = tuple(x for x in problem.outer if x is not group)
    return replace(problem, vector=merged, outer=outer, spread=Spread(summed, size))


def collapse(loops: Sequence[StridedLoop], *, keep: set[str]) -> list[StridedLoop]:
    """Loops from outermost to innermost in A, neighbours that walk like one loop made one.

    Dims named in `keep` stay as they are: they are padded.
    """
    ordered = sorted(loops, key=lambda x: (-abs(x.a or x.c), -abs(x.c), x.name))
    result: list[StridedLoop] = []
    for x in ordered:
        is_free = bool(result) and not {x.name, result[-1].name} & keep
        if is_free and x.collapses_into(result[-1]):
            outer = result.pop()
            merged = f"{outer.name}.{x.name}"
            result.append(replace(x, name=merged, extent=x.extent * outer.extent, rows=outer.rows_with(x)))
        else:
            result.append(x)
    return result


def _windows(nest: Nest, a: Access) -> tuple[Window, ...] | Declined:
    if a.fill is None or not leaves(a, nest.extents):
        return ()
    if a.fill != 0:
        return Declined("padding with something else than zero")
    extents = nest.extents
    roles = {d.name: d.role for d in nest.dims}
    windows: list[Window] = []
    for index, size in zip(a.index, a.shape, strict=True):
        assert isinstance(index, Affine)
        low, high = index.bounds(extents)
        if low >= 0 and high < size:
            continue
        terms = [(n, c) for n, c in index.terms if extents[n] > 1]
        positions = [t for t in terms if roles[t[0]] == "parallel"]
        taps = [t for t in terms if roles[t[0]] == "reduce"]
        if len(positions) != 1 or len(taps) != 1 or positions[0][1] < 1 or taps[0][1] < 1:
            return Declined("a padded axis that is not position times stride plus tap")
        windows.append(Window(*positions[0], *taps[0], index.offset, size))
    names = [w.position for w in windows] + [w.tap for w in windows]
    if len(set(names)) != len(names):
        return Declined("one dim moves along two padded axes")
    return tuple(windows)
