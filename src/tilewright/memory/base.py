"""Memory planning: buffers with live ranges get a level of memory each, and an offset in it.

Steps are the positions of a schedule; a live range [first_step, last_step] includes both ends, since a
kernel reads its operands while it writes its results. Levels are numbered from the inside out. An arena is
the case of one level.
"""

from __future__ import annotations

from dataclasses import field
from typing import Protocol, runtime_checkable

from tilewright.planning import Budget, Infeasible, Provenance, Quality, Status
from tilewright.records import dataclass

DEFAULT_ALIGNMENT_BYTES = 64  # a cache line, and a full vector register on AVX-512


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """A memory that buffers may live in. `capacity_bytes` None means that any peak will do."""

    name: str
    capacity_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.capacity_bytes is not None and self.capacity_bytes < 0:
            raise ValueError(f"memory level {self.name!r}: a capacity must not be negative")


ARENA = MemoryLevel("arena")


@dataclass(frozen=True, slots=True)
class Buffer:
    """Something that needs `size_bytes` of one level at all steps from `first_step` to `last_step`.

    `may_reuse` names buffers that die at this one's first step and in whose place it may be written: from the
    same offset of the same level, and no larger. `level` is where it should live: it may be placed further
    outside, never further inside. `read_steps` are the steps that read it; the first step writes it.
    """

    name: str
    size_bytes: int
    first_step: int
    last_step: int
    alignment_bytes: int = DEFAULT_ALIGNMENT_BYTES
    may_reuse: tuple[str, ...] = ()
    level: int = 0
    read_steps: tuple[int, ...] = ()
    used: int = 0
    beside: int = 0

    def __post_init__(self) -> None:
        if self.size_bytes < 0 or self.last_step < self.first_step:
            raise ValueError(f"buffer {self.name!r}: size and live range must not be negative")
        if self.alignment_bytes < 1 or self.alignment_bytes & (self.alignment_bytes - 1):
            raise ValueError(f"buffer {self.name!r}: alignment {self.alignment_bytes} is not a power of two")

    @property
    def num_steps(self) -> int:
        """For how many steps it is live."""
        return self.last_step - self.first_step + 1

    def overlaps(self, other: Buffer) -> bool:
        """Whether both are live at some step, or may be used at the same time."""
        together = self.first_step <= other.last_step and other.first_step <= self.last_step
        return together or self.may_meet(other)

    def may_meet(self, other: Buffer) -> bool:
        """Whether steps that may run at the same time use one and the other."""
        return bool(self.beside & other.used)

    def fits_in_place_of(self, other: Buffer) -> bool:
        """Whether this buffer may be written in place of `other`, from the same offset."""
        return (
            other.name in self.may_reuse
            and other.last_step == self.first_step
            and other.first_step < self.first_step
            and self.size_bytes <= other.size_bytes
            and not self.may_meet(other)
        )


@dataclass(frozen=True, slots=True)
class MemoryProblem:
    """Buffers to place, with unique names, and the levels there are, innermost first.

    `remedies` say what a user could do where the outermost level is too small.
    """

    buffers: tuple[Buffer, ...]
    levels: tuple[MemoryLevel, ...] = (ARENA,)
    remedies: tuple[str, ...] = ("a larger --max-memory", "a smaller batch")
    by_name: dict[str, Buffer] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {b.name: b for b in self.buffers})
        if len(self.by_name) != len(self.buffers):
            raise ValueError("buffer names are not unique")
        if not self.levels or len({level.name for level in self.levels}) != len(self.levels):
            raise ValueError("a memory problem needs levels, with unique names")
        for buffer in self.buffers:
            if not 0 <= buffer.level < len(self.levels):
                raise ValueError(f"buffer {buffer.name!r}: there is no level {buffer.level}")


@dataclass(frozen=True, slots=True)
class LevelUse:
    """What a level holds in the course of a plan.

    `live_bytes` is the most that is live at one step, what lies in place of another counted once;
    `peak_bytes` the end of the highest buffer; `lower_bound_bytes` the least peak that the buffers which live
    here could have. `num_spilled` and `spilled_bytes` are of buffers that should live here, or further
    inside, and live further outside.
    """

    level: MemoryLevel
    num_buffers: int
    live_bytes: int
    peak_bytes: int
    lower_bound_bytes: int
    num_spilled: int = 0
    spilled_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The level and the offset of every buffer, by name.

    `in_place_of` has the buffers that lie in place of an operand, and which that is. The cost is space, in
    bytes: of one level its peak; of several what leaves the levels it should live in, since all that stays
    inside is served at that level's speed, whatever its offset.
    """

    levels: dict[str, int]
    offsets: dict[str, int]
    in_place_of: dict[str, str]
    uses: tuple[LevelUse, ...]
    quality: Quality
    provenance: Provenance

    @property
    def peak_bytes(self) -> int:
        """The size of the outermost level to allocate: of one level, the arena."""
        return self.uses[-1].peak_bytes

    @property
    def lower_bound_bytes(self) -> int:
        """The least that the peak of the outermost level could be."""
        return self.uses[-1].lower_bound_bytes

    @property
    def status(self) -> Status:
        """How the search ended."""
        return self.quality.status


@runtime_checkable
class MemoryPlanner(Protocol):
    """One way to place buffers. Implementations are frozen dataclasses; their fields are their options."""

    @property
    def name(self) -> str:
        """The name in the registry."""
        ...

    def solve(self, problem: MemoryProblem, budget: Budget) -> MemoryPlan | Infeasible:
        """Place every buffer, or say which level is too small and by how much."""
        ...


def aligned(offset_bytes: int, alignment_bytes: int) -> int:
    """The next multiple of a power of two.

    >>> aligned(65, 64)
    128
    """
    return (offset_bytes + alignment_bytes - 1) & -alignment_bytes
