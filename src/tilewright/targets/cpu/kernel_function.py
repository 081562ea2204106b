"""The function of a kernel while it is emitted: its arguments, and the name that its own text gives it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import IndexCheck, Kernel, KernelArg, rows_operand
from tilewright.targets.llvm.emitter import Emitter, Param
from tilewright.targets.llvm.module_text import SYMBOL_PLACEHOLDER, name_by_content
from tilewright.targets.llvm.values import I64, PTR, Val


@dataclass(frozen=True, slots=True, eq=False)
class KernelFunction:
    """What the body of a kernel works with; `pointers` are the addresses of `operands`, in their order.

    With `has_rows` the number of rows of a run comes behind them.
    """

    emitter: Emitter
    operands: tuple[KernelArg, ...]
    pointers: tuple[Val, ...]
    chunk: Val
    scratch: Val
    argument_block: Val
    has_rows: bool

    def num_rows(self) -> Val | None:
        """Load how many rows a run has; None of a kernel that is not told."""
        if not self.has_rows:
            return None
        return self.emitter.load(I64, self.emitter.gep(self.argument_block, 8 * len(self.operands)))

    def kernel(
        self,
        stem: str,
        *,
        num_chunks: int,
        template: str,
        scratch_bytes: int = 0,
        macs: int = 0,
        notes: tuple[str, ...] = (),
        parts: tuple[Kernel, ...] = (),
        checks: tuple[IndexCheck, ...] = (),
        estimate_cycles: float | None = None,
        text: str | None = None,
        plan: object | None = None,
    ) -> Kernel:
        """The kernel of the finished function, or of a `text` that contains it; `stem` begins its name."""
        symbol, named = name_by_content(self.emitter.text() if text is None else text, stem)
        return Kernel(
            symbol=symbol,
            text=named,
            num_chunks=num_chunks,
            args=(*self.operands, rows_operand()) if self.has_rows else self.operands,
            scratch_bytes=scratch_bytes,
            template=template,
            macs=macs,
            notes=notes,
            parts=parts,
            checks=checks,
            estimate_cycles=estimate_cycles,
            plan=plan,
        )


_PARAMS = (Param("args", PTR), Param("chunk", I64), Param("scratch", PTR))


@contextmanager
def kernel_function(
    emitter: Emitter,
    operands: Sequence[KernelArg],
    *,
    has_rows: bool = False,
    name: str = SYMBOL_PLACEHOLDER.removeprefix("@"),
    params: tuple[Param, Param, Param] = _PARAMS,
) -> Iterator[KernelFunction]:
    """A kernel's function around the emitted body; see `kernel.py` for its signature.

    One that text around it calls has a name of its own, and what it is called with instead.
    """
    linkage = "" if params is _PARAMS else "internal"
    with emitter.function(name, params, linkage=linkage) as (block, chunk, scratch):
        pointers = tuple(emitter.load(PTR, emitter.gep(block, 8 * i)) for i in range(len(operands)))
        yield KernelFunction(emitter, tuple(operands), pointers, chunk, scratch, block, has_rows)
