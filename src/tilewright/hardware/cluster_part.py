"""The part of a machine that computes sums of products: cores of a cluster, one sort of unit, one type.

What is left is a machine again, so that whatever maps operators takes it as it is. Numbers are those of the
cluster: of a level that clusters share it has an equal part.
"""

from __future__ import annotations

from tilewright.hardware.machine import Level, Machine, Unit
from tilewright.hardware.operator_view import word_bits
from tilewright.hardware.parts import ALL_KINDS
from tilewright.ir.dtype import DType


def cluster_part(
    machine: Machine,
    unit: Unit,
    dtype: DType,
    per_cycle: float,
    element_bytes: int,
    num_cores: int,
    *,
    is_inner: bool = False,
) -> Machine:
    """One cluster with so many cores and one sort of unit, which takes `per_cycle` products of a type.

    `is_inner`: everything lies in the level around the cores' buffers, which delivers and takes it in at any
    rate: what is left to map is what the cores do.

    Words that hold elements of the machine's usual width hold such of `element_bytes`; wider ones, in which
    sums are kept, stay as they are where that is enough.
    """
    home = machine.innermost if unit.level is None else machine.level(unit.level)
    place = machine.levels.index(home)
    usual_bits, bits = word_bits(machine.levels[place:]), 8 * element_bytes
    levels = [
        _in_words(x, bits if x.word_bits == usual_bits else max(bits, x.word_bits)) for x in machine.levels
    ]
    levels = [
        _part(x, float(machine.num_instances_per_cluster(old)))
        for x, old in zip(levels, machine.levels, strict=True)
    ]
    own = unit.model_copy(update={"macs_per_cycle": {str(dtype): per_cycle}})
    levels = _with_cores(levels, machine, num_cores)
    if is_inner:
        assert machine.local is not None, "only of machines that run networks"
        around = max(place, [x.name for x in machine.levels].index(machine.local.name)) + 1
        levels = [*levels[:around], *map(_as_outermost, levels[around : around + 1])]
    part = {"levels": tuple(levels), "units": (own,), "sources": {}}
    source = machine.energy_source or "see the machine"
    return machine.model_copy(update={**part, "num_clusters": 1, "networks": (), "energy_source": source})


def _as_outermost(level: Level) -> Level:
    """A level of any size and rate that holds everything."""
    rates = [f"{way}_{unit}" for way in ("read", "write") for unit in ("bytes_per_s", "bytes_per_cycle")]
    update = dict.fromkeys(("capacity_bytes", *rates))
    own = {"holds": ALL_KINDS, "shares": (), "num_instances_per_parent": 1}
    return level.model_copy(update={**update, **own})


def _in_words(level: Level, bits: int) -> Level:
    """A level of words of so many bits; where they are wider than an access, one takes several."""
    if bits == level.word_bits:
        return level
    access_bits = level.word_bits * level.words_per_access
    update: dict[str, object] = {"word_bits": bits, "words_per_access": max(1, access_bits // bits)}
    if bits > access_bits:
        for key in ("read_pj", "write_pj"):
            energy_pj = getattr(level, key)
            update[key] = None if energy_pj is None else energy_pj * bits / access_bits
    return level.model_copy(update=update)


def _part(level: Level, num_for_cluster: float) -> Level:
    """A level of which a cluster has less than one: that part of its capacity and bandwidth."""
    if num_for_cluster >= 1:
        return level
    update: dict[str, object] = {}
    if level.capacity_bytes is not None:
        update["capacity_bytes"] = int(level.capacity_bytes * num_for_cluster)
    for way in ("read", "write"):
        for unit in ("bytes_per_s", "bytes_per_cycle"):
            rate = getattr(level, f"{way}_{unit}")
            if rate is not None:
                update[f"{way}_{unit}"] = rate * num_for_cluster
    return level.model_copy(update=update)


def _with_cores(levels: list[Level], machine: Machine, num_cores: int) -> list[Level]:
    """The levels of one cluster with so many of the cores' buffers."""
    assert machine.local is not None, "only of machines that run networks"
    names = [level.name for level in levels]
    local = names.index(machine.local.name)
    left = num_cores
    found = list(levels)
    for place in range(local, len(levels)):
        count = min(left, levels[place].num_instances_per_parent) if place < len(levels) - 1 else 1
        left = -(-left // count)
        found[place] = levels[place].model_copy(update={"num_instances_per_parent": count})
    return found
