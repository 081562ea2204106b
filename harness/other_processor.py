"""A whole process, and those that it starts, as on another processor; light to import."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from tilewright.hardware.instruction_sets import AMX_NEEDS

PROCESSORS = {"avx2": ("amx", "avx512", "avx10"), "avx512": ("amx",), "amx": ()}
"""By name, how the features begin that such a processor lacks."""

MATRIX_FEATURES = (*AMX_NEEDS, "amx-int8")
"""Features of the matrix unit that is emulated, as LLVM calls them."""

VARIABLE = "TILEWRIGHT_TESTS_PROCESSOR"
"""Of the environment: the processor that Python processes have that a test starts."""


def features_as(name: str, known: Mapping[str, bool]) -> dict[str, bool]:
    """Whether a processor of that name has each of the features that this one has or lacks."""
    features = {feature: has and not feature.startswith(PROCESSORS[name]) for feature, has in known.items()}
    return features | dict.fromkeys(MATRIX_FEATURES, True) if name == "amx" else features


def run_as(name: str) -> None:
    """From now on, this process and those that it starts have that processor."""
    here = Path(__file__).parent
    paths = (str(here / "other_processes"), str(here.parent), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ[VARIABLE] = name
    change_features()
    change_registers()
    change_code()


def change_features() -> None:
    """What LLVM says of the processor, before anything has asked."""
    import llvmlite.binding as llvm

    features = llvm.FeatureMap(features_as(os.environ[VARIABLE], llvm.get_host_cpu_features()))
    llvm.get_host_cpu_features = lambda: features


def change_registers() -> None:
    """Whether the system gives the tile registers."""
    from tilewright.hardware import probe

    if os.environ[VARIABLE] == "amx":
        is_emulated()
        probe.allow_tile_registers = lambda: True  # type: ignore[assignment]


def change_code() -> None:
    """What is generated; a process that generates nothing imports nothing more."""
    from tilewright.targets.cpu.emit import codegen

    prepared = codegen.prepared_module

    def with_emulation(ir_text: str, isa: codegen.CodeTarget, **named: bool) -> object:
        if "@llvm.x86.tile" not in ir_text and "bfloat" not in ir_text:
            return prepared(ir_text, isa, **named)
        from harness.matrix_unit import emulate_matrix_unit

        codegen.prepared_module = prepared
        emulate_matrix_unit()
        return codegen.prepared_module(ir_text, isa, **named)

    if is_emulated():
        codegen.prepared_module = with_emulation  # type: ignore[assignment]


@functools.cache
def is_emulated() -> bool:
    """Whether the processor has a matrix unit that this system, as first asked, does not give."""
    from tilewright.hardware import probe

    return os.environ[VARIABLE] == "amx" and not probe.allow_tile_registers()
