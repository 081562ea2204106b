"""Timeloop's files on the command line of `tilewright map`: what is read as which, and what is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine
    from tilewright.loops.mapping import Mapping
    from tilewright.loops.problem import Problem
    from tilewright.mapping.cases import Case


def problem_of(text: str) -> Problem | None:
    """The problem of a layer that is a YAML file; None for other layers.

    Raises:
        MachineError: the file is none of Timeloop's problems.
    """
    from tilewright.mapping.timeloop import load_problem

    return load_problem(text) if _is_yaml(text) else None


def machine_of(target: str, more: Sequence[Path], evaluate: Path | None, work: Sequence[str]) -> Machine:
    """A preset, or the machine of a YAML file, which may be one of Timeloop's architectures.

    `more` are files that go with the architecture, as a mapping to evaluate does, which says what passes by a
    memory; the layers among `work` say what names of tensors mean.

    Raises:
        MachineError: there is no such machine, or a file is not what it should be.
        UsageError: files to go with a machine that is not Timeloop's.
    """
    from tilewright.hardware.machine_file import read_text
    from tilewright.hardware.presets import find_machine
    from tilewright.mapping.timeloop import load_architecture, load_problem, sections_of

    if _is_yaml(target) and sections_of(read_text(Path(target))):
        problems = [load_problem(text) for text in work if _is_yaml(text)]
        mappings = (evaluate,) if evaluate is not None and _is_yaml(str(evaluate)) else ()
        return load_architecture(target, *more, *mappings, problems=problems)
    if more:
        raise UsageError(f"{more[0]} goes with one of Timeloop's architectures, but {target} is none.")
    return find_machine(target)


def cases_of(path: Path, work: Sequence[str], machine: Machine) -> list[Case]:
    """What `--evaluate` counts: our cases, or one of Timeloop's mappings of one layer.

    Raises:
        MachineError: the mapping cannot be read, or does not fit the layer or the machine.
        UsageError: the file is none of either, or there are layers beside cases, or not one beside a mapping.
    """
    from tilewright.mapping.cases import Case, load_cases
    from tilewright.mapping.timeloop import load_mapping

    if not _is_yaml(str(path)):
        if work:
            raise UsageError("--evaluate counts the mappings of its file; leave out the layers.")
        return load_cases(path)
    problem = problem_of(work[0]) if len(work) == 1 else None
    if problem is None:
        raise UsageError(f"--evaluate {path}: a mapping of Timeloop's needs its problem; give one YAML file.")
    return [Case(problem.name, problem, load_mapping(path, problem, machine))]


def export(folder: Path, machine: Machine, found: Iterable[tuple[Problem, Mapping]]) -> None:
    """Write one mapping into the folder; of several, each into a folder of its layer's name.

    Raises:
        UsageError: a folder cannot be written, or Timeloop cannot say a mapping.
    """
    from tilewright.mapping.timeloop import write

    every = list(found)
    used: set[str] = set()
    for number, (problem, mapping) in enumerate(every):
        name = re.sub(r"[^\w.=,+-]", "_", problem.name).strip(".") or "layer"
        if name in used:
            name = f"{name}.{number}"
        used.add(name)
        write(folder if len(every) == 1 else folder / name, problem, machine, mapping)


def _is_yaml(text: str) -> bool:
    return text.endswith((".yaml", ".yml"))
