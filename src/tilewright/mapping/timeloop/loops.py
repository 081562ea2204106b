"""Timeloop's mappings as ours: directives of loops per level, and what bypasses a level."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from tilewright.errors import MachineError
from tilewright.hardware.machine import Machine
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Problem
from tilewright.mapping.timeloop.document import (
    BYPASS,
    FAN_OUT,
    LEFT_OUT,
    Entry,
    read_document,
    target_name,
)
from tilewright.text.suggestions import closest

_KEYS = ("target", "name", "type", "factors", "permutation", "split", "keep", "bypass")
_REFUSED = (
    "no_link_transfer", "no_multicast_no_reduction", "no_temporal_reuse", "rmw_on_first_writeback",
    "passthrough",
)  # fmt: skip
# `C=4`, `C 4`, `C4`, and names with digits `c1=4`. Bounded, so that no text takes longer than a scan.
_FACTOR = re.compile(
    r"(?:([A-Za-z_]\w{0,63})\s{0,9}=|([A-Za-z_]{1,64}))\s{0,9}(\d{1,20})(\s{0,9},\s{0,9}\d{1,20})?"
)
_MAX_DIRECTIVES = 1000


def load_mapping(path: Path | str, problem: Problem, machine: Machine) -> Mapping:
    """The mapping of one of Timeloop's YAML files.

    A factor of 0 is what the other levels leave. Loops of one iteration are left out; dims that a permutation
    does not name are outermost.

    Raises:
        MachineError: the file cannot be read or does not fit the problem or the machine; names the directive.
    """
    document = read_document(path)
    if "mapping" not in document:
        raise MachineError(f"{path}: there is no mapping section.")
    return mapping_of(Entry(document["mapping"], str(path), "mapping"), problem, machine)


def mapping_of(part: Entry, problem: Problem, machine: Machine) -> Mapping:
    """The mapping of a `mapping` section."""
    listed = list(part.items())
    if len(listed) > _MAX_DIRECTIVES:
        raise part.error(f"{len(listed)} directives; at most {_MAX_DIRECTIVES} are taken")
    items = [(item, _keys(item)) for item in listed]
    targets = [_target(item, keys, machine) for item, keys in items]
    levels = [level.name for level in machine.levels]
    directives: dict[tuple[str, str], list[tuple[str, int]]] = {}
    places: dict[tuple[str, str], Entry] = {}
    keeps_nothing: set[str] = set()
    for (place, name), (_, keys) in zip(targets, items, strict=True):
        if _kind(keys) in BYPASS and not _check_kept(place, name, keys, problem, machine):
            keeps_nothing.add(name)
    fan_outs: list[_FanOut] = []
    order: list[int] = []  # of the levels that have loops, as they are listed
    for (place, name), (item, keys) in zip(targets, items, strict=True):
        kind = _kind(keys)
        if kind in BYPASS:
            continue
        loops = _loops(item, keys, problem)
        if name in levels:
            order.append(levels.index(name))
        elif all(factor == 1 for _, factor in loops):
            continue  # a level of fan-out, which only Timeloop has
        if (name, kind) in places:
            raise item.error(f"a second directive for the {kind} loops of {name}")
        places[name, kind] = item
        if name in levels:
            directives[name, kind] = loops
            continue
        if name not in keeps_nothing and not FAN_OUT.fullmatch(name):
            raise place.error(f"there is no level {name!r}; {closest(name, reversed(levels))}")
        if kind != "spatial":
            raise place.error(f"{name} keeps nothing, so it can have no temporal loops here")
        fan_outs.append(_FanOut(name, place, loops, len(order)))
    _add_fan_outs(fan_outs, order, machine, directives, places)
    _fill_rest(directives, places, part, problem)
    return Mapping(
        tuple(
            LevelLoops(
                level.name,
                _outermost_first(directives.get((level.name, "temporal"), [])),
                _outermost_first(directives.get((level.name, "spatial"), [])),
            )
            for level in reversed(machine.levels)
        )
    )


@dataclass(frozen=True, slots=True)
class _FanOut:
    """Spatial loops of a level that only Timeloop has, and how many directives of our levels precede them."""

    name: str
    place: Entry
    loops: list[tuple[str, int]]
    num_before: int


def _keys(item: Entry) -> dict[str, Entry]:
    """The keys of a directive, without empty ones of what we do not model."""
    keys = item.known_keys((*_KEYS, *_REFUSED), "a directive")
    for key in _REFUSED:
        if key in keys and keys[key].value:
            raise keys[key].error("exceptions to the reuse of data are not modelled; leave it out")
    return keys


def _kind(keys: dict[str, Entry]) -> str:
    kind = keys["type"].text() if "type" in keys else "temporal"
    if kind == "skew":
        raise keys["type"].error("skewed loops are not modelled")
    if kind not in ("temporal", "spatial", *BYPASS):
        raise keys["type"].error(f"{kind!r} is none of temporal, spatial and bypass")
    return kind


def _target(item: Entry, keys: dict[str, Entry], machine: Machine) -> tuple[Entry, str]:
    """What a directive is for, by name; numbers count memories from the innermost."""
    target = next((keys[key] for key in ("target", "name") if key in keys), None)
    if target is None:
        raise item.error("target is missing")
    if isinstance(target.value, int) and LEFT_OUT in machine.description:
        raise target.error("numbers also count the memories that were left out here; give the memory's name")
    return target, target_name(target, [level.name for level in reversed(machine.levels)])


def _add_fan_outs(
    fan_outs: list[_FanOut],
    order: list[int],
    machine: Machine,
    directives: dict[tuple[str, str], list[tuple[str, int]]],
    places: dict[tuple[str, str], Entry],
) -> None:
    """Give the loops of fan-outs to the levels that feed them, inside those levels' own spatial loops."""
    spatial_before = {key: loops for key, loops in directives.items() if key[1] == "spatial"}
    inside: dict[str, list[tuple[str, int]]] = {}
    is_outwards = order == sorted(order)
    for fan_out in fan_outs if is_outwards else reversed(fan_outs):
        level = _feeder(fan_out, order, machine)
        inside[level] = _merged(inside.get(level, []), fan_out.loops, fan_out.place)
        places.setdefault((level, "spatial"), fan_out.place)
    for level, loops in inside.items():
        key = (level, "spatial")
        directives[key] = _merged(loops, spatial_before.get(key, []), places[key])


