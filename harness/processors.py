"""This processor as another one: without wider instruction sets, or with the matrix unit emulated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import llvmlite.binding as llvm

from tilewright.hardware import probe
from tilewright.hardware.host import host_machine
from tilewright.hardware.instruction_sets import AMX_NEEDS
from tilewright.hardware.machine import Machine
from tilewright.hardware.processor import described_units

PROCESSORS = {"avx2": ("amx", "avx512", "avx10"), "avx512": ("amx",), "amx": ()}
"""By name, how the features begin that such a processor lacks."""

MATRIX_FEATURES = (*AMX_NEEDS, "amx-int8")
"""Features of the matrix unit that is emulated, as LLVM calls them."""

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
    features = _features_as(name, known)
    present = tuple(sorted(feature for feature, has in features.items() if has))
    missing = tuple(sorted(features.keys() - set(present)))
    instructions = instructions.model_copy(update={"features": present, "missing_features": missing})
    per_instance = next((unit.num_per_instance for unit in machine.units if unit.kind == "vector"), 1)
    units = described_units(instructions, per_instance)
    return machine.model_copy(update={"instructions": instructions, "units": units})


@contextlib.contextmanager
def on_processor(name: str) -> Iterator[None]:
    """Within it models are planned and compiled for that processor of `processors_here`, and run."""
    from harness.matrix_unit import emulated_matrix_unit

    with on_machine(machine_as(name)), emulated_matrix_unit() if name == "amx" else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def on_machine(machine: Machine) -> Iterator[None]:
    """Within it models are planned for a machine in place of this host."""
    from tilewright.targets.cpu import target

    host = target.host_machine
    target.host_machine = lambda: machine  # type: ignore[assignment]
    try:
        yield
    finally:
        target.host_machine = host


def run_as(name: str) -> None:
    """The same for all of this process, until its end; before anything has asked what the processor has."""
    from harness.matrix_unit import emulate_matrix_unit

    known = llvm.get_host_cpu_features()
    features = llvm.FeatureMap(_features_as(name, known))
    if name == "amx" and not (known.get("amx-tile") and probe.allow_tile_registers()):
        probe.allow_tile_registers = lambda: True  # type: ignore[assignment]
        emulate_matrix_unit()
    llvm.get_host_cpu_features = lambda: features
    probe.processor_facts.cache_clear()
    host_machine.cache_clear()


def _features_as(name: str, known: dict[str, bool]) -> dict[str, bool]:
    """Whether a processor of that name has each of the features."""
    features = {feature: has and not feature.startswith(PROCESSORS[name]) for feature, has in known.items()}
    return features | dict.fromkeys(MATRIX_FEATURES, True) if name == "amx" else features
