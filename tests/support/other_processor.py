"""Models, or a whole process and those that it starts, as on another processor; light to import."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

from tests.support.processor_features import features_as

VARIABLE = "TILEWRIGHT_TESTS_PROCESSOR"
"""Of the environment: the processor that Python processes have that a test starts."""


@contextlib.contextmanager
def on_processor(name: str) -> Iterator[None]:
    """Within it models are planned and compiled for that processor of `processors_here`, and run."""
    from tests.support.matrix_unit import emulated_matrix_unit
    from tests.support.processors import machine_as, on_machine

    with on_machine(machine_as(name)), emulated_matrix_unit() if name == "amx" else contextlib.nullcontext():
        yield


def run_as(name: str) -> None:
    """From now on, this process and those that it starts have that processor."""
    here = Path(__file__)
    paths = (str(here.with_name("other_processes")), os.environ.get("PYTHONPATH", ""), str(here.parents[2]))
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
    from tilewright.targets.llvm import codegen

    prepared = codegen.prepared_module

    def with_emulation(ir_text: str, isa: codegen.CodeTarget, **named: bool) -> object:
        if "@llvm.x86.tile" not in ir_text and "bfloat" not in ir_text:
            return prepared(ir_text, isa, **named)
        from tests.support.matrix_unit import emulate_matrix_unit

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
