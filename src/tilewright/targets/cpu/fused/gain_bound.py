"""Upper bound of what blocks of several operators can gain, from what each operator takes alone.

Estimating the blocks of a group needs its nests composed and their windows followed. Most groups of heavy
products save too little for that, whatever the blocks, and what each operator reads, writes and computes
alone says so: composing nests takes operands away and adds none, and it computes every sum as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir.contraction import contraction_of
from tilewright.ir.fuse import NestGroup
from tilewright.ir.graph import Value
from tilewright.ir.nest import Opaque, Operand
from tilewright.records import dataclass
from tilewright.targets.cpu.fused.estimate import (
    MIN_SAVED_SHARE,
    STEP_CYCLES,
    end_cycles,
    highest_rate,
    least_paid,
)
from tilewright.targets.cpu.isa import Isa


@dataclass(frozen=True, slots=True)
class GainBound:
    """Products of one operator and what follows it element by element, and the least cycles to compute them.

    `ends` are the cycles to write or to read each value that may come to lie within a block, by value;
    `inner` are those of its temporaries.
    """

    num_products: int
    least_cycles: float
    inner: float
    ends: Mapping[Value, float]
    made: frozenset[Value]
    read: frozenset[Value]

    @classmethod
    def of(cls, group: NestGroup | Opaque, isa: Isa) -> GainBound | None:
        """Of what the nests of a group say."""
        if isinstance(group, Opaque):
            return None
        num_products = 0
        iterations = 0
        inner = 0.0
        ends: dict[Value, float] = {}
        for nest in group.nests:
            form = contraction_of(nest)
            num_products += form is not None
            iterations += nest.num_iterations if nest.combine is not None else 0
            operands: dict[tuple[str, int], Operand] = {
                access.operand.key: access.operand for access in (*nest.reads, nest.write)
            }
            for (kind, position), operand in operands.items():
                size_bytes = operand.num_elements * operand.dtype.size_bytes
                cycles = end_cycles(size_bytes, form is not None and form.is_dense, isa)
                if kind in ("input", "output"):
                    value = (group.inputs if kind == "input" else group.outputs)[position]
                    ends[value] = ends.get(value, 0.0) + cycles
                elif kind == "local":
                    inner += cycles
        made, read = frozenset(group.outputs), frozenset(group.inputs)
        return cls(num_products, iterations / highest_rate(isa), inner, ends, made, read)


def may_gain(bounds: Sequence[GainBound | None]) -> bool:
    """Whether computing these operators block by block can gain, if blocks cost as little as any can."""
    known = [bound for bound in bounds if bound is not None]
    if len(known) != len(bounds):
        return False
    made = frozenset[Value]().union(*(bound.made for bound in known))
    read = frozenset[Value]().union(*(bound.read for bound in known))
    passed_on = made & read  # results that none of them reads are written all the same
    saved = max(0, sum(bound.num_products for bound in known) - 1) * STEP_CYCLES
    saved += sum(p.inner + sum(c for value, c in p.ends.items() if value in passed_on) for p in known)
    least_cycles = sum(bound.least_cycles for bound in known)
    paid = least_paid(least_cycles, sum(bound.num_products for bound in known))
    return saved > 0 and saved - paid >= MIN_SAVED_SHARE * (least_cycles + saved)
