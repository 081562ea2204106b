"""Four byte products added to each int32 sum: one instruction where the processor has it, else a few.

Without it, x86 multiplies pairs of 16-bit numbers: the bytes at even and at odd places of a word are widened
apart, those of B once for all rows.
"""

from __future__ import annotations

from typing import Literal, get_args

from tilewright.errors import UsageError
from tilewright.records import dataclass
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.product.plan import KernelPlan
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Type, Val, vec

FLIP = -0x7F7F7F80  # 0x80808080: the top bit of each byte
_EVEN_BYTES = 0x00FF00FF
_PAIRS = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}
# Widened words of B take registers beside the sums: (rows, vectors) of a tile.
PAIRS_TILE = {16: (4, 2), 32: (6, 3)}

Factor = tuple[Val, ...]
DotName = Literal["vnni", "pairs", "widened"]


@dataclass(frozen=True, slots=True)
class Dot:
    """How one instruction set multiplies unsigned by signed bytes in groups of four."""

    name: DotName

    def spread_a(self, e: Emitter, word: Val, lanes: int, *, flips: bool) -> Factor:
        """A word of A in every lane, as `step` takes it; `flips` makes its signed bytes unsigned."""
        spread = e.splat(word, lanes)
        spread = e.xor(spread, FLIP) if flips else spread
        if self.name != "pairs":
            return (spread,)
        halves = e.bitcast(spread, vec("i16", 2 * lanes))
        return e.and_(spread, _EVEN_BYTES), e.lshr(halves, 8)

    def widen_b(self, e: Emitter, words: Val) -> Factor:
        """Words of B, one per lane, as `step` takes them."""
        if self.name != "pairs":
            return (words,)
        halves = e.bitcast(words, vec("i16", 2 * words.lanes))
        return e.ashr(e.shl(halves, 8), 8), e.ashr(halves, 8)

    def step(self, e: Emitter, a: Factor, b: Factor, total: Val) -> Val:
        """`total + sum of a[i] * b[i]` over the four bytes of each i32 lane; A unsigned, B signed."""
        match self.name:
            case "vnni":
                return _accumulate(e, "vpdpbusd", total, a[0], b[0], vec("i8", 4 * total.lanes))
            case "pairs":
                for x, y in zip(a, b, strict=True):
                    total = e.iadd(total, _pairs(e, x, y, total.type))
                return total
        for byte in range(4):
            unsigned = e.and_(e.lshr(a[0], 8 * byte), 255) if byte else e.and_(a[0], 255)
            signed = e.ashr(e.shl(b[0], 24 - 8 * byte), 24) if byte < 3 else e.ashr(b[0], 24)
            total = e.iadd(total, e.imul(unsigned, signed))
        return total

    def widened(self, e: Emitter, a: Val, b: Val, total: Val) -> Val:
        """`total + a * b` for i32 lanes whose values fit 16 bits."""
        return e.iadd(total, e.imul(a, b)) if self.name == "widened" else self.halves(e, a, b, total)

    def halves(self, e: Emitter, a: Val, b: Val, total: Val) -> Val:
        """`total` plus both products of the signed 16-bit halves of each i32 lane, on x86."""
        if self.name == "vnni":
            return _accumulate(e, "vpdpwssd", total, a, b, vec("i16", 2 * total.lanes))
        return e.iadd(total, _pairs(e, a, b, total.type))


def planned_dot(plan: KernelPlan) -> Dot:
    """What a plan multiplies words, or the bytes of each column, with."""
    name = plan.dot.removesuffix(" by column")
    if name not in get_args(DotName):
        raise UsageError(f"kernel plan: {plan.dot!r} multiplies no words of bytes.")
    return Dot(name)  # type: ignore[arg-type]  # one of them


def dot_of(isa: Isa, lanes: int) -> Dot:
    """The widest byte product an instruction set has for sums of so many lanes."""
    features = set(isa.features.split(","))
    if lanes not in _PAIRS or isa.arch != "x86_64":
        return Dot("widened")
    if {"+avx512vnni", "+avx512vl"} <= features and isa.vectors == "avx512":
        return Dot("vnni")
    return Dot("vnni" if "+avxvnni" in features and isa.vectors == "avx2" else "pairs")


def _accumulate(e: Emitter, instruction: str, total: Val, a: Val, b: Val, narrow: Type) -> Val:
    wide = total.type
    name = f"llvm.x86.avx512.{instruction}.{8 * wide.size_bytes}"
    e.declare(f"declare {wide.text} @{name}({wide.text}, {narrow.text}, {narrow.text})")
    factors = f"{e.bitcast(a, narrow).typed}, {e.bitcast(b, narrow).typed}"
    return e.op(f"call {wide.text} @{name}({total.typed}, {factors})", wide)


def _pairs(e: Emitter, a: Val, b: Val, wide: Type) -> Val:
    """Products of 16-bit numbers, two summed in each i32 lane."""
    narrow = vec("i16", 2 * wide.lanes)
    name = f"llvm.x86.{_PAIRS[wide.lanes]}"
    e.declare(f"declare {wide.text} @{name}({narrow.text}, {narrow.text})")
    factors = f"{e.bitcast(a, narrow).typed}, {e.bitcast(b, narrow).typed}"
    return e.op(f"call {wide.text} @{name}({factors})", wide)
