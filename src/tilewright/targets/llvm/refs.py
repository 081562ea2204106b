"""Nests with linear addresses: every access as one linear form over simplified loops.

A `Ref` is an access whose layout has been applied: its element lies `form` (plus the terms that tables and
data contribute) elements from the operand's start. Loops are simplified here once, so that the emitters see
few and long ones: loops of one iteration vanish, neighbours that every address walks as one are merged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tilewright.ir.expr import Acc, Call, Const, Expr, Iter, Read, Scalar, fold, substitute
from tilewright.ir.nest import Access, Affine, Dim, Indirect, Lookup, Nest, Operand, affine
from tilewright.records import dataclass
from tilewright.targets.llvm.layout import Declined, IndexCheck, Layout, Layouts, OperandKey


@dataclass(frozen=True, slots=True)
class Guard:
    """The access is inside its operand only while `0 <= form < extent`."""

    form: Affine
    extent: int


@dataclass(frozen=True, slots=True)
class TableTerm:
    """`offsets[dim]` elements are added; `valid` says which iterations are inside, if not all are."""

    offsets: tuple[int, ...]
    valid: tuple[bool, ...] | None
    dim: str


@dataclass(frozen=True, slots=True)
class DataTerm:
    """`stride * index` elements are added, the index being read `read`, wrapped and kept within `extent`.

    Values outside are reported as `check` says; None where there can be none.
    """

    read: int
    stride: int
    extent: int
    check: IndexCheck | None


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """One access as an address: see the module's text."""

    operand: Operand
    form: Affine
    guards: tuple[Guard, ...] = ()
    tables: tuple[TableTerm, ...] = ()
    data: tuple[DataTerm, ...] = ()
    fill: Scalar | None = None

    def coefficient(self, dim: str) -> int:
        """Elements between neighbouring iterations of `dim`, where only the linear form counts."""
        return self.form.coefficient(dim)

    def names(self) -> frozenset[str]:
        """Dims that its own address or bounds depend on (not those of the reads it is indexed by)."""
        found = set(self.form.dims())
        for guard in self.guards:
            found.update(guard.form.dims())
        found.update(t.dim for t in self.tables)
        return frozenset(found)


@dataclass(frozen=True, slots=True, eq=False)
class LinearNest:
    """A nest over simplified loops. `iters` gives each original index as a form over them."""

    dims: tuple[Dim, ...]
    refs: tuple[Ref, ...]
    write: Ref
    body: Expr
    combine: str | None
    init: Expr | None
    finish: Expr | None
    iters: Mapping[str, Affine]

    @property
    def extents(self) -> dict[str, int]:
        """Extent of each dim by name."""
        return {d.name: d.extent for d in self.dims}

    @property
    def parallel(self) -> tuple[Dim, ...]:
        """Dims that distinguish output elements, outermost first."""
        return tuple(d for d in self.dims if d.role == "parallel")

    @property
    def reduce(self) -> tuple[Dim, ...]:
        """Dims that are accumulated over."""
        return tuple(d for d in self.dims if d.role == "reduce")

    def depends(self, read: int) -> frozenset[str]:
        """Dims that the value of a read depends on, through indices that are data too."""
        ref = self.refs[read]
        found = set(ref.names())
        for term in ref.data:
            found |= self.depends(term.read)
        return frozenset(found)

    def expr_depends(self, expr: Expr) -> dict[int, frozenset[str] | None]:
        """Dims that each part of an expression depends on, by identity; None for what needs a total."""
        found: dict[int, frozenset[str] | None] = {}
        reads: dict[int, frozenset[str]] = {}

        def dims_of(part: Expr, args: tuple[frozenset[str] | None, ...]) -> frozenset[str] | None:
            match part:
                case Acc():
                    return None
                case Iter(dim):
                    return frozenset(self.iters[dim].dims())
                case Read(index, _):
                    if index not in reads:
                        reads[index] = self.depends(index)
                    return reads[index]
            known = [a for a in args if a is not None]
            if len(known) < len(args):
                return None
            return frozenset[str]().union(*known) if len(set(known)) != 1 else known[0]

        fold(dims_of, expr, made=found)
        return found

    def all_refs(self) -> tuple[Ref, ...]:
        """Reads, then the write."""
        return (*self.refs, self.write)


def scaled(form: Affine, factor: int) -> Affine:
    """`factor * form`."""
    if factor == 0:
        return Affine()
    return Affine(tuple((n, c * factor) for n, c in form.terms), form.offset * factor)


def added(*forms: Affine) -> Affine:
    """Sum of forms."""
    return affine(*(t for f in forms for t in f.terms), sum(f.offset for f in forms))


def substituted(form: Affine, dim: str, value: Affine) -> Affine:
    """`form` with `dim` replaced by another form."""
    c = form.coefficient(dim)
    if c == 0:
        return form
    rest = Affine(tuple(t for t in form.terms if t[0] != dim), form.offset)
    return added(rest, scaled(value, c))


