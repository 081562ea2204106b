"""Split-KV attention, for few queries and heads: each head is cut into spans of keys.

A first kernel computes each span of each head as if there were no other keys, and leaves in memory what that
needs to become part of a whole: the largest score of each query, the sum of its weights, its weighted sums. A
second one weighs these by what their largest scores are below the head's, and adds them up, span by span. The
number of spans follows from the shapes, never from threads, so that it changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.ir.dtype import DType
from tilewright.ir.nest import Operand
from tilewright.targets.cpu.attention.decode import DecodeAttention, Piece
from tilewright.targets.cpu.attention.finish import result_of, scale_of, shift_of
from tilewright.targets.cpu.attention.generate import TEMPLATE, generate_attention, head_indices, larger
from tilewright.targets.cpu.attention.plan import ELEMENT_BYTES, AttentionPlan
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.kernel_function import kernel_function
from tilewright.targets.cpu.product.lanes import store_lanes
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.plan import Strided
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import FLOAT, Int, Val, vec
from tilewright.targets.llvm.vecmath32 import exp_nonpositive

# Elements before the weighted sums of a query and span: its largest score, the sum of its weights, and what
# keeps vectors whole.
_HEAD_ELEMENTS = 16


def generate_split_kv(plan: AttentionPlan, isa: Isa, next_local: int) -> tuple[Kernel, ...]:
    """The kernel of all spans, and the one that merges them; between them lies temporary `next_local`."""
    sums = plan.sums
    shape = (plan.num_heads, plan.num_parts, plan.num_rows, _HEAD_ELEMENTS + plan.channels.padded_extent)
    partial = Operand("local", next_local, DType.FLOAT32, shape)
    pitch = shape[1] * shape[2] * shape[3]
    outer: list[StridedLoop] = []
    for loop in reversed(sums.outer):
        outer.insert(0, replace(loop, c=pitch))
        pitch *= loop.extent
    row = replace(sums.row, c=shape[3])
    of_spans = replace(sums, c=Strided(partial), row=row, outer=tuple(outer), finish=None)
    spans = replace(plan, sums=of_spans)
    kernel = replace(generate_attention(spans, isa, SplitKvAttention), plan=plan)
    return kernel, _merge(plan, partial, isa)


class SplitKvAttention(DecodeAttention):
    """Emits spans of keys of heads; results are what `_merge` takes."""

    _number: Int | None = None
    """Of the span that is being emitted; None for the last, which has what is left."""

    def unit(self, number: Int) -> None:
        """A span of a head."""
        e, plan = self.e, self.plan
        span = e.urem(number, plan.num_parts)
        at, indices = self.head(e.udiv(number, plan.num_parts))
        span_elements = plan.num_rows * plan.sums.row.c
        at["y"] = e.gep(at["y"], e.mul(span, span_elements * ELEMENT_BYTES))

        def emit(which: Int | None) -> None:
            self._number = which
            self.tile(0, at, indices)

        e.if_(e.compare("slt", span, plan.num_parts - 1), lambda: emit(span), lambda: emit(None))

    def pieces(self, name: str) -> list[Piece]:
        """The keys or values of a span: all but the last lie in the first piece."""
        e, extent = self.e, self.plan.keys.extent
        first, *others = super().pieces(name)
        if self._number is not None:
            start = e.mul(self._number, extent)
            return [replace(first, start=start, first=start, count=extent)]
        before = (self.plan.num_parts - 1) * extent
        rest = replace(first, start=before, first=before, count=e.sub(first.count, before))
        moved = [replace(piece, column=e.sub(piece.first, before)) for piece in others]
        return [piece for piece in (rest, *moved) if piece.count]

    def shift_of(self, top: Val) -> Val:
        """The largest score, or zero where the span has none: its weights are zero then."""
        return self.e.select(self.e.fcmp("oeq", top, -math.inf), 0.0, top)

    def scale_of(self, total: Val) -> Val:
        """The sum of weights itself."""
        return total

    def emit_sums(self, num_rows: int, at: Mapping[str, Val]) -> None:
        """The weighted sums, and what each query's weights are relative to and add up to."""
        super().emit_sums(num_rows, at)
        e, pitch = self.e, self.plan.sums.row.c
        for row in range(num_rows):
            shift = e.load(FLOAT, e.gep(self.shifts, row * ELEMENT_BYTES))
            total = e.load(FLOAT, e.gep(self.inverses, row * ELEMENT_BYTES))
            place = e.gep(at["y"], row * pitch * ELEMENT_BYTES)
            e.store(e.select(e.fcmp("oeq", total, 0.0), -math.inf, shift), place)
            e.store(total, e.gep(place, ELEMENT_BYTES))

    def store_results(
        self,
        sums: Sequence[Val],
        num_rows: int,
        result: Val,
        index: Int,
        num_vectors: int,
        active: int,
        first: Int = 0,
    ) -> None:
        """Weighted sums as they are, in whole vectors."""
        e, channels = self.e, self.plan.channels
        pitch = self.plan.sums.row.c
        first = e.gep(result, e.mul(index, channels.width * ELEMENT_BYTES))
        for number, value in enumerate(sums):
            row, vector = divmod(number, num_vectors)
            elements = row * pitch + _HEAD_ELEMENTS + vector * channels.lanes
            e.store(value, e.gep(first, elements * ELEMENT_BYTES))


