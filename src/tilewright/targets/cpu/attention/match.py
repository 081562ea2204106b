"""Recognise six nests as attention: scores, the four of a softmax over keys, the weighted sums of values.

Loops are named after what they walk, whatever the nests call them: an axis of the scores is `a0`, `a1`, ...,
the summed loop of the scores `d`, the channels of the result `e`. Both products are plans whose tiles are
open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.ir.contraction import ContractionForm, contraction_of
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Call, Expr, Iter, Read, reads_of, structure, substitute
from tilewright.ir.nest import Access, Affine, Nest, Operand, RowsOf
from tilewright.ir.ops.reduction import softmax_nests
from tilewright.targets.cpu.addresses import Walk, access_walk
from tilewright.targets.cpu.attention.plan import CHANNEL, DEPTH, AttentionPlan, Part
from tilewright.targets.cpu.kernel import Declined, Layouts
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.plan import KernelPlan, Strided
from tilewright.targets.cpu.product.tiling import UNCUT, Panels
from tilewright.targets.llvm.exprgen import STORAGE_ELEMENTS, unsupported_function

NUM_NESTS = 6
"""Nests of an attention."""


def match_attention(nests: Sequence[Nest], layouts: Layouts) -> AttentionPlan | Declined:
    """The nests as one attention under the given memory layouts, or why they are none."""
    if len(nests) < NUM_NESTS:
        return Declined(f"{len(nests)} nests: attention has {NUM_NESTS}")
    if any(d.extent == 0 for nest in nests for d in nest.dims):
        return Declined("a loop has no iterations")
    copies, nests = nests[:-NUM_NESTS], nests[-NUM_NESTS:]
    scores, *softmax, values = nests
    first, second = contraction_of(scores), contraction_of(values)
    if first is None or second is None or not (first.is_plain and second.is_plain):
        return Declined("no two sums of products of what is read")
    if values.init is not None or scores.init is not None:
        return Declined("the sums begin with something else than zero")
    if values.finish is not None and any(isinstance(x, Read | Iter) for x in values.finish.walk()):
        return Declined("the weighted sums are finished with other operands")
    weights = next((r for r in second.reads if _same(values.reads[r], softmax[-1].write)), None)
    if weights is None or not _is_softmax(softmax, scores.write):
        return Declined("no softmax between the products")
    if any(a.operand.dtype is not DType.FLOAT32 for a in _computed(nests, first, second)):
        return Declined("attention in another type than float32")
    if _axes_of(scores, scores.write) is None or _axes_of(values, values.reads[weights]) is None:
        return Declined("the scores are not written and read axis by axis")
    problem = _classify(nests, first, second, weights, layouts)
    if isinstance(problem, Declined) or not copies:
        return problem
    return _grown(problem, nests, copies, layouts)


def _grown(
    problem: AttentionPlan, nests: Sequence[Nest], copies: Sequence[Nest], layouts: Layouts
) -> AttentionPlan | Declined:
    """The problem with the parts of which copies before it make its keys and values."""
    found: list[tuple[Part, ...]] = []
    products: list[KernelPlan] = []
    for nest, product, other in ((nests[0], problem.scores, DEPTH), (nests[-1], problem.sums, CHANNEL)):
        access = next(a for a in nest.reads if a.operand.key == product.b.operand.key)
        score = nest.write if other is DEPTH else next(a for a in nest.reads if a is not access)
        table, axes = _named(nest, score, other), _axes_of(nest, access)
        if table is None or axes is None:
            return Declined("keys or values are not read axis by axis")
        loops = [None if name is None else table[name] for name in axes]
        parts: list[Part] = []
        for copy in copies:
            if _same(copy.write, access):
                part = _part(problem, product, copy, loops, layouts)
                if isinstance(part, Declined):
                    return part
                product = part[0]
                parts.append(part[1])
        parts.sort(key=lambda part: part.first)
        ends = [0, *(part.first + part.count for part in parts)]
        if parts and [*(part.first for part in parts), problem.num_columns] != ends:
            return Declined("copies do not put all keys together")
        found.append(tuple(parts))
        products.append(product)
    if sum(map(len, found)) != len(copies):
        return Declined("a copy before the products makes something else")
    grown = replace(problem, scores=products[0], sums=products[1], key_parts=found[0], value_parts=found[1])
    if any(part.is_open for parts in found for part in parts) and not _is_open(grown):
        return Declined("a cache that grows is not all that comes first, or its places have a meaning")
    return grown


def _is_open(problem: AttentionPlan) -> bool:
    """Whether a run may have fewer keys and values in the first part of each, and no more differs then."""
    scores, sums = problem.scores, problem.sums
    sides = ((scores, problem.key_parts), (sums, problem.value_parts))
    firsts = [(product, parts[0]) for product, parts in sides if parts]
    wholes = [scores.b, sums.b, *(product.extras[part.extra] for product, part in firsts)]
    return (
        len(firsts) == len(sides)
        and all([part.is_open for part in parts] == [True] + [False] * (len(parts) - 1) for _, parts in sides)
        and len({part.count for _, part in firsts}) == 1
        and not any(strided.offset for strided in wholes)
        and not any(isinstance(x, Iter) for x in (scores.finish.walk() if scores.finish else ()))
    )


def _part(
    problem: AttentionPlan, product: KernelPlan, copy: Nest, loops: Sequence[str | None], layouts: Layouts
) -> tuple[KernelPlan, Part] | Declined:
    """The product with one more operand: where a copy takes its keys or values from.

    `loops` are those along the axes of what the copy writes.
    """
    access = copy.reads[0]
    if access.fill is not None or access.operand.dtype is not DType.FLOAT32:
        return Declined("a part of the keys is padded or of another type")
    table: dict[str, str] = {}
    first, count, is_open = 0, 1, False
    for index, loop, extent in zip(copy.write.index, loops, copy.write.shape, strict=True):
        if not isinstance(index, Affine) or len(index.terms) > 1:
            return Declined("a copy does not write axis by axis")
        length = 1
        for name, step in index.terms:
            if step != 1:
                return Declined("a copy leaves gaps")
            length = copy.extents[name]
            if loop is not None:
                table[name] = loop
        if loop == problem.column:
            first, count = index.offset, length
            is_open = any(d.rows is not None for d in copy.dims if d.name in index.dims())
        elif index.offset or length != extent:
            return Declined("a copy writes a part of a head")
    found = access_walk(access, layouts)
    if isinstance(found, Declined):
        return found
    steps = _renamed(found, table)
    return _with_extra(product, access.operand, steps), Part(len(product.extras), first, count, is_open)


def _with_extra(product: KernelPlan, operand: Operand, walk: Walk) -> KernelPlan:
    """The product with one more operand, which its loops walk along so."""

    def along(loop: StridedLoop) -> StridedLoop:
        return replace(loop, extras=(*loop.extras, walk[0].get(loop.name, 0) if loop.extent > 1 else 0))

    return replace(
        product,
        extras=(*product.extras, Strided(operand, walk[1])),
        vector=along(product.vector),
        row=along(product.row),
        outer=tuple(map(along, product.outer)),
        summed=tuple(map(along, product.summed)),
    )


def _same(a: Access, b: Access) -> bool:
    return a.operand.key == b.operand.key


def _computed(nests: Sequence[Nest], first: ContractionForm, second: ContractionForm) -> list[Access]:
    """Accesses that the kernel computes with: masks may have any type."""
    return [*first.accesses, *second.accesses, *(n.write for n in nests)]


def _axes_of(nest: Nest, access: Access) -> tuple[str | None, ...] | None:
    """The loop along each axis of a tensor that is walked whole, one loop per axis; of one element None."""
    if access.view is not None or access.fill is not None:
        return None
    found: list[str | None] = []
    for index, extent in zip(access.index, access.shape, strict=True):
        if not isinstance(index, Affine) or index.offset or len(index.terms) > 1:
            return None
        if not index.terms:
            found.append(None)
        elif index.terms[0][1] == 1 and nest.extents[index.terms[0][0]] == extent:
            found.append(index.terms[0][0])
        else:
            return None
        if not index.terms and extent != 1:
            return None
    names = [name for name in found if name is not None]
    return tuple(found) if len(set(names)) == len(names) else None


def _is_softmax(nests: Sequence[Nest], source: Access) -> bool:
    """Whether four nests are the softmax of what `source` wrote, over its last axis."""
    top, powers, total, quotient = nests
    if [len(n.reads) for n in nests] != [1, 2, 1, 2] or not all(map(_is_aligned, nests)):
        return False
    if not (_same(top.reads[0], source) and _same(powers.reads[0], source)):
        return False
    if not (_same(powers.reads[1], top.write) and _same(total.reads[0], powers.write)):
        return False
    if not (_same(quotient.reads[0], powers.write) and _same(quotient.reads[1], total.write)):
        return False
    narrow = (*source.shape[:-1], 1)
    if top.write.shape != narrow or total.write.shape != narrow or not _reduce_last((top, total)):
        return False
    for may_be_empty in (False, True):
        model = softmax_nests(top.reads[0], quotient.write, top.dims, 0, may_be_empty=may_be_empty)
        if all(_computes_as(n, m) for n, m in zip(nests, model, strict=True)):
            return True
    return False


def _is_aligned(nest: Nest) -> bool:
    """Whether each loop walks the same axis of everything that the nest reads and writes."""
    walks = [_axes_of(nest, access) for access in (*nest.reads, nest.write)]
    known = [walk for walk in walks if walk is not None]
    if len(known) != len(walks) or len({len(walk) for walk in known}) != 1:
        return False
    return all(len(set(names) - {None}) <= 1 for names in zip(*known, strict=True))


def _reduce_last(nests: Sequence[Nest]) -> bool:
    """Whether each nest reduces the last axis of what it reads, and nothing else."""
    for nest in nests:
        looping = [d for d in nest.reduce_dims if d.extent > 1]
        axes = _axes_of(nest, nest.reads[0])
        assert axes is not None
        if [d.name for d in looping] != [axes[-1]]:
            return False
    return True


def _computes_as(nest: Nest, model: Nest) -> bool:
    def facts(n: Nest) -> tuple[object, ...]:
        return n.combine, *(None if x is None else structure(x) for x in (n.body, n.init, n.finish))

    return facts(nest) == facts(model)


def _classify(
    nests: Sequence[Nest], first: ContractionForm, second: ContractionForm, weights: int, layouts: Layouts
) -> AttentionPlan | Declined:
    scores, values = nests[0], nests[-1]
    names = _named(scores, scores.write, DEPTH)
    later = _named(values, values.reads[weights], CHANNEL)
    if names is None or later is None:
        return Declined("more than one loop over the depth of scores or the channels of values")
    extents = {
        short: nest.extents[long]
        for nest, table in ((values, later), (scores, names))
        for long, short in table.items()
    }
    column = f"a{len(scores.write.shape) - 1}"
    value_read = next(r for r in second.reads if r != weights)
    extra = sorted(reads_of(scores.finish))
    wanted = [
        *((scores.reads[r], names) for r in (*first.reads, *extra)),
        (values.reads[value_read], later),
        (values.write, later),
    ]
    walks: list[tuple[Operand, Walk]] = []
    for access, table in wanted:
        if access.fill is not None or access.operand.dtype not in STORAGE_ELEMENTS:
            return Declined("an operand is padded or has no machine form")
        found = access_walk(access, layouts)
        if isinstance(found, Declined):
            return found
        steps, start = _renamed(found, table)
        walks.append((access.operand, ({n: s for n, s in steps.items() if extents[n] > 1}, start)))
    left, right, *masks, value, result = walks
    query, key = (right, left) if _step(left, column) else (left, right)
    if _step(query, column) or not _step(key, column) or set(extra) & set(first.reads):
        return Declined("keys do not move along the last axis of the scores, or queries do")
    finishes = [x for x in (scores.finish, values.finish) if x is not None]
    if any(unsupported_function(x) is not None for x in finishes):
        return Declined("no instructions for what is made of a sum")
    axes = [f"a{n}" for n in range(len(scores.write.shape) - 1)]
    looping = [a for a in axes if extents.get(a, 1) > 1]
    rows = [a for a in looping if _step(query, a) and not _step(key, a) and not _step(value, a)]
    if not rows and extents.get(axes[-1], 1) > 1:
        return Declined("no loop over queries of the same keys")
    if extents.get(DEPTH, 1) < 2 or extents.get(CHANNEL, 1) < 2:
        return Declined("heads of one element")
    if _step(value, CHANNEL) != 1 or _step(result, CHANNEL) != 1:
        return Declined("channels of the values are not contiguous")
    if _step(key, DEPTH) == 0 or _step(query, DEPTH) == 0 or _step(value, column) == 0:
        return Declined("a summed loop selects no element of a factor")
    if _step(result, column) or not all(_step(result, a) for a in looping):
        return Declined("the weighted sums are not over keys alone")
    shift, divisor = _of_call(nests[2].body, "exp_nonpositive", "sub"), _of_call(nests[4].body, "div")
    if shift is None or divisor is None:
        return Declined("no softmax between the products")
    row = rows[-1] if rows else axes[-1]
    outer = tuple(a for a in looping if a != row)
    rows_of = {names[d.name]: d.rows for d in scores.dims if d.name in names}
    numbers = {read: number for number, read in enumerate(extra)}
    finish = scores.finish and substitute(
        scores.finish,
        lambda read: replace(read, index=numbers[read.index]),
        iters=lambda index: Iter(names[index.dim]),
    )
    loops = [(a, extents[a], rows_of.get(a) if a == outer[0] else None) for a in outer]
    row_extent, columns = extents.get(row, 1), extents[column]
    # Scores and weights lie in the scratch area, row by row.
    in_rows: Walk = ({row: columns, column: 1}, 0)
    local = scores.write.operand
    first_product = _product(
        (query, key, (local, in_rows)),
        masks,
        column=(column, columns, None),
        row=(row, row_extent, None),
        outer=loops,
        summed=(DEPTH, extents[DEPTH], None),
        finish=finish,
    )
    second_product = _product(
        ((local, in_rows), value, result),
        (),
        column=(CHANNEL, extents[CHANNEL], None),
        row=(row, row_extent, None),
        outer=loops,
        summed=(column, columns, None),
        finish=values.finish,
    )
    return AttentionPlan(first_product, second_product, shift, divisor)


_Loop = tuple[str, int, RowsOf | None]


def _product(
    factors: Sequence[tuple[Operand, Walk]],
    extras: Sequence[tuple[Operand, Walk]],
    *,
    column: _Loop,
    row: _Loop,
    outer: Sequence[_Loop],
    summed: _Loop,
    finish: Expr | None,
) -> KernelPlan:
    """A product of two walked factors, which are followed by its result, the tile left open."""

    def loop(named: _Loop) -> StridedLoop:
        name, extent, rows = named
        a, b, c = (_step(factor, name) for factor in factors)
        return StridedLoop(extent, a, b, c, tuple(_step(extra, name) for extra in extras), name, rows)

    a, b, c, *others = (Strided(operand, start) for operand, (_, start) in (*factors, *extras))
    return KernelPlan(
        dtype=DType.FLOAT32,
        dot="fma",
        a=a,
        b=b,
        c=c,
        extras=tuple(others),
        staging="in place",
        packing="in panels by head",
        zeros=None,
        vector=loop(column),
        row=loop(row),
        outer=tuple(map(loop, outer)),
        summed=(loop(summed),),
        windows=(),
        spread=None,
        max_rows=1,
        panels=Panels(1, 1, column[1]),
        cut=UNCUT,
        units="heads",
        block_parts=None,
        fetches_ahead=False,
        init=None,
        finish=finish,
    )


def _step(walked: tuple[Operand, Walk], loop: str) -> int:
    return walked[1][0].get(loop, 0)


def _named(nest: Nest, access: Access, other: str) -> dict[str, str] | None:
    """Loops of a nest by the axis of the scores along which they move; the one that is left is `other`."""
    axes = _axes_of(nest, access)
    assert axes is not None
    table = {name: f"a{position}" for position, name in enumerate(axes) if name is not None}
    left = [d.name for d in nest.dims if d.extent > 1 and d.name not in table]
    if len(left) != 1:
        return None
    return {**table, left[0]: other}


def _renamed(found: Walk, table: Mapping[str, str]) -> Walk:
    steps, start = found
    return {table[n]: s for n, s in steps.items() if n in table}, start


def _of_call(expr: Expr, *functions: str) -> Expr | None:
    """The last argument of nested calls, the outermost first."""
    for function in functions:
        if not isinstance(expr, Call) or expr.function != function:
            return None
        expr = expr.args[-1]
    return expr