def _feeder(fan_out: _FanOut, order: list[int], machine: Machine) -> str:
    """The level around a fan-out: that outside the memory it is named after, or between its neighbours.

    Where only its place in the list says where it is, the list must go from level to level.
    """
    names = [level.name for level in machine.levels]
    inner = fan_out.name.removeprefix("inter_").removesuffix("_spatial")
    if inner in names[:-1]:
        return names[names.index(inner) + 1]
    if order != sorted(order) and order != sorted(order, reverse=True):
        raise fan_out.place.error(
            f"where {fan_out.name} fans out is only said by its place; list the levels from the "
            "outermost to the innermost, or the other way round"
        )
    before, after = order[: fan_out.num_before], order[fan_out.num_before :]
    if not before or not after or before[-1] == after[0]:
        raise fan_out.place.error(
            f"{fan_out.name} keeps nothing; list it between the levels that it connects"
        )
    low, high = sorted((before[-1], after[0]))
    feeders = [n for n in range(low + 1, high + 1) if machine.fan_out(n) > 1] or [high]
    if len(feeders) > 1:
        raise fan_out.place.error(
            f"{fan_out.name} may be below {' or '.join(names[n] for n in feeders)}; list a directive of each"
        )
    return names[feeders[0]]


def _merged(known: list[tuple[str, int]], more: list[tuple[str, int]], item: Entry) -> list[tuple[str, int]]:
    """Loops of one level from two directives, the inner one first."""
    factors = dict(known)
    for dim, factor in more:
        if 0 in (factor, factors.get(dim, 1)) and dim in factors:
            raise item.error(f"a factor of 0 for {dim} in a fan-out of two parts")
        factors[dim] = factors.get(dim, 1) * factor
    return list(factors.items())


def _outermost_first(loops: list[tuple[str, int]]) -> tuple[Loop, ...]:
    return tuple(Loop(dim, factor) for dim, factor in reversed(loops) if factor > 1)


