"""What the generators of products work with: operands, panels, and where a tile lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field

from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import KernelArg
from tilewright.targets.cpu.kernel_function import KernelFunction, kernel_function
from tilewright.targets.cpu.product.plan import KernelPlan
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int, Type, Val


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """Where the kernel finds B: the argument, and the elements from panel to panel and in outer loops."""

    arg: KernelArg
    outer_strides: dict[str, int]
    panel_stride: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """Element offsets of one tile's first row in every operand, and the output indices that windows need.

    `sums` are those in the sums of B's columns.
    """

    a: Int
    b: Int
    c: Int
    extras: tuple[Int, ...]
    outer: Mapping[str, Int]
    sums: Int = 0


@dataclass(frozen=True, slots=True)
class Panel:
    """The vectors of one panel; `active` lanes of the last one exist."""

    num_vectors: int
    active: int
    step_strides: Mapping[str, int] = field(default_factory=dict)

    def active_in(self, vector: int, lanes: int) -> int:
        """Lanes of a vector that exist."""
        return self.active if vector == self.num_vectors - 1 else lanes


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The fixed facts of one kernel; `type` is a vector of sums, `pointers` are those of its arguments."""

    emitter: Emitter
    plan: KernelPlan
    type: Type
    function: KernelFunction
    pointers: Mapping[str, Val]
    extra_pointers: tuple[Val, ...]

    def pointer(self, name: str, elements: Int, element_bytes: int) -> Val:
        """An operand's address moved by elements."""
        base = self.pointers[name]
        if isinstance(elements, int) and elements == 0:
            return base
        return self.emitter.moved(base, elements, element_bytes)


@contextmanager
def product_function(
    e: Emitter, plan: KernelPlan, type: Type, b: KernelArg, others: Mapping[str, KernelArg], *, has_rows: bool
) -> Iterator[Frame]:
    """A product's function around the emitted body: a, b, c, the `others`, the operands of the epilogue."""
    named = {"a": plan.a.operand, "b": b, "c": plan.c.operand, **others}
    with kernel_function(e, (*named.values(), *plan.operands), has_rows=has_rows) as function:
        pointers = dict(zip(named, function.pointers, strict=False))
        yield Frame(e, plan, type, function, pointers, function.pointers[len(named) :])
