"""Where the temporaries of a fused kernel lie in its scratch area."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilewright.ir.nest import Operand
from tilewright.memory.base import Buffer, MemoryProblem, aligned
from tilewright.memory.greedy_by_size import GreedyBySize
from tilewright.planning import Budget, Infeasible
from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import Kernel, OperandKey

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Scratch:
    """Offsets of the temporaries in the scratch area: of those that stay, and of each variant's others."""

    kept: Mapping[OperandKey, int]
    others: Sequence[Mapping[OperandKey, int]]
    size_bytes: int

    @classmethod
    def of(cls, variants: Sequence[Sequence[Kernel]], kept: frozenset[OperandKey]) -> Scratch:
        """Places for the temporaries: the others live from the first kernel that has them to the last."""
        largest: dict[OperandKey, int] = {}
        for operand in (o for v in variants for k in v for o in _locals(k)):
            if operand.key in kept:
                largest[operand.key] = max(largest.get(operand.key, 0), _size_bytes(operand))
        places: dict[OperandKey, int] = {}
        end = 0
        for key, size_bytes in largest.items():
            places[key] = end
            end = aligned(end + size_bytes, _ALIGNMENT_BYTES)
        others: list[dict[OperandKey, int]] = []
        size = end
        for kernels in variants:
            first: dict[OperandKey, int] = {}
            last: dict[OperandKey, int] = {}
            sizes: dict[OperandKey, int] = {}
            for number, kernel in enumerate(kernels):
                for operand in _locals(kernel):
                    if operand.key not in kept:
                        first.setdefault(operand.key, number)
                        last[operand.key] = number
                        sizes[operand.key] = _size_bytes(operand)
            buffers = tuple(Buffer(str(k), sizes[k], first[k], last[k]) for k in first)
            plan = GreedyBySize().solve(MemoryProblem(buffers), Budget())
            assert not isinstance(plan, Infeasible)
            others.append({k: end + plan.offsets[str(k)] for k in first})
            size = max(size, aligned(end + plan.peak_bytes, _ALIGNMENT_BYTES))
        return cls(places, others, size)

    def offset(self, variant: int, key: OperandKey) -> int:
        """Bytes from the start of the scratch area to a temporary."""
        return self.kept[key] if key in self.kept else self.others[variant][key]


def _locals(kernel: Kernel) -> Iterator[Operand]:
    return (a for a in kernel.args if isinstance(a, Operand) and a.kind == "local")


def _size_bytes(operand: Operand) -> int:
    return operand.num_elements * operand.dtype.size_bytes
