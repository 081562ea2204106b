"""A problem, a machine and a mapping in Timeloop's format: `timeloop-model arch.yaml problem.yaml map.yaml`.

The architecture is in the flat form, which every version of Timeloop reads without asking Accelergy for other
energies. Every fan-out lies along one axis of a mesh, as a machine has one.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tilewright.errors import UsageError
from tilewright.hardware.machine import Level, Machine, TensorKind, Unit
from tilewright.ir.dtype import DType
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Operand, Problem, Term
from tilewright.mapping.timeloop.architecture import INTEGERS

FILES = ("arch.yaml", "problem.yaml", "map.yaml")
"""Names of the files, in the order in which `timeloop-model` takes them."""


@dataclass(frozen=True, slots=True)
class _Named:
    """A problem as Timeloop can take it: dims of one letter, extents that the factors divide."""

    problem: Problem
    letters: dict[str, str]
    remarks: tuple[str, ...]


def write(folder: Path, problem: Problem, machine: Machine, mapping: Mapping) -> None:
    """Write the files of `dump` into a folder, which is made if there is none.

    Raises:
        UsageError: the folder cannot be written, or Timeloop cannot say the mapping.
        MachineError: a bandwidth per second, and no clock.
    """
    texts = dump(problem, machine, mapping)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}.") from error


def write_each(folder: Path, mappings: Iterable[tuple[Problem, Machine, Mapping]]) -> None:
    """Write one mapping with its machine into the folder; of several, each into a folder of its layer's name.

    Raises:
        UsageError: a folder cannot be written, or Timeloop cannot say a mapping.
    """
    every = list(mappings)
    used: set[str] = set()
    for number, (problem, machine, mapping) in enumerate(every):
        name = re.sub(r"[^\w.=,+-]", "_", problem.name).strip(".") or "layer"
        if name in used:
            name = f"{name}.{number}"
        used.add(name)
        write(folder if len(every) == 1 else folder / name, problem, machine, mapping)


def dump(problem: Problem, machine: Machine, mapping: Mapping) -> dict[str, str]:
    """The texts of `arch.yaml`, `problem.yaml` and `map.yaml`, by file name.

    Read again they give the same problem, machine and mapping, but for what Timeloop's files cannot say,
    which comments note: names of dims longer than a letter, extents that the mapping pads, shares of a level,
    energies of writes, and element types that are no integers. Sources, clocks and networks are left out.

    Raises:
        UsageError: a level runs two separate loops of one dim (Timeloop has one), spatial loops where nothing
            fans out, or there are too many dims.
        MachineError: a bandwidth per second, and no clock.
    """
    named = _named(problem, mapping)
    directives = list(_directives(named, machine, mapping))
    return {
        "arch.yaml": _text({"arch": _architecture(machine)}, _remarks(machine)),
        "problem.yaml": _text({"problem": _problem(named.problem)}, named.remarks),
        "map.yaml": _text({"mapping": directives}, ()),
    }


class _Dumper(yaml.SafeDumper):
    """Short lists on one line, keys in the order given, nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _sequence(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    is_short = not any(isinstance(item, dict) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=is_short)


_Dumper.add_representer(list, _sequence)


def _text(document: dict[str, Any], remarks: tuple[str, ...]) -> str:
    head = "".join(f"# {' '.join(remark.split())}\n" for remark in remarks)
    return head + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=100)


# --- the architecture ---


def _remarks(machine: Machine) -> tuple[str, ...]:
    remarks = []
    for level in machine.levels:
        if level.shares:
            remarks.append(f"{level.name} has shares for some tensors; here all of them share its size.")
        if level.write_pj not in (None, level.read_pj):
            remarks.append(f"A write to {level.name} costs {level.write_pj} pJ; Timeloop has one energy.")
    described = sum(machine.num_units(unit) for unit in _units(machine))
    if described not in (0, _num_macs(machine)):
        remarks.append(f"There are {described} compute units; here {machine.innermost.name} has its own.")
    element = _element_type(_units(machine))
    read_as = INTEGERS.get(8 * element.size_bytes)
    if read_as != str(element):
        remarks.append(f"The multipliers take {element}; here they are of integers as wide ({read_as}).")
    return tuple(remarks)


def _architecture(machine: Machine) -> dict[str, Any]:
    """Flat lists, the innermost memory first."""
    units = _units(machine)
    num_macs = _num_macs(machine)
    arithmetic: dict[str, Any] = {"name": units[0].name if units else "MAC"}
    arithmetic |= {"instances": num_macs, "meshX": num_macs, "word-bits": 8 * _element_type(units).size_bytes}
    arithmetic["energy"] = machine.mac_pj
    return {"arithmetic": arithmetic, "storage": [_memory(machine, level) for level in machine.levels]}


def _units(machine: Machine) -> list[Unit]:
    return [unit for unit in machine.units if unit.kind in ("mac", "matrix")]


def _num_macs(machine: Machine) -> int:
    """Compute units beside all instances of the innermost memory, as the cost model counts them."""
    return machine.fan_out(0) * machine.num_instances(machine.innermost)


def _element_type(units: list[Unit]) -> DType:
    """What the multipliers take, of several types the first."""
    names = [name for unit in units for name in unit.macs_per_cycle]
    return next((d for d in DType if str(d) == names[0]), DType.INT8) if names else DType.INT8


