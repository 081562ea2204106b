"""Writes LLVM IR as text: structured control flow, explicit vectors, one method per instruction.

Text is emitted because building the same module through `llvmlite.ir` costs over twenty times more per line.
Accumulators are carried through loops as phis, never through memory, so the text
needs no optimisation passes. Two families of arithmetic share the class:

* index arithmetic (`add`, `mul`, `minimum_index` ...) on `Int`: Python ints fold while emitting;
* lane arithmetic (`fadd`, `iadd`, `fma` ...) on values of any type and width: a Python number stands for a
  constant in every lane, the other operand gives the type.

Mistakes of the caller are `TypeError` or `ValueError`; malformed text is found by LLVM's verifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tilewright.ir.nest import RowsOf
from tilewright.targets.llvm.lane_ops import LaneOps
from tilewright.targets.llvm.module_text import Param
from tilewright.targets.llvm.values import I1, I64, PTR, Bool, Int, Operand, Type, Val, vector_literal

__all__ = ["Emitter", "Param"]

LoopBody = Callable[[Int, list[Val]], "Sequence[Operand] | None"]
Branch = Callable[[], "Sequence[Operand] | None"]


class Emitter(LaneOps):
    """One LLVM module under construction: control flow, indices and memory on top of lane arithmetic."""

    has_lrint = True
    """Whether one instruction rounds a float to an integer; elsewhere LLVM ends the process over it."""
    narrow_guards = False
    """Whether one lane, too, compares places with extents in 32 bits where these hold both."""
    _counter = I64
    """What counts iterations between bounds that are known, where it holds them."""

    # Control flow.

    def loop(
        self,
        low: Int,
        high: Int,
        step: Int,
        body: LoopBody,
        carried: Sequence[tuple[Type, Operand]] = (),
        *,
        nonempty: bool = False,
    ) -> list[Val]:
        """`for i in range(low, high, step)`, carrying values between iterations; gives the last ones.

        `body(i, values)` emits one iteration and returns the values for the next. With static bounds, no
        iteration emits nothing and one is emitted straight, with a Python int for `i`. Otherwise bounds are
        checked on entry, unless `nonempty` promises an iteration. `step` is positive.
        """
        inits = [self.constant(type, value) for type, value in carried]
        types = [type for type, _ in carried]
        static = isinstance(low, int) and isinstance(high, int)
        if isinstance(low, int) and isinstance(high, int):
            if high <= low:
                return inits
            if isinstance(step, int) and low + step >= high:
                return self._checked(types, body(low, inits), "loop body")
        before, head, end = self._block, self._label("loop"), self._label("done")
        guarded = not (static or nonempty)
        if guarded:
            entered = self.op(f"icmp slt i64 {low}, {high}", I1)
            self.line(f"br i1 {entered}, label %{head}, label %{end}")
        else:
            self.line(f"br label %{head}")
        self._start(head)
        counter = I64
        if isinstance(low, int) and isinstance(high, int) and isinstance(step, int):
            counter = self._counter if low >= 0 and high + step < 2**31 else I64
        number, current = self._phi(counter), [self._phi(type) for type in types]
        mark = len(self._lines)
        index = number if counter == I64 else self.op(f"zext nneg {number.typed} to i64", I64)
        made = self._checked(types, body(index, current), "loop body")
        following = self.op(f"add nsw {number.typed}, {step}", counter)
        again = self.op(f"icmp slt {following.typed}, {high}", I1)
        self.line(f"br i1 {again}, label %{head}, label %{end}")
        latch = self._block
        phis = [f"  {number} = phi {counter.text} [{low}, %{before}], [{following}, %{latch}]"]
        for value, init, new in zip(current, inits, made, strict=True):
            phis.append(f"  {value} = phi {value.type.text} [{init}, %{before}], [{new}, %{latch}]")
        self._lines[mark:mark] = phis
        self._start(end)
        if not guarded:
            return made
        pairs = zip(inits, made, strict=True)
        return [self._merge(new.type, ((init, before), (new, latch))) for init, new in pairs]

    def do_while(
        self,
        body: Callable[[list[Val]], tuple[Val, Sequence[Operand]]],
        carried: Sequence[tuple[Type, Operand]] = (),
    ) -> list[Val]:
        """Repeat `body(values) -> (again, new values)` while its i1 `again` holds; runs at least once."""
        inits = [self.constant(type, value) for type, value in carried]
        before, head, end = self._block, self._label("repeat"), self._label("done")
        self.line(f"br label %{head}")
        self._start(head)
        current = [self._phi(value.type) for value in inits]
        mark = len(self._lines)
        again, new = body(current)
        made = self._checked([value.type for value in inits], new, "do_while body")
        self.line(f"br i1 {again}, label %{head}, label %{end}")
        self._lines[mark:mark] = [
            f"  {value} = phi {value.type.text} [{init}, %{before}], [{last}, %{self._block}]"
            for value, init, last in zip(current, inits, made, strict=True)
        ]
        self._start(end)
        return made

    def if_(
        self,
        condition: Bool,
        then: Branch,
        otherwise: Branch | None = None,
        results: Sequence[Type] = (),
        *,
        unlikely: bool = False,
    ) -> list[Val]:
        """Emit both branches and merge their `results`; a Python bool picks one while emitting.

        An `unlikely` condition puts `then` out of the way of the code around it.
        """
        if results and otherwise is None:
            raise ValueError("if_ with results needs both branches")
        if isinstance(condition, bool):
            taken = then if condition else otherwise
            return [] if taken is None else self._checked(results, taken(), "if_ branch")
        before = self._block
        yes, end = self._label("then"), self._label("end")
        no = self._label("else") if otherwise is not None else end
        weights = ""
        if unlikely:
            self.declare('!0 = !{!"branch_weights", i32 1, i32 1000000}')
            weights = ", !prof !0"
        self.line(f"br i1 {condition}, label %{yes}, label %{no}{weights}")
        arrivals: list[tuple[list[Val], str]] = []
        for label, branch in ((yes, then), (no, otherwise)):
            if branch is None:
                continue
            self._start(label)
            made = branch()
            if not self._terminated:
                arrivals.append((self._checked(results, made, "if_ branch"), self._block))
                self.line(f"br label %{end}")
        if not arrivals and otherwise is not None:
            raise ValueError(f"both branches of the if_ in block {before} return: nothing can follow it")
        self._start(end)
        return [
            self._merge(type, [(values[position], block) for values, block in arrivals])
            for position, type in enumerate(results)
        ]

    def _label(self, kind: str) -> str:
        self._next_label += 1
        return f"{kind}{self._next_label}"

    def _start(self, label: str) -> None:
        self._lines.append(label + ":")
        self._block = label
        self._terminated = False

    def _phi(self, type: Type) -> Val:
        self._next_value += 1
        return Val(f"%v{self._next_value}", type)

    def _merge(self, type: Type, arrivals: Sequence[tuple[Val, str]]) -> Val:
        return self.op(f"phi {type.text} " + ", ".join(f"[{v}, %{block}]" for v, block in arrivals), type)

    def _checked(self, types: Sequence[Type], values: Sequence[Operand] | None, what: str) -> list[Val]:
        values = values or ()
        if len(values) != len(types):
            raise ValueError(f"{what} returned {len(values)} values, {len(types)} are carried")
        return [self.constant(type, value) for type, value in zip(types, values, strict=True)]

    # Index arithmetic: i64, folded while emitting where both sides are Python ints.

    def add(self, a: Int, b: Int) -> Int:
        """Sum."""
        if isinstance(a, int):
            if isinstance(b, int):
                return a + b
            a, b = b, a
        return a if isinstance(b, int) and b == 0 else self.op(f"add nsw i64 {a}, {b}", I64)

    def sub(self, a: Int, b: Int) -> Int:
        """Difference."""
        if isinstance(b, int):
            return self.add(a, -b)
        return self.op(f"sub nsw i64 {a}, {b}", I64)

    def mul(self, a: Int, b: Int) -> Int:
        """Product."""
        if isinstance(a, int):
            if isinstance(b, int):
                return a * b
            a, b = b, a
        if isinstance(b, int) and b in (0, 1):
            return a if b else 0
        return self.op(f"mul nsw i64 {a}, {b}", I64)

    def sdiv(self, a: Int, b: Int) -> Int:
        """Quotient rounded toward zero."""
        if isinstance(b, int):
            if b == 1:
                return a
            if isinstance(a, int):
                return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return self.op(f"sdiv i64 {a}, {b}", I64)

    def udiv(self, a: Int, b: Int) -> Int:
        """Quotient of two non-negative indices."""
        if isinstance(b, int):
            if b == 1:
                return a
            if isinstance(a, int):
                return a // b
        return self.op(f"udiv i64 {a}, {b}", I64)

    def urem(self, a: Int, b: Int) -> Int:
        """Remainder of two non-negative indices."""
        if isinstance(b, int):
            if b == 1:
                return 0
            if isinstance(a, int):
                return a % b
        return self.op(f"urem i64 {a}, {b}", I64)

    def piece(self, number: Int, num_pieces: int, extent: Int) -> tuple[Int, Int]:
        """Bounds of one of `num_pieces` nearly equal pieces of `extent`."""
        low = self.udiv(self.mul(number, extent), num_pieces)
        return low, self.udiv(self.mul(self.add(number, 1), extent), num_pieces)

    def digits(self, number: Int, extents: Sequence[int]) -> Iterator[Int]:
        """The index of each of nested loops, innermost first, at one of their combinations; `extents` are
        outermost first. An index is emitted when it is asked for."""
        for position, extent in enumerate(reversed(extents)):
            if position == len(extents) - 1:
                yield number
            else:
                index, number = self.urem(number, extent), self.udiv(number, extent)
                yield index

    def iterations(self, rows: RowsOf, num_rows: Int) -> Int:
        """How many iterations a loop over rows runs for so many of them."""
        elements = self.mul(num_rows, rows.per_row)
        return self.udiv(self.add(elements, rows.size - 1), rows.size)

    def min(self, a: Int, b: Int) -> Int:
        """Smaller index."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.intrinsic("smin", I64, [self.index(a), self.index(b)])

    def max(self, a: Int, b: Int) -> Int:
        """Larger index."""
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self.intrinsic("smax", I64, [self.index(a), self.index(b)])

    def compare(self, predicate: str, a: Int, b: Int) -> Bool:
        """Signed comparison of indices: `eq ne slt sle sgt sge`."""
        if isinstance(a, int) and isinstance(b, int):
            return _COMPARE[predicate](a, b)
        return self.op(f"icmp {predicate} i64 {a}, {b}", I1)

    def both(self, a: Bool, b: Bool) -> Bool:
        """Whether both hold; no instruction where one is known."""
        if isinstance(a, bool):
            return b if a else False
        if isinstance(b, bool):
            return a if b else False
        return self.and_(a, b)

    def select_index(self, condition: Bool, a: Int, b: Int) -> Int:
        """`a` where the condition holds, else `b`."""
        if isinstance(condition, bool):
            return a if condition else b
        return self.op(f"select i1 {condition}, i64 {a}, i64 {b}", I64)

    def index(self, value: Int) -> Val:
        """The i64 value of an index."""
        return value if isinstance(value, Val) else Val(str(value), I64)

    def gep(self, pointer: Val, offset: Int, element: str = "i8") -> Val:
        """`pointer` moved by `offset` elements (bytes unless an element type is given)."""
        if isinstance(offset, int) and offset == 0:
            return pointer
        return self.op(f"getelementptr inbounds {element}, ptr {pointer}, i64 {offset}", PTR)

    def moved(self, pointer: Val, elements: Int, element_bytes: int) -> Val:
        """`pointer` moved by elements of a size; not `inbounds`: padding may lie before a tensor."""
        return self.op(f"getelementptr i{8 * element_bytes}, ptr {pointer}, i64 {elements}", PTR)

    # Memory.

    def load(self, type: Type, pointer: Val, *, align_bytes: int = 0) -> Val:
        """Aligned to one element unless `align_bytes` promises more."""
        return self.op(f"load {type.text}, ptr {pointer}, align {align_bytes or type.element_bytes}", type)

    def store(self, value: Val, pointer: Val, *, align_bytes: int = 0, bypasses: bool = False) -> None:
        """Aligned to one element unless `align_bytes` promises more.

        What `bypasses` the caches is in memory for other threads only after a `store_fence`.
        """
        line = f"  store {value.typed}, ptr {pointer}, align {align_bytes or value.type.element_bytes}"
        self._lines.append(line + (", !nontemporal !{i32 1}" if bypasses else ""))

    def store_fence(self) -> None:
        """Stores that bypass the caches come before all that follows; for x86."""
        self.declare("declare void @llvm.x86.sse.sfence()")
        self.line("call void @llvm.x86.sse.sfence()")

    def broadcast_load(self, type: Type, pointer: Val) -> Val:
        """One element from memory in every lane of `type`."""
        return self.splat(self.load(type.scalar, pointer), type.lanes)

    def lane_mask(self, lanes: int, active: Int) -> Val:
        """True in the first `active` lanes."""
        if isinstance(active, int):
            return vector_literal("i1", [lane < active for lane in range(lanes)])
        if lanes == 1:
            return self.op(f"icmp sgt i64 {active}, 0", I1)
        bounded = self.intrinsic("smax", I64, [self.index(self.min(active, lanes)), self.index(0)])
        limit = self.splat(self.cast("trunc", bounded, "i32"), lanes)
        return self.icmp("slt", vector_literal("i32", range(lanes)), limit)

    def masked_load(self, type: Type, pointer: Val, mask: Int, *, fill: Operand = 0) -> Val:
        """Load the lanes where `mask` holds, the others are `fill`; untouched lanes may be unmapped memory.

        `mask` is an i1 value per lane, or how many leading lanes to load.
        """
        mask = self._mask(type.lanes, mask)
        passthru = self.constant(type, fill)
        if type.lanes == 1:
            return self.if_(mask, lambda: [self.load(type, pointer)], lambda: [passthru], [type])[0]
        where = f"ptr align {type.element_bytes} {pointer}"
        name = f"{type.text} @llvm.masked.load.{type.suffix}.p0("
        self.declare(f"declare {name}ptr, {mask.type.text}, {type.text})")
        return self.op(f"call {name}{where}, {mask.typed}, {passthru.typed})", type)

    def masked_store(self, value: Val, pointer: Val, mask: Int) -> None:
        """Store the lanes where `mask` holds: an i1 value per lane, or how many leading lanes."""
        type = value.type
        if isinstance(mask, int) and mask == 1:
            # LLVM 22 stores the untruncated lane when a truncation feeds a masked store of one lane.
            self.store(self.extract(value, 0), pointer)
            return
        mask = self._mask(type.lanes, mask)
        if type.lanes == 1:
            self.if_(mask, lambda: self.store(value, pointer))
            return
        name = f"void @llvm.masked.store.{type.suffix}.p0("
        self.declare(f"declare {name}{type.text}, ptr, {mask.type.text})")
        self.line(f"call {name}{value.typed}, ptr align {type.element_bytes} {pointer}, {mask.typed})")

    def _mask(self, lanes: int, mask: Int) -> Val:
        if isinstance(mask, Val) and mask.type.element == "i1":
            return mask
        return self.lane_mask(lanes, mask)

    def load_strided(self, type: Type, pointer: Val, stride: Int, *, active: int | None = None) -> Val:
        """Lanes from `stride` elements apart; only the first `active` are read, the others are zero."""
        if type.lanes == 1:
            return self.load(type, pointer)
        num = type.lanes if active is None else active
        value = Val("poison", type) if num == type.lanes else self.zero(type)
        for lane in range(num):
            address = self.gep(pointer, self.mul(stride, lane), type.element)
            value = self.insert(value, self.load(type.scalar, address), lane)
        return value

    def store_strided(self, value: Val, pointer: Val, stride: Int, *, active: int | None = None) -> None:
        """The first `active` lanes (default all) to `stride` elements apart."""
        for lane in range(value.lanes if active is None else active):
            address = self.gep(pointer, self.mul(stride, lane), value.type.element)
            self.store(self.extract(value, lane), address)

    def prefetch(self, pointer: Val) -> None:
        """Ask for the cache line at `pointer`, to be read, in every level but the first."""
        self.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": int.__eq__,
    "ne": int.__ne__,
    "slt": int.__lt__,
    "sle": int.__le__,
    "sgt": int.__gt__,
    "sge": int.__ge__,
}