def linearise(
    nest: Nest, layouts: Layouts, strides: Mapping[OperandKey, tuple[int, ...]] | None = None
) -> LinearNest | Declined:
    """The nest with addresses instead of indices; loops not simplified yet.

    `strides` gives the elements between neighbours along each axis for operands that lie elsewhere than in
    their layout (temporaries of which only a slice exists).
    """
    refs: list[Ref] = []
    for access in (*nest.reads, nest.write):
        made = _linear_ref(access, nest, layouts, (strides or {}).get(access.operand.key))
        if isinstance(made, Declined):
            return made
        refs.append(made)
    iters = {d.name: affine(d.name) for d in nest.dims}
    return LinearNest(
        nest.dims, tuple(refs[:-1]), refs[-1], nest.body, nest.combine, nest.init, nest.finish, iters
    )


def _linear_ref(
    access: Access, nest: Nest, layouts: Layouts, strides: tuple[int, ...] | None
) -> Ref | Declined:
    operand, shape = access.operand, access.shape
    layout = layouts.get(operand.key, Layout.row_major(len(operand.shape)))
    if access.view is not None and strides is None:
        if not layout.is_row_major:
            return Declined(f"{operand.kind} {operand.position} is reshaped but stored as {layout.order}")
        layout = Layout.row_major(len(shape))
    strides = layout.strides(shape) if strides is None else strides
    extents = nest.extents
    form, guards, tables, data = Affine(), [], [], []
    for axis, (index, stride, size) in enumerate(zip(access.index, strides, shape, strict=True)):
        if isinstance(index, Lookup):
            straight = _straight(index)
            if straight is None:
                tables.append(_table_term(index, stride, size))
                continue
            index = straight
        if isinstance(index, Indirect):
            check = None if index.node is None else IndexCheck(index.node, axis, size)
            data.append(DataTerm(index.read, stride, size, check))
            continue
        assert isinstance(index, Affine), f"axis {axis} of {operand.kind} {operand.position}"
        form = added(form, scaled(index, stride))
        low, high = index.bounds(extents)
        if access.fill is not None and (low < 0 or high >= size):
            guards.append(Guard(index, size))
    return Ref(operand, form, tuple(guards), tuple(tables), tuple(data), access.fill)


def _straight(index: Lookup) -> Affine | None:
    """The affine form of a table that is an arithmetic progression."""
    table = index.table
    step = table[1] - table[0] if len(table) > 1 else 0
    if any(b - a != step for a, b in itertools.pairwise(table)):
        return None
    return affine((index.dim, step), table[0] if table else 0)


def _table_term(index: Lookup, stride: int, size: int) -> TableTerm:
    valid = tuple(0 <= t < size for t in index.table)
    offsets = tuple(stride * min(max(t, 0), size - 1) for t in index.table)
    return TableTerm(offsets, None if all(valid) else valid, index.dim)


def map_refs(nest: LinearNest, change: Mapping[str, Affine], dims: Iterable[Dim]) -> LinearNest:
    """The nest with dims replaced by forms over new `dims`."""

    def form_of(form: Affine) -> Affine:
        for dim, value in change.items():
            form = substituted(form, dim, value)
        return form

    def ref_of(ref: Ref) -> Ref:
        return replace(
            ref, form=form_of(ref.form), guards=tuple(Guard(form_of(g.form), g.extent) for g in ref.guards)
        )

    return replace(
        nest,
        dims=tuple(dims),
        refs=tuple(ref_of(r) for r in nest.refs),
        write=ref_of(nest.write),
        iters={name: form_of(form) for name, form in nest.iters.items()},
    )


