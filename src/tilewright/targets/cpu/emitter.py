"""Writes LLVM IR as text: structured control flow, explicit vectors, one method per instruction.

Text is emitted because building the same module through `llvmlite.ir` costs over twenty times more per line
(spec/cpu.md section 8). Accumulators are carried through loops as phis, never through memory, so the text
needs no optimisation passes. Two families of arithmetic share the class:

* index arithmetic (`add`, `mul`, `minimum_index` ...) on `Int`: Python ints fold while emitting;
* lane arithmetic (`fadd`, `iadd`, `fma` ...) on values of any type and width: a Python number stands for a
  constant in every lane, the other operand gives the type.

Mistakes of the caller are `TypeError` or `ValueError`; malformed text is found by LLVM's verifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.targets.cpu.values import (
    I1,
    I64,
    PTR,
    Bool,
    Int,
    Number,
    Operand,
    Type,
    Val,
    literal,
    vec,
    vector_literal,
)

LoopBody = Callable[[Int, list[Val]], "Sequence[Operand] | None"]
Branch = Callable[[], "Sequence[Operand] | None"]


@dataclass(frozen=True, slots=True)
class Param:
    """A function parameter; `attributes` as LLVM writes them, e.g. `noalias`."""

    name: str
    type: Type
    attributes: str = ""


class Emitter:
    """One LLVM module under construction."""

    def __init__(self, *, triple: str = "", attributes: str = "nounwind") -> None:
        """`attributes` go on every defined function, e.g. `nounwind "prefer-vector-width"="512"`."""
        self._triple = triple
        self._attributes = attributes
        self._functions: list[str] = []
        self._globals: dict[str, str] = {}
        self._declarations: dict[str, None] = {}
        self._intrinsics: dict[tuple[str, Type], tuple[str, str]] = {}
        self._lines: list[str] = []
        self._allocas: list[str] = []
        self._block = ""
        self._terminated = True
        self._next_value = 0
        self._next_label = 0

    def text(self) -> str:
        """The module: the same calls give the same text."""
        head = [f'target triple = "{self._triple}"'] if self._triple else []
        parts = [*head, *sorted(self._declarations), *(f"{k} = {v}" for k, v in self._globals.items())]
        return "\n".join([*parts, *self._functions]) + "\n"

    # Raw text: the base of every method below, and for instructions that have none.

    def line(self, text: str) -> None:
        """Append one instruction that makes no value."""
        self._lines.append("  " + text)

    def op(self, text: str, type: Type) -> Val:
        """Append one instruction and name its result."""
        self._next_value += 1
        name = f"%v{self._next_value}"
        self._lines.append(f"  {name} = {text}")
        return Val(name, type)

    def declare(self, declaration: str) -> None:
        """Add `declare ...` to the module once."""
        self._declarations[declaration] = None

    # Functions, calls, globals.

    @contextmanager
    def function(
        self,
        name: str,
        params: Sequence[Param] = (),
        *,
        result: Type | None = None,
        linkage: str = "",
        attributes: str | None = None,
    ) -> Iterator[tuple[Val, ...]]:
        """Define a function around the emitted body; gives the arguments.

        A body that does not end with `ret` returns void. A function may be defined while another is open: it
        becomes a second function of the module, and the open one continues after it.
        """
        outer = (self._lines, self._allocas, self._block, self._terminated)
        self._lines, self._allocas, self._block, self._terminated = [], [], "entry", False
        signature = ", ".join(
            " ".join(filter(None, (p.type.text, p.attributes, "%" + p.name))) for p in params
        )
        attributes = self._attributes if attributes is None else attributes
        head = " ".join(filter(None, ("define", linkage, result.text if result else "void")))
        try:
            yield tuple(Val("%" + p.name, p.type) for p in params)
            if not self._terminated:
                if result is not None:
                    raise ValueError(
                        f"function {name!r} must return {result.text}: end its body with ret(value)"
                    )
                self.line("ret void")
            body = [
                f"{head} @{name}({signature}) {attributes} {{",
                "entry:",
                *self._allocas,
                *self._lines,
                "}",
            ]
            self._functions.append("\n".join(body))
        finally:
            self._lines, self._allocas, self._block, self._terminated = outer

    def ret(self, value: Val | None = None) -> None:
        """Return from the open function; nothing may follow in the same block."""
        self.line("ret void" if value is None else f"ret {value.typed}")
        self._terminated = True

    def call(
        self, name: str, args: Sequence[Val], result: Type | None = None, *, declare: bool = True
    ) -> Val | None:
        """Call `@name`; `declare=False` when this module defines it."""
        returned = "void" if result is None else result.text
        if declare:
            self.declare(f"declare {returned} @{name}({', '.join(a.type.text for a in args)})")
        text = f"call {returned} @{name}({', '.join(a.typed for a in args)})"
        if result is None:
            self.line(text)
            return None
        return self.op(text, result)

    def call_value(self, name: str, args: Sequence[Val], result: Type, *, declare: bool = True) -> Val:
        """`call` of a function that returns a value."""
        value = self.call(name, args, result, declare=declare)
        assert value is not None
        return value

    def intrinsic(self, name: str, type: Type, args: Sequence[Val], *, flags: str = "") -> Val:
        """`llvm.<name>.<type>` where the result and all arguments have the one `type`."""
        return self.op(self._intrinsic_call(name, type, args, flags), type)

    def _intrinsic_call(self, name: str, type: Type, args: Sequence[Val], flags: str = "") -> str:
        key = (name, type)
        found = self._intrinsics.get(key)
        if found is None:
            types = ", ".join([type.text] * len(args))
            target = f"{type.text} @llvm.{name}.{type.suffix}("
            self.declare(f"declare {target}{types})")
            found = self._intrinsics[key] = (target, type.text)
        listed = ", ".join([f"{found[1]} {a.name}" for a in args])
        return f"call {flags} {found[0]}{listed})" if flags else f"call {found[0]}{listed})"

    def constant_array(self, element: str, values: Sequence[Number], *, align_bytes: int = 64) -> Val:
        """A private constant table; equal tables are stored once."""
        scalar = vec(element)
        listed = ", ".join(f"{element} {literal(scalar, value)}" for value in values)
        body = f"private unnamed_addr constant [{len(values)} x {element}] [{listed}], align {align_bytes}"
        for name, present in self._globals.items():
            if present == body:
                return Val(name, PTR)
        name = f"@table{len(self._globals)}"
        self._globals[name] = body
        return Val(name, PTR)

    def global_buffer(
        self, name: str, size_bytes: int, *, align_bytes: int = 64, linkage: str = "internal"
    ) -> Val:
        """A zeroed writable buffer owned by the module."""
        self._globals["@" + name] = (
            f"{linkage} global [{size_bytes} x i8] zeroinitializer, align {align_bytes}"
        )
        return Val("@" + name, PTR)

    def alloca(self, type: Type, count: int = 1, *, align_bytes: int = 64) -> Val:
        """Stack space of the open function, reserved once on entry wherever this is called."""
        self._next_value += 1
        name = f"%s{self._next_value}"
        self._allocas.append(f"  {name} = alloca {type.text}, i64 {count}, align {align_bytes}")
        return Val(name, PTR)

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
        """`for i in range(low, high, step)` with values carried from one iteration to the next; gives the last.

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
        index, current = self._phi(I64), [self._phi(type) for type in types]
        mark = len(self._lines)
        made = self._checked(types, body(index, current), "loop body")
        following = self.op(f"add nsw i64 {index}, {step}", I64)
        again = self.op(f"icmp slt i64 {following}, {high}", I1)
        self.line(f"br i1 {again}, label %{head}, label %{end}")
        latch = self._block
        phis = [f"  {index} = phi i64 [{low}, %{before}], [{following}, %{latch}]"]
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
        self, condition: Bool, then: Branch, otherwise: Branch | None = None, results: Sequence[Type] = ()
    ) -> list[Val]:
        """Emit both branches and merge their `results`; a Python bool picks one while emitting."""
        if results and otherwise is None:
            raise ValueError("if_ with results needs both branches")
        if isinstance(condition, bool):
            taken = then if condition else otherwise
            return [] if taken is None else self._checked(results, taken(), "if_ branch")
        before = self._block
        yes, end = self._label("then"), self._label("end")
        no = self._label("else") if otherwise is not None else end
        self.line(f"br i1 {condition}, label %{yes}, label %{no}")
        arrivals: list[tuple[list[Val], str]] = []
        for label, branch in ((yes, then), (no, otherwise)):
            if branch is None:
                continue
            self._start(label)
            made = self._checked(results, branch(), "if_ branch")
            if not self._terminated:
                self.line(f"br label %{end}")
                arrivals.append((made, self._block))
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
        if isinstance(a, int):
            if isinstance(b, int):
                return a + b
            a, b = b, a
        return a if isinstance(b, int) and b == 0 else self.op(f"add nsw i64 {a}, {b}", I64)

    def sub(self, a: Int, b: Int) -> Int:
        if isinstance(b, int):
            return self.add(a, -b)
        return self.op(f"sub nsw i64 {a}, {b}", I64)

    def mul(self, a: Int, b: Int) -> Int:
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

    def srem(self, a: Int, b: Int) -> Int:
        """Remainder with the sign of `a`."""
        if isinstance(a, int) and isinstance(b, int):
            return abs(a) % abs(b) * (-1 if a < 0 else 1)
        return self.op(f"srem i64 {a}, {b}", I64)

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

    def min(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.intrinsic("smin", I64, [self.index(a), self.index(b)])

    def max(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self.intrinsic("smax", I64, [self.index(a), self.index(b)])

    def compare(self, predicate: str, a: Int, b: Int) -> Bool:
        """Signed comparison of indices: `eq ne slt sle sgt sge`."""
        if isinstance(a, int) and isinstance(b, int):
            return _COMPARE[predicate](a, b)
        return self.op(f"icmp {predicate} i64 {a}, {b}", I1)

    def select_index(self, condition: Bool, a: Int, b: Int) -> Int:
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

    # Constants and lane movement.

    def constant(self, type: Type, value: Operand) -> Val:
        """`value` in every lane of `type`; a value passes through, and must have that type."""
        if isinstance(value, Val):
            if value.type is not type and value.type != type:
                raise TypeError(f"{value.typed} stands where {type.text} is expected")
            return value
        return Val(literal(type, value), type)

    def zero(self, type: Type) -> Val:
        return Val("zeroinitializer" if type.lanes > 1 else literal(type, 0), type)

    def splat(self, value: Val, lanes: int) -> Val:
        """A scalar in every lane."""
        if lanes == 1:
            return value
        type, element = value.type.with_lanes(lanes), value.type.element
        first = self.op(f"insertelement {type.text} poison, {element} {value}, i64 0", type)
        return self.op(
            f"shufflevector {type.text} {first}, {type.text} poison, <{lanes} x i32> zeroinitializer", type
        )

    def extract(self, value: Val, lane: Int) -> Val:
        if value.lanes == 1:
            return value
        return self.op(f"extractelement {value.typed}, i64 {lane}", value.type.scalar)

    def insert(self, value: Val, scalar: Val, lane: Int) -> Val:
        if value.lanes == 1:
            return scalar
        return self.op(f"insertelement {value.typed}, {scalar.typed}, i64 {lane}", value.type)

    def shuffle(self, a: Val, b: Val | None, lanes: Sequence[int]) -> Val:
        """Lanes picked from `a` followed by `b`; the result has `len(lanes)` lanes."""
        if a.lanes == 1:
            raise TypeError(f"shuffle of the scalar {a.typed}: use splat")
        if len(lanes) == 1:
            return (
                self.extract(a, lanes[0])
                if b is None or lanes[0] < a.lanes
                else self.extract(b, lanes[0] - a.lanes)
            )
        second = "poison" if b is None else b.name
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        text = f"shufflevector {a.typed}, {a.type.text} {second}, <{len(lanes)} x i32> <{mask}>"
        return self.op(text, a.type.with_lanes(len(lanes)))

    def concat(self, a: Val, b: Val) -> Val:
        """The lanes of `a`, then those of `b` (of the same type)."""
        if a.lanes == 1:
            pair = self.op(
                f"insertelement <2 x {a.type.element}> poison, {a.typed}, i64 0", a.type.with_lanes(2)
            )
            return self.insert(pair, b, 1)
        return self.shuffle(a, b, range(2 * a.lanes))

    def reduce(self, value: Val, combine: Callable[[Val, Val], Val]) -> Val:
        """One scalar from all lanes: upper half onto lower half until one is left, the same order on every target."""
        if value.lanes & (value.lanes - 1):
            raise ValueError(f"reduce of {value.typed}: the number of lanes must be a power of two")
        while value.lanes > 1:
            half = value.lanes // 2
            low = self.shuffle(value, None, range(half))
            high = self.shuffle(value, None, range(half, 2 * half))
            value = combine(low, high)
        return value

    # Memory.

    def load(self, type: Type, pointer: Val, *, align_bytes: int = 0) -> Val:
        """Aligned to one element unless `align_bytes` promises more."""
        return self.op(f"load {type.text}, ptr {pointer}, align {align_bytes or type.element_bytes}", type)

    def store(self, value: Val, pointer: Val, *, align_bytes: int = 0) -> None:
        """Aligned to one element unless `align_bytes` promises more."""
        self._lines.append(
            f"  store {value.typed}, ptr {pointer}, align {align_bytes or value.type.element_bytes}"
        )

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

    def prefetch(self, pointer: Val, *, write: bool = False, locality: int = 3) -> None:
        self.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(write)}, i32 {locality}, i32 1)")

    def readcyclecounter(self) -> Val:
        self.declare("declare i64 @llvm.readcyclecounter()")
        return self.op("call i64 @llvm.readcyclecounter()", I64)

    # Lane arithmetic.

    def binary(self, opcode: str, a: Operand, b: Operand) -> Val:
        """`opcode` (with flags) over two values of one type; a number takes the other operand's type."""
        if isinstance(a, Val):
            type = a.type
            if not isinstance(b, Val):
                b = Val(literal(type, b), type)
        elif isinstance(b, Val):
            type = b.type
            a = Val(literal(type, a), type)
        else:
            raise TypeError(f"{opcode} of two numbers, {a} and {b}: at least one must be a value")
        self._next_value += 1
        name = f"%v{self._next_value}"
        self._lines.append(f"  {name} = {opcode} {type.text} {a.name}, {b.name}")
        return Val(name, type)

    def _function_of(self, name: str, flags: str, *args: Operand) -> Val:
        type = next((a.type for a in args if isinstance(a, Val)), None)
        if type is None:
            raise TypeError(f"llvm.{name} of numbers only, {args}: at least one must be a value")
        values = [a if isinstance(a, Val) else Val(literal(type, a), type) for a in args]
        return self.op(self._intrinsic_call(name, type, values, flags), type)

    def fadd(self, a: Operand, b: Operand) -> Val:
        return self.binary("fadd", a, b)

    def fsub(self, a: Operand, b: Operand) -> Val:
        return self.binary("fsub", a, b)

    def fmul(self, a: Operand, b: Operand) -> Val:
        return self.binary("fmul", a, b)

    def fdiv(self, a: Operand, b: Operand) -> Val:
        return self.binary("fdiv", a, b)

    def fneg(self, a: Val) -> Val:
        return self.op(f"fneg {a.typed}", a.type)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Val:
        """`a * b + c` rounded once."""
        return self._function_of("fma", "", a, b, c)

    def maximum(self, a: Operand, b: Operand) -> Val:
        """Larger value, NaN if either is; the sign of a zero result is free, which makes it one instruction on x86."""
        return self._function_of("maximum", "nsz", a, b)

    def minimum(self, a: Operand, b: Operand) -> Val:
        """Smaller value, NaN if either is; the sign of a zero result is free."""
        return self._function_of("minimum", "nsz", a, b)

    def maxnum(self, a: Operand, b: Operand) -> Val:
        """Larger value, ignoring a NaN on one side."""
        return self._function_of("maxnum", "nsz", a, b)

    def minnum(self, a: Operand, b: Operand) -> Val:
        """Smaller value, ignoring a NaN on one side."""
        return self._function_of("minnum", "nsz", a, b)

    def sqrt(self, a: Val) -> Val:
        return self._function_of("sqrt", "", a)

    def fabs(self, a: Val) -> Val:
        return self._function_of("fabs", "", a)

    def copysign(self, magnitude: Operand, sign: Operand) -> Val:
        return self._function_of("copysign", "", magnitude, sign)

    def floor(self, a: Val) -> Val:
        return self._function_of("floor", "", a)

    def ceil(self, a: Val) -> Val:
        return self._function_of("ceil", "", a)

    def trunc(self, a: Val) -> Val:
        """Rounded toward zero, still a float."""
        return self._function_of("trunc", "", a)

    def roundeven(self, a: Val) -> Val:
        """Rounded to the nearest integer, ties to even, still a float."""
        return self._function_of("roundeven", "", a)

    def iadd(self, a: Operand, b: Operand) -> Val:
        return self.binary("add", a, b)

    def isub(self, a: Operand, b: Operand) -> Val:
        return self.binary("sub", a, b)

    def imul(self, a: Operand, b: Operand) -> Val:
        return self.binary("mul", a, b)

    def idiv(self, a: Operand, b: Operand) -> Val:
        """Signed quotient rounded toward zero; division by zero is undefined."""
        return self.binary("sdiv", a, b)

    def irem(self, a: Operand, b: Operand) -> Val:
        """Signed remainder with the sign of `a`."""
        return self.binary("srem", a, b)

    def and_(self, a: Operand, b: Operand) -> Val:
        return self.binary("and", a, b)

    def or_(self, a: Operand, b: Operand) -> Val:
        return self.binary("or", a, b)

    def xor(self, a: Operand, b: Operand) -> Val:
        return self.binary("xor", a, b)

    def not_(self, a: Val) -> Val:
        return self.binary("xor", a, -1 if a.type.element != "i1" else 1)

    def shl(self, a: Operand, b: Operand) -> Val:
        return self.binary("shl", a, b)

    def lshr(self, a: Operand, b: Operand) -> Val:
        return self.binary("lshr", a, b)

    def ashr(self, a: Operand, b: Operand) -> Val:
        return self.binary("ashr", a, b)

    def smax(self, a: Operand, b: Operand) -> Val:
        return self._function_of("smax", "", a, b)

    def smin(self, a: Operand, b: Operand) -> Val:
        return self._function_of("smin", "", a, b)

    def umax(self, a: Operand, b: Operand) -> Val:
        return self._function_of("umax", "", a, b)

    def umin(self, a: Operand, b: Operand) -> Val:
        return self._function_of("umin", "", a, b)

    def icmp(self, predicate: str, a: Operand, b: Operand) -> Val:
        """One i1 per lane."""
        made = self.binary(f"icmp {predicate}", a, b)
        return Val(made.name, made.type.with_element("i1"))

    def fcmp(self, predicate: str, a: Operand, b: Operand) -> Val:
        """One i1 per lane: `oeq olt uno` ... as in LLVM; ordered predicates are false on NaN."""
        made = self.binary(f"fcmp {predicate}", a, b)
        return Val(made.name, made.type.with_element("i1"))

    def select(self, condition: Val, a: Operand, b: Operand) -> Val:
        """Lane by lane `a` where the i1 `condition` holds, else `b`."""
        type = a.type if isinstance(a, Val) else b.type if isinstance(b, Val) else None
        if type is None:
            raise TypeError(f"select of two numbers, {a} and {b}: at least one must be a value")
        a, b = self.constant(type, a), self.constant(type, b)
        return self.op(f"select {condition.typed}, {a.typed}, {b.typed}", type)

    # Casts.

    def cast(self, opcode: str, value: Val, element: str) -> Val:
        """`fpext fptrunc sext zext trunc sitofp uitofp fptosi fptoui` lane by lane."""
        type = value.type.with_element(element)
        return self.op(f"{opcode} {value.typed} to {type.text}", type)

    def bitcast(self, value: Val, type: Type) -> Val:
        """The same bits read as `type`."""
        return value if value.type == type else self.op(f"bitcast {value.typed} to {type.text}", type)

    def fptoint(self, value: Val, element: str, *, signed: bool = True) -> Val:
        """Toward zero, saturating, NaN gives 0: defined for every input, unlike a plain `fptosi`."""
        type = value.type.with_element(element)
        name = f"{type.text} @llvm.fpto{'s' if signed else 'u'}i.sat.{type.suffix}.{value.type.suffix}("
        self.declare(f"declare {name}{value.type.text})")
        return self.op(f"call {name}{value.typed})", type)

    def to_float(self, value: Val) -> Val:
        """A half, bfloat or double as float (bfloat by shifting, exact on every target)."""
        element = value.type.element
        if element == "float":
            return value
        if element == "bfloat":
            wide = self.cast("zext", self.bitcast(value, value.type.with_element("i16")), "i32")
            return self.bitcast(self.shl(wide, 16), value.type.with_element("float"))
        return self.cast("fptrunc" if element == "double" else "fpext", value, "float")

    def from_float(self, value: Val, element: str) -> Val:
        """A float as half, bfloat or double, rounded to nearest even.

        bfloat is rounded in integer arithmetic: the x86 instruction flushes denormals, and without it LLVM
        calls a runtime library that the process does not have.
        """
        if element == "float":
            return value
        if element != "bfloat":
            return self.cast("fpext" if element == "double" else "fptrunc", value, element)
        bits = self.bitcast(value, value.type.with_element("i32"))
        high = self.lshr(bits, 16)
        rounded = self.lshr(self.iadd(bits, self.iadd(self.and_(high, 1), 0x7FFF)), 16)
        quiet = self.or_(high, 0x40)
        kept = self.select(self.fcmp("uno", value, value), quiet, rounded)
        return self.bitcast(self.cast("trunc", kept, "i16"), value.type.with_element("bfloat"))

    # Reductions over lanes.

    def reduce_fadd(self, value: Val) -> Val:
        return self.reduce(value, self.fadd)

    def reduce_fmax(self, value: Val) -> Val:
        return self.reduce(value, self.maximum)

    def reduce_fmin(self, value: Val) -> Val:
        return self.reduce(value, self.minimum)


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": int.__eq__,
    "ne": int.__ne__,
    "slt": int.__lt__,
    "sle": int.__le__,
    "sgt": int.__gt__,
    "sge": int.__ge__,
}
