"""Where emission stands inside a nest: which loops are bound, where each access points, what is loaded.

A frame is never changed once made: binding a loop gives a new one. Frames of the same straight piece of code
share their memory of loaded values; a loop body or a branch gets its own, on top of what surrounds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Call, Const, Expr, fold
from tilewright.ir.nest import Affine
from tilewright.records import dataclass
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.exprgen import (
    Divisor,
    compute_type,
    convert,
    emit_expr,
    prepare_divisor,
    storage_type,
    to_storage,
)
from tilewright.targets.llvm.layout import REPORT_BYTES, IndexCheck
from tilewright.targets.llvm.refs import DataTerm, Guard, LinearNest, Ref, TableTerm
from tilewright.targets.llvm.values import I64, PTR, Int, Type, Val, vec, vector_literal

# Tables are stored with this many entries more, so that vectors of them may be read at their end.
_TABLE_PADDING = 64


@dataclass(frozen=True, slots=True)
class Bound:
    """A loop's current index: `base + offset`, known to lie in `[low, high]` (all lanes of a vector)."""

    base: Val | None
    offset: int
    low: int
    high: int


class Memo:
    """Values by key; looks through to the memo of the surrounding code."""

    __slots__ = ("_found", "_outer", "divisors")

    def __init__(self, outer: Memo | None = None) -> None:
        self._outer = outer
        self._found: dict[object, Val] = {}
        self.divisors: dict[tuple[int, int], Divisor] = {}

    def get(self, key: object) -> Val | None:
        """The value, if it was made here or around here."""
        found = self._found.get(key)
        if found is None and self._outer is not None:
            return self._outer.get(key)
        return found

    def divisor(self, key: tuple[int, int]) -> Divisor | None:
        """What was prepared of the divisor of a quotient."""
        found = self.divisors.get(key)
        return self._outer.divisor(key) if found is None and self._outer is not None else found

    def put(self, key: object, value: Val) -> Val:
        """Remember a value made here."""
        self._found[key] = value
        return value


class LookedAt(NamedTuple):
    """An index that is data, and its lanes that exist and lie outside their axis."""

    check: IndexCheck
    value: Val
    outside: Val


@dataclass(frozen=True, slots=True)
class Reports:
    """Where a kernel notes indices outside their axes: `pointer` to a report for each check, in order."""

    pointer: Val | None
    checks: Sequence[IndexCheck]

    def note(self, e: Emitter, looked_at: Sequence[LookedAt]) -> None:
        """Note the lanes that are outside: a rare path, which ends in an error."""
        if not looked_at:
            return

        def store() -> None:
            assert self.pointer is not None
            for check, index, outside in looked_at:
                report = e.gep(self.pointer, REPORT_BYTES * self.checks.index(check))
                bad = e.select(outside, index, 0)
                for position, (operation, worst) in enumerate((("min", e.smin), ("max", e.smax))):
                    at = e.gep(report, 8 * position)
                    value = e.reduce(bad, worst)
                    e.op(f"atomicrmw {operation} ptr {at}, i64 {value} monotonic, align 8", I64)

        anywhere = looked_at[0].outside
        for other in looked_at[1:]:
            anywhere = e.or_(anywhere, other.outside)
        e.if_(e.any_lane(anywhere), store, unlikely=True)


