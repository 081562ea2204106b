"""Four byte products added to each int32 sum: one instruction where the processor has it, else a few."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.targets.cpu.emitter import Emitter
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.values import Val, vec


@dataclass(frozen=True, slots=True)
class Dot:
    """How one instruction set multiplies unsigned by signed bytes in groups of four."""

    name: str
    has_instruction: bool

    def step(self, e: Emitter, a: Val, b: Val, total: Val) -> Val:
        """`total + sum of a[i] * b[i]` over the four bytes of each i32 lane; A unsigned, B signed."""
        lanes = total.lanes
        if not self.has_instruction or lanes not in (4, 8, 16):
            return _plain(e, a, b, total)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        wide, narrow = vec("i32", lanes), vec("i8", 4 * lanes)
        e.declare(f"declare {wide.text} @{name}({wide.text}, {narrow.text}, {narrow.text})")
        factors = f"{e.bitcast(a, narrow).typed}, {e.bitcast(b, narrow).typed}"
        return e.op(f"call {wide.text} @{name}({total.typed}, {factors})", wide)

    def widened(self, e: Emitter, a: Val, b: Val, total: Val) -> Val:
        """`total + a * b` for i32 lanes whose values fit 16 bits."""
        lanes = total.lanes
        if not self.has_instruction or lanes not in (4, 8, 16):
            return e.iadd(total, e.imul(a, b))
        name = f"llvm.x86.avx512.vpdpwssd.{32 * lanes}"
        wide, narrow = vec("i32", lanes), vec("i16", 2 * lanes)
        e.declare(f"declare {wide.text} @{name}({wide.text}, {narrow.text}, {narrow.text})")
        factors = f"{e.bitcast(a, narrow).typed}, {e.bitcast(b, narrow).typed}"
        return e.op(f"call {wide.text} @{name}({total.typed}, {factors})", wide)


def dot_of(isa: Isa) -> Dot:
    """The widest byte product an instruction set has."""
    features = set(isa.features.split(","))
    if "+avx512vnni" in features and "+avx512vl" in features and isa.name == "avx512":
        return Dot("vnni", True)
    if "+avxvnni" in features and isa.name == "avx2":
        return Dot("vnni", True)
    return Dot("widened", False)


def _plain(e: Emitter, a: Val, b: Val, total: Val) -> Val:
    """Byte by byte in int32: correct everywhere."""
    for byte in range(4):
        unsigned = e.and_(e.lshr(a, 8 * byte), 255) if byte else e.and_(a, 255)
        signed = e.ashr(e.shl(b, 24 - 8 * byte), 24) if byte < 3 else e.ashr(b, 24)
        total = e.iadd(total, e.imul(unsigned, signed))
    return total
