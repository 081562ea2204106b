"""Plans of kernels, the compiler's or written by hand: run, checked against their loops, timed in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from tilewright.arrays import Array
from tilewright.benchmark.statistics import Ratio, Timing, quantile
from tilewright.errors import UsageError
from tilewright.ir.dtype import DType
from tilewright.ir.expr import evaluate
from tilewright.ir.nest import Operand
from tilewright.records import dataclass
from tilewright.targets.cpu.attention import AttentionPlan
from tilewright.targets.cpu.isa import Isa, host_isa
from tilewright.targets.cpu.kernel import Layout, OperandKey
from tilewright.targets.cpu.plans import Plan, parse_plan, plan_kernels
from tilewright.targets.cpu.product.contraction.pack import factor_of
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.plan import FLOAT_TILE_DOTS, KernelPlan, Strided
from tilewright.testing.kernel_runner import KernelRunner

# Seconds of a round in which a kernel runs again and again; rounds of all kernels, in turns.
_ROUND_S = 0.005
_NUM_ROUNDS = 15
_MAX_FILE_BYTES = 1 << 20
# Elements that the check may hold of a factor, each once for every place where it is read.
_MAX_GATHERED = 1 << 27
# Errors over the largest magnitude of the result that products may make, by what multiplies or is packed.
_TOLERANCE, _ROUNDED_TOLERANCES = 1e-4, {"3 bfloat16 products": 1e-3, "1 bfloat16 product": 3e-2}
_COMPACT_TOLERANCE = 1e-3
# Of weights of four bits.
_SCALE = 0.125
# What generators raise for plans that no template makes.
_NO_KERNEL = (AssertionError, ArithmeticError, LookupError, StopIteration, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class PlanTiming:
    """The processor time of a plan's kernels, and the largest error over the largest magnitude of the result.

    `ratio` is the time of the first plan over this one's.
    """

    name: str
    timing: Timing
    error: float
    ratio: Ratio | None

    def __str__(self) -> str:
        line = f"{self.name}: {1e3 * self.timing.median_ms:,.1f} us of one thread, error {self.error:.1e}"
        if self.ratio is None:
            return line
        return f"{line}, {self.ratio.median:.2f} x ({self.ratio.low:.2f} to {self.ratio.high:.2f}) as fast"


def compare_with_file(name: str, plans: str, path: Path) -> list[PlanTiming]:
    """A kernel's plan, of its plans that which makes what the plan in a file makes, and that one.

    Raises:
        UsageError: as `compare_plans`; the file cannot be read, or the kernel has no plan of such a result.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise UsageError(f"{path}: is larger than a plan of a kernel can be.")
        written = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as a plan: {error}.") from None
    try:
        wanted = _result_of(parse_plan(written))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    chosen = next((text for text in _plans_in(plans) if _result_of(parse_plan(text)) == wanted), None)
    if chosen is None:
        raise UsageError(f"{path}: its result is {wanted}, which no plan of {name} has.")
    return compare_plans({name: chosen, str(path): written})


def _plans_in(text: str) -> Iterator[str]:
    """The plans in the text of one, which may be that of blocks with several."""
    block: list[str] = []
    depth = 0
    for line in [*text.splitlines(), ""]:
        indent = len(line) - len(line.lstrip())
        if block and (indent <= depth or not line.strip()):
            yield "\n".join(block) + "\n"
            block = []
        if not block and line.strip().partition(" ")[0] in ("product", "attention"):
            depth = indent
        elif not block:
            continue
        block.append(line[depth:])


def _result_of(plan: Plan) -> str:
    result = plan.sums.c if isinstance(plan, AttentionPlan) else plan.c
    return f"{result} of {plan.num_macs:,} products"