@dataclass(frozen=True, slots=True)
class Vector:
    """How the vector loop is cut: `lanes` neighbours of `dim`, of which the first `active` exist."""

    dim: str
    lanes: int
    active: int


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """See the module's text. `pointers` holds one (pointer, elements to add) per access, the write last.

    `load_read` emits the load of a read, given the guards that must be tested at run time.
    """

    emitter: Emitter
    nest: LinearNest
    bound: Mapping[str, Bound]
    pointers: tuple[tuple[Val, int], ...]
    resolved: frozenset[tuple[int, int]]  # (access, data term) whose address part is in the pointer
    settled: frozenset[Guard]  # known to hold
    padded: frozenset[int]  # reads known to lie in their padding
    memo: Memo
    reports: Reports
    load_read: Callable[[Frame, int, Ref, Sequence[Guard]], Val]
    vector: Vector | None = None

    @classmethod
    def start(
        cls,
        emitter: Emitter,
        nest: LinearNest,
        pointers: Sequence[Val],
        reports: Reports,
        load_read: Callable[[Frame, int, Ref, Sequence[Guard]], Val],
    ) -> Frame:
        """Nothing bound yet; one base pointer per access, the write last."""
        refs = nest.all_refs()
        based = tuple((p, r.form.offset) for p, r in zip(pointers, refs, strict=True))
        frame = cls(
            emitter, nest, {}, based, frozenset(), frozenset(), frozenset(), Memo(), reports, load_read
        )
        return frame._resolve()

    # Making frames.

    def _with(
        self,
        *,
        bound: Mapping[str, Bound] | None = None,
        pointers: tuple[tuple[Val, int], ...] | None = None,
        resolved: frozenset[tuple[int, int]] | None = None,
        settled: frozenset[Guard] | None = None,
        padded: frozenset[int] | None = None,
        memo: Memo | None = None,
        vector: Vector | None = None,
    ) -> Frame:
        return Frame(
            self.emitter,
            self.nest,
            self.bound if bound is None else bound,
            self.pointers if pointers is None else pointers,
            self.resolved if resolved is None else resolved,
            self.settled if settled is None else settled,
            self.padded if padded is None else padded,
            self.memo if memo is None else memo,
            self.reports,
            self.load_read,
            self.vector if vector is None else vector,
        )

    def inner(self) -> Frame:
        """The same place at the start of a loop body or branch: what is loaded there stays there."""
        return self._with(memo=Memo(self.memo))

    def vectorised(self, dim: str, lanes: int, active: int | None = None) -> Frame:
        """From here on values have `lanes` lanes, neighbours along `dim` (which may be bound already)."""
        return self._with(vector=Vector(dim, lanes, lanes if active is None else active))

    def settle(self, guards: Sequence[Guard]) -> Frame:
        """The same place, knowing that some guards hold."""
        return self._with(settled=self.settled | frozenset(guards)) if guards else self

    def in_padding(self, reads: Sequence[int]) -> Frame:
        """The same place, knowing that some reads lie in their padding."""
        return self._with(padded=self.padded | frozenset(reads))

    def bind(self, dim: str, value: Int, low: int | None = None, high: int | None = None) -> Frame:
        """Set a loop's index; `[low, high]` is what is known of a value that is not a number."""
        if isinstance(value, int):
            made = Bound(None, value, value, value)
        else:
            extent = self.nest.extents[dim]
            made = Bound(value, 0, 0 if low is None else low, extent - 1 if high is None else high)
        e = self.emitter
        pointers = list(self.pointers)
        for position, ref in enumerate(self.nest.all_refs()):
            c = ref.coefficient(dim)
            pointer, offset = pointers[position]
            if c and isinstance(value, int):
                pointers[position] = (pointer, offset + c * value)
            elif c:
                pointers[position] = (self.moved(pointer, ref, e.mul(value, c)), offset)
            for table in ref.tables:
                if table.dim == dim and not self.is_vector(dim):
                    pointer, offset = pointers[position]
                    pointers[position] = self.through_table(pointer, offset, ref, table, value)
        frame = self._with(bound={**self.bound, dim: made}, pointers=tuple(pointers))
        return frame._resolve()

    def shift(self, dim: str | None, delta: int) -> Frame:
        """A bound loop's index `delta` further."""
        if dim is None or delta == 0:
            return self
        old = self.bound[dim]
        made = Bound(old.base, old.offset + delta, old.low + delta, old.high + delta)
        pointers = tuple(
            (p, offset + delta * ref.coefficient(dim))
            for (p, offset), ref in zip(self.pointers, self.nest.all_refs(), strict=True)
        )
        return self._with(bound={**self.bound, dim: made}, pointers=pointers)

    def is_vector(self, dim: str) -> bool:
        """Whether lanes are neighbours along `dim`."""
        return self.vector is not None and self.vector.lanes > 1 and self.vector.dim == dim

    def moved(self, pointer: Val, ref: Ref, elements: Int) -> Val:
        """`pointer` moved by elements of an access, computed once."""
        # Not `inbounds`: the address of padding is computed, only never used.
        if isinstance(elements, int) and elements == 0:
            return pointer
        element = storage_type(ref.operand.dtype).element
        key = ("at", pointer.name, str(elements), element)
        found = self.memo.get(key)
        if found is None:
            text = f"getelementptr {element}, ptr {pointer}, i64 {elements}"
            found = self.memo.put(key, self.emitter.op(text, PTR))
        return found

    def through_table(
        self, pointer: Val, offset: int, ref: Ref, table: TableTerm, value: Int
    ) -> tuple[Val, int]:
        """The address with the table's part for an index added."""
        if isinstance(value, int):
            return pointer, offset + table.offsets[value]
        entry = self.emitter.load(I64, self.table_entry(table.offsets, "i64", value))
        return self.moved(pointer, ref, entry), offset

    def table_entry(self, table: Sequence[int], element: str, value: Int) -> Val:
        """Address of an entry of a constant table; a whole vector of entries may be read there."""
        padded = [*table, *([table[-1]] * _TABLE_PADDING)]
        return self.emitter.gep(self.emitter.constant_array(element, padded), value, element)

    def _resolve(self) -> Frame:
        """Add the parts of addresses that are data and can be read by now."""
        frame = self
        for position, ref in enumerate(self.nest.all_refs()):
            for number, term in enumerate(ref.data):
                if (position, number) in frame.resolved:
                    continue
                names = self.nest.depends(term.read)
                if not names <= frame.bound.keys() or any(frame.is_vector(n) for n in names):
                    continue
                looked_at: list[LookedAt] = []
                index = frame.wrapped(frame.scalar().load(term.read), term, looked_at)
                frame.reports.note(frame.emitter, looked_at)
                pointer, offset = frame.pointers[position]
                moved = frame.moved(pointer, ref, frame.emitter.mul(index, term.stride))
                pointers = list(frame.pointers)
                pointers[position] = (moved, offset)
                frame = frame._with(pointers=tuple(pointers), resolved=frame.resolved | {(position, number)})
        return frame

    def wrapped(self, index: Val, term: DataTerm, looked_at: list[LookedAt], mask: Val | None = None) -> Val:
        """A data index as i64: negative values count from the end; 0 in place of those outside the axis.

        What is to be noted is added to `looked_at`: of lanes that exist, and where `mask` holds.
        """
        key = ("index", index.name, term.extent, term.check, None if mask is None else mask.name)
        found = self.memo.get(key)
        if found is not None:
            return found
        e = self.emitter
        dtype = self.nest.refs[term.read].operand.dtype
        wide = convert(e, index, dtype.compute, DType.INT64)
        wrapped = e.select(e.icmp("slt", wide, 0), e.iadd(wide, term.extent), wide)
        outside = e.icmp("uge", wrapped, term.extent)
        if term.check is not None:
            seen = outside
            if mask is not None:
                seen = e.and_(seen, mask)
            elif self.active < index.lanes:
                seen = e.and_(seen, e.lane_mask(index.lanes, self.active))
            looked_at.append(LookedAt(term.check, wide, seen))
        return self.memo.put(key, e.select(outside, 0, wrapped))

    def scalar(self) -> Frame:
        """The same place, first lane only."""
        if self.vector is None or self.vector.lanes == 1:
            return self
        return self._with(vector=Vector(self.vector.dim, 1, 1))

    # What is known of guards.

    def holds(self, guard: Guard) -> bool | None:
        """Whether the guard holds for every lane (True), none (False), or is not known while emitting."""
        if guard in self.settled:
            return True
        low = high = guard.form.offset
        extents = self.nest.extents
        for name, c in guard.form.terms:
            at = self.bound.get(name)
            first, last = (0, extents[name] - 1) if at is None else (at.low, at.high)
            if at is not None and self.is_vector(name):
                assert self.vector is not None
                last += self.vector.active - 1
            low += min(c * first, c * last)
            high += max(c * first, c * last)
        if low >= 0 and high < guard.extent:
            return True
        return False if high < 0 or low >= guard.extent else None

    def misses(self, read: int) -> bool:
        """Whether a read certainly lies in the padding."""
        return read in self.padded or any(self.holds(g) is False for g in self.nest.refs[read].guards)

    # Values.

    @property
    def lanes(self) -> int:
        """Lanes of the values made here."""
        return 1 if self.vector is None else self.vector.lanes

    @property
    def active(self) -> int:
        """Lanes that exist."""
        return 1 if self.vector is None else self.vector.active

    def index(self, dim: str) -> Int:
        """Current index of a bound loop (of the first lane)."""
        at = self.bound[dim]
        return at.offset if at.base is None else self.emitter.add(at.base, at.offset)

    def form(self, form: Affine) -> Int:
        """Value of a form over bound loops (for the first lane)."""
        e, total = self.emitter, form.offset
        moving: Int = 0
        for name, c in form.terms:
            at = self.bound[name]
            total += c * at.offset
            if at.base is not None:
                moving = e.add(moving, e.mul(at.base, c))
        return e.add(moving, total)

    def lane_form(self, form: Affine, type: Type) -> Val:
        """Value of a form in each lane, as integers of `type`."""
        e = self.emitter
        first = e.index(self.form(form))
        if type.element != "i64":
            first = e.cast("trunc", first, type.element)
        c = 0 if self.vector is None else form.coefficient(self.vector.dim)
        base = e.splat(first, type.lanes)
        if c == 0 or type.lanes == 1:
            return base
        return e.iadd(base, vector_literal(type.element, [c * i for i in range(type.lanes)]))

    def value(self, expr: Expr, acc: Val | None = None) -> Val:
        """The value of an expression here, in its compute type."""
        return emit_expr(
            self.emitter,
            expr,
            self.load,
            acc,
            self._iter,
            lanes=self.lanes,
            known=self._hoisted,
            divisors=self._prepared,
        )

    def _hoisted(self, expr: Expr) -> Val | None:
        return self.memo.get(("expr", id(expr), self.lanes))

    def _prepared(self, expr: Expr) -> Divisor | None:
        return self.memo.divisor((id(expr), self.lanes))

    def _iter(self, dim: str) -> Val:
        return self.lane_form(self.nest.iters[dim], vec("i64", self.lanes))

    def hoist(self, *exprs: Expr | None) -> None:
        """Compute here whatever in the expressions no longer changes in the loops to come."""
        ready = self.bound.keys() - ({self.vector.dim} if self.vector is not None else set())
        for expr in exprs:
            if expr is not None:
                self._hoist(expr, ready)

    def _hoist(self, whole: Expr, ready: frozenset[str] | set[str]) -> None:
        depends = self.nest.expr_depends(whole)
        literals: dict[int, bool] = {}
        fold(lambda part, args: isinstance(part, Const | Call) and all(args), whole, made=literals)

        def is_settled(part: Expr) -> bool:
            dims = depends[id(part)]
            return dims is not None and dims <= ready

        seen: set[int] = set()
        stack: list[tuple[Expr, bool]] = [(whole, False)]
        while stack:
            expr, is_done = stack.pop()
            if is_done:  # everything below is computed
                self._prepare(expr, is_settled)
                continue
            if id(expr) in seen or isinstance(expr, Const | Acc):
                continue
            seen.add(id(expr))
            if is_settled(expr):
                if not literals[id(expr)]:
                    made = self.value(expr)
                    if isinstance(expr, Call):
                        self.memo.put(("expr", id(expr), self.lanes), made)
                continue
            stack.append((expr, True))
            stack.extend((child, False) for child in reversed(expr.children()))

    def _prepare(self, expr: Expr, is_settled: Callable[[Expr], bool]) -> None:
        """Compute the inverse of a divisor that many values share."""
        if isinstance(expr, Call) and expr.function == "div" and expr.dtype.is_float and self.lanes > 1:
            divisor = expr.args[1]
            if is_settled(divisor):
                prepared = prepare_divisor(self.emitter, self.value(divisor))
                self.memo.divisors[id(expr), self.lanes] = prepared

    # Loads.

    def load(self, read: int) -> Val:
        """The value of a read here, in its compute type; padding where it is outside its operand."""
        ref = self.nest.refs[read]
        type = compute_type(ref.operand.dtype, self.lanes)
        if self.misses(read):
            return self.emitter.constant(type, ref.fill if ref.fill is not None else 0)
        open_guards = [guard for guard in dict.fromkeys(ref.guards) if self.holds(guard) is None]
        key = self._load_key(read, ref, open_guards)
        found = self.memo.get(key)
        return self.memo.put(key, self.load_read(self, read, ref, open_guards)) if found is None else found

    def preset(self, read: int, value: Val) -> None:
        """Let loads of a read give `value` here (one that was loaded another way)."""
        self.memo.put(self._load_key(read, self.nest.refs[read], ()), value)

    def _load_key(self, read: int, ref: Ref, open_guards: Sequence[Guard]) -> object:
        """What decides the value of a read: equal keys are one load."""
        pointer, offset = self.pointers[read]
        state: list[object] = []
        if open_guards or any(t.valid is not None for t in ref.tables):
            names = {n for g in ref.guards for n in g.form.dims()} | {t.dim for t in ref.tables}
            state = [(n, self.bound.get(n)) for n in sorted(names)]
        vector: object = self.lanes
        if self.vector is not None and self.varies(read):
            vector = self.vector
            if ref.tables or ref.data:
                # A gather depends on where the vector stands even if its pointer does not.
                state += [(n, self.bound.get(n)) for n in sorted(self.nest.depends(read))]
        return ("read", read, pointer.name, offset, vector, tuple(open_guards), tuple(state))

    def pointer(self, position: int) -> Val:
        """Where an access points (its first lane)."""
        pointer, offset = self.pointers[position]
        return self.moved(pointer, self.nest.all_refs()[position], offset)

    def varies(self, read: int) -> bool:
        """Whether lanes of a read differ."""
        return self.vector is not None and self.vector.dim in self.nest.depends(read)

    def all_resolved(self, position: int) -> bool:
        """Whether the pointer of an access contains every part that is data."""
        ref = self.nest.all_refs()[position]
        return all((position, number) in self.resolved for number in range(len(ref.data)))

    # Stores.

    def store(self, value: Val) -> None:
        """Store a computed value through the nest's write."""
        e, ref, position = self.emitter, self.nest.write, len(self.nest.refs)
        raw = to_storage(e, value, ref.operand.dtype)
        pointer = self.pointer(position)
        c = 0 if self.vector is None else ref.coefficient(self.vector.dim)
        if raw.lanes == 1:
            e.store(raw, pointer)
        elif c != 1:
            e.store_strided(raw, pointer, c, active=self.active)
        elif self.active == 1:
            # LLVM 22 turns a masked store of one truncated lane into a store of the untruncated lane.
            e.store(e.extract(raw, 0), pointer)
        elif self.active < self.lanes:
            e.masked_store(raw, pointer, self.active)
        else:
            e.store(raw, pointer)

    # Loops.

    def loop(
        self,
        dim: str,
        low: Int,
        high: Int,
        step: int,
        body: Callable[[Frame, list[Val]], Sequence[Val] | None],
        carried: Sequence[Val] = (),
        *,
        known: tuple[int, int] | None = None,
    ) -> list[Val]:
        """A loop over `dim`; `known` bounds its index where `low` and `high` are not numbers."""

        def emit(index: Int, values: list[Val]) -> Sequence[Val] | None:
            first, last = known or (0, self.nest.extents[dim] - 1)
            if isinstance(low, int) and isinstance(high, int):
                first, last = low, low + (high - 1 - low) // step * step
            return body(self.inner().bind(dim, index, first, last), values)

        return self.emitter.loop(low, high, step, emit, [(v.type, v) for v in carried])
