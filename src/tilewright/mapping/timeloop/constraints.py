"""Timeloop's constraints on loops: factors of spatial loops, orders and absence of temporal ones are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tilewright.hardware.machine import Machine
from tilewright.mapping.constraints import (
    OTHERS,
    Constraint,
    FixedSpatial,
    FixedTile,
    LoopOrder,
    NoLoop,
    said,
    subject,
)
from tilewright.mapping.timeloop.architecture import directives
from tilewright.mapping.timeloop.document import BYPASS, Entry, read_document, target_name
from tilewright.mapping.timeloop.loops import factors_of
from tilewright.mapping.timeloop.tree import read_architecture

_INSTEAD = "count a mapping of yours with --evaluate, or search without them (--ignore-constraints)"
_KEPT = ("target", "name", "type", "factors", "permutation", "split")


def load_constraints(paths: Iterable[Path | str], machine: Machine) -> tuple[Constraint, ...]:
    """What the sections of constraints in these files say of the loops of a machine's levels.

    The order of spatial loops and how they lie along X and Y change no count.

    Raises:
        MachineError: a constraint that a search does not keep; names it and says what to do.
    """
    kept: dict[tuple[object, ...], Constraint] = {}
    temporal: dict[tuple[str, str], tuple[Entry, int]] = {}
    for path in dict.fromkeys(map(str, paths)):
        document = read_document(path)
        for section in ("architecture", "arch"):
            if section in document:
                binding = read_architecture(Entry(document[section], path, section)).binding
                if binding is not None:
                    raise binding.error(f"constraints on loops of nodes are not kept by a search; {_INSTEAD}")
        for directive, is_constraint in directives(document, path):
            if is_constraint:
                for part, constraint in _kept(directive, machine, temporal):
                    known = kept.setdefault(subject(constraint), constraint)
                    if known != constraint:
                        raise part.error(f"{said(constraint)} contradicts {said(known)}; remove one of them")
    tiles = [_tile(at, temporal, kept, machine) for at in temporal]
    return (*kept.values(), *tiles)


def _tile(
    at: tuple[str, str],
    temporal: Mapping[tuple[str, str], tuple[Entry, int]],
    kept: Mapping[tuple[object, ...], Constraint],
    machine: Machine,
) -> FixedTile:
    """A temporal factor as what it makes of the tile, where all factors of the dim inside are known, too."""
    level, dim = at
    extent = 1
    for number, inner in enumerate(machine.levels[: machine.levels.index(machine.level(level)) + 1]):
        spread = kept.get(subject(FixedSpatial(inner.name, dim, 1)))
        spatial = spread.factor if isinstance(spread, FixedSpatial) else int(machine.fan_out(number) == 1)
        _, loop = temporal.get((inner.name, dim), (None, int(NoLoop(inner.name, dim) in kept.values())))
        if not spatial or not loop:
            part, factor = temporal[at]
            what = "spatial" if not spatial else "temporal"
            raise part.error(
                f"a temporal factor of {factor} for {dim} is not kept by a search unless the {what} factor "
                f"of {dim} at {inner.name} is given, too; {_INSTEAD}"
            )
        extent *= spatial * loop
    return FixedTile(level, dim, extent)


def _kept(
    directive: Entry, machine: Machine, temporal: dict[tuple[str, str], tuple[Entry, int]]
) -> Iterator[tuple[Entry, Constraint]]:
    """What a directive says; temporal factors beyond 1 go into `temporal`."""
    keys = {key: part for key, part in directive.entries().items() if part.value not in (None, "", [])}
    kind = keys["type"].text() if "type" in keys else "temporal"
    if kind in BYPASS or set(keys) <= {"target", "name", "type"}:
        return
    beyond = next((part for key, part in keys.items() if key not in _KEPT), None)
    if kind not in ("spatial", "temporal") or beyond is not None:
        what = f"{kind} loops" if beyond is None else "this"
        raise (beyond or directive).error(f"a constraint on {what} is not kept by a search; {_INSTEAD}")
    names = [level.name for level in machine.levels]
    target = next((keys[key] for key in ("target", "name") if key in keys), None)
    if target is None:
        raise directive.error("target is missing")
    level = target_name(target, names[::-1])
    factors = list(factors_of(keys["factors"])) if "factors" in keys else []
    is_ordered = kind == "temporal" and "permutation" in keys
    if (factors or is_ordered) and level not in names:
        raise target.error(f"the fan-out {level!r} is part of another level here; {_INSTEAD}")
    for part, dim, factor in factors:
        if kind == "spatial":
            yield part, FixedSpatial(level, dim, factor)  # 0 is the whole dim, for Timeloop, too
        elif factor == 1:
            yield part, NoLoop(level, dim)
        elif factor == 0:
            yield from ((part, FixedSpatial(name, dim, 1)) for name in names)
            yield from ((part, NoLoop(name, dim)) for name in names if name != level)
        else:
            _, known = temporal.setdefault((level, dim), (part, factor))
            if known != factor:
                raise part.error(f"temporal factors of {factor} and {known} for {dim} at {level} contradict")
    if is_ordered:
        yield (
            keys["permutation"],
            LoopOrder(level, (OTHERS, *reversed(_innermost_first(keys["permutation"])))),
        )


def _innermost_first(part: Entry) -> list[str]:
    """Dims of a permutation; those that it leaves out are outside of it. Text may be single letters."""
    names = list(part.names())
    if isinstance(part.value, str) and len(names) == 1:
        names = list(names[0])
    twice = next((dim for number, dim in enumerate(names) if dim in names[:number]), None)
    if twice is not None:
        raise part.error(f"the dim {twice} is named twice")
    return names