def _loops(item: Entry, keys: dict[str, Entry], problem: Problem) -> list[tuple[str, int]]:
    """Dims with their factors, the innermost first; 0 for what is left."""
    factors: dict[str, int] = {}
    for part, dim, factor in factors_of(keys["factors"]) if "factors" in keys else ():
        if dim not in problem.extents:
            raise part.error(f"there is no dim {dim!r}; the problem has {', '.join(problem.extents)}")
        if dim in factors:
            raise part.error(f"two factors of {dim}")
        factors[dim] = factor
    order = _permutation(keys["permutation"], problem) if "permutation" in keys else []
    order += [dim for dim in problem.extents if dim not in order]
    return [(dim, factors[dim]) for dim in order if dim in factors]


def factors_of(part: Entry) -> Iterator[tuple[Entry, str, int]]:
    """Factors of a list, or of one text: `C=4 K=2`, `C4 K2` or `C=4,K=2`, up to a `#`."""
    listed = list(part.items()) if isinstance(part.value, list) else [part]
    for place in listed:
        text = "" if place.value is None else place.text().split("#")[0].strip()
        end = 0
        for match in _FACTOR.finditer(text):
            between = text[end : match.start()]
            if between.strip(" \t\n,"):
                raise place.error(f"{between.strip()!r} is no factor such as C=4")
            name = match[1] or match[2]
            if match[4]:
                raise place.error(f"{match[0]!r} leaves a remainder, which is not modelled; pad {name}")
            if len(match[3]) > 15:
                raise place.error(f"the factor of {name} is too large")
            yield place, name, int(match[3])
            end = match.end()
        if text[end:].strip(" \t\n,"):
            raise place.error(f"{text[end:].strip()!r} is no factor such as C=4")


def _permutation(part: Entry, problem: Problem) -> list[str]:
    """Dims from the innermost; text may name them by single letters, with or without blanks."""
    names = list(part.names())
    if isinstance(part.value, str) and any(name not in problem.extents for name in names):
        names = list("".join(names))
    for number, dim in enumerate(names):
        if dim not in problem.extents:
            raise part.error(f"there is no dim {dim!r}; the problem has {', '.join(problem.extents)}")
        if dim in names[:number]:
            raise part.error(f"the dim {dim} is named twice")
    return names


def _fill_rest(
    directives: dict[tuple[str, str], list[tuple[str, int]]],
    places: dict[tuple[str, str], Entry],
    section: Entry,
    problem: Problem,
) -> None:
    """Replace factors of 0, and check that factors multiply to the extents."""
    for dim, extent in problem.dims:
        of_dim = [(key, factor) for key, loops in directives.items() for d, factor in loops if d == dim]
        given = prod(factor for _, factor in of_dim if factor)
        rest = [key for key, factor in of_dim if not factor]
        if len(rest) > 1:
            level, kind = rest[1]
            raise places[rest[1]].error(f"a second factor of 0 for {dim}, at {level} ({kind})")
        if extent % given or (not rest and given != extent):
            last = places[of_dim[-1][0]] if of_dim else next(iter(places.values()), section)
            text = f"factors of {dim} multiply to {given}, its extent is {extent}"
            raise last.error(text)
        for key in rest:
            directives[key] = [(d, extent // given if d == dim else f) for d, f in directives[key]]


def _check_kept(target: Entry, name: str, keys: dict[str, Entry], problem: Problem, machine: Machine) -> bool:
    """Whether anything is kept; it must be what the machine's level keeps."""
    level = next((level for level in machine.levels if level.name == name), None)
    kinds = {o.name: o.kind for o in problem.operands}
    bypassed: set[str] = set()
    for key in ("keep", "bypass"):
        for tensor in keys[key].names() if key in keys else ():
            if tensor not in kinds:
                raise keys[key].error(f"there is no tensor {tensor!r}; the problem has {', '.join(kinds)}")
            holds = level is not None and kinds[tensor] in level.holds
            if holds != (key == "keep"):
                does = "keeps" if holds else "does not keep"
                raise keys[key].error(
                    f"the machine's level {name} {does} {tensor}; "
                    "load the architecture together with this file"
                )
            bypassed |= {tensor} if key == "bypass" else set()
    if level is None and bypassed != set(kinds) and not FAN_OUT.fullmatch(name):
        known = (memory.name for memory in reversed(machine.levels))
        raise target.error(f"there is no level {name!r}; {closest(name, known)}")
    return bypassed != set(kinds)
