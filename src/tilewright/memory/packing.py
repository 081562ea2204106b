"""Offsets within one level of memory: what the planners of an arena find, and what spilling asks of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tilewright.errors import UsageError
from tilewright.memory import MEMORY_PLANNERS
from tilewright.memory.base import Buffer
from tilewright.planning import Meter, Spec
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Packing:
    """An offset for every buffer of a level. `note` says how they were found."""

    offsets: dict[str, int]
    note: str = ""


@runtime_checkable
class Packer(Protocol):
    """Finds offsets. Implementations are frozen dataclasses; their fields are their options."""

    @property
    def name(self) -> str:
        """The name in the registry."""
        ...

    def pack_level(self, buffers: Sequence[Buffer], capacity_bytes: int | None, meter: Meter) -> Packing:
        """Offsets of all buffers, if possible below the capacity; one evaluation is one placement of all.

        There is always an answer: the first placement is made, whatever is left to spend.
        """
        ...


def packer_of(spec: Spec) -> Packer:
    """The memory planner that a spec names, which must be one that finds offsets.

    Raises:
        UsageError: there is no such planner, or it is one that only says what leaves a level.
    """
    planner = MEMORY_PLANNERS.get(spec)
    if not isinstance(planner, Packer):
        raise UsageError(
            f"pack={spec}: finds no offsets; give one that does, such as arena or first-fitting."
        )
    return planner
