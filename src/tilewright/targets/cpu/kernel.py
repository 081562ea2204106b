"""What a kernel generator takes and gives.

Generators see a *nest group*: nests in order, whose operands are numbered within the group: kind
"input" and "output" refer to the subgraph's values, "local" to temporaries between its nests, "table"
to constants. They answer with `Kernel`s (run one after the other) or with `Declined`.

Every kernel function has the signature `void @symbol(ptr %args, i64 %chunk, ptr %scratch)`: `%args` is
an array of pointers in the order of `Kernel.args`, `%chunk` lies in `[0, num_chunks)`, `%scratch` is a
64-byte aligned area of at least `scratch_bytes`, private to the executing thread. Chunks are
independent and their number never depends on the number of threads, so any thread count gives the
same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from tilewright.ir.dtype import DType
from tilewright.ir.nest import Nest, Operand
from tilewright.targets.cpu.arrangements import Arrangement
from tilewright.targets.llvm.layout import REPORT_BYTES as REPORT_BYTES
from tilewright.targets.llvm.layout import Declined as Declined
from tilewright.targets.llvm.layout import IndexCheck as IndexCheck
from tilewright.targets.llvm.layout import Layout as Layout
from tilewright.targets.llvm.layout import Layouts as Layouts
from tilewright.targets.llvm.layout import OperandKey as OperandKey
from tilewright.tuning import Choice


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A constant operand rearranged before any run; `size_bytes` are those of the rearranged one."""

    source: Operand
    arrangement: Arrangement
    size_bytes: int


# The kind of operand where a kernel notes, for each of its checks, the smallest and the largest index that
# lies outside its axis: two int64, both 0 while there is none (0 is always inside).
REPORTS: Final = "reports"


def reports_operand(num_checks: int) -> Operand:
    """Where a kernel with checks reports, its last argument."""
    return Operand(REPORTS, 0, DType.INT64, (num_checks, REPORT_BYTES // DType.INT64.size_bytes))


# The kind of operand that is no address but a number: how many rows a run has. Loops over rows (`Dim.rows`)
# end there, in kernels that ask for it.
ROWS: Final = "rows"


def rows_operand() -> Operand:
    """The number of rows of a run, as the argument of a kernel."""
    return Operand(ROWS, 0, DType.INT64, ())


@dataclass(frozen=True, slots=True, eq=False)
class Loops:
    """Nests whose loops run together, or one alone, and the layouts in which they were compiled."""

    nests: tuple[Nest, ...]
    layouts: Layouts


KernelArg = Operand | Packed


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One parallel region: IR text of one function and what to call it with."""

    symbol: str
    text: str
    num_chunks: int
    args: tuple[KernelArg, ...]
    scratch_bytes: int = 0
    template: str = "loop-nest"
    needs_optimizer: bool = False  # run LLVM's own passes (scalar code that we did not vectorise)
    macs: int = 0
    notes: tuple[str, ...] = field(default=())
    signature: str = ""  # of the product that it computes: see `select.product_signature`
    choice: Choice | None = None  # that was asked for; None where the estimate decided
    parts: tuple[Kernel, ...] = ()  # kernels that this one calls
    checks: tuple[IndexCheck, ...] = ()
    nests: tuple[Nest, ...] = ()  # those it computes, where its generator made several kernels of many nests
    loops: tuple[Loops, ...] = ()  # the same, as far as they may be made in other ways
    plan: object | None = None  # what it was generated from, which prints as text; None where there is none
    estimate_cycles: float | None = None  # of all chunks on one core, by its template; None if it gives none

    def estimated(self, cycles: float) -> Kernel:
        """The kernel with its template's estimate."""
        return replace(self, estimate_cycles=cycles)

    @property
    def argument_bytes(self) -> int:
        """Bytes of everything that it is given, each argument once."""
        return sum(
            a.size_bytes if isinstance(a, Packed) else a.num_elements * a.dtype.size_bytes
            for a in self.args
            if isinstance(a, Packed) or a.kind not in (REPORTS, ROWS)
        )

    def all_kernels(self) -> Iterator[Kernel]:
        """This kernel and those it calls: all code that it needs."""
        for part in self.parts:
            yield from part.all_kernels()
        yield self


# Sums of more steps are cut into blocks of about so many, whose totals are added up: the error of one chain
# of float additions grows with its length. A block hides what the additional addition costs.
MAX_CHAIN_STEPS = 384
BLOCK_STEPS = 256
