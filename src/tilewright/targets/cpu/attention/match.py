"""Recognise six nests as attention: scores, the four of a softmax over keys, the weighted sums of values.

Loops are named after what they walk, whatever the nests call them: an axis of the scores is `a0`, `a1`, ...,
the summed loop of the scores `d`, the channels of the result `e`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.ir.contraction import ContractionForm, contraction_of
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Call, Expr, Iter, Read, reads_of, structure
from tilewright.ir.nest import Access, Affine, Nest, Operand, RowsOf
from tilewright.ir.ops.reduction import softmax_nests
from tilewright.records import dataclass
from tilewright.targets.cpu.addresses import Walk, access_walk
from tilewright.targets.cpu.kernel import Declined, Layouts
from tilewright.targets.llvm.exprgen import STORAGE_ELEMENTS, unsupported_function

NUM_NESTS = 6
"""Nests of an attention."""

DEPTH, CHANNEL = "d", "e"


@dataclass(frozen=True, slots=True, eq=False)
class Walked:
    """An operand, the elements that it moves per step of each loop, and the element of iteration zero."""

    operand: Operand
    steps: Mapping[str, int]
    start: int

    def step(self, loop: str) -> int:
        """Elements per step of a loop, 0 if it does not move."""
        return self.steps.get(loop, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Where the keys or values from number `first` on lie, `count` of them, before they are put together."""

    walked: Walked
    first: int
    count: int
    is_open: bool = False
    """Whether a run may have fewer, those of one head behind those of another without a gap."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionProblem:
    """An attention as the kernel sees it; `extents` are those of all loops.

    Keys and values may come in parts, a cache and what is new, which the kernel puts together in `key` and
    `value`; there they are of no use but to others.

    `finish` makes a score of a sum and of `masks`, which are given by the number of the read;
    `result_finish` an element of the result of a weighted sum. `shift` is what is taken off the scores of a
    row, of its maximum as read 1; `divisor` what powers are divided by, of their sum as read 1. `names` maps
    loops of the scores' nest to loops here.
    """

    query: Walked
    key: Walked
    value: Walked
    result: Walked
    masks: Mapping[int, Walked]
    finish: Expr | None
    result_finish: Expr | None
    shift: Expr
    divisor: Expr
    outer: tuple[str, ...]
    row: str
    column: str
    extents: Mapping[str, int]
    names: Mapping[str, str]
    key_parts: tuple[Part, ...] = ()
    value_parts: tuple[Part, ...] = ()
    row_loop: RowsOf | None = None
    """Of the outermost loop, where a run may have fewer of its rows."""

    @property
    def grows(self) -> bool:
        """Whether keys or values come in parts."""
        return bool(self.key_parts or self.value_parts)

    @property
    def most_past(self) -> int | None:
        """Keys that the first part has at most, where a run may have fewer; None where none has."""
        return self.key_parts[0].count if self.key_parts and self.key_parts[0].is_open else None

    @property
    def operands(self) -> Mapping[str, Walked]:
        """All that is read and written, by the names that the kernel has for it.

        Temporaries that parts make are left out: nothing else reads them.
        """
        named = {"q": self.query, "k": self.key, "v": self.value, "y": self.result}
        for name, parts in (("k", self.key_parts), ("v", self.value_parts)):
            if parts and named[name].operand.kind == "local":
                del named[name]
            named |= {part_name(name, number): part.walked for number, part in enumerate(parts)}
        return named | {mask_name(read): mask for read, mask in self.masks.items()}

    @property
    def num_heads(self) -> int:
        """Attentions that share nothing: combinations of the outer loops."""
        product = 1
        for loop in self.outer:
            product *= self.extents[loop]
        return product

    @property
    def num_macs(self) -> int:
        """Multiply-accumulates of both products."""
        rows, columns = self.extents[self.row], self.extents[self.column]
        return self.num_heads * rows * columns * (self.extents[DEPTH] + self.extents[CHANNEL])


def part_name(whole: str, number: int) -> str:
    """What the kernel calls a part of keys or values."""
    return f"{whole} {number}"


def mask_name(read: int) -> str:
    """What the kernel calls the mask that is a read of this number."""
    return f"mask {read}"


def match_attention(nests: Sequence[Nest], layouts: Layouts) -> AttentionProblem | Declined:
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
    problem: AttentionProblem, nests: Sequence[Nest], copies: Sequence[Nest], layouts: Layouts
) -> AttentionProblem | Declined:
    """The problem with the parts of which copies before it make its keys and values."""
    found: list[tuple[Part, ...]] = []
    for nest, walked, other in ((nests[0], problem.key, DEPTH), (nests[-1], problem.value, CHANNEL)):
        access = next(a for a in nest.reads if a.operand.key == walked.operand.key)
        score = nest.write if other is DEPTH else next(a for a in nest.reads if a is not access)
        table, axes = _named(nest, score, other), _axes_of(nest, access)
        if table is None or axes is None:
            return Declined("keys or values are not read axis by axis")
        loops = [None if name is None else table[name] for name in axes]
        parts: list[Part] = []
        for copy in copies:
            if _same(copy.write, access):
                part = _part(problem, copy, loops, layouts)
                if isinstance(part, Declined):
                    return part
                parts.append(part)
        parts.sort(key=lambda part: part.first)
        ends = [0, *(part.first + part.count for part in parts)]
        if parts and [*(part.first for part in parts), problem.extents[problem.column]] != ends:
            return Declined("copies do not put all keys together")
        found.append(tuple(parts))
    if sum(map(len, found)) != len(copies):
        return Declined("a copy before the products makes something else")
    if any(part.is_open for parts in found for part in parts) and not _is_open(problem, *found):
        return Declined("a cache that grows is not all that comes first, or its places have a meaning")
    return replace(problem, key_parts=found[0], value_parts=found[1])


def _is_open(problem: AttentionProblem, *sides: Sequence[Part]) -> bool:
    """Whether a run may have fewer keys and values in the first part of each, and no more differs then."""
    firsts = [parts[0] for parts in sides if parts]
    wholes = [problem.key, problem.value, *(part.walked for part in firsts)]
    return (
        len(firsts) == len(sides)
        and all([part.is_open for part in parts] == [True] + [False] * (len(parts) - 1) for parts in sides)
        and len({part.count for part in firsts}) == 1
        and not any(walked.start for walked in wholes)
        and not any(isinstance(x, Iter) for x in (problem.finish.walk() if problem.finish else ()))
    )


def _part(
    problem: AttentionProblem, copy: Nest, loops: Sequence[str | None], layouts: Layouts
) -> Part | Declined:
    """Where a copy takes its keys or values from; `loops` are those along the axes of what it writes."""
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
    return Part(_renamed(access.operand, found, table, problem.extents), first, count, is_open)


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
) -> AttentionProblem | Declined:
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
    walks: list[Walked] = []
    for access, table in wanted:
        if access.fill is not None or access.operand.dtype not in STORAGE_ELEMENTS:
            return Declined("an operand is padded or has no machine form")
        found = access_walk(access, layouts)
        if isinstance(found, Declined):
            return found
        walks.append(_renamed(access.operand, found, table, extents))
    left, right, *others = walks
    masks, (value, result) = dict(zip(extra, others[:-2], strict=True)), others[-2:]
    query, key = (right, left) if left.step(column) else (left, right)
    if query.step(column) or not key.step(column) or set(extra) & set(first.reads):
        return Declined("keys do not move along the last axis of the scores, or queries do")
    finishes = [x for x in (scores.finish, values.finish) if x is not None]
    if any(unsupported_function(x) is not None for x in finishes):
        return Declined("no instructions for what is made of a sum")
    axes = [f"a{n}" for n in range(len(scores.write.shape) - 1)]
    looping = [a for a in axes if extents.get(a, 1) > 1]
    rows = [a for a in looping if query.step(a) and not key.step(a) and not value.step(a)]
    if not rows and extents.get(axes[-1], 1) > 1:
        return Declined("no loop over queries of the same keys")
    if extents.get(DEPTH, 1) < 2 or extents.get(CHANNEL, 1) < 2:
        return Declined("heads of one element")
    if value.step(CHANNEL) != 1 or result.step(CHANNEL) != 1:
        return Declined("channels of the values are not contiguous")
    if key.step(DEPTH) == 0 or query.step(DEPTH) == 0 or value.step(column) == 0:
        return Declined("a summed loop selects no element of a factor")
    if result.step(column) or not all(result.step(a) for a in looping):
        return Declined("the weighted sums are not over keys alone")
    shift, divisor = _of_call(nests[2].body, "exp_nonpositive", "sub"), _of_call(nests[4].body, "div")
    if shift is None or divisor is None:
        return Declined("no softmax between the products")
    row = rows[-1] if rows else axes[-1]
    extents.setdefault(row, 1)
    outer = tuple(a for a in looping if a != row)
    rows_of = {names[d.name]: d.rows for d in scores.dims if d.name in names}
    return AttentionProblem(
        query,
        key,
        value,
        result,
        masks,
        scores.finish,
        values.finish,
        shift,
        divisor,
        outer,
        row,
        column,
        extents,
        names,
        row_loop=rows_of.get(outer[0]) if outer else None,
    )


def _named(nest: Nest, access: Access, other: str) -> dict[str, str] | None:
    """Loops of a nest by the axis of the scores along which they move; the one that is left is `other`."""
    axes = _axes_of(nest, access)
    assert axes is not None
    table = {name: f"a{position}" for position, name in enumerate(axes) if name is not None}
    left = [d.name for d in nest.dims if d.extent > 1 and d.name not in table]
    if len(left) != 1:
        return None
    return {**table, left[0]: other}


def _renamed(operand: Operand, found: Walk, table: Mapping[str, str], extents: Mapping[str, int]) -> Walked:
    steps, start = found
    kept = {table[n]: s for n, s in steps.items() if n in table and extents[table[n]] > 1}
    return Walked(operand, kept, start)


def _of_call(expr: Expr, *functions: str) -> Expr | None:
    """The last argument of nested calls, the outermost first."""
    for function in functions:
        if not isinstance(expr, Call) or expr.function != function:
            return None
        expr = expr.args[-1]
    return expr
