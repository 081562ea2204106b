"""Virtual computing units of a machine, one of each kind in each core that has it, and what needs which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.hardware.machine import Machine
from tilewright.hardware.parts import Work
from tilewright.ir.derive import is_complex
from tilewright.ir.graph import Node


def virtual_units(machine: Machine | None, num_cores: int) -> Mapping[Work, int]:
    """How much of each operation class can run at the same time: one on each core that has a unit.

    Without a machine, or where it names no units, every core takes any work.
    """
    if machine is None or not machine.units:
        return dict.fromkeys(Work, num_cores)
    return {work: num_cores if any(unit.takes(work) for unit in machine.units) else 0 for work in Work}


def needed_unit(nodes: Iterable[Node]) -> Work:
    """The unit that nodes which follow each other occupy: that of sums of products, where they have any."""
    return Work.CONTRACTION if any(map(is_complex, nodes)) else Work.ELEMENTWISE
