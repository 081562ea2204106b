"""What a template of kernels is: it recognises work, says how long it takes, and generates the kernels.

A template is one folder with one member of `Template`; those for single nests compete in `select.py`, where
the least estimate wins. Work is a nest for templates of products, a run of nests for loop nests, a group with
its blocks for fused kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from math import inf
from typing import Protocol, TypeVar

from tilewright.ir.nest import Operand
from tilewright.options import Accuracy
from tilewright.records import dataclass
from tilewright.targets.cpu.few_bits import FewBitKeys
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined, Kernel, Layouts, OperandKey
from tilewright.tuning import Choice

Kernels = tuple[Kernel, ...]
WorkT = TypeVar("WorkT", contravariant=True)
ProblemT = TypeVar("ProblemT")

# Where weights that few rows share may be rounded to 24 bits, which errs as three bfloat16 products do: about
# twenty times as much as float32 (`benchmarks/errors.py` measures it).
_ROUNDS_WEIGHTS: frozenset[Accuracy] = frozenset({"relaxed", "fast"})
# Weights come from the shared cache where a run touches no more than this part of it: transformed weights
# take up to four times as much, and others use it too.
_STAYING_SHARE = 0.5
# Weights that a kernel reads again and again stay in a private cache up to this part of it. At batch 1, with
# 2 MiB of cache, 24-bit weights take 1.3 times as long up to 1 MiB, and as long at 1.6 MiB.
CACHED_SHARE = 0.625
# Of the arithmetic and of the transfers the shorter hides behind the longer but for this share.
_SHARE_NOT_HIDDEN = 0.3
# An estimated gain over the plain kernel below this may be wrong about which is faster.
MIN_GAIN = 1.15
# The start of a kernel: a chunk is fetched, its pointers are loaded.
START_CYCLES = 300.0


@dataclass(frozen=True, slots=True)
class Context:
    """What surrounds the work: memory layouts of its operands, the machine, what may be assumed.

    `constants` are operands whose data are known now, `cached` those of them that lie in a private cache when
    a kernel starts. Temporaries that kernels need besides are local operands numbered from `next_local` on.
    Unless it `divides`, work runs on one thread: chunks that repeat each other's work do not pay then.
    A run of the model touches `run_bytes` of constants, inputs and outputs; 0 where that is not known.
    """

    isa: Isa
    layouts: Layouts = field(default_factory=dict)
    accuracy: Accuracy = "default"
    constants: frozenset[OperandKey] = frozenset()
    cached: frozenset[OperandKey] = frozenset()
    next_local: int = 0
    divides: bool = True
    run_bytes: int = 0
    few_bits: FewBitKeys = frozenset()
    """Constants that are numbers of few bits times scales."""
    shared: frozenset[OperandKey] = frozenset()
    """Large constants that code for other shapes of the model reads, too: packed alike, once."""
    small_sums: frozenset[OperandKey] = frozenset()
    """Constants of bytes with which no sum of products leaves 26 bits, whatever the other bytes are."""

    @property
    def exceeds_caches(self) -> bool:
        """Whether a run touches more than the last cache holds: the next finds nothing of it there."""
        return self.run_bytes > self.isa.caches.l3_bytes

    @property
    def cold_bytes_per_cycle(self) -> float:
        """How fast constants come that no private cache holds, read ahead."""
        stays = 0 < self.run_bytes <= _STAYING_SHARE * self.isa.caches.l3_bytes
        rates = self.isa.rates
        return rates.shared_bytes_per_cycle if stays else rates.cold_bytes_per_cycle

    def may_round(self, operands: Iterable[Operand]) -> bool:
        """Whether weights may be rounded to read fewer bits: of cached ones that would save nothing."""
        return self.accuracy in _ROUNDS_WEIGHTS and not any(o.key in self.cached for o in operands)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cycles of one core, weights cold. Computed, never measured.

    `gain` is the time of the plain kernel over that of this one in its best cut, both by the reckoning of the
    template: what it leaves out on both sides cancels, so gains of different templates can be compared.
    `lead` is that gain over the one of the same template's most exact way, where it has a more exact one.
    With less than `MIN_GAIN` the plain kernel is taken.
    """

    cycles: float
    gain: float = 1.0
    lead: float = inf


class Template(Protocol[WorkT, ProblemT]):
    """One way to generate kernels; a frozen value without state."""

    @property
    def name(self) -> str:
        """The name that choices of this template bear."""

    def match(self, work: WorkT, context: Context) -> ProblemT | Declined:
        """The work as this template sees it, or why it is not for it."""

    def algorithms(self, problem: ProblemT, context: Context) -> tuple[Choice, ...]:
        """The algorithms that the accuracy allows, each with its cut left open; none if there are none."""

    def estimate(self, problem: ProblemT, choice: Choice, context: Context) -> Estimate:
        """How long kernels made like this take; what the choice leaves open is as `lower` decides it."""

    def lower(self, problem: ProblemT, choice: Choice, context: Context) -> Kernels | Declined:
        """The kernels in order, the last of them the one that does the work, or why there are none."""


def lower_with(
    template: Template[WorkT, ProblemT], work: WorkT, context: Context, choice: Choice | None = None
) -> Kernels | Declined:
    """Kernels of one template with their estimate; without a choice those of the algorithm that gains most.

    Choices whose algorithm the template does not offer for this work at this accuracy are declined.
    """
    problem = template.match(work, context)
    if isinstance(problem, Declined):
        return problem
    allowed = template.algorithms(problem, context)
    if choice is None:
        choice = max(allowed, key=lambda each: template.estimate(problem, each, context).gain, default=None)
    if choice is None or choice.algorithm not in {each.algorithm for each in allowed}:
        expected = " or ".join(map(str, allowed)) or "another template"
        return Declined(f"{choice or template.name} for {context.accuracy} accuracy: expected {expected}")
    return lower_problem(template, problem, choice, context)


def lower_problem(
    template: Template[WorkT, ProblemT],
    problem: ProblemT,
    choice: Choice,
    context: Context,
    estimate: Estimate | None = None,
) -> Kernels | Declined:
    """Kernels of a matched problem, the last with the template's estimate, if it is not known already."""
    kernels = template.lower(problem, choice, context)
    if isinstance(kernels, Declined) or not kernels or kernels[-1].estimate_cycles is not None:
        return kernels
    estimate = estimate or template.estimate(problem, choice, context)
    return (*kernels[:-1], kernels[-1].estimated(estimate.cycles))


def transfer_cycles(sizes_bytes: Iterable[int], isa: Isa) -> float:
    """Time in which one core reads or writes operands of these sizes, from where so much data stays."""
    total, rates = 0.0, isa.rates
    for size_bytes in sizes_bytes:
        if size_bytes <= isa.caches.l2_bytes // 2:
            rate = rates.private_bytes_per_cycle
        else:
            in_cache = size_bytes <= isa.caches.l3_bytes
            rate = rates.shared_bytes_per_cycle if in_cache else rates.memory_bytes_per_cycle
        total += size_bytes / rate
    return total


def overlapped(compute_cycles: float, transfer: float, share_not_hidden: float = _SHARE_NOT_HIDDEN) -> float:
    """Time of arithmetic and of transfers that go on beside it, with the start of a kernel."""
    longer, shorter = max(compute_cycles, transfer), min(compute_cycles, transfer)
    return START_CYCLES + longer + share_not_hidden * shorter


def operand_bytes(operand: Operand) -> int:
    """Bytes of an operand."""
    return operand.num_elements * operand.dtype.size_bytes