def compare_plans(texts: Mapping[str, str], isa: Isa | None = None) -> list[PlanTiming]:
    """Plans by their names, run on the same random operands; the first is compared with each of the others.

    Chunks of a kernel run one after another on one thread.

    Raises:
        UsageError: a text is no plan, reaches beyond an operand, or its kernel gives other values than its
            loops; or plans compute different results.
    """
    isa = isa or host_isa()
    runs = [_PlanRun(name, parse_plan(text), isa) for name, text in texts.items()]
    first = runs[0]
    for run in runs[1:]:
        if run.result != first.result:
            raise UsageError(f"{run.name} makes {run.result}, {first.name} {first.result}.")
        error = _error(run.values, first.values, first.dtype)
        if not error <= max(run.tolerance, first.tolerance):
            raise UsageError(f"{run.name} gives other values than {first.name}, error {error:.1e}.")
    samples: list[list[float]] = [[] for _ in runs]
    counts = [run.runs_in(_ROUND_S) for run in runs]
    for number in range(_NUM_ROUNDS):
        for place in (np.arange(len(runs)) + number) % len(runs):
            samples[place].append(runs[place].time_ms(counts[place]))
    timings = [Timing(tuple(of_run), tuple(of_run)) for of_run in samples]
    return [
        PlanTiming(run.name, timing, run.error, None if run is first else Ratio.of(timing, timings[0]))
        for run, timing in zip(runs, timings, strict=True)
    ]


class _PlanRun:
    """A plan's kernels with their operands; made, they have run once and are right."""

    def __init__(self, name: str, plan: Plan, isa: Isa) -> None:
        self.name, self.result = name, _result_of(plan)
        products = (plan.scores, plan.sums) if isinstance(plan, AttentionPlan) else (plan,)
        dots = {product.dot for product in products}
        if not isa.has_matrix_unit and not dots.isdisjoint((*FLOAT_TILE_DOTS, "byte tiles")):
            raise UsageError(f"{name}: {', '.join(dots)} needs the matrix unit, which this processor lacks.")
        reference = _Attention(plan) if isinstance(plan, AttentionPlan) else _Product(plan)
        operands: dict[OperandKey, Array] = {}
        for operand in reference.inputs:
            operands.setdefault(operand.key, _random(operand))
        for product in products:
            if " 4 bits " in product.packing:
                operands[product.b.operand.key] = _few_bits(product.b.operand)
        result = products[-1].c.operand
        last = reference.sums if isinstance(reference, _Attention) else reference
        last.gather(last.plan.c, last.result_index, np.zeros(result.num_elements))
        try:
            expected = reference.values(operands)
        except (LookupError, ValueError) as error:
            raise UsageError(f"{name}: the plan's loops do not fit together ({error!r}).") from None
        operands[result.key] = np.zeros(result.shape, result.dtype.numpy)
        next_local = 1 + max([key[1] for key in operands if key[0] == "local"], default=-1)
        layouts = {key: Layout.row_major(array.ndim) for key, array in operands.items()}
        try:
            kernels = plan_kernels(plan, isa, next_local)
            self._runner = KernelRunner(kernels, operands, layouts, isa)
        except _NO_KERNEL as error:
            raise UsageError(f"{name}: no kernel can be made of this plan ({error!r}).") from None
        rows = [loop.rows.num_rows for loop in products[0].loops if loop.rows is not None]
        past = plan.most_past if isinstance(plan, AttentionPlan) else None
        self._num_rows = past if past is not None else max(rows, default=0)
        self._runner(self._num_rows)
        self.values, self.dtype = self._runner.result(result.key).reshape(-1).copy(), result.dtype
        self.error = _error(self.values[reference.result_index], expected, result.dtype)
        self.tolerance = reference.tolerance
        if not self.error <= self.tolerance:
            raise UsageError(
                f"{name}: its kernel gives other values than its loops say, error {self.error:.1e}: "
                f"{reference.tolerance:.0e} is allowed."
            )

    def runs_in(self, seconds: float) -> int:
        """Runs that take about so long."""
        once_ms = quantile([self.time_ms(1) for _ in range(3)], 0.5)
        return max(1, round(1e3 * seconds / max(once_ms, 1e-6)))

    def time_ms(self, count: int) -> float:
        """Processor time of a run, of so many."""
        start = time.thread_time()
        for _ in range(count):
            self._runner(self._num_rows)
        return 1e3 * (time.thread_time() - start) / count


