"""Lane arithmetic on typed values: one method per LLVM instruction, any element type, any number of lanes.

A Python number stands for a constant in every lane; the other operand gives its type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.targets.llvm.module_text import ModuleText
from tilewright.targets.llvm.values import Int, Operand, Type, Val, literal


class LaneOps(ModuleText):
    """Constants, lane movement, arithmetic, comparisons and casts."""

    # Constants and lane movement.

    def constant(self, type: Type, value: Operand) -> Val:
        """`value` in every lane of `type`; a value passes through, and must have that type."""
        if isinstance(value, Val):
            if value.type is not type and value.type != type:
                raise TypeError(f"{value.typed} stands where {type.text} is expected")
            return value
        return Val(literal(type, value), type)

    def zero(self, type: Type) -> Val:
        """Zero in every lane."""
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
        """One lane as a scalar."""
        if value.lanes == 1:
            return value
        return self.op(f"extractelement {value.typed}, i64 {lane}", value.type.scalar)

    def insert(self, value: Val, scalar: Val, lane: Int) -> Val:
        """`value` with one lane replaced."""
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
        """One scalar from all lanes: upper half onto lower until one is left, the same order everywhere."""
        if value.lanes & (value.lanes - 1):
            raise ValueError(f"reduce of {value.typed}: the number of lanes must be a power of two")
        while value.lanes > 1:
            half = value.lanes // 2
            low = self.shuffle(value, None, range(half))
            high = self.shuffle(value, None, range(half, 2 * half))
            value = combine(low, high)
        return value

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
        for arg in args:
            if isinstance(arg, Val):
                type = arg.type
                break
        else:
            raise TypeError(f"llvm.{name} of numbers only, {args}: at least one must be a value")
        values = [a if isinstance(a, Val) else Val(literal(type, a), type) for a in args]
        return self.op(self._intrinsic_call(name, type, values, flags), type)

    def fadd(self, a: Operand, b: Operand) -> Val:
        """Sum."""
        return self.binary("fadd", a, b)

    def fsub(self, a: Operand, b: Operand) -> Val:
        """Difference."""
        return self.binary("fsub", a, b)

    def fmul(self, a: Operand, b: Operand) -> Val:
        """Product, rounded: LLVM never contracts it with a later sum."""
        return self.binary("fmul", a, b)

    def fdiv(self, a: Operand, b: Operand) -> Val:
        """Quotient."""
        return self.binary("fdiv", a, b)

    def fneg(self, a: Val) -> Val:
        """Sign flipped, of NaN and zero too."""
        return self.op(f"fneg {a.typed}", a.type)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Val:
        """`a * b + c` rounded once."""
        return self._function_of("fma", "", a, b, c)

    def maximum(self, a: Operand, b: Operand) -> Val:
        """Larger value, NaN if either is; the sign of a zero is free: one instruction on x86."""
        return self._function_of("maximum", "nsz", a, b)

    def minimum(self, a: Operand, b: Operand) -> Val:
        """Smaller value, NaN if either is; the sign of a zero is free."""
        return self._function_of("minimum", "nsz", a, b)

    def sqrt(self, a: Val) -> Val:
        """Square root, correctly rounded."""
        return self._function_of("sqrt", "", a)

    def fabs(self, a: Val) -> Val:
        """Sign cleared."""
        return self._function_of("fabs", "", a)

    def copysign(self, magnitude: Operand, sign: Operand) -> Val:
        """`magnitude` with the sign bit of `sign`."""
        return self._function_of("copysign", "", magnitude, sign)

    def floor(self, a: Val) -> Val:
        """Rounded down, still a float."""
        return self._function_of("floor", "", a)

    def ceil(self, a: Val) -> Val:
        """Rounded up, still a float."""
        return self._function_of("ceil", "", a)

    def trunc(self, a: Val) -> Val:
        """Rounded toward zero, still a float."""
        return self._function_of("trunc", "", a)

    def roundeven(self, a: Val) -> Val:
        """Rounded to the nearest integer, ties to even, still a float."""
        return self._function_of("roundeven", "", a)

    def iadd(self, a: Operand, b: Operand) -> Val:
        """Sum, wrapping."""
        return self.binary("add", a, b)

    def saturating_add(self, a: Operand, b: Operand) -> Val:
        """Sum of signed integers, at the ends of their type instead of beyond."""
        return self._function_of("sadd.sat", "", a, b)

    def isub(self, a: Operand, b: Operand) -> Val:
        """Difference, wrapping."""
        return self.binary("sub", a, b)

    def imul(self, a: Operand, b: Operand) -> Val:
        """Product, wrapping."""
        return self.binary("mul", a, b)

    def idiv(self, a: Operand, b: Operand) -> Val:
        """Signed quotient rounded toward zero; division by zero is undefined."""
        return self.binary("sdiv", a, b)

    def irem(self, a: Operand, b: Operand) -> Val:
        """Signed remainder with the sign of `a`."""
        return self.binary("srem", a, b)

    def and_(self, a: Operand, b: Operand) -> Val:
        """Bitwise and."""
        return self.binary("and", a, b)

    def or_(self, a: Operand, b: Operand) -> Val:
        """Bitwise or."""
        return self.binary("or", a, b)

    def xor(self, a: Operand, b: Operand) -> Val:
        """Bitwise exclusive or."""
        return self.binary("xor", a, b)

    def not_(self, a: Val) -> Val:
        """Every bit flipped."""
        return self.binary("xor", a, -1 if a.type.element != "i1" else 1)

    def shl(self, a: Operand, b: Operand) -> Val:
        """Shift left; by the width or more is undefined."""
        return self.binary("shl", a, b)

    def lshr(self, a: Operand, b: Operand) -> Val:
        """Shift right, zeros come in."""
        return self.binary("lshr", a, b)

    def ashr(self, a: Operand, b: Operand) -> Val:
        """Shift right, the sign comes in."""
        return self.binary("ashr", a, b)

    def smax(self, a: Operand, b: Operand) -> Val:
        """Larger signed integer."""
        return self._function_of("smax", "", a, b)

    def smin(self, a: Operand, b: Operand) -> Val:
        """Smaller signed integer."""
        return self._function_of("smin", "", a, b)

    def umax(self, a: Operand, b: Operand) -> Val:
        """Larger unsigned integer."""
        return self._function_of("umax", "", a, b)

    def umin(self, a: Operand, b: Operand) -> Val:
        """Smaller unsigned integer."""
        return self._function_of("umin", "", a, b)

    def icmp(self, predicate: str, a: Operand, b: Operand) -> Val:
        """One i1 per lane."""
        made = self.binary(f"icmp {predicate}", a, b)
        return Val(made.name, made.type.with_element("i1"))

    def fcmp(self, predicate: str, a: Operand, b: Operand) -> Val:
        """One i1 per lane: `oeq olt uno` ... as in LLVM; ordered predicates are false on NaN."""
        made = self.binary(f"fcmp {predicate}", a, b)
        return Val(made.name, made.type.with_element("i1"))

    def any_lane(self, condition: Val) -> Val:
        """Whether an i1 holds in at least one lane."""
        if condition.lanes == 1:
            return condition
        name = f"i1 @llvm.vector.reduce.or.{condition.type.suffix}("
        self.declare(f"declare {name}{condition.type.text})")
        return self.op(f"call {name}{condition.typed})", condition.type.scalar)

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
        if element == "half" and value.type.lanes == 1:
            # Or LLVM joins it with a rounding from double before, which is a call of that library too.
            name = f"{value.type.text} @llvm.arithmetic.fence.{value.type.suffix}("
            self.declare(f"declare {name}{value.type.text})")
            value = self.op(f"call {name}{value.typed})", value.type)
        if element != "bfloat":
            return self.cast("fpext" if element == "double" else "fptrunc", value, element)
        bits = self.bitcast(value, value.type.with_element("i32"))
        high = self.lshr(bits, 16)
        rounded = self.lshr(self.iadd(bits, self.iadd(self.and_(high, 1), 0x7FFF)), 16)
        quiet = self.or_(high, 0x40)
        kept = self.select(self.fcmp("uno", value, value), quiet, rounded)
        return self.bitcast(self.cast("trunc", kept, "i16"), value.type.with_element("bfloat"))

    # Reductions over lanes.
