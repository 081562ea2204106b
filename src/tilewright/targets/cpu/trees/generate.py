"""The kernel of an ensemble: keys of a block of rows, then tree after tree, eight walks at a time.

The steps of one walk wait for each other: an offset leads to a record, this to a key of the row, their
comparison to the next offset. So eight walks go on side by side in one loop: those of eight rows through
one tree, or, for rows that are fewer, those of one row through eight trees. Nothing branches on data. Each
row adds its leaves in the order of the trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from tilewright.ir.dtype import DType
from tilewright.ir.nest import Operand
from tilewright.ir.ops.trees import START
from tilewright.records import dataclass
from tilewright.targets.cpu.cut import choose_num_chunks
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.kernel_function import kernel_function
from tilewright.targets.cpu.trees.pack import TREES_AT_ONCE, Tables
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import I32, I64, Int, Type, Val, vec

TEMPLATE = "trees"
ROWS_AT_ONCE = 8
# Keys of a block of rows, which are read again for every tree: with fewer rows the records of large trees
# would come from memory too often (100 trees of depth 12 on 10,000 rows: 17.5 ms in blocks of 128, 10 ms in
# blocks of 512).
_BLOCK_BYTES = 64 << 10
_MOST_ROWS = 512


def generate_trees(
    x: Operand,
    result: Operand,
    tables: Tables,
    combine: str,
    num_steps: int,
    isa: Isa,
    *,
    has_rows: bool = False,
) -> Kernel:
    """The kernel; `num_steps` are those of all rows through all trees. `has_rows`: a run may have fewer."""
    num_rows = x.shape[0]
    block = _block_rows(num_rows, len(tables.columns) * x.dtype.size_bytes, num_steps)
    args = [x, result]
    names = ("columns", "missing", "records", "trees", "weights")
    for number, name in enumerate(names):
        data = getattr(tables, name)
        args.append(Operand("table", number, DType.from_numpy(data.dtype), data.shape, data))
    e = Emitter(attributes=isa.function_attributes)
    with kernel_function(e, args, has_rows=has_rows) as function:
        walk = _Walk(e, isa, x, result, tables, combine, block, function.scratch, function.pointers)
        first = e.mul(function.chunk, block) if num_rows > block else 0
        asked = function.num_rows()
        count = e.min(block, e.sub(num_rows if asked is None else asked, first))
        e.if_(e.compare("sgt", count, 0), lambda: walk.rows(first, count))
    return function.kernel(
        TEMPLATE,
        num_chunks=-(-num_rows // block),
        scratch_bytes=walk.scratch_bytes,
        template=TEMPLATE,
        notes=(f"{len(tables.trees)} trees", f"depth {tables.depth}", f"blocks of {block} rows"),
    )


def _block_rows(num_rows: int, row_bytes: int, num_steps: int) -> int:
    """Rows of a chunk: whole groups, few enough for a cache and for threads to share."""
    most = max(_BLOCK_BYTES // max(row_bytes, 1), ROWS_AT_ONCE)
    shared = -(-num_rows // choose_num_chunks(num_rows, num_steps))
    rows = min(most, shared, _MOST_ROWS)
    return max(-(-rows // ROWS_AT_ONCE), 1) * ROWS_AT_ONCE


@dataclass(slots=True)
class _Walk:
    """Emits the work of one block of rows."""

    e: Emitter
    isa: Isa
    x: Operand
    result: Operand
    tables: Tables
    combine: str
    block: int
    scratch: Val
    pointers: Sequence[Val]
    float_type: Type = field(init=False)
    key_type: Type = field(init=False)
    totals: Val = field(init=False)

    def __post_init__(self) -> None:
        is_double = self.x.dtype is DType.FLOAT64
        self.float_type = vec("double" if is_double else "float")
        self.key_type = vec("i64" if is_double else "i32")
        self.totals = self.e.gep(self.scratch, self._keys_bytes)

    @property
    def _size(self) -> int:
        return self.x.dtype.size_bytes

    @property
    def _row_bytes(self) -> int:
        return len(self.tables.columns) * self._size

    @property
    def _keys_bytes(self) -> int:
        return -(-self.block * self._row_bytes // 64) * 64

    @property
    def _total_bytes(self) -> int:
        return self.tables.stride * self._size

    @property
    def scratch_bytes(self) -> int:
        """Keys and totals of a block."""
        return self._keys_bytes + self.block * self._total_bytes

    def rows(self, first: Int, count: Int) -> None:
        """All of some rows: their keys, their walks, their results."""
        e = self.e
        e.loop(0, count, 1, lambda row, _: self._keys(e.add(first, row), row))
        num_totals = self.block * self.tables.stride
        start = e.constant(self.float_type, START[self.combine])
        e.loop(0, num_totals, 1, lambda i, _: e.store(start, e.gep(self.totals, e.mul(i, self._size))))

        def by_rows() -> None:
            # The last group may reach beyond the rows: their keys are whatever was there, their totals are
            # not read.
            e.loop(0, len(self.tables.trees), 1, lambda tree, _: self._by_rows(tree, count))

        def by_trees() -> None:
            e.loop(0, count, 1, lambda row, _: self._by_trees(row))

        is_few = e.compare("slt", count, ROWS_AT_ONCE)
        e.if_(is_few, by_trees, by_rows)
        e.loop(0, count, 1, lambda row, _: self._store(first, row))

    # Keys.

    def _keys(self, row: Int, place: Int) -> None:
        e, (x, _, columns, missing, *_) = self.e, self.pointers
        count, lanes = len(self.tables.columns), self.isa.lanes() * 4 // self._size
        source = e.gep(x, e.mul(row, self.x.shape[1] * self._size))
        target = e.gep(self.scratch, e.mul(place, self._row_bytes))

        def some(column: Int, lanes: int) -> None:
            offset = e.mul(column, self._size)
            if self.tables.is_plain:
                at = e.gep(source, offset)
            else:
                number = e.cast("sext", e.load(I32, e.gep(columns, e.mul(column, 4))), "i64")
                at = e.gep(source, e.mul(number, self._size))
            value = e.fadd(e.load(self.float_type.with_lanes(lanes), at), 0.0)
            bits = e.bitcast(value, self.key_type.with_lanes(lanes))
            width = 8 * self._size
            ordered = e.xor(bits, e.and_(e.ashr(bits, width - 1), (1 << (width - 1)) - 1))
            none = e.load(ordered.type, e.gep(missing, offset))
            e.store(e.select(e.fcmp("uno", value, value), none, ordered), e.gep(target, offset))

        whole = count // lanes * lanes if self.tables.is_plain else 0
        e.loop(0, whole, lanes, lambda column, _: some(column, lanes))
        e.loop(whole, count, 1, lambda column, _: some(column, 1))

    # Walks.

    def _by_rows(self, tree: Int, count: Int) -> None:
        """One tree: rows of the block, a group at a time."""
        e = self.e
        trees = e.gep(self.pointers[5], e.mul(tree, 16))
        root, depth, target = (e.cast("zext", e.load(I32, e.gep(trees, 4 * i)), "i64") for i in range(3))

        def group(row: Int, _: list[Val]) -> None:
            keys = e.gep(self.scratch, e.mul(row, self._row_bytes))
            ends = self._walked(
                [root] * ROWS_AT_ONCE, [e.gep(keys, i * self._row_bytes) for i in range(ROWS_AT_ONCE)], depth
            )
            totals = e.gep(e.gep(self.totals, e.mul(row, self._total_bytes)), target)
            for number, end in enumerate(ends):
                self._combine(end, e.gep(totals, number * self._total_bytes))

        e.loop(0, count, ROWS_AT_ONCE, group)

    def _by_trees(self, row: Int) -> None:
        """One row: all trees, a group at a time."""
        e = self.e
        keys = e.gep(self.scratch, e.mul(row, self._row_bytes))
        totals = e.gep(self.totals, e.mul(row, self._total_bytes))

        def group(tree: Int, _: list[Val]) -> None:
            trees = e.gep(self.pointers[5], e.mul(tree, 16))
            facts = [
                [e.load(I32, e.gep(trees, 16 * number + 4 * i)) for i in range(3)]
                for number in range(TREES_AT_ONCE)
            ]
            depth = facts[0][1]
            for fact in facts[1:]:
                depth = e.smax(depth, fact[1])
            roots = [e.cast("zext", fact[0], "i64") for fact in facts]
            ends = self._walked(roots, [keys] * TREES_AT_ONCE, e.cast("zext", depth, "i64"))
            for fact, end in zip(facts, ends, strict=True):
                self._combine(end, e.gep(totals, e.cast("zext", fact[2], "i64")))

        e.loop(0, len(self.tables.trees), TREES_AT_ONCE, group)

    def _walked(self, roots: list[Val], keys: list[Val], depth: Val) -> list[Val]:
        """The records where walks end."""
        e, records = self.e, self.pointers[4]

        def step(_: Int, places: list[Val]) -> list[Val]:
            return [self._next(place, own) for place, own in zip(places, keys, strict=True)]

        ends = e.loop(0, depth, 1, step, [(I64, root) for root in roots])
        return [e.gep(records, end) for end in ends]

    def _next(self, place: Val, keys: Val) -> Val:
        e, size = self.e, self._size
        record = e.gep(self.pointers[4], place)
        column = e.cast("zext", e.load(I32, e.gep(record, size)), "i64")
        is_more = e.icmp("sgt", e.load(self.key_type, e.gep(keys, column)), e.load(self.key_type, record))
        side = e.shl(e.cast("zext", is_more, "i64"), 2)
        return e.cast("zext", e.load(I32, e.gep(e.gep(record, side), size + 4)), "i64")

    def _combine(self, record: Val, totals: Val) -> None:
        """Put what a leaf has to the totals of a row."""
        e, tables = self.e, self.tables
        if tables.width == 1:
            self._put(e.load(self.float_type, record), totals)
            return
        offset = e.load(self.key_type, record)
        weights = e.gep(self.pointers[6], offset if self._size == 8 else e.cast("zext", offset, "i64"))
        type = self.float_type.with_lanes(tables.lanes)
        for first in range(0, tables.width, tables.lanes):
            weight = e.load(type, e.gep(weights, first * self._size), align_bytes=self._size)
            self._put(weight, e.gep(totals, first * self._size))

    def _put(self, weight: Val, place: Val) -> None:
        e = self.e
        total = e.load(weight.type, place, align_bytes=self._size)
        if self.combine == "SUM":
            made = e.fadd(total, weight)
        else:
            made = e.select(e.fcmp("olt" if self.combine == "MIN" else "ogt", weight, total), weight, total)
        e.store(made, place, align_bytes=self._size)

    def _store(self, first: Int, row: Int) -> None:
        e, num_targets = self.e, self.result.shape[1]
        source = e.gep(self.totals, e.mul(row, self._total_bytes))
        target = e.gep(self.pointers[1], e.mul(e.add(first, row), num_targets * self._size))

        def one(column: Int, _: list[Val]) -> None:
            offset = e.mul(column, self._size)
            e.store(e.load(self.float_type, e.gep(source, offset)), e.gep(target, offset))

        e.loop(0, num_targets, 1, one)
