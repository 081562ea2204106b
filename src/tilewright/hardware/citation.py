"""Which numbers a description gives, and where each comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tilewright.hardware.machine import Machine
from tilewright.hardware.parts import MachinePart
from tilewright.records import dataclass
from tilewright.results import Result


@dataclass(frozen=True, slots=True)
class CitedNumber:
    """A number of a description: its path, such as `levels[0].read_pj`, and its source if it has one."""

    path: str
    value: float
    source: str | None


@dataclass(frozen=True, slots=True)
class DescribedMachine(Result):
    """A described machine in the words of `schema machine`, and the source of each of its numbers."""

    machine: Mapping[str, Any]
    numbers: tuple[CitedNumber, ...]


def cited_numbers(machine: Machine) -> tuple[CitedNumber, ...]:
    """Every number that a description gives, in its order; what it leaves out is not listed."""
    return tuple(CitedNumber(path, value, machine.source_of(path)) for path, value in _numbers(machine, ""))


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    match value:
        case bool():
            return
        case int() | float():
            yield path, value
        case MachinePart():
            for key in type(value).model_fields:
                if key in value.model_fields_set:
                    yield from _numbers(getattr(value, key), f"{path}.{key}" if path else key)
        case dict():
            for key, inner in value.items():
                yield from _numbers(inner, f"{path}.{key}")
        case tuple():
            for number, inner in enumerate(value):
                yield from _numbers(inner, f"{path}[{number}]")
