"""What all parts of a contraction's generator work with: operands, panels, and where a tile lies."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.records import dataclass
from tilewright.targets.cpu.emit.emitter import Emitter
from tilewright.targets.cpu.emit.values import PTR, Int, Type, Val
from tilewright.targets.cpu.product.contraction.match import Contraction
from tilewright.targets.cpu.product.contraction.pack import FactorB
from tilewright.targets.cpu.product.contraction.tiling import Panels

_INDEX_TYPES = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}


@dataclass(frozen=True, slots=True)
class Position:
    """Element offsets of one tile's first row in every operand, and the output indices that windows need."""

    a: Int
    b: Int
    c: Int
    extras: tuple[Int, ...]
    outer: Mapping[str, Int]


@dataclass(frozen=True, slots=True)
class Panel:
    """The vectors of one panel; `active` lanes of the last one exist."""

    num_vectors: int
    active: int
    step_strides: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The fixed facts of one kernel; `pointers` are the addresses of a, b and c."""

    emitter: Emitter
    problem: Contraction
    factor: FactorB
    panels: Panels
    type: Type
    pointers: Mapping[str, Val]
    extra_pointers: tuple[Val, ...]

    def pointer(self, name: str, elements: Int, element_bytes: int) -> Val:
        """An operand's address moved by elements."""
        base = self.pointers[name]
        return (
            base if isinstance(elements, int) and elements == 0 else self.moved(base, elements, element_bytes)
        )

    def moved(self, base: Val, elements: Int, element_bytes: int) -> Val:
        """An address moved by elements; not `inbounds`: with padding it may lie before the tensor."""
        kind = _INDEX_TYPES[element_bytes]
        return self.emitter.op(f"getelementptr {kind}, ptr {base}, i64 {elements}", PTR)

    def active(self, panel: Panel, vector: int) -> int:
        """Lanes of a panel's vector that exist."""
        return panel.active if vector == panel.num_vectors - 1 else self.panels.lanes
