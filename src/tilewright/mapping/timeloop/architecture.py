"""Timeloop's architectures as machines.

Energies are those that the file gives, or else those of Timeloop's own table, never those of other tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingOf
from pathlib import Path
from typing import Any

from tilewright.errors import MachineError
from tilewright.hardware.machine import ALL_KINDS, Machine, TensorKind
from tilewright.hardware.machine_file import machine_from
from tilewright.loops.problem import Problem
from tilewright.mapping.timeloop.document import (
    BYPASS,
    FAN_OUT,
    LEFT_OUT,
    Entry,
    read_document,
    target_name,
)
from tilewright.mapping.timeloop.energies import Energies, access_pj, compute_pj, read_energies
from tilewright.mapping.timeloop.tree import Architecture, Component, read_architecture
from tilewright.mapping.timeloop.workload import kind_of

INTEGERS = {8: "int8", 16: "int16", 32: "int32", 64: "int64"}
"""Element type of multipliers that are not said to take floats, by the bits of a word."""
_FLOATS = {16: "float16", 32: "float32", 64: "float64"}
_WORD_BITS = 16  # where a file says nothing
_ENERGY_SOURCE = (
    "the file's ERT, vector-access-energy or energy, else Timeloop's table pat-public: "
    "((KB - 0.5) * 5 / 99.5 + 1) * width / 16 pJ for SRAM, 200 * width / 16 for DRAM, (bits / 16)^2 for a MAC"
)


def load_architecture(path: Path | str, *more: Path | str, problems: Sequence[Problem] = ()) -> Machine:
    """The machine of one of Timeloop's YAML files.

    Which tensors pass a memory by is said in the architecture (version 0.4), or beside it in constraints or a
    mapping: such sections of this file and of `more` files count, and their tables of energies (ERT). Names
    of tensors are those of the problems, or speak for themselves (Weights, Inputs, Outputs). A memory that
    keeps nothing only spreads work: it is left out, and its fan-out is that of the memory around it.
    Constraints on loops are no part of a machine. The machine's description names what was left out.

    Raises:
        MachineError: a file cannot be read, or its architecture is no chain of memories; names the key.
    """
    documents = {str(source): read_document(source) for source in (path, *more)}
    document = documents[str(path)]
    section = next((key for key in ("architecture", "arch") if key in document), None)
    if section is None:
        raise MachineError(f"{path}: there is no architecture section.")
    found = read_architecture(Entry(document[section], str(path), section))
    names = {o.name: o.kind for problem in problems for o in problem.operands}
    holds = {memory.name: _kept(memory, names) for memory in found.memories}
    binds_loops = found.binding is not None
    energies: dict[str, MappingOf[str, float]] = {}
    for where, other in documents.items():
        for directive, is_constraint in directives(other, where):
            if not _pass_by(directive, names, holds):
                binds_loops |= is_constraint
        if "ERT" in other:
            energies |= read_energies(Entry(other["ERT"], where, "ERT"))
    return _parsed(str(path), found, holds, energies, binds_loops)


def _parsed(
    path: str, found: Architecture, holds: dict[str, list[str]], energies: Energies, binds_loops: bool
) -> Machine:
    empty = [memory.name for memory in found.memories if not holds[memory.name]]
    notes = [f"{LEFT_OUT}{', '.join(empty)}."] if empty else []
    if binds_loops:
        notes.append("Its constraints on loops are not part of this machine.")
    return machine_from(_machine(_name_of(path), found, holds, energies, notes), path)


def _name_of(path: Path | str) -> str:
    return re.sub(r"[._-]?arch(itecture)?$", "", Path(path).stem) or "timeloop"


def _machine(
    name: str, found: Architecture, holds: dict[str, list[str]], energies: Energies, notes: list[str]
) -> dict[str, Any]:
    """A description of a machine, innermost level first."""
    levels: list[dict[str, Any]] = []
    outer: Component | None = None
    for memory in found.memories:
        if not holds[memory.name]:
            if outer is None:
                raise memory.part.error(f"{memory.name} is the outermost memory and must keep every tensor")
            continue
        fan_out = _fan_out(outer, memory)
        levels.append(_level(memory, energies.get(memory.name, {}), is_outermost=outer is None))
        levels[-1] |= {"holds": holds[memory.name], "num_instances_per_parent": fan_out}
        outer = memory
    assert outer is not None  # an architecture has a memory, and the first one was not left out
    compute = found.compute
    bits = _word_bits(compute)
    is_float = "fp" in compute.class_name or "float" in compute.class_name
    dtype = (_FLOATS if is_float else INTEGERS).get(bits, "float32" if is_float else "int8")
    mac_pj = _first(compute_pj(energies.get(compute.name, {})), _number(compute, "energy"), (bits / 16) ** 2)
    unit = {
        "name": compute.name,
        "kind": "mac",
        "level": outer.name,
        "num_per_instance": _fan_out(outer, compute),
        "macs_per_cycle": {dtype: 1},
        "mac_pj": mac_pj,
    }
    return {
        "name": name,
        "description": " ".join((f"From Timeloop's description of {name}.", *notes)),
        "levels": levels[::-1],
        "units": [unit],
        "energy_source": _ENERGY_SOURCE,
    }


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _fan_out(outer: Component | None, inner: Component) -> int:
    num_outer = outer.num_instances if outer is not None else 1
    if outer is not None and inner.num_instances % num_outer:
        raise inner.part.error(
            f"{inner.num_instances} of {inner.name} cannot be spread evenly over {num_outer} of {outer.name}"
        )
    return inner.num_instances // num_outer


def _level(memory: Component, actions: MappingOf[str, float], *, is_outermost: bool) -> dict[str, Any]:
    bits = _word_bits(memory)
    block, cluster = _block_and_cluster(memory, bits)
    words = _words(memory, bits, block)
    level: dict[str, Any] = {
        "name": memory.name,
        "word_bits": bits,
        "words_per_access": block,
        "num_instances_per_access": cluster,
    }
    if words is not None:
        usable = _usable(memory, words)
        level["capacity_bytes"] = -(-usable * bits // 8)
        if level["capacity_bytes"] * 8 // bits != usable:
            raise memory.part.error(f"{usable} words of {bits} bits fill no whole number of bytes")
    elif not is_outermost:
        raise memory.part.error(f"{memory.name} has no size; give depth, entries or sizeKB")
    shared = _number(memory, "bandwidth")
    for way in ("read", "write"):
        rate = _number(memory, f"{way}_bandwidth")
        rate = shared / 2 if rate is None and shared is not None else rate
        if rate is not None:
            if rate == 0:
                raise memory.part.error(f"a {way} bandwidth of 0")
            level[f"{way}_bytes_per_cycle"] = rate * bits / 8
    read_pj, write_pj = access_pj(actions, memory.part)
    own_pj = _first(_number(memory, "vector_access_energy"), _table_pj(memory, bits, block, cluster, words))
    return level | {"read_pj": _first(read_pj, own_pj), "write_pj": _first(write_pj, own_pj)}


def _count(component: Component, *keys: str) -> int | None:
    return next((component.attributes[key].count() for key in keys if key in component.attributes), None)


def _number(component: Component, key: str) -> float | None:
    return component.attributes[key].number() if key in component.attributes else None


def _word_bits(component: Component) -> int:
    return _count(component, "word_bits", "word_width", "datawidth") or _WORD_BITS


def _block_and_cluster(memory: Component, bits: int) -> tuple[int, int]:
    """Words of an access, and instances that share a bank; a width says what is left open.

    Up to version 0.2 the width left over is of further instances; since version 0.3 it is of further words,
    unless the words are given. Next to a given number of instances, older files give the width of one.
    """
    block = _count(memory, "block_size", "n_words")
    cluster = _count(memory, "cluster_size")
    width = _count(memory, "width", "memory_width", "data_storage_width")
    if width is None or (block is not None and cluster is not None):
        return block or 1, cluster or 1
    if block is None and cluster is not None and width < bits * cluster:
        cluster_bits = bits
    else:
        cluster_bits = bits * (block or 1) * (cluster or 1)
    rest = width // cluster_bits
    if width % cluster_bits:
        raise memory.part.error(f"a width of {width} bits is no multiple of its words of {bits} bits")
    if cluster is not None or (block is None and (memory.version >= 0.3 or _is_dram(memory))):
        return rest, cluster or 1
    return block or 1, rest


def _words(memory: Component, bits: int, block: int) -> int | None:
    entries = _count(memory, "entries")
    depth = _count(memory, "depth", "memory_depth", "data_storage_depth")
    kib = _count(memory, "sizeKB")
    if entries is not None:
        return entries
    if depth is not None:
        return depth * block
    return kib * 8192 // bits if kib is not None else None


def _usable(memory: Component, words: int) -> int:
    """Words that the tile in use may have."""
    buffers = _number(memory, "multiple_buffering")
    if buffers is None:
        return words
    if not 1 <= buffers <= words:
        raise memory.part.error(f"multiple-buffering of {buffers:g} is not between 1 and the {words} words")
    return int(words / buffers)


def _is_dram(memory: Component) -> bool:
    technology = memory.attributes.get("technology")
    return "DRAM" in memory.class_name or (technology is not None and technology.value == "DRAM")


def _table_pj(memory: Component, bits: int, block: int, cluster: int, words: int | None) -> float:
    """Energy of one access by Timeloop's table pat-public, per instance of a bank."""
    width = bits * block * cluster
    if _is_dram(memory) or words is None:
        return 200 * bits * block / 16
    kib = width * -(-words // block) / 8192
    return ((kib - 0.5) * 5 / 99.5 + 1) * width / 16 / cluster


# --- which tensors a memory keeps ---


def _kept(memory: Component, names: dict[str, TensorKind]) -> list[str]:
    """By its constraints (version 0.4): all but what bypasses it; of parallel memories what each keeps."""
    kinds = list(ALL_KINDS)
    if memory.constraints is not None and memory.constraints.value:
        keys = memory.constraints.entries()
        for key in (k for k in BYPASS if k in keys):
            constraints = keys[key].known_keys(("keep", "keep_only", "bypass"), "a dataspace")
            kinds = [k for k in kinds if k not in _kinds(constraints.get("bypass"), names)]
            only = "keep" if memory.is_parallel and "keep" in constraints else "keep_only"
            if only in constraints:
                kinds = [k for k in kinds if k in _kinds(constraints[only], names)]
    return [str(kind) for kind in kinds]


def directives(document: dict[str, Any], where: str) -> Iterator[tuple[Entry, bool]]:
    """Directives of a file's mapping (False) and constraints (True)."""
    for section, value in document.items():
        part = Entry(value, where, section)
        if section == "mapping":
            yield from ((item, False) for item in part.items())
        elif "constraints" in section or section == "mapspace":
            yield from ((item, True) for item in _listed(part))


def _listed(part: Entry) -> Iterator[Entry]:
    """The items of a section of constraints: a list, or one under a key, which another key may name."""
    if not isinstance(part.value, dict):
        yield from part.items()
        return
    keys = part.entries()
    listed = next((keys[k] for k in ("targets", "constraints") if k in keys), None)
    if listed is not None and isinstance(listed.value, str):
        name = f"constraints_{listed.text()}"
        if name not in keys:
            raise listed.error(f"there is no {name}")
        listed = keys[name]
    if listed is not None:
        yield from listed.items()


def _pass_by(directive: Entry, names: dict[str, TensorKind], holds: dict[str, list[str]]) -> bool:
    """Apply what a directive says of the tensors a memory keeps; False if it is of loops."""
    keys = directive.entries()
    if "type" not in keys or keys["type"].value not in BYPASS:
        return False
    target = next((keys[key] for key in ("target", "name") if key in keys), None)
    if target is None:
        raise directive.error("target is missing")
    memory = target_name(target, list(holds))
    if memory not in holds:
        if FAN_OUT.fullmatch(memory) or set(_kinds(keys.get("bypass"), names)) == set(ALL_KINDS):
            return True  # Timeloop's own levels of fan-out, which keep nothing
        raise target.error(f"there is no memory {memory!r}; there are {', '.join(holds)}")
    kept = set(holds[memory]) - {str(k) for k in _kinds(keys.get("bypass"), names)}
    kept |= {str(k) for k in _kinds(keys.get("keep"), names)}
    holds[memory] = [str(kind) for kind in ALL_KINDS if str(kind) in kept]
    return True


def _kinds(part: Entry | None, names: dict[str, TensorKind]) -> list[TensorKind]:
    found = []
    for name in part.names() if part is not None else ():
        kind = names.get(name) or kind_of(name)
        if kind is None and part is not None:
            raise part.error(f"what {name!r} holds is unknown; load the architecture with its problem")
        found.extend([kind] if kind is not None else [])
    return found
