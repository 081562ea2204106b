"""Attention of few queries over a long cache: keys and values are read once, in order, where they lie.

A vector of keys at a time is multiplied with each query along the depth; lanes of its products are added up
in registers, so that scores lie as the softmax wants them. Values follow in blocks of keys that stay in the
first cache for all panels of channels. Nothing is packed: with one to three queries memory sets the time.

A head is never divided, so that the order of additions depends on nothing but the shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilewright.ir.dtype import DType
from tilewright.targets.cpu.attention.generate import Heads
from tilewright.targets.cpu.attention.match import CHANNEL, DEPTH
from tilewright.targets.cpu.attention.plan import ELEMENT_BYTES
from tilewright.targets.cpu.contraction.lanes import load_lanes
from tilewright.targets.cpu.loopnest.transpose import combine_lanes
from tilewright.targets.cpu.values import Int, Val, vec

# Bytes of values that stay in the first cache while all panels of channels read them.
_BLOCK_BYTES = 16 << 10
_MIN_BLOCK_KEYS = 8
# Longer chains of additions err more.
_MAX_BLOCK_KEYS = 256
# Steps are unrolled until they add to so many sums.
_UNROLLED_SUMS = 16


class FewQueries(Heads):
    """Emits heads of few queries, each as one tile."""

    def prepare(self, at: Mapping[str, Val]) -> None:
        """Nothing: operands are read where they lie."""

    def emit_scores(self, num_rows: int, at: Mapping[str, Val], places: Mapping[str, Int]) -> None:
        """Scores of all queries by vectors of keys, which later queries find in the first cache."""
        e, panels = self.e, self.plan.keys

        def keys(index: Int, active: int) -> None:
            column = e.mul(index, panels.lanes)
            there = {**at, "k": self.along("k", at["k"], self.problem.column, column)}
            e.loop(0, num_rows, 1, lambda row, _: self._row_scores(row, column, active, there, places))

        e.loop(0, panels.num_full, 1, lambda index, _: keys(index, panels.lanes))
        if panels.tail:
            keys(panels.num_full, panels.tail)

    def _row_scores(
        self, row: Int, column: Int, active: int, at: Mapping[str, Val], places: Mapping[str, Int]
    ) -> None:
        """The scores of one query and a vector of keys, of which `active` exist."""
        e, type, problem = self.e, self.key_type, self.problem
        query = self._depths(self.along("q", at["q"], problem.row, row))
        totals: list[Val] = []
        for key in range(active):
            products = self._depths(self.along("k", at["k"], problem.column, key))
            total = e.fmul(query[0], products[0])
            for a, b in zip(query[1:], products[1:], strict=True):
                total = e.fma(a, b, total)
            totals.append(total)
        totals += [totals[-1]] * (type.lanes - active)
        masks = {name: self.along(name, at[name], problem.row, row) for name in at if name.startswith("mask")}
        here = {**places, problem.row: e.add(places[problem.row], row), problem.column: column}
        finish = self.finish(problem.column, {**at, **masks}, here)
        score = finish.score(combine_lanes(e, totals, e.fadd), 0, 0, active)
        if active < type.lanes:
            score = e.select(e.lane_mask(type.lanes, active), score, -math.inf)
        elements = e.add(e.mul(row, self.plan.score_stride), column)
        e.store(score, e.gep(self.scores, e.mul(elements, ELEMENT_BYTES)))

    def _depths(self, pointer: Val) -> list[Val]:
        """A query or key in vectors; lanes behind its last element are zero."""
        e, type, depth = self.e, self.key_type, self.plan.depth
        return [
            load_lanes(
                e,
                DType.FLOAT32,
                e.gep(pointer, first * ELEMENT_BYTES),
                type.lanes,
                active=min(type.lanes, depth - first),
            )
            for first in range(0, depth, type.lanes)
        ]

    def emit_sums(self, num_rows: int, at: Mapping[str, Val]) -> None:
        """Weighted sums by blocks of keys, and in a block by panels of channels."""
        e, plan, num_keys = self.e, self.plan, self.plan.num_keys
        row_bytes = self.problem.extents[CHANNEL] * ELEMENT_BYTES
        size = min(max(_BLOCK_BYTES // row_bytes, _MIN_BLOCK_KEYS), _MAX_BLOCK_KEYS, num_keys)
        zero = e.zero(vec("float", plan.channels.lanes))
        num_vectors = num_rows * plan.channels.padded_extent // plan.channels.lanes
        e.loop(0, num_vectors, 1, lambda number, _: e.store(zero, self._total(0, number)))

        def block(first: Int, count: int) -> None:
            values = self.along("v", at["v"], self.problem.column, first)
            weights = e.gep(self.scores, e.mul(first, ELEMENT_BYTES))
            self.panels(
                plan.channels,
                lambda index, vectors, active: self._add_block(
                    num_rows, count, (values, weights), index, vectors, active
                ),
            )

        e.loop(0, num_keys // size, 1, lambda number, _: block(e.mul(number, size), size))
        if num_keys % size:
            block(num_keys // size * size, num_keys % size)
        self.panels(
            plan.channels,
            lambda index, vectors, active: self.store_results(
                self._totals(num_rows, index, vectors), num_rows, at["y"], index, vectors, active
            ),
        )

    def _add_block(
        self, num_rows: int, num_keys: int, at: tuple[Val, Val], index: Int, num_vectors: int, active: int
    ) -> None:
        """Add the products of a block of keys to the totals of a panel; `at` is where its values and weights
        begin."""
        e, panels, step = self.e, self.plan.channels, self.problem.value.step(self.problem.column)
        type, count = vec("float", panels.lanes), num_rows * num_vectors
        values = e.gep(at[0], e.mul(index, panels.width * ELEMENT_BYTES))
        unroll = next((u for u in (4, 2) if count * u <= _UNROLLED_SUMS and num_keys % u == 0), 1)

        def one(key: Int, sums: Sequence[Val]) -> list[Val]:
            pointer = e.gep(values, e.mul(key, step * ELEMENT_BYTES))
            weights = e.gep(at[1], e.mul(key, ELEMENT_BYTES))
            vectors = [
                load_lanes(
                    e,
                    DType.FLOAT32,
                    e.gep(pointer, v * type.size_bytes),
                    panels.lanes,
                    active=active if v == num_vectors - 1 else panels.lanes,
                )
                for v in range(num_vectors)
            ]
            made: list[Val] = []
            for row in range(num_rows):
                weight = e.broadcast_load(type, e.gep(weights, row * self.row_bytes))
                of_row = sums[row * num_vectors : (row + 1) * num_vectors]
                made += [e.fma(weight, v, total) for v, total in zip(vectors, of_row, strict=True)]
            return made

        def body(key: Int, sums: Sequence[Val]) -> Sequence[Val]:
            for further in range(unroll):
                sums = one(e.add(key, further), sums)
            return sums

        sums = e.loop(0, num_keys, unroll, body, [(type, e.zero(type))] * count, nonempty=True)
        for number, (total, value) in enumerate(
            zip(self._totals(num_rows, index, num_vectors), sums, strict=True)
        ):
            e.store(e.fadd(total, value), self._total(self._first_total(num_rows, index), number))

    def _first_total(self, num_rows: int, index: Int) -> Int:
        """The number of a panel's first vector among the totals: panels follow each other, rows in each."""
        return self.e.mul(index, num_rows * self.plan.channels.num_vectors)

    def _totals(self, num_rows: int, index: Int, num_vectors: int) -> list[Val]:
        """Sums so far of a panel."""
        e, first = self.e, self._first_total(num_rows, index)
        type = vec("float", self.plan.channels.lanes)
        return [e.load(type, self._total(first, number)) for number in range(num_rows * num_vectors)]

    def _total(self, first: Int, number: Int) -> Val:
        """Where a vector of totals lies."""
        vector_bytes = self.plan.channels.lanes * ELEMENT_BYTES
        return self.e.gep(self.totals, self.e.mul(self.e.add(first, number), vector_bytes))
