"""Recognise six nests as attention: scores, the four of a softmax over keys, the weighted sums of values.

Loops are named after what they walk, whatever the nests call them: an axis of the scores is `a0`, `a1`, ...,
the summed loop of the scores `d`, the channels of the result `e`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from tilewright.ir.contraction import ContractionForm, contraction_of
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Call, Expr, Iter, Read, reads_of, structure
from tilewright.ir.nest import Access, Affine, Nest, Operand, RowsOf
from tilewright.ir.ops.reduction import softmax_nests
from tilewright.records import dataclass
from tilewright.targets.llvm.addresses import Walk, access_walk
from tilewright.targets.llvm.exprgen import STORAGE_ELEMENTS, unsupported_function
from tilewright.targets.llvm.layout import Declined, Layouts

NUM_NESTS = 6
"""Nests of an attention."""

DEPTH, CHANNEL = "d", "e"

_MAX_COPIES = 4
"""Parts of keys and of values: what a cache holds, what is new."""


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
class AttentionProblem:
    """An attention whose keys and values are whole; `extents` are those of all loops.

    `finish` makes a score of a sum and of `masks`, which are given by the number of the read;
    `result_finish` an element of the result of a weighted sum. `shift` is what is taken off the scores of a
    row, of its maximum as read 1; `divisor` what powers are divided by, of their sum as read 1. `names` maps
    loops of the scores' nest to loops here, `rows_of` those of which a run may have fewer rows to these.
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
    rows_of: Mapping[str, RowsOf | None]

    @property
    def operands(self) -> tuple[Walked, ...]:
        """All that is read and written."""
        return self.query, self.key, self.value, *self.masks.values(), self.result

    @property
    def num_heads(self) -> int:
        """Attentions that share nothing: combinations of the outer loops."""
        return prod(self.extents[loop] for loop in self.outer)

    @property
    def num_macs(self) -> int:
        """Multiply-accumulates of both products."""
        rows, columns = self.extents[self.row], self.extents[self.column]
        return self.num_heads * rows * columns * (self.extents[DEPTH] + self.extents[CHANNEL])


def attention_run(nests: Sequence[Nest], first: int, *, grows: bool = False) -> tuple[Nest, ...] | None:
    """The nests from `first` on that may be one attention: nothing else touches what lies between them.

    If it `grows`, they may begin with copies that put keys and values together. Cheap to ask of every nest:
    only the shape of six nests in a row is looked at.
    """
    num_copies = _num_copies(nests, first) if grows else 0
    start, end = first + num_copies, first + num_copies + NUM_NESTS
    run = tuple(nests[start:end])
    if [n.combine for n in run] != ["sum", "max", None, "sum", None, "sum"]:
        return None
    between = {n.write.operand.key for n in run[:-1]}
    if len(between) < NUM_NESTS - 1 or any(kind != "local" for kind, _ in between):
        return None
    copied = {n.write.operand.key for n in nests[first:start]}
    if not copied <= {a.operand.key for n in (run[0], run[-1]) for a in n.reads}:
        return None
    between |= {key for key in copied if key[0] == "local"}
    run = tuple(nests[first:end])
    others = (*nests[:first], *nests[end:])
    touched = {a.operand.key for n in others for a in (*n.reads, n.write)}
    return None if touched & between else run


def _num_copies(nests: Sequence[Nest], first: int) -> int:
    """How many nests from `first` on move elements and do nothing else, as far as a cache may need them."""
    count = 0
    for nest in nests[first : first + _MAX_COPIES]:
        if nest.combine is not None or not isinstance(nest.body, Read) or len(nest.reads) != 1:
            break
        count += 1
    return count


def recognise_attention(
    nests: Sequence[Nest], layouts: Layouts, results: Collection[DType] = (DType.FLOAT32,)
) -> AttentionProblem | Declined:
    """The nests as one attention under the given memory layouts, or why they are none.

    `results` are the types that its kernel may store.
    """
    if len(nests) != NUM_NESTS:
        return Declined(f"{len(nests)} nests: attention has {NUM_NESTS}")
    if any(d.extent == 0 for nest in nests for d in nest.dims):
        return Declined("a loop has no iterations")
    scores, *softmax, values = nests
    first, second = contraction_of(scores), contraction_of(values)
    if first is None or second is None or not (first.is_plain and second.is_plain):
        return Declined("no two sums of products of what is read")
    if values.init is not None or scores.init is not None:
        return Declined("the sums begin with something else than zero")
    if values.finish is not None and any(isinstance(x, Read | Iter) for x in values.finish.walk()):
        return Declined("the weighted sums are finished with other operands")
    weights = next((r for r in second.reads if same_operand(values.reads[r], softmax[-1].write)), None)
    if weights is None or not _is_softmax(softmax, scores.write):
        return Declined("no softmax between the products")
    if any(a.operand.dtype is not DType.FLOAT32 for a in _computed(nests[:-1], first, second)):
        return Declined("attention in another type than float32")
    if values.write.operand.dtype not in results:
        return Declined(f"results of {values.write.operand.dtype}")
    if axes_of(scores, scores.write) is None or axes_of(values, values.reads[weights]) is None:
        return Declined("the scores are not written and read axis by axis")
    return _classify(nests, first, second, weights, layouts)


def same_operand(a: Access, b: Access) -> bool:
    """Whether two accesses are of one tensor."""
    return a.operand.key == b.operand.key


def _computed(nests: Sequence[Nest], first: ContractionForm, second: ContractionForm) -> list[Access]:
    """Accesses that the kernel computes with: masks may have any type."""
    return [*first.accesses, *second.accesses, *(n.write for n in nests)]


def axes_of(nest: Nest, access: Access) -> tuple[str | None, ...] | None:
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
    if not (same_operand(top.reads[0], source) and same_operand(powers.reads[0], source)):
        return False
    if not (same_operand(powers.reads[1], top.write) and same_operand(total.reads[0], powers.write)):
        return False
    if not (same_operand(quotient.reads[0], powers.write) and same_operand(quotient.reads[1], total.write)):
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
    walks = [axes_of(nest, access) for access in (*nest.reads, nest.write)]
    known = [walk for walk in walks if walk is not None]
    if len(known) != len(walks) or len({len(walk) for walk in known}) != 1:
        return False
    return all(len(set(names) - {None}) <= 1 for names in zip(*known, strict=True))


def _reduce_last(nests: Sequence[Nest]) -> bool:
    """Whether each nest reduces the last axis of what it reads, and nothing else."""
    for nest in nests:
        looping = [d for d in nest.reduce_dims if d.extent > 1]
        axes = axes_of(nest, nest.reads[0])
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
    names = scores_loops(scores, scores.write, DEPTH)
    later = scores_loops(values, values.reads[weights], CHANNEL)
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
        rows_of,
    )


def scores_loops(nest: Nest, access: Access, other: str) -> dict[str, str] | None:
    """Loops of a nest by the axis of the scores along which they move; the one that is left is `other`."""
    axes = axes_of(nest, access)
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