def _random(operand: Operand) -> Array:
    if operand.num_elements > _MAX_GATHERED:
        raise UsageError(f"{Strided(operand)} is too large to be checked.")
    rng = np.random.default_rng([operand.position, len(operand.kind), *operand.shape])
    dtype = operand.dtype
    if dtype.is_float:
        return rng.standard_normal(operand.shape).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return rng.random(operand.shape) < 0.9
    low, high = (-127, 128) if dtype is DType.INT8 else (0, 256 if dtype is DType.UINT8 else 2)
    return rng.integers(low, high, operand.shape).astype(dtype.numpy)


def _few_bits(operand: Operand) -> Array:
    """Random numbers that integers of four bits stand for, with one scale."""
    numbers = np.random.default_rng(operand.position).integers(-7, 8, operand.shape)
    return (numbers * _SCALE).astype(operand.dtype.numpy)


def _error(found: Array, expected: Array, dtype: DType) -> float:
    """The largest error over the largest magnitude; whole numbers may be off by one, as they are rounded."""
    if not dtype.is_float:
        return 0.0 if np.abs(found.astype(np.int64) - expected.astype(np.int64)).max() <= 1 else 1.0
    if not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return float("inf")
    finite = np.isfinite(expected)
    wrong = np.abs(found[finite] - expected[finite].astype(np.float64))
    return float(wrong.max(initial=0.0) / max(np.abs(expected[finite]).max(initial=0.0), 1e-30))