def _merge(plan: AttentionPlan, partial: Operand, isa: Isa) -> Kernel:
    """The kernel that makes results of the spans of each head."""
    e = Emitter(attributes=isa.function_attributes)
    with kernel_function(e, (partial, plan.sums.c.operand)) as function:
        spans, result = function.pointers
        num_rows, steps = plan.num_rows, plan.steps("y")

        def query(head: Int, row: Int) -> None:
            target = e.gep(result, plan.sums.c.offset, "float")
            for loop, index in {**head_indices(e, plan, head), plan.row: row}.items():
                target = e.gep(target, e.mul(index, steps[loop]), "float")
            elements = e.mul(e.add(e.mul(head, plan.num_parts * num_rows), row), partial.shape[3])
            _merge_query(e, plan, e.gep(spans, elements, "float"), target)

        def rows(head: Int, _: Sequence[Val]) -> None:
            e.loop(0, num_rows, 1, lambda row, _: query(head, row))

        e.loop(0, plan.num_heads, 1, rows)
    notes = (f"{plan.num_parts} spans of {plan.num_heads} heads",)
    return function.kernel(f"{TEMPLATE}_merge", num_chunks=1, template=TEMPLATE, notes=notes)


def _merge_query(e: Emitter, plan: AttentionPlan, spans: Val, target: Val) -> None:
    """One query's result; `spans` is where its first span lies."""
    channels = plan.channels
    type = vec("float", channels.lanes)
    num_rows, num_vectors = plan.num_rows, -(-plan.num_channels // channels.lanes)
    span_bytes = num_rows * (_HEAD_ELEMENTS + channels.padded_extent) * ELEMENT_BYTES

    def span(number: Int) -> Val:
        return e.gep(spans, e.mul(number, span_bytes))

    def take_larger(number: Int, tops: Sequence[Val]) -> list[Val]:
        return [larger(e, e.broadcast_load(type, span(number)), tops[0])]

    lowest = (type, e.constant(type, -math.inf))
    (top,) = e.loop(0, plan.num_parts, 1, take_larger, [lowest], nonempty=True)
    shift = shift_of(e, plan, top)

    def add(number: Int, sums: Sequence[Val]) -> list[Val]:
        at = span(number)
        weight = exp_nonpositive(e, e.fsub(e.broadcast_load(type, at), shift))
        total = e.fma(weight, e.broadcast_load(type, e.gep(at, ELEMENT_BYTES)), sums[0])
        first = e.gep(at, _HEAD_ELEMENTS * ELEMENT_BYTES)
        vectors = [e.load(type, e.gep(first, v * type.size_bytes)) for v in range(num_vectors)]
        return [total, *(e.fma(weight, v, s) for v, s in zip(vectors, sums[1:], strict=True))]

    zeros = [(type, e.zero(type))] * (1 + num_vectors)
    total, *sums = e.loop(0, plan.num_parts, 1, add, zeros, nonempty=True)
    inverse = scale_of(e, plan, total)
    for number, value in enumerate(sums):
        made = result_of(e, plan, value, inverse)
        active = min(type.lanes, plan.num_channels - number * type.lanes)
        store_lanes(e, DType.FLOAT32, made, e.gep(target, number * type.size_bytes), active=active)
