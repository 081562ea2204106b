"""What is said of a solution: what it may take, what made it, why there is none, what is wrong with it."""

from __future__ import annotations

from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Provenance:
    """What produced a solution and with how much effort. `is_interrupted`: the user ended the search."""

    planner: str
    seed: int = 0
    num_evaluations: int = 0
    note: str = ""
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan may not exceed.

    `num_groups` is how many groups of a stage run at the same time; `memory_bytes` what values between
    kernels may take together, None without a limit; `num_cores` how many cores the groups of a stage share.
    Where kernels are `queued`, groups may get more of them together: what finds no core free waits for one.
    """

    num_groups: int = 1
    memory_bytes: int | None = None
    num_cores: int = 1
    queued: bool = False


NO_LIMITS = Limits()
"""One group at a time, in any amount of memory."""


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No solution exists within a capacity: which one, by how much, what is to blame, what would help.

    `unit` is that of what is needed and of what there is.
    """

    level: str
    need: float
    capacity: float
    culprits: tuple[str, ...] = ()
    levers: tuple[str, ...] = ()
    unit: str = "bytes"

    def __str__(self) -> str:
        blame = f"; largest: {', '.join(self.culprits)}" if self.culprits else ""
        levers = f". Try {' or '.join(self.levers)}" if self.levers else ""
        need, capacity = (x if isinstance(x, int) else f"{x:.6g}" for x in (self.need, self.capacity))
        return f"{self.level} needs {need} {self.unit} but has {capacity}{blame}{levers}."


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule of a solution, found by its checker."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"