class _Product:
    """What a product's loops say: axes of all arrays are the outer loops, the row, the column, then sums."""

    def __init__(self, plan: KernelPlan) -> None:
        self.plan = plan
        self.axes = {x.name: number for number, x in enumerate((*plan.outer, plan.row, plan.vector))}
        if len(self.axes) != len(plan.outer) + 2 or any(x.name in self.axes for x in plan.summed):
            raise UsageError("two loops of a plan have the same name.")
        names = {x.name for x in plan.loops}
        missing = [n for w in plan.windows for n in (w.position, w.tap) if n not in names]
        if missing:
            raise UsageError(f"a window of the plan moves along {missing[0]}, which is no loop.")
        self.tolerance = _ROUNDED_TOLERANCES.get(plan.dot, _TOLERANCE)
        if plan.packing.endswith("24 bits"):
            self.tolerance = max(self.tolerance, _COMPACT_TOLERANCE)
        self.result_index = self.index(plan.c, "c")

    @property
    def inputs(self) -> list[Operand]:
        """What is read."""
        plan = self.plan
        zero = None if plan.zeros is None else plan.zeros.a_operand
        extras = [extra.operand for extra in plan.extras]
        return [plan.a.operand, plan.b.operand, *extras, *([] if zero is None else [zero])]

    def index(
        self, strided: Strided, place: str | int, *, sums: bool = False, full: Sequence[str] = ()
    ) -> Array:
        """Elements of an operand at all places of the loops; loops that do not move it, unless `full`, have
        one place."""
        plan = self.plan
        loops = (*plan.outer, plan.row, plan.vector, *(plan.summed if sums else ()))
        found = np.array(strided.offset)
        for axis, x in enumerate(loops):
            step = x.moves(place)
            moves = step or x.name in full or place == "c"
            at = np.arange(x.extent if moves else 1) * step
            if x is plan.vector and place == "a" and plan.spread is not None:
                at = np.arange(x.extent) // plan.spread.size * plan.spread.size
            shape = [1] * len(loops)
            shape[axis] = len(at)
            if prod(np.broadcast_shapes(found.shape, tuple(shape))) > _MAX_GATHERED:
                raise UsageError("the product is too large to be checked.")
            found = found + at.reshape(shape)
        return found

    def gather(self, strided: Strided, index: Array, flat: Array, inside: Array | bool = True) -> Array:
        """Elements of an operand, zero where they are not inside.

        Raises:
            UsageError: one lies beyond the operand.
        """
        used = index[np.broadcast_to(inside, index.shape)] if inside is not True else index
        if used.size and not (used.min() >= 0 and used.max() < flat.size):
            raise UsageError(
                f"the plan's loops reach elements {used.min()} to {used.max()} of {strided}, "
                f"which has {flat.size}."
            )
        return np.asarray(flat[np.clip(index, 0, max(flat.size - 1, 0))])

    def inside(self) -> Array | bool:
        """Where A's windows read inside; the axes are those of `index` with sums."""
        plan, found = self.plan, np.array(True)
        loops = (*plan.outer, plan.row, plan.vector, *plan.summed)
        if not plan.windows:
            return True
        for w in plan.windows:
            at = np.array(w.offset)
            for axis, x in enumerate(loops):
                step = {w.position: w.position_step, w.tap: w.tap_step}.get(x.name)
                if step is not None:
                    shape = [1] * len(loops)
                    shape[axis] = x.extent
                    at = at + (np.arange(x.extent) * step).reshape(shape)
            found = found & (at >= 0) & (at < w.size)
        return found

    def values(self, operands: Mapping[OperandKey, Array]) -> Array:
        """Every element of the result."""
        return self.finished(self.totals(operands), operands)

    def totals(self, operands: Mapping[OperandKey, Array]) -> Array:
        """Every sum of products, in float64 or int64."""
        plan = self.plan
        kind = np.float64 if plan.dtype.is_float else np.int64
        full = [name for w in plan.windows for name in (w.position, w.tap)]
        inside = self.inside()
        index = self.index(plan.a, "a", sums=True, full=full)
        a = self.gather(plan.a, index, operands[plan.a.operand.key].reshape(-1), inside).astype(kind)
        b_index = self._packed_index() if plan.packing == "in panels" and plan.zeros is None else None
        index = self.index(plan.b, "b", sums=True) if b_index is None else b_index
        b = self.gather(plan.b, index, operands[plan.b.operand.key].reshape(-1)).astype(kind)
        if plan.zeros is not None:
            given = plan.zeros.a_operand
            a = a - plan.zeros.a - (0 if given is None else operands[given.key].astype(kind).reshape(-1)[0])
            b = b - plan.zeros.b
        if inside is not True:
            a = a * inside
        num_steps = [x.extent for x in plan.summed]
        rank = len(plan.outer) + 2

        def flat(array: Array) -> Array:
            whole = np.broadcast_to(array, (*array.shape[:rank], *num_steps))
            return whole.reshape(*array.shape[:rank], prod(num_steps))

        a, b = flat(a), flat(b)
        if a.shape[rank - 1] == 1 and b.shape[rank - 2] == 1:
            return np.asarray(np.matmul(a[..., 0, :], np.swapaxes(b[..., 0, :, :], -1, -2)))
        shape = np.broadcast_shapes(a.shape, b.shape)
        if prod(shape) > _MAX_GATHERED:
            raise UsageError("the product is too large to be checked.")
        return np.asarray((a * b).sum(-1))

    def _packed_index(self) -> Array:
        """Elements of B in panels of a kernel before."""
        plan, factor = self.plan, factor_of(self.plan)
        width = plan.panels.width
        column = np.arange(plan.vector.extent)
        loops = (*plan.outer, plan.row, plan.vector, *plan.summed)
        found = np.array(factor.offset)
        for axis, x in enumerate(loops):
            stride = {**factor.outer_strides, **factor.step_strides}.get(x.name, 0)
            at = np.arange(x.extent if stride else 1) * stride
            if x is plan.vector:
                at = column // width * factor.panel_stride + column % width
            shape = [1] * len(loops)
            shape[axis] = len(at)
            found = found + at.reshape(shape)
        return found

    def finished(self, totals: Array, operands: Mapping[OperandKey, Array]) -> Array:
        """What becomes of the sums."""
        plan, shape = self.plan, self.result_index.shape
        reads = [
            self.gather(extra, self.index(extra, number), operands[extra.operand.key].reshape(-1))
            for number, extra in enumerate(plan.extras)
        ]
        iters: dict[str, Array] = {}
        for x in (*plan.outer, plan.row, plan.vector):
            at = [1] * len(shape)
            at[self.axes[x.name]] = x.extent
            iters[x.name] = np.arange(x.extent).reshape(at)
        if plan.init is not None:
            totals = totals + evaluate(plan.init, reads, None, iters)
        result = np.broadcast_to(totals, shape)
        if plan.finish is not None:
            result = evaluate(plan.finish, reads, result.astype(plan.dtype.numpy), iters)
        return np.broadcast_to(result, shape)


