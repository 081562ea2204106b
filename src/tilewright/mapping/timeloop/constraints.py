"""Timeloop's constraints on loops: spatial factors of a level are kept by the search, others are refused."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tilewright.hardware.machine import Machine
from tilewright.mapping.base import FixedSpatial
from tilewright.mapping.timeloop.architecture import directives
from tilewright.mapping.timeloop.document import BYPASS, Entry, read_document, target_name
from tilewright.mapping.timeloop.loops import factors_of
from tilewright.mapping.timeloop.tree import read_architecture

_INSTEAD = "count a mapping of yours with --evaluate, or search without them (--ignore-constraints)"
_KEPT = ("target", "name", "type", "factors", "permutation", "split")


def load_constraints(paths: Iterable[Path | str], machine: Machine) -> tuple[FixedSpatial, ...]:
    """What the sections of constraints in these files fix of the spatial loops of a machine's levels.

    The order of spatial loops and how they lie along X and Y change no count.

    Raises:
        MachineError: a constraint that a search does not keep; names it and says what to do.
    """
    fixed: dict[tuple[str, str], FixedSpatial] = {}
    for path in dict.fromkeys(map(str, paths)):
        document = read_document(path)
        for section in ("architecture", "arch"):
            if section in document:
                binding = read_architecture(Entry(document[section], path, section)).binding
                if binding is not None:
                    raise binding.error(f"constraints on loops of nodes are not kept by a search; {_INSTEAD}")
        for directive, is_constraint in directives(document, path):
            if is_constraint:
                for part, factor in _fixed(directive, machine):
                    known = fixed.setdefault((factor.level, factor.dim), factor)
                    if known != factor:
                        raise part.error(
                            f"{factor.dim}={factor.factor} at {factor.level} contradicts "
                            f"{known.dim}={known.factor} there; remove one of them"
                        )
    return tuple(fixed.values())


def _fixed(directive: Entry, machine: Machine) -> list[tuple[Entry, FixedSpatial]]:
    keys = {key: part for key, part in directive.entries().items() if part.value not in (None, "", [])}
    kind = keys["type"].text() if "type" in keys else "temporal"
    if kind in BYPASS or set(keys) <= {"target", "name", "type"}:
        return []
    beyond = next((part for key, part in keys.items() if key not in _KEPT), None)
    if kind != "spatial" or beyond is not None:
        what = f"{kind} loops" if beyond is None else "this"
        raise (beyond or directive).error(f"a constraint on {what} is not kept by a search; {_INSTEAD}")
    names = [level.name for level in machine.levels]
    target = next((keys[key] for key in ("target", "name") if key in keys), None)
    if target is None:
        raise directive.error("target is missing")
    level = target_name(target, names[::-1])
    factors = list(factors_of(keys["factors"])) if "factors" in keys else []
    if factors and level not in names:
        raise target.error(f"the fan-out {level!r} is part of another level here; {_INSTEAD}")
    for part, dim, factor in factors:
        if factor == 0:
            raise part.error(f"a factor of 0 for {dim} is not kept by a search; {_INSTEAD}")
    return [(part, FixedSpatial(level, dim, factor)) for part, dim, factor in factors]
