"""Variants of a machine: one or more of its numbers swept over given values."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Sequence
from itertools import product
from typing import Any

from tilewright.errors import UsageError
from tilewright.hardware.components import LIBRARY, LIBRARY_NUMBERS, SOURCE, access_scale
from tilewright.hardware.machine import Machine
from tilewright.hardware.machine_file import machine_from
from tilewright.hardware.parts import MachinePart
from tilewright.records import dataclass
from tilewright.text.suggestions import closest

MAX_VARIANTS = 1000


@dataclass(frozen=True, slots=True)
class Axis:
    """A number of a machine by its path, such as `levels.L1.capacity_bytes`, and the values it takes."""

    path: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """A machine with other numbers: the values in the order of the axes."""

    values: tuple[str, ...]
    machine: Machine


def parse_axis(text: str, machine: Machine) -> Axis:
    """What `levels.GlobalBuffer.capacity=64KiB,128KiB` says; the end of a key may be left out if it is clear.

    Raises:
        UsageError: the text is anything else, or names nothing of the machine.
    """
    path, mark, values = text.partition("=")
    listed = tuple(value.strip() for value in values.split(",") if value.strip())
    if not mark or not path.strip() or not listed:
        raise UsageError(
            f"sweep {text!r}: expected a path and values such as "
            f"levels.{machine.levels[0].name}.capacity_bytes=64KiB,128KiB."
        )
    require_distinct(text, listed)
    return Axis(_full_path(path.strip(), machine, text), listed)


def require_distinct(text: str, values: Sequence[str]) -> None:
    """Check that a sweep names each of its values once.

    Raises:
        UsageError: one is there twice; names it.
    """
    twice = next((value for number, value in enumerate(values) if value in values[:number]), None)
    if twice is not None:
        raise UsageError(f"sweep {text!r}: {twice} is given twice; leave one of them out.")


def variants(machine: Machine, axes: Sequence[Axis]) -> list[Variant]:
    """Every combination of the values, the last axis changing fastest.

    Energies of accesses to a buffer whose capacity is swept grow with it, unless they are swept too.

    Raises:
        UsageError: too many combinations, or two axes of the same number.
        MachineError: a combination describes no machine; names the values and what is wrong with them.
    """
    for number, axis in enumerate(axes):
        if any(axis.path == other.path for other in axes[:number]):
            raise UsageError(
                f"sweep: {axis.path} is swept twice; give all of its values in one sweep, "
                f"{axis.path}={','.join(v for a in axes if a.path == axis.path for v in a.values)}."
            )
    count = math.prod(len(axis.values) for axis in axes)
    if count > MAX_VARIANTS:
        raise UsageError(f"the sweep makes {count} machines; at most {MAX_VARIANTS} are taken.")
    variants = []
    for values in product(*(axis.values for axis in axes)):
        document = machine.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        document.setdefault("units", [])
        _leave_to_library(document)
        named = ", ".join(f"{axis.path}={value}" for axis, value in zip(axes, values, strict=True))
        for axis, value in zip(axes, values, strict=True):
            _put(document, axis.path, value)
        where = f"machine {machine.name!r} with {named}"
        variant = machine_from(document, where)
        if _scale_accesses(document, machine, variant, {axis.path for axis in axes}):
            variant = machine_from(document, where)
        variants.append(Variant(values, variant))
    return variants


def _leave_to_library(document: dict[str, Any]) -> None:
    """Take out what the library of components gave, which follows from what is swept."""
    for path in [path for path, source in document.get("sources", {}).items() if source.startswith(LIBRARY)]:
        *parents, key = re.findall(r"[^.\[\]]+", path)
        if key in LIBRARY_NUMBERS:
            part: Any = document
            for name in parents:
                part = part[int(name)] if isinstance(part, list) else part[name]
            del part[key], document["sources"][path]


def _scale_accesses(
    document: dict[str, Any], machine: Machine, variant: Machine, swept: Container[str]
) -> bool:
    """Let the energies of an access follow a buffer's size, unless they are swept too; whether any does."""
    is_scaled = False
    for number, (old, new) in enumerate(zip(machine.levels[:-1], variant.levels[:-1], strict=True)):
        if old.capacity_bytes is None or new.capacity_bytes in (None, old.capacity_bytes):
            continue
        assert new.capacity_bytes is not None
        scale = access_scale(old.capacity_bytes, new.capacity_bytes)
        for key in ("read_pj", "write_pj"):
            energy_pj = getattr(old, key)
            is_given = not (machine.source_of(f"levels[{number}].{key}") or "").startswith(LIBRARY)
            if energy_pj is not None and is_given and f"levels.{old.name}.{key}" not in swept:
                document["levels"][number][key] = energy_pj * scale
                document["sources"][f"levels[{number}].{key}"] = SOURCE
                is_scaled = True
    return is_scaled


def _full_path(path: str, machine: Machine, text: str) -> str:
    """The path with its last key written out; parts in lists by their names."""
    *parents, key = path.split(".")
    part: Any = machine
    at = iter(parents)
    for name in at:
        if not isinstance(part, MachinePart) or name not in type(part).model_fields:
            raise UsageError(f"sweep {text!r}: there is nothing called {name!r}; {_known_parts(part)}.")
        part = getattr(part, name)
        if isinstance(part, tuple):
            wanted = next(at, "")
            names = [item.name for item in part if "name" in type(item).model_fields]
            if wanted not in names:
                raise UsageError(f"sweep {text!r}: {name} has no {wanted!r}; {closest(wanted, names)}.")
            part = part[names.index(wanted)]
    if not isinstance(part, MachinePart):
        raise UsageError(f"sweep {text!r}: {'.'.join(parents)} has no parts; set it in the machine file.")
    fields = [f for f, field in type(part).model_fields.items() if field.annotation is not str]
    numbers = [f for f in fields if not isinstance(getattr(part, f), tuple | MachinePart | dict)]
    meant = [f for f in numbers if f == key] or [f for f in numbers if f.startswith(f"{key}_")]
    if len(meant) != 1:
        hint = f"it may be {' or '.join(meant)}" if meant else closest(key, numbers)
        raise UsageError(f"sweep {text!r}: no number called {key!r}; {hint}.")
    return ".".join([*parents, meant[0]])


def _known_parts(part: Any) -> str:
    if not isinstance(part, MachinePart):
        return "it has no parts"
    lists = [name for name in type(part).model_fields if isinstance(getattr(part, name), tuple | MachinePart)]
    return f"known are {', '.join(lists)}" if lists else "it has no parts"


def _put(document: dict[str, Any], path: str, value: str) -> None:
    """Set a number where a path leads, and say where it comes from."""
    *parents, key = path.split(".")
    node: Any = document
    cited = ""
    at = iter(parents)
    for name in at:
        cited += f".{name}" if cited else name
        node = node.setdefault(name, {})
        if isinstance(node, list):
            wanted = next(at)
            number = next(i for i, item in enumerate(node) if item["name"] == wanted)
            node = node[number]
            cited += f"[{number}]"
    node[key] = _number(value)
    document.setdefault("sources", {})[f"{cited}.{key}" if cited else key] = "assumed: swept"


def _number(value: str) -> int | float | str | bool:
    """A plain number or word if it is one; text with a unit stays text."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(value, value)