class _Attention:
    """What both products of an attention say, and the softmax between them."""

    def __init__(self, plan: AttentionPlan) -> None:
        self.plan = plan
        self.scores, self.sums = _Product(plan.scores), _Product(plan.sums)
        self.tolerance = max(self.scores.tolerance, self.sums.tolerance)
        self.result_index = self.sums.result_index

    @property
    def inputs(self) -> list[Operand]:
        """What is read."""
        return [strided.operand for name, strided in self.plan.operands.items() if name != "y"]

    def values(self, operands: Mapping[OperandKey, Array]) -> Array:
        """Every element of the result."""
        plan, given = self.plan, dict(operands)
        for product, parts in ((self.scores, plan.key_parts), (self.sums, plan.value_parts)):
            b = product.plan.b
            if parts:
                given[b.operand.key] = np.zeros(b.operand.shape, b.operand.dtype.numpy)
            for part in parts:
                some = _Product(_along_keys(product.plan, plan.column, part.count))
                extra = some.plan.extras[part.extra]
                to = some.index(b, "b", sums=True)
                moved = product.plan.vector if product is self.scores else product.plan.summed[0]
                values = some.gather(
                    extra, some.index(extra, part.extra, sums=True), operands[extra.operand.key].reshape(-1)
                )
                given[b.operand.key].reshape(-1)[to + part.first * moved.b] = values
        masks = _without_parts(plan)
        scores = _Product(masks).finished(self.scores.totals(given), given).astype(np.float64)
        top = scores.max(-1, keepdims=True)
        with np.errstate(all="ignore"):
            shift = evaluate(plan.shift, [None, top.astype(np.float32)])
            powers = np.exp(scores - shift)
            total = powers.sum(-1, keepdims=True)
            weights = powers / evaluate(plan.divisor, [None, total.astype(np.float32)])
        values = self.sums.gather(
            plan.sums.b,
            self.sums.index(plan.sums.b, "b", sums=True),
            given[plan.sums.b.operand.key].reshape(-1),
        )
        result = np.matmul(weights, np.swapaxes(values[..., 0, :, :], -1, -2))
        finish = plan.sums.finish
        return np.asarray(result if finish is None else evaluate(finish, [], result.astype(np.float32)))


def _along_keys(plan: KernelPlan, column: str, count: int) -> KernelPlan:
    def cut(loop: StridedLoop) -> StridedLoop:
        return replace(loop, extent=count) if loop.name == column else loop

    return replace(plan, vector=cut(plan.vector), summed=tuple(map(cut, plan.summed)))


def _without_parts(plan: AttentionPlan) -> KernelPlan:
    def cut(loop: StridedLoop) -> StridedLoop:
        return replace(loop, extras=loop.extras[: plan.num_masks])

    scores = plan.scores
    return replace(
        scores,
        extras=scores.extras[: plan.num_masks],
        vector=cut(scores.vector),
        row=cut(scores.row),
        outer=tuple(map(cut, scores.outer)),
        summed=tuple(map(cut, scores.summed)),
    )
