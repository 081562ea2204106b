"""Attention on the matrix unit: keys and values in tiles of bfloat16 pieces, queries and weights in planes.

What a head's tiles of queries do between the products is as on vectors: scores are finished in their rows,
which the unit writes, and powers are split where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tilewright.ir.dtype import DType
from tilewright.targets.cpu.attention.generate import Heads
from tilewright.targets.cpu.attention.plan import ELEMENT_BYTES
from tilewright.targets.cpu.product import amx
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW, TILE_ROWS
from tilewright.targets.cpu.product.matrix import tiles
from tilewright.targets.cpu.product.matrix.activations import TiledFactor
from tilewright.targets.cpu.product.matrix.tiles import TILE_BYTES, TILE_DEPTH, Block
from tilewright.targets.llvm.values import Int, Val, vec


class MatrixHeads(Heads):
    """Emits heads whose products are of tiles."""

    def chunk(self, chunk: Val) -> None:
        """All heads of a chunk, the unit set up around them."""
        amx.configure(self.e)
        super().chunk(chunk)
        amx.release(self.e)

    def prepare(self, at: Mapping[str, Val]) -> None:
        """Keys and values of a head as tiles."""
        factors = (
            (self.plan.tiled_keys, at["k"], 0),
            (self.plan.tiled_values, at["v"], self.plan.values_offset),
        )
        for factor, source, offset in factors:
            factor.pack(self.e, source, self.at(offset), 0, factor.num_tiles)

    def emit_scores(self, num_rows: int, at: Mapping[str, Val], places: Mapping[str, Int]) -> None:
        """The scores of a tile: queries are split, sums go to the rows of scores, where they are finished."""
        e, plan, scores = self.e, self.plan, self.plan.scores
        self._split_rows(num_rows, at["q"], scores.row.a * ELEMENT_BYTES, plan.depth)

        def panel(index: Int, num_tiles: int, active: int) -> None:
            column = e.mul(index, plan.keys.width)
            target = e.gep(self.scores, e.mul(column, ELEMENT_BYTES))
            self._multiply(plan.tiled_keys, 0, num_rows, index, num_tiles, target, self.row_bytes)
            here = {**places, plan.column: column}

            def finish_row(row: Int, _: Sequence[Val]) -> None:
                masks = {name: self.along(name, at[name], plan.row, row) for name in self.masks}
                finish = self.finish(plan.column, masks, {**here, plan.row: e.add(here[plan.row], row)})
                for tile in range(num_tiles):
                    exist = active if tile == num_tiles - 1 else plan.keys.lanes
                    place = e.gep(target, e.add(e.mul(row, self.row_bytes), tile * TILE_BYTES_PER_ROW))
                    score = finish.score(e.load(self.key_type, place), 0, tile * plan.keys.lanes, exist)
                    e.store(self.only(score, exist), place)

            if scores.finish is not None or active < plan.keys.lanes:
                e.loop(0, num_rows, 1, finish_row)

        self.panels(plan.keys, panel)

    def emit_sums(self, num_rows: int, at: Mapping[str, Val]) -> None:
        """The results of a tile: powers are split, sums go to memory and from there to the result."""
        e, plan = self.e, self.plan
        self._split_rows(num_rows, self.scores, self.row_bytes, plan.num_keys)

        def panel(index: Int, num_tiles: int, active: int) -> None:
            pitch, type = num_tiles * TILE_BYTES_PER_ROW, vec("float", plan.channels.lanes)
            offset = plan.values_offset
            self._multiply(plan.tiled_values, offset, num_rows, index, num_tiles, self.totals, pitch)

            def store_row(row: Int, _: Sequence[Val]) -> None:
                first = e.gep(self.totals, e.mul(row, pitch))
                sums = [e.load(type, e.gep(first, tile * type.size_bytes)) for tile in range(num_tiles)]
                self.store_results(sums, 1, at["y"], index, num_tiles, active, first=row)

            e.loop(0, num_rows, 1, store_row)

        self.panels(plan.channels, panel)

    def _split_rows(self, num_rows: int, source: Val, pitch_bytes: int, count: int) -> None:
        """Rows of so many elements in planes: of each step of the depth those of all pieces."""
        e, plan = self.e, self.plan
        planes, num_full, rest = self.at(plan.planes_offset), *divmod(count, TILE_DEPTH)

        def step(row: Int, active: int, number: Int, *_: object) -> None:
            at = e.gep(source, e.add(e.mul(row, pitch_bytes), e.mul(number, TILE_DEPTH * ELEMENT_BYTES)))
            pieces = tiles.split_row(e, at, DType.FLOAT32, active, plan.num_pieces)
            to = e.add(e.mul(row, TILE_BYTES_PER_ROW), e.mul(number, plan.num_pieces * plan.plane_bytes))
            tiles.store_pieces(e, pieces, e.gep(planes, to), plan.plane_bytes)

        def split(row: Int, _: Sequence[Val]) -> None:
            e.loop(0, num_full, 1, partial(step, row, TILE_DEPTH))
            if rest:
                step(row, rest, num_full)

        e.loop(0, num_rows, 1, split)

    def _multiply(
        self,
        factor: TiledFactor,
        offset: int,
        num_rows: int,
        index: Int,
        num_tiles: int,
        target: Val,
        pitch_bytes: int,
    ) -> None:
        """A panel of a packed factor times the rows in planes, to rows `pitch_bytes` apart."""
        e, plan, terms = self.e, self.plan, self.plan.terms
        assert terms is not None
        block = Block(-(-num_rows // TILE_ROWS), num_tiles)
        planes = self.at(plan.planes_offset)
        panel = e.gep(self.at(offset), e.mul(index, factor.panel_bytes))
        tiles.clear_sums(e, block, terms)

        def step(number: Int, _: Sequence[Val]) -> None:
            a = e.gep(planes, e.mul(number, plan.num_pieces * plan.plane_bytes))
            b = e.gep(panel, e.mul(number, plan.num_pieces * num_tiles * TILE_BYTES))
            tiles.multiply(
                e,
                block,
                terms,
                lambda piece, i: e.gep(a, piece * plan.plane_bytes + i * TILE_BYTES),
                lambda piece, j: e.gep(b, (piece * num_tiles + j) * TILE_BYTES),
            )

        e.loop(0, factor.num_steps, 1, step, nonempty=True)
        tiles.store_sums(e, block, target, pitch_bytes)
