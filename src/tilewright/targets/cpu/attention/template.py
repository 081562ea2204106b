"""The template of attention: one kernel for the products, masks and softmax of runs of six nests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from tilewright.ir.dtype import DType
from tilewright.ir.nest import Nest, operands_of
from tilewright.records import dataclass
from tilewright.targets.cpu.attention.choose import (
    attention_cycles,
    plan_attention,
    plan_tiles,
    reads_in_place,
    tiles_cycles,
)
from tilewright.targets.cpu.attention.decode import DecodeAttention
from tilewright.targets.cpu.attention.generate import Heads, generate_attention
from tilewright.targets.cpu.attention.match import match_attention
from tilewright.targets.cpu.attention.matrix import MatrixHeads
from tilewright.targets.cpu.attention.plan import AttentionPlan, operand_sizes
from tilewright.targets.cpu.attention.split_kv import generate_split_kv
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined, Layout
from tilewright.targets.cpu.product.contraction import CONTRACTION
from tilewright.targets.cpu.product.matrix.choose import state_of
from tilewright.targets.cpu.product.matrix.template import DOTS_BY_ACCURACY
from tilewright.targets.cpu.product.matrix.tiles import TERMS
from tilewright.targets.cpu.product.select import nest_cycles, product_way
from tilewright.targets.cpu.template import (
    MIN_GAIN,
    Context,
    Estimate,
    Kernels,
    lower_with,
    overlapped,
    transfer_cycles,
)
from tilewright.targets.llvm.attention import attention_run
from tilewright.tuning import Choice


@dataclass(frozen=True, slots=True)
class AttentionTemplate:
    """Scores, softmax and weighted sums of a tile of queries at a time, keys and values packed once per head.

    Condition of use: float32 (results may be bytes), six nests in a row of which nothing else reads what lies
    between them, four queries or more of the same keys, keys and values of a head within half of the second
    cache, scores that are one chain of additions. On a processor with the matrix unit both products are of
    bfloat16 pieces where that is estimated well ahead: at accuracy relaxed and fast. It beats kernels of
    their own by what these pay for each head and by scores that are written and read again. Keys and values
    of fewer queries, up to eight where they leave the second cache, are read where they lie, once and in
    order: channels of keys side by side, at most 256; fewer than eight heads in spans, which another kernel
    merges. Copies that put a cache and new keys together are part of that kernel.
    No parameters.
    """

    name: ClassVar[str] = "attention"

    def match(self, work: Sequence[Nest], context: Context) -> AttentionPlan | Declined:
        """The nests as one attention."""
        problem = match_attention(work, context.layouts)
        if isinstance(problem, Declined):
            return problem
        if problem.grows:
            if not reads_in_place(problem, context.isa):
                return Declined("keys and values of many queries are put together before")
            if not all(x.b for product in (problem.scores, problem.sums) for x in product.outer):
                return Declined("heads share keys that are still to be put together")
        plan = self._plan(problem, context)
        if isinstance(plan, Declined):
            return plan
        dtype = problem.sums.c.operand.dtype
        if dtype is not DType.FLOAT32 and not plan.packs:
            return Declined(f"results of {dtype} for few queries")
        # Products of few queries wait for memory: no unit is faster at that.
        products = () if reads_in_place(problem, context.isa) else (work[0], work[-1])
        ways = [product_way(nest, context) for nest in products]
        if any(way is not None and way[0] != CONTRACTION.name for way in ways):
            apart = sum(nest_cycles(nest, context) for nest in work)
            if apart < self.estimate(problem, Choice(self.name), context).cycles:
                return Declined("kernels of its products and its softmax take less")
        return problem

    def algorithms(self, problem: AttentionPlan, context: Context) -> tuple[Choice, ...]:
        """One."""
        return (Choice(self.name),)

    def estimate(self, problem: AttentionPlan, choice: Choice, context: Context) -> Estimate:
        """Issue slots of the register tiles, vectors of powers, the bytes of all operands."""
        plan = self._plan(problem, context)
        assert not isinstance(plan, Declined)
        is_tiled = plan.terms is not None
        compute = attention_cycles(problem, context.isa)
        if is_tiled:
            compute = tiles_cycles(plan, context.isa.matrix_rates, state_of(context))
        return Estimate(overlapped(compute, transfer_cycles(operand_sizes(problem), context.isa)))

    def lower(self, problem: AttentionPlan, choice: Choice, context: Context) -> Kernels | Declined:
        """The kernel."""
        plan = self._plan(problem, context)
        if isinstance(plan, Declined):
            return plan
        # A plain store reads the line first, which only pays where the next run finds it in a cache.
        bypasses = not plan.packs and context.exceeds_caches and context.isa.triple.startswith("x86_64")
        return attention_kernels(replace(plan, bypasses=bypasses), context.isa, context.next_local)

    def _plan(self, problem: AttentionPlan, context: Context) -> AttentionPlan | Declined:
        """On the matrix unit where that is estimated well ahead, else on vectors."""
        isa, divides = context.isa, context.divides
        plan = plan_attention(problem, isa, divides=divides)
        dot = next((x for x in DOTS_BY_ACCURACY[context.accuracy] if not TERMS[x].is_bytes), None)
        if dot is None or not isa.has_matrix_unit:
            return plan
        tiled = plan_tiles(problem, dot, isa, divides=divides)
        if isinstance(tiled, Declined):
            return plan
        cycles = tiles_cycles(tiled, isa.matrix_rates, state_of(context))
        if not isinstance(plan, Declined) and attention_cycles(problem, isa) < MIN_GAIN * cycles:
            return plan
        return tiled


def attention_kernels(plan: AttentionPlan, isa: Isa, next_local: int) -> Kernels:
    """The kernels of a plan: those of spans leave their parts in a local of that number."""
    if plan.packs:
        heads = Heads if plan.terms is None else MatrixHeads
        return (generate_attention(plan, isa, heads),)
    if plan.num_parts > 1:
        return generate_split_kv(plan, isa, next_local)
    return (generate_attention(plan, isa, DecodeAttention),)


ATTENTION = AttentionTemplate()


def attention_runs(nests: Sequence[Nest], isa: Isa) -> list[tuple[Nest, ...]]:
    """Runs of nests that one kernel computes each, as far as can be said before layouts are chosen."""
    runs = [run for number in range(len(nests)) if (run := attention_run(nests, number)) is not None]
    layouts = {o.key: Layout.row_major(len(o.shape)) for run in runs for o in operands_of(run)}
    context = Context(isa, layouts)
    return [run for run in runs if not isinstance(ATTENTION.match(run, context), Declined)]


def lower_attention(run: Sequence[Nest], context: Context) -> Kernels | Declined:
    """The kernels of a run, or why there are none."""
    return lower_with(ATTENTION, run, context)