def _memory(machine: Machine, level: Level) -> dict[str, Any]:
    instances = machine.num_instances(level)
    memory: dict[str, Any] = {"name": level.name}
    if level.capacity_bytes is None:
        memory["technology"] = "DRAM"
    else:
        memory["entries"] = level.capacity_bytes * 8 // level.word_bits
    memory |= {"instances": instances, "meshX": instances, "word-bits": level.word_bits}
    memory["block-size"] = level.words_per_access
    memory["cluster-size"] = level.num_instances_per_access
    for way, rate in (
        ("read", machine.read_bytes_per_cycle(level)),
        ("write", machine.write_bytes_per_cycle(level)),
    ):
        if rate is not None:
            memory[f"{way}_bandwidth"] = rate * 8 / level.word_bits
    memory["vector-access-energy"] = level.read_access_pj
    return memory


# --- the problem ---


def _named(problem: Problem, mapping: Mapping) -> _Named:
    factors = mapping.factors()
    dims: list[tuple[str, int]] = []
    remarks: list[str] = []
    letters = _letters(problem)
    for dim, extent in problem.dims:
        covered = factors.get(dim, 1)
        dims.append((letters[dim], max(extent, covered)))
        if letters[dim] != dim:
            remarks.append(f"{letters[dim]} is {dim}: Timeloop's permutations name dims by one letter.")
        if covered > extent:
            remarks.append(f"{letters[dim]} is {extent} in the layer; the mapping pads it to {covered}.")
    operands = tuple(
        Operand(o.name, o.kind, tuple(tuple((letters[d], step) for d, step in axis) for axis in o.axes))
        for o in problem.operands
    )
    return _Named(Problem(problem.name, tuple(dims), operands), letters, tuple(remarks))


def _letters(problem: Problem) -> dict[str, str]:
    """A letter for every dim: its own name, its first letter, or any that is free."""
    names = [dim for dim, _ in problem.dims]
    letters = {dim: dim for dim in names if len(dim) == 1 and dim in string.ascii_letters}
    for dim in names:
        if dim not in letters:
            wishes = (*dim[:1].upper(), *dim[:1], *string.ascii_uppercase, *string.ascii_lowercase)
            used = set(letters.values())
            free = next((c for c in wishes if c in string.ascii_letters and c not in used), None)
            if free is None:
                raise UsageError(f"layer {problem.name}: {len(names)} dims; Timeloop has a letter for 52.")
            letters[dim] = free
    return letters


def _problem(problem: Problem) -> dict[str, Any]:
    steps = sorted({step for o in problem.operands for axis in o.axes for _, step in axis if step > 1})
    shape: dict[str, Any] = {"name": "layer", "dimensions": [dim for dim, _ in problem.dims]}
    names = {step: f"step{step}" for step in steps}
    if steps:
        shape["coefficients"] = [{"name": names[step], "default": step} for step in steps]
    shape["data-spaces"] = [_data_space(operand, names) for operand in problem.operands]
    return {"shape": shape, "instance": dict(problem.dims)}


def _data_space(operand: Operand, names: dict[int, str]) -> dict[str, Any]:
    def product(term: Term) -> list[str]:
        dim, step = term
        return [dim, names[step]] if step > 1 else [dim]

    space: dict[str, Any] = {
        "name": operand.name,
        "projection": [[product(term) for term in axis] for axis in operand.axes],
    }
    if operand.kind is TensorKind.OUTPUT:
        space["read-write"] = True
    return space


# --- the mapping ---


def _directives(named: _Named, machine: Machine, mapping: Mapping) -> Iterator[dict[str, Any]]:
    problem = named.problem
    given = {loops.level: loops for loops in mapping.levels}
    for level in reversed(machine.levels):
        keep = [o.name for o in problem.operands if o.kind in level.holds]
        bypass = [o.name for o in problem.operands if o.kind not in level.holds]
        yield {"target": level.name, "type": "datatype", "keep": keep, "bypass": bypass}
    for number, level in reversed(list(enumerate(machine.levels))):
        loops = given.get(level.name, LevelLoops(level.name))
        yield {"target": level.name, "type": "temporal"} | _nest(named, loops.temporal, level)
        if machine.fan_out(number) > 1:  # Timeloop refuses spatial loops elsewhere, even of one iteration
            nest = _nest(named, loops.spatial, level)
            yield {"target": level.name, "type": "spatial"} | nest | {"split": len(problem.dims)}
        elif any(loop.factor > 1 for loop in loops.spatial):
            raise UsageError(f"level {level.name}: spatial loops, but one instance feeds only one.")


def _nest(named: _Named, loops: tuple[Loop, ...], level: Level) -> dict[str, Any]:
    """Factors of all dims, and their order from the innermost; dims without a loop come first."""
    dims = [dim for dim, _ in named.problem.dims]
    factors = dict.fromkeys(dims, 1)
    order: list[str] = []
    for loop in reversed([loop for loop in loops if loop.factor > 1]):
        letter = named.letters[loop.dim]
        if letter in order and order[-1] != letter:
            raise UsageError(
                f"level {level.name}: two separate loops of {loop.dim}; Timeloop has one per level."
            )
        factors[letter] *= loop.factor
        order = [*(d for d in order if d != letter), letter]
    order = [dim for dim in dims if dim not in order] + order
    return {"factors": " ".join(f"{d}={f}" for d, f in factors.items()), "permutation": "".join(order)}
