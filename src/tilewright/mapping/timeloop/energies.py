"""Energies of Accelergy's tables (ERT) as Timeloop reads them: of each action the dearest entry."""

from __future__ import annotations

import re
from collections.abc import Mapping as MappingOf

from tilewright.mapping.timeloop.document import Entry

Energies = MappingOf[str, MappingOf[str, float]]
"""pJ by component and action."""

_RANGE = re.compile(r"\[\s*\d+\s*(\.\.\s*\d+\s*)?\]")
_READ = ("random_read", "read")
_FILL = ("random_fill", "random_write", "write")
_UPDATE = ("random_update", "update", *_FILL)
_COMPUTE = ("random_compute", "compute", "mac_random", "mac")


def read_energies(part: Entry) -> Energies:
    """The tables of an `ERT` section.

    Components go by the last part of their name: `System.Chip.Buffer[1..4]` is Buffer.
    """
    keys = part.known_keys(("version", "tables"), "ERT")
    if "tables" not in keys:
        raise part.error("tables is missing")
    found: dict[str, MappingOf[str, float]] = {}
    tables = keys["tables"]
    if isinstance(tables.value, dict):  # version 0.2
        for name, table in tables.entries_as_written().items():
            actions = table.entries_as_written().items()
            found[_component(name)] = {action: _dearest(entry) for action, entry in actions}
        return found
    for table in tables.items():
        entry_keys = table.known_keys(("name", "actions"), "a table")
        for key in ("name", "actions"):
            if key not in entry_keys:
                raise table.error(f"{key} is missing")
        energies: dict[str, float] = {}
        for entry in entry_keys["actions"].items():
            action = entry.known_keys(("name", "arguments", "energy"), "an action")
            if "name" not in action:
                raise entry.error("name is missing")
            name = action["name"].text()
            energies[name] = max(energies.get(name, 0.0), _dearest(entry))
        found[_component(entry_keys["name"].text())] = energies
    return found


def access_pj(actions: MappingOf[str, float], part: Entry) -> tuple[float | None, float | None]:
    """Energies of a read and of a write; None where the table has no such action.

    Raises:
        MachineError: fills and updates differ, where a memory of ours has one energy for both.
    """
    fill, update = _first(actions, _FILL), _first(actions, _UPDATE)
    if fill is not None and update != fill:
        raise part.error(
            f"a write costs {fill} pJ and an update {update} pJ; a level has one energy for both"
        )
    return _first(actions, _READ), update


def compute_pj(actions: MappingOf[str, float]) -> float | None:
    """Energy of one multiply-accumulate; None if the table has none."""
    return _first(actions, _COMPUTE)


def _first(actions: MappingOf[str, float], names: tuple[str, ...]) -> float | None:
    return next((actions[name] for name in names if name in actions), None)


def _component(name: str) -> str:
    return _RANGE.sub("", name).rsplit(".", 1)[-1].strip()


def _dearest(part: Entry) -> float:
    """The energy of an entry, or the largest of a list of entries for different arguments."""
    if isinstance(part.value, list):
        return max((_dearest(item) for item in part.items()), default=0.0)
    keys = part.entries()
    if "energy" not in keys:
        raise part.error("energy is missing")
    return keys["energy"].number()
