"""Targets: each turns a `Program` into something that runs, or is simulated, on the machine it is made for.

`TARGETS` names those that run here; any described machine is one too, by the name of its preset or its file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright import families
from tilewright.errors import UsageError
from tilewright.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tilewright.hardware.machine import Machine
    from tilewright.ir.graph import Graph, Node, Shape
    from tilewright.targets.base import CodeStore, Executable, Target
    from tilewright.targets.runs import HostRunner, RunsControlFlow

TARGETS: Registry[Target] = families.TARGETS


def is_machine(text: str) -> bool:
    """Whether a text names a described machine rather than one of `TARGETS`.

    >>> is_machine("cpu"), is_machine("host"), is_machine("stcp920{overlap=none}")
    (False, False, True)
    """
    name = _named(text)
    return name not in TARGETS.built_in_names() and name not in TARGETS.names()


def is_cpu(text: str) -> bool:
    """Whether a text names the processor of this host, whatever options it states.

    >>> is_cpu("cpu{barriers=strict}")
    True
    """
    return _named(text) == families.HOST_TARGET


def cpu_code_store() -> CodeStore:
    """How code of this processor is loaded again; nothing of what generates it is loaded."""
    from tilewright.targets.cpu.image.stored import CpuStore

    return CpuStore()


def host_runner() -> HostRunner:
    """What runs an operator whole on the host, as `ir.interpret.run_node` does, but by machine code where
    there is some for it."""
    from tilewright.targets.cpu.runtime.host_operators import run_on_host

    return run_on_host


def compiled_control_flow(
    node: Node,
    inputs: Sequence[Shape | None],
    captures: Sequence[Shape],
    compile_body: Callable[[Graph], Executable],
) -> RunsControlFlow | None:
    """A control-flow node for operands of these shapes, whose bodies are compiled for this processor; None
    where data decide shapes in the body of a loop, or a state does not keep its shape.

    Raises:
        UnsupportedOp, ModelRejected: a body that cannot be built.
    """
    from tilewright.targets.cpu.runtime.control_flow_arrays import on_arrays

    return on_arrays(node, inputs, captures, compile_body)


def runs_steps(text: str) -> bool:
    """Whether the target that a text names has kernels that run steps (`Target.runs_steps`). Passes ask it
    where kept code is loaded: the processor's has, and what generates its code is not loaded to know that.

    Raises:
        UsageError, MachineError: there is no such target.
    """
    return is_cpu(text) or find_target(text).runs_steps


def is_machine_known(text: str) -> bool:
    """Whether the machine that a text names is a preset, or is looked for in a file."""
    from tilewright.hardware.presets import is_file, preset_names

    name = _named(text)
    return name in preset_names() or is_file(name)


def _named(text: str) -> str:
    """What a text names, without the options that it states. Opening stored code needs no more."""
    text = families.canonical_target(text)
    if text == families.HOST_TARGET:
        return text
    from tilewright.planning.spec import Spec

    return Spec.parse(text).name


def find_target(text: str, machine: Machine | None = None) -> Target:
    """The target that a text names: one of `TARGETS`, or a machine by its preset or YAML file, with options.

    With a `machine`, a text that names a machine stands for that one: nothing is looked up.

    Raises:
        UsageError: there is none, or no such option; says what was likely meant.
        MachineError: a file that describes no machine.
    """
    from tilewright.planning.member_options import with_options
    from tilewright.planning.spec import Spec, shown
    from tilewright.text.suggestions import likely

    spec = Spec.parse(families.canonical_target(text))
    # Built-in ones first: neither plugins nor what describes machines is loaded for them.
    if not is_machine(text):
        return TARGETS.get(spec)
    from tilewright.hardware.presets import find_machine, preset_names
    from tilewright.targets.npu.target import NpuTarget

    if machine is not None:
        return with_options(NpuTarget(machine), spec)
    if spec.name == NpuTarget.family:
        raise UsageError(
            f"target {spec.name}: needs a machine; give a YAML file, or one that `tilewright targets` lists."
        )
    if not is_machine_known(text):
        guess = likely(spec.name, (*TARGETS.names(), *preset_names()))
        others = f"{', '.join(TARGETS.names())}, a machine that `tilewright targets` lists, or a YAML file"
        hint = f"{guess[0].upper()}{guess[1:]}?" if guess else f"Give {others}."
        raise UsageError(f"Unknown target {shown(spec.name)}. {hint}")
    return with_options(NpuTarget(find_machine(spec.name)), spec)
