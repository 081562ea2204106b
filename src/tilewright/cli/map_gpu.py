"""`tilewright map` onto a GPU: what operators are mapped onto there, and how mappings are launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.cli.output import say

if TYPE_CHECKING:
    from tilewright.cost.count import Cost
    from tilewright.cost.options import CostOptions
    from tilewright.hardware.machine import Machine
    from tilewright.loops.mapping import Mapping
    from tilewright.loops.problem import Problem
    from tilewright.mapping.launch import Launch


def mapped_onto(machine: Machine) -> tuple[Machine, str]:
    """The part of a machine that operators are mapped onto, and in words what it is; a GPU stays whole."""
    from tilewright.hardware.block_view import block_limits, block_view
    from tilewright.hardware.operator_view import operator_view

    if machine.threads is None:
        view = operator_view(machine)
        return view.machine, view.note
    return machine, block_view(machine, block_limits(machine).max_per_block).note


def evaluated(problem: Problem, machine: Machine, mapping: Mapping, cost_options: CostOptions) -> Cost:
    """What a mapping costs; onto a GPU, in blocks of threads."""
    from tilewright.cost.nest_analysis import evaluate
    from tilewright.mapping.gpu import evaluate_blocks

    if machine.threads is None:
        return evaluate(problem, machine, mapping, cost_options)
    return evaluate_blocks(problem, machine, mapping, cost_options)[0]


def launch_on(
    problem: Problem, machine: Machine, mapping: Mapping, cost_options: CostOptions
) -> Launch | None:
    """How a mapping onto a GPU is launched; None on other machines."""
    from tilewright.mapping.gpu import evaluate_blocks

    return None if machine.threads is None else evaluate_blocks(problem, machine, mapping, cost_options)[1]


def launch_to_json(launch: Launch | None) -> dict[str, Any] | None:
    """A layer's part of the report."""
    if launch is None:
        return None
    return {
        "shape": list(launch.shape),
        "axes": [[[loop.dim, loop.factor] for loop in axis] for axis in launch.axes],
        "grid": [[loop.dim, loop.factor] for loop in launch.grid],
        "num_threads": launch.num_threads,
        "num_blocks": launch.num_blocks,
        "num_steps": launch.num_steps,
        "shared_bytes": launch.shared_bytes,
        "registers_per_thread": launch.registers_per_thread,
        "max_resident": launch.max_resident,
    }


def print_launch(launch: Launch) -> None:
    """The launch in two lines."""
    axes = [
        f"{name} = {' x '.join(f'{loop.dim} {loop.factor}' for loop in axis)}"
        for name, axis in zip("xyz", launch.axes, strict=False)
        if axis
    ]
    listed = ", ".join(axes)
    blocks = " x ".join(f"{loop.dim} {loop.factor}" for loop in launch.grid)
    say(
        f"launched as {launch.num_blocks:,} blocks{f' ({blocks})' if blocks else ''} of "
        f"{' x '.join(map(str, launch.shape))} = {launch.num_threads:,} threads"
        f"{f' ({listed})' if axes else ''}"
    )
    say(
        f"a block needs {launch.shared_bytes:,} bytes of shared memory and {launch.registers_per_thread} "
        f"registers per thread for its tiles; {launch.max_resident} of them fit on a multiprocessor"
    )
