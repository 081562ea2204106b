"""Decode attention: few queries over a long cache; keys and values are read once, in order, where they lie.

A vector of keys at a time is multiplied with each query along the depth; lanes of its products are added up
in registers, so that scores lie as the softmax wants them. Values follow in blocks of keys that stay in the
first cache for all panels of channels. Nothing is packed: with one to three queries memory sets the time.

A cache that grows comes in parts: what it held, what is new. Vectors that products have in registers are
stored on the way where other nests read the whole, so that growing takes no reads of its own.

The order of additions depends on nothing but the shapes: heads are divided by these alone (`split_kv.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tilewright.ir.dtype import DType
from tilewright.records import dataclass
from tilewright.targets.cpu.attention.generate import Heads
from tilewright.targets.cpu.attention.plan import ELEMENT_BYTES, part_name
from tilewright.targets.cpu.loopnest.transpose import combine_lanes
from tilewright.targets.cpu.product.lanes import load_lanes, store_lanes
from tilewright.targets.llvm.values import I64, Bool, Int, Val, vec

# Bytes of values that stay in the first cache while all panels of channels read them.
_BLOCK_BYTES = 16 << 10
_MIN_BLOCK_KEYS = 8
# Longer chains of additions err more.
_MAX_BLOCK_KEYS = 256
# Steps are unrolled until they add to so many sums.
_UNROLLED_SUMS = 16
# Stores that bypass the caches go to multiples of so many bytes: as allocators of arrays align at least.
_BYPASS_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Rows:
    """Keys or values in memory: where the first of a block lies, and the bytes from one to the next.

    `kept` and `kept_bytes` say where they go besides, if anywhere.
    """

    first: Val
    step_bytes: int
    kept: Val | None
    kept_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Keys or values side by side in memory: `count` of those of `source`, from number `start` of its on.

    The first of them is number `first` of the head; `column` is where scores of a unit have it.
    """

    source: str
    start: Int
    first: Int
    column: Int
    count: Int


