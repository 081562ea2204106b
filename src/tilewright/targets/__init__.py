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
    from tilewright.target_ref import TargetRef
    from tilewright.targets.base import CodeStore, Executable, Target
    from tilewright.targets.runs import HostRunner, RunsControlFlow

TARGETS: Registry[Target] = families.TARGETS


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


def runs_steps(target: TargetRef) -> bool:
    """Whether a target has kernels that run steps (`Target.runs_steps`). Passes ask it where kept code is
    loaded: the processor's has, and what generates its code is not loaded to know that.

    Raises:
        UsageError, MachineError: there is no such target.
    """
    return target.is_cpu or find_target(target).runs_steps


def find_target(target: TargetRef, machine: Machine | None = None) -> Target:
    """The target that is meant: one of `TARGETS`, or a machine by its preset or YAML file, with options.

    A `machine` stands for the one that is named: nothing is looked up.

    Raises:
        UsageError: there is none, or no such option; says what was likely meant.
        MachineError: a file that describes no machine.
    """
    from tilewright.planning.member_options import with_options
    from tilewright.planning.spec import shown
    from tilewright.text.suggestions import likely

    if not target.is_machine:
        return TARGETS.get(target)
    from tilewright.hardware.presets import find_machine, preset_names
    from tilewright.targets.npu.target import NpuTarget

    if machine is not None:
        return with_options(NpuTarget(machine), target)
    if target.name == NpuTarget.family:
        raise UsageError(
            f"target {target.name}: needs a machine; give a YAML file, or one that `tilewright targets` "
            "lists."
        )
    if not target.is_known_machine:
        guess = likely(target.name, (*TARGETS.names(), *preset_names()))
        others = f"{', '.join(TARGETS.names())}, a machine that `tilewright targets` lists, or a YAML file"
        hint = f"{guess[0].upper()}{guess[1:]}?" if guess else f"Give {others}."
        raise UsageError(f"Unknown target {shown(target.name)}. {hint}")
    return with_options(NpuTarget(find_machine(target.name)), target)
