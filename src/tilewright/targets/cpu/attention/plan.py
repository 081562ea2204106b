"""The plan of an attention's kernel: two products with a softmax between them, as text and in numbers.

    attention
      product float32 by fma
        a = input0 float32[12, 64, 32]
        ...
      product float32 by fma
        ...
      shift r1
      divide by r1
      heads in 1 part

The first product makes scores of queries and keys, the second sums values by the weights that the softmax
makes of them: `shift` of the largest score of a row, here r1, is taken off all, and the sums are divided by
what `divide by` makes of the sum of the powers. One tile of queries runs through everything: its scores by
panels of keys, their softmax, the weighted sums by panels of channels.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, format_expr
from tilewright.ir.nest import RowsOf
from tilewright.memory.base import aligned
from tilewright.records import dataclass
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW, TILE_ROWS
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.matrix.activations import TiledFactor
from tilewright.targets.cpu.product.matrix.tiles import TERMS, TILE_COLUMNS, Terms
from tilewright.targets.cpu.product.plan import KernelPlan, PlanText, Strided, parse_product
from tilewright.targets.cpu.product.tiling import Panels
from tilewright.text.formatting import counted

ELEMENT_BYTES = 4
_ALIGNMENT_BYTES = 64
# Of the matrix unit's registers those that may hold sums: the others hold factors.
_MOST_TILES = 6

_Place = tuple[bool, str | int]
"""Whether the second product has an operand, and as what: `a`, `b`, `c`, or another by its number."""
_PLACES: Mapping[str, _Place] = {"q": (False, "a"), "k": (False, "b"), "v": (True, "b"), "y": (True, "c")}


def part_name(whole: str, number: int) -> str:
    """What the kernel calls a part of keys or values."""
    return f"{whole} {number}"


def mask_name(read: int) -> str:
    """What the kernel calls the mask that is a read of this number."""
    return f"mask {read}"


@dataclass(frozen=True, slots=True)
class Part:
    """Where the keys or values from number `first` on lie, `count` of them, before they are put together.

    They are the operand of this number beside the factors of their product.
    """

    extra: int
    first: int
    count: int
    is_open: bool = False
    """Whether a run may have fewer, those of one head behind those of another without a gap."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPlan:
    """How an attention is computed: two products, the softmax between them, parts of each head.

    Keys and values may come in parts, a cache and what is new, which the kernel puts together where `b` of
    the products says; there they are of no use but to others.

    `shift` is what is taken off the scores of a row, of its maximum as read 1; `divisor` what powers are
    divided by, of their sum as read 1.

    A head is cut into `num_parts`: some of the tiles, or of few queries spans of keys, as many as the panels
    hold, the last of which may have less. The last few keys may stand alone, behind the panels: their scores
    lie row by row in vectors. Keys and values of few queries are read where they lie, once, unless they are
    packed; what is put together of them `bypasses` the caches or not. Offsets are bytes in the scratch area;
    rows of scores are one vector longer than they need be, so that those of a tile never share a set of the
    first cache.
    """

    scores: KernelPlan
    sums: KernelPlan
    shift: Expr
    divisor: Expr
    key_parts: tuple[Part, ...] = ()
    value_parts: tuple[Part, ...] = ()
    num_parts: int = 1
    bypasses: bool = False

    def __str__(self) -> str:
        return "\n  ".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield "attention"
        for product in (self.scores, self.sums):
            yield from str(product).splitlines()
        for name, parts in (("keys", self.key_parts), ("values", self.value_parts)):
            for part in parts:
                most = "at most " if part.is_open else ""
                yield f"{name} from {part.first}: {most}{part.count} of r{part.extra}"
        yield f"shift {format_expr(self.shift)}"
        yield f"divide by {format_expr(self.divisor)}"
        yield f"heads in {counted(self.num_parts, 'part')}"
        if self.bypasses:
            yield "store past the caches"

    # What is computed.

    @property
    def keys(self) -> Panels:
        """Panels of keys."""
        return self.scores.panels

    @property
    def channels(self) -> Panels:
        """Panels of channels."""
        return self.sums.panels

    @property
    def row(self) -> str:
        """The loop over queries."""
        return self.scores.row.name

    @property
    def column(self) -> str:
        """The loop over keys."""
        return self.scores.vector.name

    @property
    def num_rows(self) -> int:
        """Queries of a head."""
        return self.scores.row.extent

    @property
    def num_columns(self) -> int:
        """Keys of a head."""
        return self.scores.vector.extent

    @property
    def depth(self) -> int:
        """Elements of a query."""
        return self.scores.summed[0].extent

    @property
    def num_channels(self) -> int:
        """Elements of a value."""
        return self.sums.vector.extent

    @property
    def outer(self) -> tuple[StridedLoop, ...]:
        """Loops over heads."""
        return self.scores.outer

    @property
    def num_heads(self) -> int:
        """Attentions that share nothing: combinations of the outer loops."""
        return prod(x.extent for x in self.outer)

    @property
    def num_macs(self) -> int:
        """Multiply-accumulates of both products."""
        return self.scores.num_macs + self.sums.num_macs

    @property
    def row_loop(self) -> RowsOf | None:
        """Of the outermost loop, where a run may have fewer of its rows."""
        return self.outer[0].rows if self.outer else None

    @property
    def num_masks(self) -> int:
        """Operands that scores are finished with."""
        return len(self.scores.extras) - len(self.key_parts)

    @property
    def grows(self) -> bool:
        """Whether keys or values come in parts."""
        return bool(self.key_parts or self.value_parts)

    @property
    def most_past(self) -> int | None:
        """Keys that the first part has at most, where a run may have fewer; None where none has."""
        return self.key_parts[0].count if self.key_parts and self.key_parts[0].is_open else None

    @property
    def operands(self) -> Mapping[str, Strided]:
        """All that is read and written, by the names that the kernel has for it.

        Temporaries that parts make are left out: nothing else reads them.
        """
        return {name: self.strided(name) for name in self._places()}

    def strided(self, name: str) -> Strided:
        """An operand by its name."""
        is_sum, place = self._places()[name]
        product = self.sums if is_sum else self.scores
        return product.extras[place] if isinstance(place, int) else getattr(product, place)

    def steps(self, name: str) -> dict[str, int]:
        """Elements that a step of each loop moves in an operand."""
        is_sum, place = self._places()[name]
        product = self.sums if is_sum else self.scores
        return {loop.name: loop.moves(place) for loop in product.loops}

    def _places(self) -> dict[str, _Place]:
        named = dict(_PLACES)
        sides = ((False, "k", self.key_parts), (True, "v", self.value_parts))
        for is_sum, name, parts in sides:
            if parts and (self.sums if is_sum else self.scores).b.operand.kind == "local":
                del named[name]
            named |= {part_name(name, number): (is_sum, part.extra) for number, part in enumerate(parts)}
        return named | {mask_name(read): (False, read) for read in range(self.num_masks)}

    # How it is cut.

    @property
    def packs(self) -> bool:
        """Whether keys and values are packed head by head."""
        return self.scores.packing != "in place"

    @property
    def num_singles(self) -> int:
        """Keys that stand alone behind the panels."""
        return self.num_columns - self.keys.extent if self.packs else 0

    @property
    def num_chunks(self) -> int:
        """Chunks of heads, or of parts of heads."""
        return self.scores.cut.num_row_parts

    @property
    def terms(self) -> Terms | None:
        """What the matrix unit multiplies; None of products on vectors."""
        return TERMS.get(self.scores.dot)

    @property
    def num_pieces(self) -> int:
        """Bfloat16 pieces of each factor."""
        assert self.terms is not None
        return self.terms.num_pieces

    @property
    def tiled_keys(self) -> TiledFactor:
        """Keys of a head for the matrix unit."""
        return self._tiled(self.scores)

    @property
    def tiled_values(self) -> TiledFactor:
        """Values of a head for the matrix unit."""
        return self._tiled(self.sums)

    def _tiled(self, product: KernelPlan) -> TiledFactor:
        depth, column, vectors = product.summed[0], product.vector, product.panels.num_vectors
        return TiledFactor(depth.extent, column.extent, depth.b, column.b, self.num_pieces, vectors)

    @property
    def most_rows(self) -> int:
        """Rows of the largest tile."""
        return max(t.rows for t in self.scores.row_tiles)

    @property
    def num_tiles(self) -> int:
        """Tiles of a head."""
        return sum(t.count for t in self.scores.row_tiles)

    @property
    def num_keys(self) -> int:
        """Keys of a head, or of a span."""
        return self.keys.extent + self.num_singles

    @property
    def score_stride(self) -> int:
        """Elements from a row of scores to the next."""
        return self.scores.row.c

    @property
    def num_written_rows(self) -> int:
        """Rows of scores and sums that products write: those of whole tiles on the matrix unit."""
        return self.most_rows if self.terms is None else -(-self.most_rows // TILE_ROWS) * TILE_ROWS

    @property
    def values_offset(self) -> int:
        """Where the packed values begin, behind the keys."""
        if self.terms is not None:
            return self.tiled_keys.size_bytes
        return _bytes(self.keys.padded_extent * self.depth) if self.packs else 0

    @property
    def scores_offset(self) -> int:
        """Where the scores of a tile begin."""
        if self.terms is not None:
            return self.values_offset + self.tiled_values.size_bytes
        return self.values_offset + (_bytes(self.num_keys * self.channels.padded_extent) if self.packs else 0)

    @property
    def padded_rows(self) -> int:
        """Lanes of whole vectors that have one for each row of a tile."""
        return -(-self.most_rows // self.keys.lanes) * self.keys.lanes

    @property
    def rows_offset(self) -> int:
        """Where the two numbers of each row begin: what is taken off its scores, the inverse of their sum."""
        return self.scores_offset + _bytes(self.num_written_rows * self.score_stride)

    @property
    def lanes_offset(self) -> int:
        """Where a vector of each row begins whose lanes are still to be combined."""
        return self.rows_offset + _bytes(2 * self.padded_rows)

    @property
    def singles_offset(self) -> int:
        """Where the scores of keys that stand alone begin."""
        return self.lanes_offset + _bytes(self.padded_rows * self.keys.lanes)

    @property
    def totals_offset(self) -> int:
        """Where the sums of earlier keys begin, if they are many: of a panel, without packing of all."""
        return self.singles_offset + _bytes(self.padded_rows * self.num_singles)

    @property
    def scratch_bytes(self) -> int:
        """All of it."""
        if self.terms is None:
            return self.planes_offset
        num_steps = max(self.tiled_keys.num_steps, self.tiled_values.num_steps)
        return self.planes_offset + num_steps * self.num_pieces * self.plane_bytes

    @property
    def planes_offset(self) -> int:
        """Where the pieces of queries, later of weights, begin on the matrix unit: behind everything else."""
        channels = self.channels.width if self.packs else self.channels.padded_extent
        return self.totals_offset + _bytes(self.num_written_rows * channels)

    @property
    def plane_bytes(self) -> int:
        """From one piece of a step's rows to the next."""
        return self.num_written_rows * TILE_BYTES_PER_ROW


def _bytes(num_elements: int) -> int:
    return aligned(num_elements * ELEMENT_BYTES, _ALIGNMENT_BYTES)


_PARTS = re.compile(r"in ([1-9]\d*) parts?", re.ASCII)
_PART = re.compile(r"from (\d+): (at most )?([1-9]\d*) of r(\d+)", re.ASCII)


def parse_attention(text: str) -> AttentionPlan:
    """The plan that prints as this text.

    Raises:
        UsageError: the text is not that of a plan; names the line.
    """
    reader = PlanText(text)
    scores, sums = (parse_product(block) for block in reader.blocks("product", 2))
    types = [DType.FLOAT32] * 2

    def parts(word: str) -> tuple[Part, ...]:
        found = (reader.matched(_PART, line) for line in reader.lines.get(word, ()))
        return tuple(
            Part(int(extra), int(first), int(count), bool(most)) for first, most, count, extra in found
        )

    (num_parts,) = reader.matched(_PARTS, reader.one("heads"))
    shift, divisor = reader.expression("shift", types), reader.expression("divide", types, "by ")
    if shift is None or divisor is None:
        raise reader.error("a softmax has a line that begins with shift, and one with divide by")
    plan = AttentionPlan(
        scores, sums, shift, divisor, parts("keys"), parts("values"), int(num_parts), "store" in reader.lines
    )
    reader.check(plan)
    if (len(scores.summed), len(sums.summed)) != (1, 1):
        raise reader.error("each of the two products has one line that begins with sum")
    for is_same, what in (
        (scores.max_rows == sums.max_rows, "rows of their tiles"),
        (scores.row.c == sums.row.a, "distance of rows of scores"),
        (scores.cut == sums.cut, "chunks"),
        (scores.row.extent == sums.row.extent, "queries"),
        (scores.vector.extent == sums.summed[0].extent, "keys"),
        ([x.extent for x in scores.outer] == [x.extent for x in sums.outer], "heads"),
    ):
        if not is_same:
            raise reader.error(f"the two products differ in the {what}")
    for product, of in ((scores, plan.key_parts), (sums, plan.value_parts)):
        if any(part.extra >= len(product.extras) for part in of):
            raise reader.error("a part of keys or values is none of the product's operands r0, r1 ...")
        ends = [0, *itertools.accumulate(part.count for part in of)]
        if of and [*(part.first for part in of), plan.num_columns] != ends:
            raise reader.error(
                f"parts of keys or values are not all {plan.num_columns}, one behind the other"
            )
    for name, strided in plan.operands.items():
        may_be_bytes = name.startswith("mask") or (name == "y" and plan.packs)
        if not may_be_bytes and strided.operand.dtype is not DType.FLOAT32:
            raise reader.error(f"but for masks an attention's operands are float32: {strided}")
    if scores.dot != sums.dot:
        raise reader.error("the two products are by different means")
    for product in (scores, sums) if scores.dot in TERMS else ():
        if TERMS[scores.dot].is_bytes:
            raise reader.error("attention is by fma or by bfloat16 products")
        tiles = -(-product.max_rows // TILE_ROWS) * product.panels.num_vectors
        if product.panels.lanes != TILE_COLUMNS or tiles > _MOST_TILES:
            raise reader.error(f"vectors of {TILE_COLUMNS}, at most {_MOST_TILES} tiles at a time")
    if scores.row.c < scores.panels.padded_extent:
        raise reader.error(f"rows of scores are at least {scores.panels.padded_extent} elements apart")
    return plan


def operand_sizes(problem: AttentionPlan) -> list[int]:
    """Bytes of what is read and written."""
    operands = (strided.operand for strided in problem.operands.values())
    return [prod(operand.shape) * operand.dtype.size_bytes for operand in operands]
