"""What a kernel generator of the GPU takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from tilewright.arrays import Array
from tilewright.ir.nest import Operand
from tilewright.options import Accuracy
from tilewright.records import dataclass
from tilewright.targets.cuda.rates import Rates
from tilewright.targets.llvm.layout import IndexCheck, OperandKey

Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A constant operand rearranged once, before any run: `arrange` gives the array that is loaded."""

    source: Operand
    arrange: Callable[[Array], Array]
    name: str


@dataclass(frozen=True, slots=True)
class ReportsOperand:
    """Where a kernel notes, for each of its checks, the smallest and the largest index outside its axis."""


@dataclass(frozen=True, slots=True)
class CountersOperand:
    """So many counters of 32 bits, which are zero before and after each launch."""

    number: int


KernelArg = Operand | Packed | ReportsOperand | CountersOperand


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One kernel: a module with the function `symbol`, its grid, and the operands whose addresses it takes.

    `shared_bytes` are those of a block's arrays that the text declares.
    """

    symbol: str
    text: str
    grid: Shape
    block: Shape
    args: tuple[KernelArg, ...]
    writes: tuple[OperandKey, ...]
    template: str
    macs: int = 0
    shared_bytes: int = 0
    notes: tuple[str, ...] = ()
    checks: tuple[IndexCheck, ...] = ()

    @property
    def argument_bytes(self) -> int:
        """Bytes of everything that it is given, each argument once."""
        operands = (a.source if isinstance(a, Packed) else a for a in self.args)
        return sum(o.num_elements * o.dtype.size_bytes for o in operands if isinstance(o, Operand))

    @property
    def num_blocks(self) -> int:
        """Blocks of its grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True, slots=True)
class Context:
    """What surrounds a nest: the machine, what may be rounded, constants, the number of the next local."""

    rates: Rates
    accuracy: Accuracy = "default"
    constants: Mapping[OperandKey, Array] = field(default_factory=dict)
    next_local: int = 0
