"""Memory planning: buffers with live ranges get offsets in one arena.

Steps are the positions of a schedule; a live range [first_step, last_step] includes both ends, since a
kernel reads its operands while it writes its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from tilewright.planning import Budget, Infeasible, Provenance, Quality, Status

DEFAULT_ALIGNMENT_BYTES = 64  # a cache line, and a full vector register on AVX-512


@dataclass(frozen=True, slots=True)
class Buffer:
    """Something that needs `size_bytes` of the arena at all steps from `first_step` to `last_step`.

    `may_reuse` names buffers that die at this one's first step and whose place it may take over: it is
    then written over them, starting at the same offset, and must not be larger.
    """

    name: str
    size_bytes: int
    first_step: int
    last_step: int
    alignment_bytes: int = DEFAULT_ALIGNMENT_BYTES
    may_reuse: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.size_bytes < 0 or self.last_step < self.first_step:
            raise ValueError(f"buffer {self.name!r}: size and live range must not be negative")
        if self.alignment_bytes < 1 or self.alignment_bytes & (self.alignment_bytes - 1):
            raise ValueError(f"buffer {self.name!r}: alignment {self.alignment_bytes} is not a power of two")

    def overlaps(self, other: Buffer) -> bool:
        """Whether both are live at some step."""
        return self.first_step <= other.last_step and other.first_step <= self.last_step

    def takes_over(self, other: Buffer) -> bool:
        """Whether this buffer may be written over `other`, from the same offset."""
        return (
            other.name in self.may_reuse
            and other.last_step == self.first_step
            and other.first_step < self.first_step
            and self.size_bytes <= other.size_bytes
        )


@dataclass(frozen=True, slots=True)
class MemoryProblem:
    """Buffers to place, with unique names. `capacity_bytes` None means that any peak will do."""

    buffers: tuple[Buffer, ...]
    capacity_bytes: int | None = None
    by_name: dict[str, Buffer] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {b.name: b for b in self.buffers})
        if len(self.by_name) != len(self.buffers):
            raise ValueError("buffer names are not unique")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """An offset for every buffer. `peak_bytes` is the size of the arena to allocate."""

    offsets: dict[str, int]
    peak_bytes: int
    lower_bound_bytes: int
    status: Status
    provenance: Provenance

    @property
    def quality(self) -> Quality:
        """Peak beside its bound."""
        return Quality(float(self.peak_bytes), float(self.lower_bound_bytes), "bytes", self.status)


@runtime_checkable
class MemoryPlanner(Protocol):
    """One way to place buffers. Implementations are frozen dataclasses; their fields are their options."""

    @property
    def name(self) -> str:
        """The name in the registry."""
        ...

    def solve(self, problem: MemoryProblem, budget: Budget) -> MemoryPlan | Infeasible:
        """Place every buffer, or say by how much the capacity is too small."""
        ...


def aligned(offset_bytes: int, alignment_bytes: int) -> int:
    """The next multiple of a power of two.

    >>> aligned(65, 64)
    128
    """
    return (offset_bytes + alignment_bytes - 1) & -alignment_bytes


def finish(
    problem: MemoryProblem,
    offsets: dict[str, int],
    lower_bound_bytes: int,
    provenance: Provenance,
    *,
    cut_off: bool = False,
) -> MemoryPlan | Infeasible:
    """The plan with these offsets, or Infeasible if it does not fit the capacity."""
    peak = peak_bytes(problem.buffers, offsets)
    if problem.capacity_bytes is not None and peak > problem.capacity_bytes:
        largest = sorted(problem.buffers, key=lambda b: (-b.size_bytes, b.name))[:3]
        return Infeasible(
            "arena",
            peak,
            problem.capacity_bytes,
            tuple(f"{b.name} ({b.size_bytes} bytes)" for b in largest),
            ("a larger --max-memory", "a smaller batch"),
        )
    quality = Quality.of(float(peak), bound=float(lower_bound_bytes), unit="bytes", cut_off=cut_off)
    return MemoryPlan(offsets, peak, lower_bound_bytes, quality.status, provenance)


def peak_bytes(buffers: Sequence[Buffer], offsets: dict[str, int]) -> int:
    """End of the highest buffer."""
    return max((offsets[b.name] + b.size_bytes for b in buffers), default=0)
