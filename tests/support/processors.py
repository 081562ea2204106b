"""This processor as another one: without wider instruction sets, or with the matrix unit emulated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.support.processor_features import PROCESSORS, features_as

from tilewright.hardware.host import host_machine
from tilewright.hardware.instruction_sets import instruction_set_by_name
from tilewright.hardware.machine import Level, Machine
from tilewright.hardware.processor import described_units, promised_machine

CACHES = (("L1", 48 << 10), ("L2", 2 << 20), ("L3", 64 << 20))
"""Usual sizes of a core's caches, in bytes."""

_NEEDS = {"avx2": "avx2", "avx512": "avx512vl", "amx": "avx512vl"}


def processors_here() -> tuple[str, ...]:
    """Names of the processors that this one can be taken for."""
    instructions = host_machine().instructions
    assert instructions is not None
    return tuple(name for name in PROCESSORS if _NEEDS[name] in instructions.features)


def machine_as(name: str) -> Machine:
    """This host with that processor."""
    machine = host_machine()
    instructions = machine.instructions
    assert instructions is not None
    known = {
        **dict.fromkeys(instructions.features, True),
        **dict.fromkeys(instructions.missing_features, False),
    }
    features = features_as(name, known)
    present = tuple(sorted(feature for feature, has in features.items() if has))
    missing = tuple(sorted(features.keys() - set(present)))
    instructions = instructions.model_copy(update={"features": present, "missing_features": missing})
    per_instance = next((unit.num_per_instance for unit in machine.units if unit.kind == "vector"), 1)
    units = described_units(instructions, per_instance)
    return machine.model_copy(update={"instructions": instructions, "units": units})


def machine_with(instruction_set: str) -> Machine:
    """Machine of usual caches that has what an instruction set promises, wherever this runs."""
    machine = promised_machine(instruction_set_by_name(instruction_set))
    caches = (Level(name=n, capacity_bytes=size, managed_by="hardware", line_bytes=64) for n, size in CACHES)
    return machine.model_copy(update={"levels": (*caches, *machine.levels)})


@contextlib.contextmanager
def on_machine(machine: Machine) -> Iterator[None]:
    """Within it models are planned for a machine in place of this host."""
    from tilewright.targets.cpu import target

    host = target.host_machine  # type: ignore[attr-defined]
    target.host_machine = lambda: machine  # type: ignore[attr-defined, assignment]
    try:
        yield
    finally:
        target.host_machine = host  # type: ignore[attr-defined]
