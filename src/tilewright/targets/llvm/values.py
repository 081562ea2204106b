"""What the emitter's instructions read and make: LLVM types, typed SSA values and literals."""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Sequence
from dataclasses import field

from tilewright.records import dataclass

ELEMENT_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat": 2,
    "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "i128": 16, "ptr": 8,
    "ptr addrspace(1)": 8, "ptr addrspace(3)": 8, "ptr addrspace(4)": 8,
}  # fmt: skip
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}
_FLOATS = frozenset({"float", "double", "half", "bfloat"})
_F32, _F64, _U32, _U64, _F16, _U16 = (struct.Struct("<" + c) for c in "fdIQeH")


@dataclass(frozen=True, slots=True)
class Type:
    """`lanes` elements of one LLVM element type; one lane is a scalar, not a vector of one."""

    element: str
    lanes: int = 1
    text: str = field(init=False, compare=False, repr=False)
    suffix: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.element not in ELEMENT_BYTES:
            raise ValueError(
                f"LLVM element type {self.element!r}: expected one of {', '.join(ELEMENT_BYTES)}"
            )
        if self.lanes < 1:
            raise ValueError(f"LLVM type of {self.element} with {self.lanes} lanes: expected at least 1")
        scalar = self.lanes == 1
        suffix = _SUFFIX.get(self.element, self.element)
        object.__setattr__(self, "text", self.element if scalar else f"<{self.lanes} x {self.element}>")
        object.__setattr__(self, "suffix", suffix if scalar else f"v{self.lanes}{suffix}")

    @property
    def element_bytes(self) -> int:
        """Bytes of one element in memory."""
        return ELEMENT_BYTES[self.element]

    @property
    def size_bytes(self) -> int:
        """Bytes of all lanes in memory."""
        return ELEMENT_BYTES[self.element] * self.lanes

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self.element in _FLOATS

    @property
    def scalar(self) -> Type:
        """One element of it."""
        return vec(self.element)

    def with_lanes(self, lanes: int) -> Type:
        """The same element, another width."""
        return vec(self.element, lanes)

    def with_element(self, element: str) -> Type:
        """Another element, the same width."""
        return vec(element, self.lanes)


@functools.cache
def vec(element: str, lanes: int = 1) -> Type:
    """The type of `lanes` x `element`; each type is made once, so that types compare fast.

    >>> vec("float", 16).text, vec("float").text
    ('<16 x float>', 'float')
    """
    return Type(element, lanes)


FLOAT, DOUBLE = vec("float"), vec("double")
I1, I8, I16, I32, I64, PTR = vec("i1"), vec("i8"), vec("i16"), vec("i32"), vec("i64"), vec("ptr")


class Val:
    """A typed SSA value, argument, global or literal; immutable by convention, compared by name and type.

    Not a dataclass: one is made per instruction, and a frozen dataclass takes 2.7 times as long to make.
    """

    __slots__ = ("name", "type")

    def __init__(self, name: str, type: Type) -> None:
        self.name = name
        self.type = type

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Val({self.name!r}, {self.type.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Val) and self.name == other.name and self.type == other.type

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def typed(self) -> str:
        """`<16 x float> %v3`: how an operand with its type is written."""
        return f"{self.type.text} {self.name}"

    @property
    def lanes(self) -> int:
        """Lanes of its type."""
        return self.type.lanes


Number = int | float
Operand = Val | int | float
Int = Val | int  # an i64 value, or a number known while emitting
Bool = Val | bool


def float_literal(element: str, value: Number) -> str:
    """Exact LLVM literal of `value` rounded to nearest even in `element` (too large: infinity).

    >>> float_literal("float", 0.1), float_literal("half", 1.0), float_literal("bfloat", -2.0)
    ('0x3FB99999A0000000', '0xH3C00', '0xRC000')
    """
    return _float_literal(element, _F64.pack(float(value)))


@functools.lru_cache(maxsize=1 << 12)
def _float_literal(element: str, bits_of_double: bytes) -> str:
    """The same of a number by its bits: code has few numbers, many times, and -0.0 equals 0.0."""
    number: float = _F64.unpack(bits_of_double)[0]
    if element == "double":
        return f"0x{_U64.unpack(_F64.pack(number))[0]:016X}"
    if element == "half":
        try:
            bits = _U16.unpack(_F16.pack(number))[0]
        except OverflowError:
            bits = _U16.unpack(_F16.pack(math.copysign(math.inf, number)))[0]
        return f"0xH{bits:04X}"
    single: float = ctypes.c_float(number).value
    if element == "float":
        return f"0x{_U64.unpack(_F64.pack(single))[0]:016X}"
    bits = _U32.unpack(_F32.pack(single))[0]
    if number != number:
        return "0xR7FC0"
    return f"0xR{(bits + 0x7FFF + (bits >> 16 & 1)) >> 16:04X}"


def literal(type: Type, value: Number) -> str:
    """Literal of `value` in every lane of `type`."""
    if type.is_float:
        text = float_literal(type.element, value)
    elif type.element == "i1":
        text = "true" if value else "false"
    else:
        text = str(int(value))
    return text if type.lanes == 1 else f"splat ({type.element} {text})"


def vector_literal(element: str, values: Sequence[Number]) -> Val:
    """A constant vector with one given value per lane.

    >>> vector_literal("i32", [0, 1]).typed
    '<2 x i32> <i32 0, i32 1>'
    """
    scalar = vec(element)
    if len(values) == 1:
        return Val(literal(scalar, values[0]), scalar)
    lanes = ", ".join(f"{element} {literal(scalar, value)}" for value in values)
    return Val(f"<{lanes}>", vec(element, len(values)))
