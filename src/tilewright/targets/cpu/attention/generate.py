"""The attention kernel: for each head keys and values are packed, then every tile of queries runs through.

The scores of a tile never leave the first cache. Rows of its softmax follow each other without waiting: the
maxima of all rows come first, then powers and their sums; what they are divided by is multiplied to the
weighted sums, which are fewer. Lanes behind the last key have scores of minus infinity.

Condition of use: see `template.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tilewright.targets.cpu.attention.finish import Finish, result_of, scale_of, shift_of
from tilewright.targets.cpu.attention.pack import Packer
from tilewright.targets.cpu.attention.plan import ELEMENT_BYTES, AttentionPlan, mask_name, part_name
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import MAX_CHAIN_STEPS, Kernel
from tilewright.targets.cpu.kernel_function import kernel_function
from tilewright.targets.cpu.loopnest.transpose import combine_lanes
from tilewright.targets.cpu.product.lanes import store_lanes
from tilewright.targets.cpu.product.loops import digits
from tilewright.targets.cpu.product.tiling import Panels
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.exprgen import STORAGE_ELEMENTS
from tilewright.targets.llvm.values import FLOAT, Int, Type, Val, vec
from tilewright.targets.llvm.vecmath32 import exp_nonpositive

TEMPLATE = "attention"
# Vectors of a row that are straight code; longer rows are loops of a few at a time.
_MAX_STRAIGHT_VECTORS = 16
_VECTORS_AT_ONCE = 4
# Steps are unrolled until they add to so many sums: fewer would pay for the loop at each.
_UNROLLED_SUMS = 16
# Sums over more keys than a chain of additions may have are cut into blocks.
_BLOCK_KEYS = 256


def generate_attention(plan: AttentionPlan, isa: Isa, heads: type[Heads]) -> Kernel:
    """The kernel of a plan; `heads` emits what it does with a head."""
    named = plan.operands
    e = Emitter(attributes=isa.function_attributes)
    is_open = plan.row_loop is not None or plan.most_past is not None
    with kernel_function(e, [given.operand for given in named.values()], has_rows=is_open) as function:
        pointers = dict(zip(named, function.pointers, strict=True))
        heads(e, plan, pointers, function.scratch, function.num_rows()).chunk(function.chunk)
    keys, channels = plan.keys, plan.channels
    return function.kernel(
        TEMPLATE,
        num_chunks=plan.num_chunks,
        scratch_bytes=plan.scratch_bytes,
        template=TEMPLATE,
        macs=plan.num_macs,
        notes=(
            *([] if plan.terms is None else [plan.scores.dot]),
            f"tile {plan.most_rows}x{keys.num_vectors * keys.lanes} keys",
            f"x{channels.num_vectors * channels.lanes} channels",
            f"{plan.num_heads} heads in {plan.num_chunks} chunks",
        ),
        plan=plan,
    )


class Heads:
    """Emits the loops from a chunk down to its tiles, by packed operands; the attributes are fixed facts.

    `num_rows` are those of a run, where it may have fewer than the problem; or keys of a cache that grows.
    """

    def __init__(
        self, e: Emitter, plan: AttentionPlan, pointers: Mapping[str, Val], scratch: Val, num_rows: Val | None
    ) -> None:
        self.e, self.plan, self.num_rows = e, plan, num_rows
        self.operands, self.pointers = plan.operands, pointers
        self.steps = {name: plan.steps(name) for name in self.operands}
        self.past: Int | None = None if plan.most_past is None else num_rows
        self.scratch, self.masks = scratch, [mask_name(read) for read in range(plan.num_masks)]
        self.packer = Packer(e, plan, scratch)
        self.scores = e.gep(scratch, plan.scores_offset)
        self.shifts = e.gep(scratch, plan.rows_offset)
        self.inverses = e.gep(scratch, plan.rows_offset + plan.padded_rows * ELEMENT_BYTES)
        self.lanes = e.gep(scratch, plan.lanes_offset)
        self.singles = e.gep(scratch, plan.singles_offset)
        self.totals = e.gep(scratch, plan.totals_offset)
        self.key_type = vec("float", plan.keys.lanes)
        self.row_bytes = plan.score_stride * ELEMENT_BYTES

    def chunk(self, chunk: Val) -> None:
        """All heads, or parts of heads, of a chunk, of as many rows as a run has."""
        e, plan, num_rows = self.e, self.plan, self.num_rows
        units: Int = plan.num_heads * plan.num_parts
        row_loop = plan.row_loop
        if row_loop is not None and num_rows is not None:
            inside = plan.num_heads * plan.num_parts // plan.outer[0].extent
            units = e.mul(e.iterations(row_loop, num_rows), inside)
        low, high = e.piece(0 if plan.num_chunks == 1 else chunk, plan.num_chunks, units)
        e.loop(low, high, 1, lambda number, _: self.unit(number), nonempty=num_rows is None)

    def unit(self, number: Int) -> None:
        """A part of a head."""
        e, plan = self.e, self.plan
        part = e.urem(number, plan.num_parts)
        at, indices = self.head(e.udiv(number, plan.num_parts))
        self.prepare(at)
        first, last = e.piece(part, plan.num_parts, plan.num_tiles)
        e.loop(first, last, 1, lambda tile, _: self.tile(tile, at, indices), nonempty=True)

    def head(self, number: Int) -> tuple[dict[str, Val], dict[str, Int]]:
        """Where the operands of a head begin, and its place in the outer loops."""
        plan, indices = self.plan, head_indices(self.e, self.plan, number)
        at = {name: self._moved(name, self.pointers[name], s.offset) for name, s in self.operands.items()}
        for loop, index in indices.items():
            at = {name: self.along(name, at[name], loop, index) for name in at}
        if self.past is not None and plan.most_past is not None:
            # Of masks, which are made for the longest past, the last places are those of the run.
            skipped = self.e.sub(plan.most_past, self.past)
            for name in self.masks:
                at[name] = self.along(name, at[name], plan.column, skipped)
        return at, indices

    def _moved(self, name: str, pointer: Val, elements: Int) -> Val:
        element = STORAGE_ELEMENTS[self.operands[name].operand.dtype]
        return self.e.gep(pointer, elements, element)

    def at(self, offset: int) -> Val:
        """A place in the scratch area."""
        return self.e.gep(self.scratch, offset)

    def only(self, score: Val, active: int) -> Val:
        """A vector of scores of which so many exist; the others are minus infinity."""
        if active == score.lanes:
            return score
        return self.e.select(self.e.lane_mask(score.lanes, active), score, -math.inf)

    def step(self, name: str, loop: str) -> int:
        """Elements that a step of a loop moves in an operand, 0 where it has none of it."""
        return self.steps[name].get(loop, 0)

    def along(self, name: str, pointer: Val, loop: str, index: Int) -> Val:
        """An operand's address moved along a loop."""
        step, places = self.step(name, loop), self._num_places(name)
        if step == 0 or places is None:
            return self._moved(name, pointer, self.e.mul(index, step))
        most, count = places
        # Of an axis outside of the places, which follow each other without gaps.
        is_outside = step % (most * self.step(name, self.plan.column)) == 0
        elements = self.e.mul(count, step // most) if is_outside else step
        return self._moved(name, pointer, self.e.mul(index, elements))

    def _num_places(self, name: str) -> tuple[int, Int] | None:
        """Of a cache that grows: the most keys or values that it may hold, and those of the run."""
        if self.past is None or self.plan.most_past is None:
            return None
        most, columns = self.plan.most_past, self.plan.num_columns
        if name in (part_name("k", 0), part_name("v", 0)):
            return most, self.past
        return (columns, self.e.add(self.past, columns - most)) if name in ("k", "v") else None

    # One tile of queries.

    def tile(self, number: Int, head: Mapping[str, Val], indices: Mapping[str, Int]) -> None:
        """One tile of a head: scores, softmax, sums."""
        e, larger, smaller = self.e, self.plan.scores.row_tiles[0], self.plan.scores.row_tiles[-1]
        is_larger = larger is smaller or e.compare("slt", number, larger.count)
        later = e.add(e.mul(e.sub(number, larger.count), smaller.rows), smaller.start)
        row = e.select_index(is_larger, e.add(e.mul(number, larger.rows), larger.start), later)
        num_rows = e.select_index(is_larger, larger.rows, smaller.rows)
        at = {name: self.along(name, pointer, self.plan.row, row) for name, pointer in head.items()}
        places = {**indices, self.plan.row: row}

        def scores(tile_rows: int) -> None:
            self.emit_scores(tile_rows, at, places)

        def sums(tile_rows: int) -> None:
            self.emit_sums(tile_rows, at)

        e.if_(is_larger, lambda: scores(larger.rows), lambda: scores(smaller.rows))
        self._softmax(num_rows)
        e.if_(is_larger, lambda: sums(larger.rows), lambda: sums(smaller.rows))

    def prepare(self, at: Mapping[str, Val]) -> None:
        """What a head needs before its tiles: keys and values, whose first elements are given, are packed."""
        self.packer.pack_keys(at["k"])
        self.packer.pack_values(at["v"])

    def emit_scores(self, num_rows: int, at: Mapping[str, Val], places: Mapping[str, Int]) -> None:
        """The scores of a tile that begins at these addresses and places, finished, in their rows."""
        self.panels(
            self.plan.keys,
            lambda index, vectors, active: self._scores(num_rows, at, places, index, vectors, active),
        )
        for single in range(self.plan.num_singles):
            self._single_scores(num_rows, at, places, single)

    def emit_sums(self, num_rows: int, at: Mapping[str, Val]) -> None:
        """The results of a tile of the powers in its rows."""
        self.panels(
            self.plan.channels,
            lambda index, vectors, active: self._sums(num_rows, at["y"], index, vectors, active),
        )

    def panels(self, panels: Panels, panel: Callable[[Int, int, int], None]) -> None:
        """Each panel by its number, its vectors and the lanes of the last of them that exist."""
        lanes = panels.lanes
        self.e.loop(0, panels.num_full, 1, lambda index, _: panel(index, panels.num_vectors, lanes))
        if panels.tail:
            panel(panels.num_full, panels.tail_vectors, (panels.tail - 1) % lanes + 1)

    def _scores(
        self,
        num_rows: int,
        at: Mapping[str, Val],
        places: Mapping[str, Int],
        index: Int,
        num_vectors: int,
        active: int,
    ) -> None:
        """The scores of a panel of keys, finished, in their rows."""
        e, plan, panels, type = self.e, self.plan, self.plan.keys, self.key_type
        keys = e.gep(self.packer.keys, e.mul(index, panels.width * self.plan.depth * ELEMENT_BYTES))
        pitch, deeper = plan.scores.row.a, plan.scores.summed[0].a

        def factors(depth: Int) -> tuple[Val, Val]:
            vectors = e.gep(keys, e.mul(depth, num_vectors * type.size_bytes))
            return vectors, e.gep(at["q"], e.mul(depth, deeper * ELEMENT_BYTES))

        sums = self._products(
            type, num_rows, num_vectors, (0, self.plan.depth), pitch * ELEMENT_BYTES, factors
        )
        column = e.mul(index, panels.width)
        finish = self.finish(plan.column, at, {**places, plan.column: column})
        target = e.gep(self.scores, e.mul(column, ELEMENT_BYTES))
        for number, value in enumerate(sums):
            r, v = divmod(number, num_vectors)
            is_last = v == num_vectors - 1
            exist = active if is_last else panels.lanes
            score = self.only(finish.score(value, r, v * panels.lanes, exist), exist)
            e.store(score, e.gep(target, r * self.row_bytes + v * type.size_bytes))

    def _single_scores(
        self, num_rows: int, at: Mapping[str, Val], places: Mapping[str, Int], single: int
    ) -> None:
        """The scores of a key that stands alone, a lane for each row: products are summed across lanes."""
        e, plan, type = self.e, self.plan, self.key_type
        column = plan.keys.extent + single
        pitch = plan.scores.row.a
        key = e.gep(at["k"], column * plan.scores.vector.b * ELEMENT_BYTES)
        steps = range(0, self.plan.depth, type.lanes)
        vectors = [e.load(type, e.gep(key, step * ELEMENT_BYTES)) for step in steps]
        finish = self.finish(plan.row, at, {**places, plan.column: column})
        for first in range(0, num_rows, type.lanes):
            count = min(type.lanes, num_rows - first)
            rows: list[Val] = []
            for r in range(first, first + count):
                query = [e.load(type, e.gep(at["q"], (r * pitch + s) * ELEMENT_BYTES)) for s in steps]
                total = e.fmul(query[0], vectors[0])
                for a, b in zip(query[1:], vectors[1:], strict=True):
                    total = e.fma(a, b, total)
                rows.append(total)
            rows += [rows[-1]] * (type.lanes - count)
            value = combine_lanes(e, rows, e.fadd)
            e.store(finish.score(value, first, 0, count), self._single(single, first))

    def finish(self, along: str, at: Mapping[str, Val], places: Mapping[str, Int]) -> Finish:
        """What makes scores of sums at these addresses and places."""
        masks = {read: at[name] for read, name in enumerate(self.masks)}
        return Finish(self.e, self.plan, self.plan.keys.lanes, along, masks, places)

    def _single(self, single: int, row: int) -> Val:
        """Where the score, later the power, of a key that stands alone lies for a row."""
        return self.e.gep(self.singles, (single * self.plan.padded_rows + row) * ELEMENT_BYTES)

    def _sums(self, num_rows: int, result: Val, index: Int, num_vectors: int, active: int) -> None:
        """The results of a panel of channels from packed values."""
        e, panels, num_keys = self.e, self.plan.channels, self.plan.keys.extent
        type = vec("float", panels.lanes)
        panel_bytes = panels.width * self.plan.num_keys * ELEMENT_BYTES
        values = e.gep(self.packer.values, e.mul(index, panel_bytes))

        def factors(key: Int) -> tuple[Val, Val]:
            vectors = e.gep(values, e.mul(key, num_vectors * type.size_bytes))
            return vectors, e.gep(self.scores, e.mul(key, ELEMENT_BYTES))

        def over(low: Int, high: Int) -> list[Val]:
            return self._products(type, num_rows, num_vectors, (low, high), self.row_bytes, factors)

        if num_keys <= MAX_CHAIN_STEPS:
            sums = over(0, num_keys)
        else:
            sums = self._in_blocks(type, num_rows * num_vectors, num_keys, over)
        for single in range(self.plan.num_singles):
            scalars = self._single(single, 0)
            at = e.gep(values, (num_keys + single) * num_vectors * type.size_bytes)
            sums = self._step(type, num_rows, (at, scalars), ELEMENT_BYTES, sums)
        self.store_results(sums, num_rows, result, index, num_vectors, active)

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
        """The results of a panel of channels, from row `first` on: weighted sums over the sums of weights."""
        e, panels = self.e, self.plan.channels
        type = vec("float", panels.lanes)
        pitch, dtype = self.plan.sums.row.c, self.plan.sums.c.operand.dtype
        panel = e.moved(result, e.mul(index, panels.width), dtype.size_bytes)
        panel = e.moved(panel, e.mul(first, pitch), dtype.size_bytes)
        inverses = e.gep(self.inverses, e.mul(first, ELEMENT_BYTES))
        for r in range(num_rows):
            inverse = e.broadcast_load(type, e.gep(inverses, r * ELEMENT_BYTES))
            for v in range(num_vectors):
                exist = active if v == num_vectors - 1 else panels.lanes
                pointer = e.gep(panel, (r * pitch + v * panels.lanes) * dtype.size_bytes)
                value = result_of(e, self.plan, sums[r * num_vectors + v], inverse)
                store_lanes(e, dtype, value, pointer, active=exist)

    def _in_blocks(
        self, type: Type, count: int, num_keys: int, over: Callable[[Int, Int], list[Val]]
    ) -> list[Val]:
        """Sums over many keys: the error of one chain of additions grows with its length."""
        e = self.e
        totals = [e.gep(self.totals, number * type.size_bytes) for number in range(count)]
        for pointer in totals:
            e.store(e.zero(type), pointer)

        def block(part: Int, _: Sequence[Val]) -> None:
            low = e.mul(part, _BLOCK_KEYS)
            sums = over(low, e.min(e.add(low, _BLOCK_KEYS), num_keys))
            for pointer, value in zip(totals, sums, strict=True):
                e.store(e.fadd(e.load(type, pointer), value), pointer)

        e.loop(0, -(-num_keys // _BLOCK_KEYS), 1, block)
        return [e.load(type, pointer) for pointer in totals]

    def _products(
        self,
        type: Type,
        num_rows: int,
        num_vectors: int,
        steps: tuple[Int, Int],
        pitch_bytes: int,
        factors: Callable[[Int], tuple[Val, Val]],
    ) -> list[Val]:
        """Sums of a register tile over steps: `factors` gives where a step's vectors lie, and the element of
        row 0 that multiplies them; rows are `pitch_bytes` apart."""
        e, (low, high) = self.e, steps
        count = num_rows * num_vectors
        extent = high - low if isinstance(low, int) and isinstance(high, int) else 1
        unroll = next((u for u in (4, 2) if count * u <= _UNROLLED_SUMS and extent % u == 0), 1)

        def body(index: Int, sums: Sequence[Val]) -> Sequence[Val]:
            for step in range(unroll):
                sums = self._step(type, num_rows, factors(e.add(index, step)), pitch_bytes, sums)
            return sums

        zeros = [(type, e.zero(type))] * count
        return e.loop(low, high, unroll, body, zeros, nonempty=True)

    def _step(
        self, type: Type, num_rows: int, factors: tuple[Val, Val], pitch_bytes: int, sums: Sequence[Val]
    ) -> list[Val]:
        """The sums with the products of one step added; see `_products`."""
        e, (at, scalars), num_vectors = self.e, factors, len(sums) // num_rows
        vectors = [e.load(type, e.gep(at, v * type.size_bytes)) for v in range(num_vectors)]
        made: list[Val] = []
        for r in range(num_rows):
            spread = e.splat(e.load(FLOAT, e.gep(scalars, r * pitch_bytes)), type.lanes)
            made += [e.fma(spread, vector, sums[r * num_vectors + v]) for v, vector in enumerate(vectors)]
        return made

    # The softmax of all rows of a tile.

    def _softmax(self, num_rows: Int) -> None:
        """Powers in the place of scores, and the inverse of the sum of each row's."""
        e, type = self.e, self.key_type

        def shift(first: int, top: Val) -> None:
            for single in range(self.plan.num_singles):
                top = larger(e, e.load(type, self._single(single, first)), top)
            e.store(self.shift_of(top), e.gep(self.shifts, first * ELEMENT_BYTES))

        def invert(first: int, total: Val) -> None:
            shift = e.load(type, e.gep(self.shifts, first * ELEMENT_BYTES))
            for single in range(self.plan.num_singles):
                pointer = self._single(single, first)
                power = exp_nonpositive(e, e.fsub(e.load(type, pointer), shift))
                e.store(power, pointer)
                total = e.fadd(total, power)
            e.store(self.scale_of(total), e.gep(self.inverses, first * ELEMENT_BYTES))

        e.loop(0, num_rows, 1, lambda row, _: self._take_maximum(row), nonempty=True)
        self._for_rows(lambda a, b: larger(e, a, b), shift)
        e.loop(0, num_rows, 1, lambda row, _: self._raise_powers(row), nonempty=True)
        self._for_rows(e.fadd, invert)

    def shift_of(self, top: Val) -> Val:
        """What is taken off the scores of rows, of the largest of each."""
        return shift_of(self.e, self.plan, top)

    def scale_of(self, total: Val) -> Val:
        """What the weighted sums of rows are multiplied with, of the sum of each one's weights."""
        return scale_of(self.e, self.plan, total)

    def _take_maximum(self, row: Int) -> None:
        """The largest score of a row, lane by lane. One that is no number makes its own power none, too."""
        e, type = self.e, self.key_type
        at = e.gep(self.scores, e.mul(row, self.row_bytes))
        (best,) = self._over_vectors(
            lambda v, carried: [larger(e, e.load(type, self._vector(at, v)), carried[0])],
            [e.constant(type, -math.inf)],
        )
        e.store(best, self._vector(self.lanes, row))

    def _raise_powers(self, row: Int) -> None:
        """Powers in the place of a row's scores, and their sum lane by lane."""
        e, type = self.e, self.key_type
        at = e.gep(self.scores, e.mul(row, self.row_bytes))
        shift = e.broadcast_load(type, e.gep(self.shifts, e.mul(row, ELEMENT_BYTES)))

        def power(v: Int, carried: Sequence[Val]) -> Sequence[Val]:
            pointer = self._vector(at, v)
            value = exp_nonpositive(e, e.fsub(e.load(type, pointer), shift))
            e.store(value, pointer)
            return [e.fadd(carried[0], value)]

        (total,) = self._over_vectors(power, [e.zero(type)])
        e.store(total, self._vector(self.lanes, row))

    def _for_rows(self, combine: Callable[[Val, Val], Val], use: Callable[[int, Val], None]) -> None:
        """For vectors of rows, each by its first: what is combined of all lanes of each row's own vector.

        Rows that a tile lacks have whatever the memory held: nothing reads their numbers.
        """
        e, plan, type = self.e, self.plan, self.key_type
        for first in range(0, plan.padded_rows, type.lanes):
            rows = [min(first + lane, plan.most_rows - 1) for lane in range(type.lanes)]
            loaded = {row: e.load(type, self._vector(self.lanes, row)) for row in dict.fromkeys(rows)}
            use(first, combine_lanes(e, [loaded[row] for row in rows], combine))

    def _vector(self, row: Val, number: Int) -> Val:
        return self.e.gep(row, self.e.mul(number, self.key_type.size_bytes))

    def _over_vectors(
        self, body: Callable[[Int, Sequence[Val]], Sequence[Val]], carried: Sequence[Val]
    ) -> Sequence[Val]:
        """Each vector of a row by its number."""
        e, panels = self.e, self.plan.keys
        count = panels.padded_extent // panels.lanes
        if self.past is not None:
            return self._over_open_vectors(body, carried, self.past)
        straight = 0
        if count > _MAX_STRAIGHT_VECTORS:
            straight = count // _VECTORS_AT_ONCE * _VECTORS_AT_ONCE

            def several(first: Int, values: Sequence[Val]) -> Sequence[Val]:
                for v in range(_VECTORS_AT_ONCE):
                    values = body(e.add(first, v), values)
                return values

            types = [(value.type, value) for value in carried]
            carried = e.loop(0, straight, _VECTORS_AT_ONCE, several, types)
        for v in range(straight, count):
            carried = body(v, carried)
        return carried

    def _over_open_vectors(
        self, body: Callable[[Int, Sequence[Val]], Sequence[Val]], carried: Sequence[Val], past: Int
    ) -> Sequence[Val]:
        """Each vector of a row that has as many keys as the run."""
        e, lanes = self.e, self.plan.keys.lanes
        assert self.plan.most_past is not None
        num_new = self.plan.num_columns - self.plan.most_past
        count = e.udiv(e.add(past, num_new + lanes - 1), lanes)
        most = e.mul(e.udiv(count, _VECTORS_AT_ONCE), _VECTORS_AT_ONCE)

        def several(first: Int, values: Sequence[Val]) -> Sequence[Val]:
            for v in range(_VECTORS_AT_ONCE):
                values = body(e.add(first, v), values)
            return values

        types = [value.type for value in carried]
        carried = e.loop(0, most, _VECTORS_AT_ONCE, several, list(zip(types, carried, strict=True)))
        return e.loop(most, count, 1, body, list(zip(types, carried, strict=True)))


def head_indices(e: Emitter, plan: AttentionPlan, number: Int) -> dict[str, Int]:
    """The place in the outer loops of the head of this number."""
    return {loop.name: index for loop, index in digits(e, number, plan.outer)}


def larger(e: Emitter, a: Val, b: Val) -> Val:
    """The larger of both in each lane, `b` where `a` is no number: one instruction on x86."""
    return e.select(e.fcmp("ogt", a, b), a, b)
