"""The plan of a product's kernel: all that its text is made of, as a value that is printed and read back.

    product float32 by fma
      a = input0 float32[56, 64]
      b = input1 float32[64, 128] in constant panels
      c = output0 float32[56, 128]
      r0 = input2 float32[128]
      column n 128: b 1, c 1, r0 1
      row m 56: a 64, c 128
      sum k 64: a 1, b 128
      tile 8 rows by 3 vectors of 16
      chunks 4 by 1, of row tiles
      finish max(add(acc, r0), 0.0)

Loops say what one step moves in each operand, in elements; an operand's offset is that of iteration zero.
Of B they say how it lies before it is packed: how panels lie follows from the packing, the dot and the loops'
order. One type serves every generator of products: the dot says which of them a plan is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from math import prod
from typing import Literal, TypeVar, get_args

from tilewright.errors import UsageError
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, format_expr, parse_expr
from tilewright.ir.nest import Operand, RowsOf
from tilewright.records import dataclass
from tilewright.targets.cpu.cut import Cut, CutWork, rank_cuts
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.product.loops import Spread, StridedLoop, Window
from tilewright.targets.cpu.product.tiling import Panels, RowTile, split_rows

Packing = Literal[
    "in place",
    "in panels",
    "in panels by head",
    "in constant panels",
    "in constant panels of 24 bits",
    "in constant panels of 16 bits",
    "in constant panels of 4 bits by 16",
    "in constant panels of 4 bits by 32",
    "in constant panels of 4 bits by 64",
    "in constant panels of 4 bits by 128",
    "in constant panels of 4 bits by 16 with zeros",
    "in constant panels of 4 bits by 32 with zeros",
    "in constant panels of 4 bits by 64 with zeros",
    "in constant panels of 4 bits by 128 with zeros",
    "in constant panels of 8 bits by 16",
    "in constant panels of 8 bits by 32",
    "in constant panels of 8 bits by 64",
    "in constant panels of 8 bits by 128",
    "in constant panels of 8 bits by 16 with zeros",
    "in constant panels of 8 bits by 32 with zeros",
    "in constant panels of 8 bits by 64 with zeros",
    "in constant panels of 8 bits by 128 with zeros",
]
"""How the kernel finds B: as it lies, packed by a kernel before it, by itself for each combination of the
outer loops, packed when the model is compiled: rounded to 24 bits, of a half type as it is, of few bits with
a scale, and perhaps a zero point, for so many steps of a column."""

PACKINGS: tuple[Packing, ...] = get_args(Packing)

Staging = Literal[
    "in place",
    "copied",
    "in bfloat16 planes",
    "in int8 planes",
    "in Winograd tiles of 2",
    "in Winograd tiles of 4",
]
"""How the kernel finds A: as it lies, copied by a kernel before it with its padding, split by itself into
bfloat16 pieces or into digits with a scale for each row, or
transformed by itself tile by tile; products of such tiles are transformed back."""

STAGINGS: tuple[Staging, ...] = get_args(Staging)

Dot = Literal[
    "fma",
    "vnni",
    "pairs",
    "widened",
    "vnni by column",
    "pairs by column",
    "widened by column",
    "byte tiles",
    "1 bfloat16 product",
    "3 bfloat16 products",
    "6 bfloat16 products",
    "6 int8 products",
    "8 int8 products",
]
"""What multiplies: multiply-adds of floats; words of four bytes by an instruction, by 16-bit pairs, by 32-bit
numbers; one byte of each column's own; tiles of bytes; tiles of so many products of bfloat16 pieces, or of
digits of fixed-point numbers."""

DOTS: tuple[Dot, ...] = get_args(Dot)
FLOAT_TILE_DOTS: tuple[Dot, ...] = tuple(dot for dot in DOTS if "product" in dot)
"""Those by which the matrix unit multiplies factors of float32."""

Units = Literal[
    "row tiles",
    "whole rows",
    "pairs of tiles",
    "pairs of tiles across panels",
    "blocks",
    "lines",
    "image tiles",
    "heads",
    "directions",
]
"""Pieces that rows are cut into, which chunks share."""

UNITS: tuple[Units, ...] = get_args(Units)

# Tiles of rows that the matrix unit multiplies by the same bytes of B.
TILES_TOGETHER = 2


@dataclass(frozen=True, slots=True, eq=False)
class Strided:
    """An operand and the element of it that iteration zero of all loops meets."""

    operand: Operand
    offset: int = 0

    def __str__(self) -> str:
        o = self.operand
        offset = f" {self.offset:+d}" if self.offset else ""
        return f"{o.kind}{o.position} {o.dtype}[{', '.join(map(str, o.shape))}]{offset}"


@dataclass(frozen=True, slots=True, eq=False)
class ZeroPoints:
    """What is taken off the bytes of both factors, as they lie in their operands.

    What `a_operand` holds when the kernel runs is taken off those of A, too. A kernel that packs B leaves
    what A's zero point makes of each column in `b_sums`.
    """

    a: int = 0
    b: int = 0
    a_operand: Operand | None = None
    b_sums: Operand | None = None


@dataclass(frozen=True, slots=True, eq=False)
class KernelPlan:
    """A product's kernel before it is text. Two plans are the same if they print the same.

    Expressions read the operands of the epilogue by their number in `extras`. `summed` is in the order of the
    code. With `block_parts`, sums go through so many parts of `BLOCK_STEPS` steps before the next panel's
    turn.
    """

    dtype: DType
    dot: Dot
    a: Strided
    b: Strided
    c: Strided
    extras: tuple[Strided, ...]
    staging: Staging
    packing: Packing
    zeros: ZeroPoints | None
    vector: StridedLoop
    row: StridedLoop
    outer: tuple[StridedLoop, ...]
    summed: tuple[StridedLoop, ...]
    windows: tuple[Window, ...]
    spread: Spread | None
    max_rows: int
    panels: Panels
    cut: Cut
    units: Units
    block_parts: int | None
    fetches_ahead: bool
    init: Expr | None
    finish: Expr | None

    @property
    def loops(self) -> tuple[StridedLoop, ...]:
        """All of them."""
        return (self.vector, self.row, *self.outer, *self.summed)

    @property
    def cuts_tiles(self) -> bool:
        """Whether chunks may begin within a row of tiles."""
        return self.units == "row tiles"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Those of the epilogue."""
        return tuple(extra.operand for extra in self.extras)

    @property
    def row_tiles(self) -> tuple[RowTile, ...]:
        """The tiles that rows are cut into; on the matrix unit of one size, so that the last may overlap."""
        if self.dot == "byte tiles":
            return (RowTile(0, -(-self.row.extent // self.max_rows), self.max_rows),)
        return split_rows(self.row.extent, self.max_rows)

    @property
    def num_units(self) -> int:
        """Pieces that rows are cut into, which chunks share."""
        tiles = 1 if self.units == "whole rows" else sum(t.count for t in self.row_tiles)
        num_tiles = prod(x.extent for x in self.outer) * tiles
        return -(-num_tiles // TILES_TOGETHER) if self.units.startswith("pairs") else num_tiles

    @property
    def row_loop(self) -> StridedLoop | None:
        """The outermost loop of the pieces, if it is one over rows of which a run may have fewer."""
        loop = next(iter(self.outer), None if self.units == "whole rows" else self.row)
        return loop if loop is not None and loop.rows is not None else None

    @property
    def num_macs(self) -> int:
        """Multiply-accumulates, padding taps included."""
        return prod(x.extent for x in self.loops)

    def ranked_cuts(self, isa: Isa, macs_per_operation: int = 1) -> tuple[Cut, ...]:
        """Cuts of its rows and panels, the best first; an operation of a lane does so many products."""
        operations = self.num_macs // macs_per_operation
        varying = zip(self.extras, self.row.extras, self.vector.extras, strict=True)
        by_both = [self.c, *(extra for extra, of_row, of_column in varying if of_row and of_column)]
        a, b, *c = (x.operand.num_elements * x.operand.dtype.size_bytes for x in (self.a, self.b, *by_both))
        lanes = isa.vector_bytes[0] // self.dtype.size_bytes
        cycles = operations / (lanes * isa.fmas_per_cycle)
        return rank_cuts(
            CutWork(self.num_units, self.panels.num_panels, operations, cycles, a, b, sum(c)), isa
        )

    def window_of(self, position: str) -> Window | None:
        """The padded axis whose output position is this loop."""
        return next((w for w in self.windows if w.position == position), None)

    def __str__(self) -> str:
        return "\n  ".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"product {self.dtype} by {self.dot}"
        yield f"a = {self.a}" + (f" {self.staging}" if self.staging != "in place" else "")
        yield f"b = {self.b} {self.packing}"
        yield f"c = {self.c}"
        if self.zeros is not None:
            yield f"zeros {self.zeros.a} and {self.zeros.b}"
            if self.zeros.a_operand is not None:
                yield f"za = {Strided(self.zeros.a_operand)}"
            if self.zeros.b_sums is not None:
                yield f"sums = {Strided(self.zeros.b_sums)}"
        yield from (f"r{number} = {extra}" for number, extra in enumerate(self.extras))
        yield _loop_line("column", self.vector)
        yield _loop_line("row", self.row)
        yield from (_loop_line("outer", x) for x in self.outer)
        yield from (_loop_line("sum", x) for x in self.summed)
        for w in self.windows:
            index = f"{w.position_step} {w.position} {w.tap_step} {w.tap} {w.offset:+d}"
            yield f"window {index} of {w.size}"
        if self.spread is not None:
            yield f"groups of {self.spread.size} along {self.spread.loop.name}"
        panels = self.panels
        columns = f" of {panels.extent} columns" if panels.extent != self.vector.extent else ""
        yield f"tile {self.max_rows} rows by {panels.num_vectors} vectors of {panels.lanes}{columns}"
        yield f"chunks {self.cut.num_row_parts} by {self.cut.num_panel_parts}, of {self.units}"
        if self.block_parts is not None:
            yield f"blocks of {self.block_parts} parts"
        if self.fetches_ahead:
            yield "fetch the next panel"
        if self.init is not None:
            yield f"begin {format_expr(self.init)}"
        if self.finish is not None:
            yield f"finish {format_expr(self.finish)}"


def _loop_line(role: str, loop: StridedLoop) -> str:
    moved = {"a": loop.a, "b": loop.b, "c": loop.c}
    moved |= {f"r{number}": step for number, step in enumerate(loop.extras)}
    steps = ", ".join(f"{name} {step}" for name, step in moved.items() if step)
    rows = "" if loop.rows is None else f" rows {loop.rows.num_rows} {loop.rows.per_row} {loop.rows.size}"
    return f"{role} {loop.name or '-'} {loop.extent}{rows}: {steps}".rstrip()


_STRIDED = re.compile(r"([a-z]+)(\d+) (\w+)\[((?:\d+(?:, \d+)*)?)\](?: ([+-]\d+))?", re.ASCII)
_LOOP = re.compile(r"(\S+) ([1-9]\d*)(?: rows (\d+) (\d+) (\d+))?:(.*)", re.ASCII)
_STEP = re.compile(r"(\w+) (-?\d+)", re.ASCII)
_WINDOW = re.compile(r"(\d+) (\S+) (\d+) (\S+) ([+-]\d+) of (\d+)", re.ASCII)
_TILE = re.compile(
    r"([1-9]\d*) rows by ([1-9]\d*) vectors of ([1-9]\d*)(?: of ([1-9]\d*) columns)?", re.ASCII
)
_CHUNKS = re.compile(r"([1-9]\d*) by ([1-9]\d*), of ({})".format("|".join(UNITS)), re.ASCII)
_GROUPS = re.compile(r"of ([1-9]\d*) along (\S+)", re.ASCII)
_ZEROS = re.compile(r"(-?\d+) and (-?\d+)", re.ASCII)
_BLOCKS = re.compile(r"of ([1-9]\d*) parts", re.ASCII)
_LONG = re.compile(r"\d{19}")
# Each number of a tile that is read: of larger ones the code would not end, nor the machine code of vectors.
_LARGEST_TILE = 64


def parse_product(text: str) -> KernelPlan:
    """The plan that prints as this text.

    Raises:
        UsageError: the text is not that of a plan; names the line.
    """
    reader = _ProductText(text)
    plan = reader.plan()
    reader.check(plan)
    if plan.spread is not None and plan.packing != "in constant panels":
        raise reader.error("groups that lie side by side in a vector read b in constant panels")
    return plan


TextT = TypeVar("TextT", bound=str)


class PlanText:
    """The lines of a plan below its first, by their first words.

    Lines that are indented further belong to the last one that is not: they are its block.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.head, *below = text.strip("\n").split("\n")
        self.line = self.head
        self.lines: dict[str, list[str]] = {}
        self._blocks: list[list[str]] = []
        depth = len(below[0]) - len(below[0].lstrip()) if below else 0
        for line in below:
            if line[: depth + 1].isspace() and self._blocks:
                self._blocks[-1].append(line[depth:])
                continue
            word, _, rest = line.strip().partition(" ")
            self.lines.setdefault(word, []).append(rest)
            self._blocks.append([line.strip()])

    def blocks(self, word: str, count: int) -> list[str]:
        """The lines that begin with a word, each with what belongs to it."""
        found = ["\n".join(block) for block in self._blocks if block[0].partition(" ")[0] == word]
        if len(found) != count:
            raise self.error(f"{len(found)} lines begin with {word!r}, {count} are needed")
        return found

    def check(self, plan: object) -> None:
        """Complain about the first line that the plan of this text prints otherwise."""
        as_given, as_read = (t.strip("\n").split("\n") for t in (self.text, str(plan)))
        for given, read in zip_longest(map(str.strip, as_given), map(str.strip, as_read), fillvalue=""):
            if given != read:
                self.line = given
                raise self.error(
                    f"a plan of these lines says {read!r} here" if read else "no plan has this line"
                )

    def one(self, word: str) -> str:
        """What follows the word in the one line that begins with it."""
        found = self.lines.get(word, [])
        if len(found) != 1:
            raise self.error(f"{len(found)} lines begin with {word!r}, one is needed")
        (self.line,) = found
        return found[0]

    def expression(
        self, word: str, types: Sequence[DType], after: str = "", total: DType = DType.FLOAT32
    ) -> Expr | None:
        """What a line says over reads of these types, and a sum; None without such a line."""
        if word not in self.lines:
            return None
        try:
            return parse_expr(self.one(word).removeprefix(after), types, total)
        except ValueError as error:
            raise self.error(str(error)) from None

    def matched(self, pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
        """The groups of a pattern that a line must match."""
        self.line = text
        found = pattern.fullmatch(text.strip())
        if found is None:
            raise self.error(f"expected {pattern.pattern}")
        if _LONG.search(text):
            raise self.error("a number has more than 18 digits")
        return found.groups()

    def error(self, what: str) -> UsageError:
        """What is wrong with the line that was looked at last."""
        return UsageError(f"kernel plan, at {self.line.strip()!r}: {what}.")


class _ProductText(PlanText):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        dtype, dot = self.matched(re.compile(r"product (\w+) by (.+)"), self.head)
        self.dtype = self.dtype_of(dtype)
        self.dot = next((known for known in DOTS if known == dot), None)
        if self.dot is None:
            raise self.error(f"products are by {', '.join(DOTS)}")
        self.is_of_bytes = self.dot != "fma" and self.dot not in FLOAT_TILE_DOTS
        if self.is_of_bytes and self.dtype is not DType.INT32:
            raise self.error(f"sums of bytes by {self.dot} are int32")

    def plan(self) -> KernelPlan:
        b, packing = self.ending("b", PACKINGS)
        if packing is None:
            raise self.error(f"b ends with how it is read: {', '.join(PACKINGS)}")
        a, staging = self.ending("a", STAGINGS)
        zeros = self.zeros()
        extras: list[Strided] = []
        while f"r{len(extras)}" in self.lines:
            extras.append(self.strided(f"r{len(extras)}"))
        num_extras = len(extras)
        vector, row = (self.loop(self.one(role), num_extras) for role in ("column", "row"))
        if vector.c != 1:
            raise self.error("the columns of c lie side by side: c 1")
        summed = self.loops("sum", num_extras)
        rows, vectors, lanes, columns = self.matched(_TILE, self.one("tile"))
        if max(int(rows), int(vectors), int(lanes)) > _LARGEST_TILE:
            raise self.error(f"rows, vectors and lanes of a tile are at most {_LARGEST_TILE}")
        row_parts, panel_parts, of = self.matched(_CHUNKS, self.one("chunks"))
        types = [extra.operand.dtype.compute for extra in extras]
        init, finish = (self.expression(word, types, total=self.dtype) for word in ("begin", "finish"))
        assert self.dot is not None
        return KernelPlan(
            dtype=self.dtype,
            dot=self.dot,
            a=self.strided_of(a),
            b=self.strided_of(b),
            c=self.strided("c"),
            extras=tuple(extras),
            staging=staging or "in place",
            packing=packing,
            zeros=zeros,
            vector=vector,
            row=row,
            outer=self.loops("outer", num_extras),
            summed=summed,
            windows=tuple(map(self.window, self.lines.get("window", ()))),
            spread=self.spread(summed),
            max_rows=int(rows),
            panels=Panels(int(lanes), int(vectors), int(columns or vector.extent)),
            cut=Cut(int(row_parts), int(panel_parts)),
            units=of,  # type: ignore[arg-type]  # matched
            block_parts=int(self.matched(_BLOCKS, self.one("blocks"))[0]) if "blocks" in self.lines else None,
            fetches_ahead="fetch" in self.lines,
            init=init,
            finish=finish,
        )

    def ending(self, word: str, endings: Sequence[TextT]) -> tuple[str, TextT | None]:
        """The line of a word without which of the endings it has."""
        given = self.one(word)
        found = next((x for x in sorted(endings, key=len, reverse=True) if given.endswith(f" {x}")), None)
        return given.removesuffix(f" {found}"), found

    def zeros(self) -> ZeroPoints | None:
        if not self.is_of_bytes:
            return None
        a, b = map(int, self.matched(_ZEROS, self.one("zeros")))
        others = (self.strided(word).operand if word in self.lines else None for word in ("za", "sums"))
        return ZeroPoints(a, b, *others)

    def strided(self, word: str) -> Strided:
        return self.strided_of(self.one(word))

    def strided_of(self, text: str) -> Strided:
        kind, position, dtype, shape, offset = self.matched(_STRIDED, text.removeprefix("= "))
        if kind not in ("input", "output", "local"):
            raise self.error(f"{kind}{position} is none of input, output, local")
        axes = tuple(int(axis) for axis in shape.split(", ") if axis)
        operand = Operand(kind, int(position), self.dtype_of(dtype), axes)  # type: ignore[arg-type]  # checked
        return Strided(operand, int(offset or 0))

    def loops(self, role: str, num_extras: int) -> tuple[StridedLoop, ...]:
        return tuple(self.loop(text, num_extras) for text in self.lines.get(role, ()))

    def loop(self, text: str, num_extras: int) -> StridedLoop:
        name, extent, num_rows, per_row, size, steps = self.matched(_LOOP, text)
        moved: dict[str, int] = {}
        for step in filter(None, map(str.strip, (steps or "").split(","))):
            operand, amount = self.matched(_STEP, step)
            moved[operand] = int(amount)
        rows = None if num_rows is None else RowsOf(int(num_rows), int(per_row), int(size))
        extras = tuple(moved.get(f"r{number}", 0) for number in range(num_extras))
        a, b, c = (moved.get(operand, 0) for operand in "abc")
        return StridedLoop(int(extent), a, b, c, extras, "" if name == "-" else name, rows)

    def window(self, text: str) -> Window:
        position_step, position, tap_step, tap, offset, size = self.matched(_WINDOW, text)
        return Window(position, int(position_step), tap, int(tap_step), int(offset), int(size))

    def spread(self, summed: Sequence[StridedLoop]) -> Spread | None:
        if "groups" not in self.lines:
            return None
        size, name = self.matched(_GROUPS, self.one("groups"))
        loop = next((x for x in summed if x.name == name), None)
        if loop is None:
            raise self.error(f"no summed loop is called {name!r}")
        return Spread(loop, int(size))

    def dtype_of(self, name: str) -> DType:
        if name.upper() not in DType.__members__:
            raise self.error(f"{name!r} is no element type")
        return DType[name.upper()]
