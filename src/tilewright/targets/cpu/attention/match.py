"""Attention as a plan of two products, from six nests, with copies before that put keys and values together.

Both products are plans whose tiles are open; their loops have the names of the recogniser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Iter, substitute
from tilewright.ir.nest import Affine, Nest, Operand, RowsOf
from tilewright.targets.cpu.attention.plan import AttentionPlan, Part
from tilewright.targets.cpu.cut import UNCUT
from tilewright.targets.cpu.kernel import Declined, Layouts
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.plan import KernelPlan, Strided
from tilewright.targets.cpu.product.tiling import Panels
from tilewright.targets.llvm.addresses import Walk, access_walk
from tilewright.targets.llvm.attention import (
    CHANNEL,
    DEPTH,
    NUM_NESTS,
    AttentionProblem,
    Walked,
    axes_of,
    recognise_attention,
    same_operand,
    scores_loops,
)
from tilewright.targets.llvm.byte_products import BYTES


def match_attention(nests: Sequence[Nest], layouts: Layouts) -> AttentionPlan | Declined:
    """The nests as one attention under the given memory layouts, or why they are none."""
    copies, nests = nests[:-NUM_NESTS], nests[-NUM_NESTS:]
    problem = recognise_attention(nests, layouts, (DType.FLOAT32, *BYTES))
    if isinstance(problem, Declined):
        return problem
    plan = _planned(problem, nests[0].write.operand)
    return _grown(plan, nests, copies, layouts) if copies else plan


def _planned(problem: AttentionProblem, local: Operand) -> AttentionPlan:
    """The plan of both products, between which scores and weights lie in a local."""
    numbers = {read: number for number, read in enumerate(problem.masks)}
    finish = problem.finish and substitute(
        problem.finish,
        lambda read: replace(read, index=numbers[read.index]),
        iters=lambda index: Iter(problem.names[index.dim]),
    )
    extents, first = problem.extents, problem.outer[:1]
    outer = [(a, extents[a], problem.rows_of.get(a) if a in first else None) for a in problem.outer]
    row = (problem.row, extents[problem.row], None)
    column = (problem.column, extents[problem.column], None)
    # Scores and weights lie in the scratch area, row by row.
    between = Walked(local, {problem.row: column[1], problem.column: 1}, 0)
    scores = _product(
        (problem.query, problem.key, between),
        tuple(problem.masks.values()),
        column=column,
        row=row,
        outer=outer,
        summed=(DEPTH, extents[DEPTH], None),
        finish=finish,
    )
    sums = _product(
        (between, problem.value, problem.result),
        (),
        column=(CHANNEL, extents[CHANNEL], None),
        row=row,
        outer=outer,
        summed=column,
        finish=problem.result_finish,
    )
    return AttentionPlan(scores, sums, problem.shift, problem.divisor)


def _grown(
    problem: AttentionPlan, nests: Sequence[Nest], copies: Sequence[Nest], layouts: Layouts
) -> AttentionPlan | Declined:
    """The problem with the parts of which copies before it make its keys and values."""
    found: list[tuple[Part, ...]] = []
    products: list[KernelPlan] = []
    for nest, product, other in ((nests[0], problem.scores, DEPTH), (nests[-1], problem.sums, CHANNEL)):
        access = next(a for a in nest.reads if a.operand.key == product.b.operand.key)
        score = nest.write if other is DEPTH else next(a for a in nest.reads if a is not access)
        table, axes = scores_loops(nest, score, other), axes_of(nest, access)
        if table is None or axes is None:
            return Declined("keys or values are not read axis by axis")
        loops = [None if name is None else table[name] for name in axes]
        parts: list[Part] = []
        for copy in copies:
            if same_operand(copy.write, access):
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
    steps: Walk = ({table[n]: s for n, s in found[0].items() if n in table}, found[1])
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


_Loop = tuple[str, int, RowsOf | None]


def _product(
    factors: Sequence[Walked],
    extras: Sequence[Walked],
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
        a, b, c = (factor.step(name) for factor in factors)
        return StridedLoop(extent, a, b, c, tuple(extra.step(name) for extra in extras), name, rows)

    a, b, c, *others = (Strided(walked.operand, walked.start) for walked in (*factors, *extras))
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