class DecodeAttention(Heads):
    """Emits heads of few queries, each as one tile."""

    _bypasses = False
    """Whether what is being emitted stores past the caches."""

    def chunk(self, chunk: Val) -> None:
        """All heads of a chunk, twice where the addresses decide whether what is kept bypasses the caches."""
        e, is_aligned = self.e, self._is_aligned()
        work = super().chunk

        def past_caches() -> None:
            self._bypasses = True
            work(chunk)
            e.store_fence()
            self._bypasses = False

        e.if_(is_aligned, past_caches, lambda: work(chunk))

    def _is_aligned(self) -> Bool:
        """Whether all vectors of what is put together may bypass the caches, and shall."""
        e, elements = self.e, _BYPASS_BYTES // ELEMENT_BYTES
        parts = {"k": self.plan.key_parts, "v": self.plan.value_parts}
        kept = [name for name in parts if parts[name] and name in self.operands]
        if not kept or not self.plan.bypasses:
            return False
        for name in kept:
            apart = (self.operands[name].offset, *self.steps[name].values())
            if any(step % elements for step in apart if step != 1):
                return False
        addresses = [e.op(f"ptrtoint ptr {self.pointers[name]} to i64", I64) for name in kept]
        rests: list[Int] = [e.urem(address, _BYPASS_BYTES) for address in addresses]
        total = rests[0] if len(rests) == 1 else e.add(*rests)
        return e.compare("eq", total, 0)

    def prepare(self, at: Mapping[str, Val]) -> None:
        """Nothing: operands are read where they lie."""

    # Scores.

    def emit_scores(self, num_rows: int, at: Mapping[str, Val], places: Mapping[str, Int]) -> None:
        """Scores of all queries by vectors of keys, which later queries find in the first cache."""
        e, keys = self.e, self.plan.keys
        pieces = self.pieces("k")
        count: Int = 0
        for piece in pieces:
            count = e.add(count, piece.count)
        never = e.constant(self.key_type, -math.inf)
        # Lanes behind the last key are no piece's, but of the last vector of a single one.
        if isinstance(count, int):
            written = -(-count // keys.lanes) if len(pieces) == 1 else count // keys.lanes
            empty: Sequence[Int] = range(written * keys.lanes, keys.padded_extent, keys.lanes)
        else:
            empty = [e.mul(e.udiv(count, keys.lanes), keys.lanes)]
        for row in range(num_rows):
            for first in empty:
                e.store(never, self._score(row, first))

        def block(rows: _Rows, piece: Piece, start: Int, active: Int) -> None:
            assert isinstance(active, int), "what is left of a piece comes in blocks of known sizes"
            column = e.add(piece.column, start)
            here = {**places, self.plan.column: e.add(piece.first, start)}

            def row_scores(row: Int, source: _Rows) -> None:
                self._row_scores(row, column, active, source, at, here)

            row_scores(0, rows)
            later = _Rows(rows.first, rows.step_bytes, None)
            e.loop(1, num_rows, 1, lambda row, _: row_scores(row, later))

        self._blocks("k", pieces, at, keys.lanes, block, self._halves)

    def _score(self, row: Int, column: Int) -> Val:
        elements = self.e.add(self.e.mul(row, self.plan.score_stride), column)
        return self.e.gep(self.scores, self.e.mul(elements, ELEMENT_BYTES))

    def _row_scores(
        self,
        row: Int,
        column: Int,
        active: int,
        keys: _Rows,
        at: Mapping[str, Val],
        places: Mapping[str, Int],
    ) -> None:
        """The scores of one query and a vector of keys, of which `active` exist."""
        e, type, plan, depth = self.e, self.key_type, self.plan, self.plan.depth
        query = self._vectors(_Rows(self.along("q", at["q"], plan.row, row), 0, None), 0, depth)
        totals: list[Val] = []
        for key in range(active):
            vectors = self._vectors(keys, key, depth)
            total = e.fmul(query[0], vectors[0])
            for a, b in zip(query[1:], vectors[1:], strict=True):
                total = e.fma(a, b, total)
            totals.append(total)
        totals += [totals[-1]] * (type.lanes - active)
        masks = {name: self.along(name, at[name], plan.row, row) for name in self.masks}
        here = {**places, plan.row: e.add(places[plan.row], row)}
        finish = self.finish(plan.column, {**at, **masks}, here)
        score = finish.score(combine_lanes(e, totals, e.fadd), 0, 0, active)
        if active < type.lanes:
            score = e.select(e.lane_mask(type.lanes, active), score, -math.inf)
        e.store(score, self._score(row, column))

    # Weighted sums.

    def emit_sums(self, num_rows: int, at: Mapping[str, Val]) -> None:
        """Weighted sums by blocks of keys, and in a block by panels of channels."""
        e, plan = self.e, self.plan
        row_bytes = plan.num_channels * ELEMENT_BYTES
        size = min(max(_BLOCK_BYTES // row_bytes, _MIN_BLOCK_KEYS), _MAX_BLOCK_KEYS)
        zero = e.zero(vec("float", plan.channels.lanes))
        num_vectors = num_rows * plan.channels.padded_extent // plan.channels.lanes
        e.loop(0, num_vectors, 1, lambda number, _: e.store(zero, self._total(0, number)))

        def block(values: _Rows, piece: Piece, start: Int, count: Int) -> None:
            weights = self._score(0, e.add(piece.column, start))

            def panel(index: Int, num_vectors: int, active: int) -> None:
                offset = e.mul(index, plan.channels.width * ELEMENT_BYTES)
                kept = None if values.kept is None else e.gep(values.kept, offset)
                there = _Rows(e.gep(values.first, offset), values.step_bytes, kept, values.kept_bytes)
                width = (num_vectors - 1) * plan.channels.lanes + active
                sums = self._sums_of_block(there, weights, num_rows, count, width)
                self._add_to_totals(sums, num_rows, index)

            self.panels(plan.channels, panel)

        self._blocks("v", self.pieces("v"), at, size, block, self._at_once)
        self.panels(
            plan.channels,
            lambda index, vectors, active: self.store_results(
                self._totals(num_rows, index, num_rows * vectors), num_rows, at["y"], index, vectors, active
            ),
        )

    def _sums_of_block(
        self, values: _Rows, weights: Val, num_rows: int, num_keys: Int, width: int
    ) -> Sequence[Val]:
        """The sums of a block of values, `width` channels of them, in the weights of each row."""
        e, lanes = self.e, self.plan.channels.lanes
        type, num_vectors = vec("float", lanes), -(-width // lanes)
        count = num_rows * num_vectors
        each = num_keys if isinstance(num_keys, int) else 1
        unroll = next((u for u in (4, 2) if count * u <= _UNROLLED_SUMS and each % u == 0), 1)

        def add_key(key: Int, sums: Sequence[Val]) -> list[Val]:
            vectors = self._vectors(values, key, width, lanes)
            made: list[Val] = []
            for row in range(num_rows):
                pointer = e.gep(weights, e.add(e.mul(key, ELEMENT_BYTES), row * self.row_bytes))
                weight = e.broadcast_load(type, pointer)
                of_row = sums[row * num_vectors : (row + 1) * num_vectors]
                made += [e.fma(weight, v, total) for v, total in zip(vectors, of_row, strict=True)]
            return made

        def body(key: Int, sums: Sequence[Val]) -> Sequence[Val]:
            for further in range(unroll):
                sums = add_key(e.add(key, further), sums)
            return sums

        return e.loop(0, num_keys, unroll, body, [(type, e.zero(type))] * count, nonempty=True)

    def _add_to_totals(self, sums: Sequence[Val], num_rows: int, index: Int) -> None:
        e, first = self.e, self._first_total(num_rows, index)
        for number, (total, value) in enumerate(
            zip(self._totals(num_rows, index, len(sums)), sums, strict=True)
        ):
            e.store(e.fadd(total, value), self._total(first, number))

    def _totals(self, num_rows: int, index: Int, count: int) -> list[Val]:
        """Sums so far of a panel."""
        first, type = self._first_total(num_rows, index), vec("float", self.plan.channels.lanes)
        return [self.e.load(type, self._total(first, number)) for number in range(count)]

    def _first_total(self, num_rows: int, index: Int) -> Int:
        """The number of a panel's first vector among the totals: panels follow each other, rows in each."""
        return self.e.mul(index, num_rows * self.plan.channels.num_vectors)

    def _total(self, first: Int, number: Int) -> Val:
        """Where a vector of totals lies."""
        vector_bytes = self.plan.channels.lanes * ELEMENT_BYTES
        return self.e.gep(self.totals, self.e.mul(self.e.add(first, number), vector_bytes))

    # Keys and values in memory.

    def pieces(self, name: str) -> list[Piece]:
        """The keys ("k") or values ("v") of a unit."""
        parts = {"k": self.plan.key_parts, "v": self.plan.value_parts}[name]
        if not parts:
            return [Piece(name, 0, 0, 0, self.plan.num_columns)]
        fewer = 0 if self.past is None else self.e.sub(parts[0].count, self.past)
        pieces = []
        for number, part in enumerate(parts):
            first = self.e.sub(part.first, fewer) if number else 0
            held = self.past if part.is_open and self.past is not None else part.count
            pieces.append(Piece(part_name(name, number), 0, first, first, held))
        return pieces

    def _blocks(
        self,
        name: str,
        pieces: Sequence[Piece],
        at: Mapping[str, Val],
        size: int,
        block: Callable[[_Rows, Piece, Int, Int], None],
        rests: Callable[[Piece, Int, Callable[[Int, Int], None]], None],
    ) -> None:
        """`block` with the rows, the piece, the start in it and the count of at most `size` keys at once.

        `rests` cuts what is left of a piece whose count the run gives, from a start on.
        """
        e, column = self.e, self.plan.column

        def rows(piece: Piece, start: Int, count: Int) -> None:
            step = self.step(piece.source, column)
            first = self.along(piece.source, at[piece.source], column, e.add(piece.start, start))
            keys = _Rows(first, step * ELEMENT_BYTES, None)
            if name in at and name != piece.source:
                kept = self.along(name, at[name], column, e.add(piece.first, start))
                keys = replace(keys, kept=kept, kept_bytes=self.step(name, column) * ELEMENT_BYTES)
            block(keys, piece, start, count)

        def all_rows(piece: Piece) -> None:
            if not isinstance(piece.count, int):
                full = e.mul(e.udiv(piece.count, size), size)
                e.loop(0, full, size, lambda start, _: rows(piece, start, size))
                rests(piece, full, lambda start, count: rows(piece, start, count))
                return
            rest = piece.count % size
            e.loop(0, piece.count // size, 1, lambda number, _: rows(piece, e.mul(number, size), size))
            if rest:
                rows(piece, piece.count - rest, rest)

        for piece in pieces:
            all_rows(piece)

    def _halves(self, piece: Piece, start: Int, use: Callable[[Int, Int], None]) -> None:
        """What is left of a piece in blocks of which each is half as long as the one before."""
        e, half = self.e, self.plan.keys.lanes // 2
        left = e.sub(piece.count, start)
        while half:
            taken = e.mul(e.udiv(left, 2 * half), 2 * half)
            has_half = e.compare("ne", e.urem(e.udiv(left, half), 2), 0)
            e.if_(has_half, partial(use, e.add(start, taken), half))
            half //= 2

    def _at_once(self, piece: Piece, start: Int, use: Callable[[Int, Int], None]) -> None:
        """What is left of a piece as one block."""
        e = self.e
        left = e.sub(piece.count, start)
        e.if_(e.compare("sgt", left, 0), partial(use, start, left))

    def _vectors(self, rows: _Rows, number: Int, width: int, lanes: int | None = None) -> list[Val]:
        """A key, value or query in vectors, kept where it has to be; lanes behind its end are zero."""
        e, lanes = self.e, lanes or self.key_type.lanes
        pointer = e.gep(rows.first, e.mul(number, rows.step_bytes))
        found: list[Val] = []
        for first in range(0, width, lanes):
            active, offset = min(lanes, width - first), first * ELEMENT_BYTES
            value = load_lanes(e, DType.FLOAT32, e.gep(pointer, offset), lanes, active=active)
            if rows.kept is not None:
                kept = e.gep(e.gep(rows.kept, e.mul(number, rows.kept_bytes)), offset)
                if self._bypasses and active == lanes:
                    e.store(value, kept, align_bytes=_BYPASS_BYTES, bypasses=True)
                else:
                    store_lanes(e, DType.FLOAT32, value, kept, active=active)
            found.append(value)
        return found