def split_dim(nest: LinearNest, dim: str, size: int, extent: int) -> LinearNest:
    """The nest with `dim` as `block * size + dim`: a new outer loop `dim/b`, and `extent` iterations inside.

    A last, shorter block is the same with a smaller `extent`; whoever binds `dim/b` knows which is which.
    """
    block = block_name(dim)
    blocks = -(-nest.extents[dim] // size)
    rows = next((d.rows for d in nest.dims if d.name == dim), None)
    dims = [Dim(block, blocks, rows=None if rows is None else rows.blocks(size))]
    for d in nest.dims:
        dims.append(Dim(dim, extent) if d.name == dim else d)
    return map_refs(nest, {dim: affine(dim, (block, size))}, dims)


def block_name(dim: str) -> str:
    """Name of the outer loop that `split_dim` makes."""
    return dim + "/b"


def simplify(nest: LinearNest, keep: frozenset[str] = frozenset()) -> LinearNest:
    """Drop loops of one iteration, order the loops by how far they move memory, merge what is one walk.

    Dims in `keep` stay as they are (loops that several nests share).
    """
    nest = _drop_single(_resolve_single_tables(nest, keep), keep)
    nest = replace(nest, dims=_ordered(nest))
    pinned = keep | _pinned(nest)
    position = 0
    while position + 1 < len(nest.dims):
        outer, inner = nest.dims[position], nest.dims[position + 1]
        if _mergeable(nest, outer, inner, pinned):
            rows = None if outer.rows is None else outer.rows.inside(inner.extent)
            merged = Dim(inner.name, outer.extent * inner.extent, inner.role, rows)
            dims = (*nest.dims[:position], merged, *nest.dims[position + 2 :])
            # inner's coefficient already is that of the merged walk.
            nest = map_refs(nest, {outer.name: Affine()}, dims)
            position = max(0, position - 1)
        else:
            position += 1
    return nest


def _resolve_single_tables(nest: LinearNest, keep: frozenset[str]) -> LinearNest:
    """Tables over loops of one iteration become constants."""
    single = {d.name for d in nest.dims if d.extent == 1} - keep

    def resolved(ref: Ref) -> Ref:
        here = [t for t in ref.tables if t.dim in single]
        offset = sum(t.offsets[0] for t in here)
        guards = tuple(Guard(affine(-1), 1) for t in here if t.valid is not None and not t.valid[0])
        return replace(
            ref,
            form=added(ref.form, affine(offset)),
            guards=(*ref.guards, *guards),
            tables=tuple(t for t in ref.tables if t.dim not in single),
        )

    return replace(nest, refs=tuple(resolved(r) for r in nest.refs), write=resolved(nest.write))


def _drop_single(nest: LinearNest, keep: frozenset[str]) -> LinearNest:
    single = {d.name: Affine() for d in nest.dims if d.extent == 1 and d.name not in keep}
    if not single:
        return nest
    return map_refs(nest, single, (d for d in nest.dims if d.name not in single))


def _ordered(nest: LinearNest) -> tuple[Dim, ...]:
    """Parallel loops by falling stride of the write, reduce loops by falling stride of the reads."""

    def read_stride(dim: Dim) -> int:
        return max((abs(r.coefficient(dim.name)) for r in nest.refs), default=0)

    def write_stride(dim: Dim) -> tuple[int, int]:
        stride = abs(nest.write.coefficient(dim.name))
        # A write that is not linear in the dim keeps it outermost.
        return (stride if stride else 1 << 60, read_stride(dim))

    parallel = sorted(nest.parallel, key=lambda d: tuple(-x for x in write_stride(d)))
    reduce = sorted(nest.reduce, key=lambda d: -read_stride(d))
    return (*parallel, *reduce)


def _pinned(nest: LinearNest) -> frozenset[str]:
    """Dims whose own index matters beyond the address."""
    names: set[str] = set()
    for ref in nest.all_refs():
        names.update(n for g in ref.guards for n in g.form.dims())
        names.update(t.dim for t in ref.tables)
    for expr in (nest.body, nest.init, nest.finish):
        for node in expr.walk() if expr is not None else ():
            if isinstance(node, Iter):
                names.update(nest.iters[node.dim].dims())
    return frozenset(names)


def _mergeable(nest: LinearNest, outer: Dim, inner: Dim, pinned: frozenset[str]) -> bool:
    if outer.role != inner.role or outer.name in pinned or inner.name in pinned:
        return False
    return all(r.coefficient(outer.name) == inner.extent * r.coefficient(inner.name) for r in nest.all_refs())


def fill_is_neutral(nest: LinearNest, read: int) -> bool:
    """Whether iterations that read only padding there may be skipped."""
    fill = nest.refs[read].fill
    if nest.combine is None or fill is None:
        return False
    dtype = nest.refs[read].operand.dtype.compute
    body = _folded(substitute(nest.body, lambda r: Const(fill, dtype) if r.index == read else r))
    if not isinstance(body, Const):
        return False
    value = body.value
    if nest.combine == "sum":
        return value == 0
    if nest.combine == "prod":
        return value == 1
    if nest.combine in ("max", "min") and body.dtype.is_float:
        return value == (float("-inf") if nest.combine == "max" else float("inf"))
    if nest.combine in ("max", "min") and body.dtype.is_integer:
        from tilewright.targets.llvm.exprgen import neutral_value

        return value == neutral_value(nest.combine, body.dtype)
    return False


def _folded(expr: Expr) -> Expr:
    """The expression with products by zero and casts of literals evaluated."""

    def value_of(part: Expr, args: tuple[Expr, ...]) -> Expr:
        match part:
            case Call("mul", _, dtype) if any(isinstance(a, Const) and a.value == 0 for a in args):
                return Const(0, dtype)
            case Call("cast", _, dtype) if isinstance(args[0], Const):
                value = args[0].value
                if value == 0:
                    return Const(0, dtype)
                if dtype.is_float:
                    return Const(float(value), dtype)
        return part

    (made,) = fold(value_of, expr)
    assert made is not None
    return made
