"""Cycles that limits of bandwidth cost at least: by hand, and against every mapping."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from tests.support.mappings import all_mappings
from tests.unit.mapping.test_gpu import tiny

from tilewright.cost.options import CostOptions
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.block_view import block_limits, block_view
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.presets import load_preset
from tilewright.loops.problem import Problem, convolution, layer
from tilewright.mapping.base import MappingProblem
from tilewright.mapping.exact.ports import PortBound, least_port_cycles, limited_ports
from tilewright.mapping.gpu import evaluate_blocks

TWO_BUFFERS = """
name: two buffers
levels:
  - {name: Buffer, capacity_bytes: 64, num_instances_per_parent: 2, read_bytes_per_cycle: 2,
     write_bytes_per_cycle: 4}
  - {name: Memory}
units: [{name: mac, kind: mac, num_per_instance: 4, macs_per_cycle: {int8: 1}}]
"""


def test_what_a_buffer_reads_and_writes_by_hand() -> None:
    problem = convolution({"K": 8, "C": 4, "P": 6})
    task = MappingProblem(problem, parse_machine(TWO_BUFFERS))
    (port,) = limited_ports(task.machine)
    bound = PortBound(task, port)
    names = list(problem.extents)

    def factors(**by_dim: int) -> np.ndarray:
        return np.array([by_dim.get(name, 1) for name in names])

    # Each buffer has K 4: 16 weights and 24 inputs enter. Of each of 96 multiplications an input and a sum
    # are shared by nothing, of C 4 side by side all add to one sum.
    alone = bound.cycles(factors(K=2), factors())
    assert alone == max(96, (96 + 96) / 2, (16 + 24 + 24 + 96) / 4)
    added = bound.cycles(factors(K=2), factors(C=4))
    assert added == max(24, (24 * 4 + 24 * 4) / 2, (16 + 24 + 24 + 24) / 4)
    spread = bound.cycles(factors(K=2), factors(K=4))
    assert spread == max(24, (24 * 4 + 24) / 2, (16 + 24 + 24 + 96) / 4)
    # The best: K 2 and P 2 side by side read two weights and two inputs for four multiplications.
    assert bound.least() == ceil(24 * 4 / 2) == 48


def test_places_of_outputs_are_not_filled_first_where_that_is_elided() -> None:
    """An output passes as often as a product adds to it: 96 of each instance, and no 24 before."""
    problem = convolution({"K": 8, "C": 4, "P": 6})
    machine = parse_machine(TWO_BUFFERS.replace("write_bytes_per_cycle: 4", "write_bytes_per_cycle: 0.5"))
    halves = np.array([2 if name == "K" else 1 for name in problem.extents])
    none = np.ones_like(halves)
    for elides, words in ((False, 16 + 24 + 24 + 96), (True, 16 + 24 + 96)):
        task = MappingProblem(problem, machine, cost_options=CostOptions(elides_first_fills=elides))
        assert PortBound(task, limited_ports(machine)[0]).cycles(halves, none) == words / 0.5


def test_a_window_that_strides_touches_all_of_its_remainders() -> None:
    problem = convolution({"P": 4, "R": 3, "C": 2}, stride=(2, 1))
    task = MappingProblem(problem, parse_machine(TWO_BUFFERS))
    bound = PortBound(task, limited_ports(task.machine)[0])
    names = list(problem.extents)
    (image,) = (operand for operand in problem.operands if operand.kind.value == "input")

    def touched(**by_dim: int) -> float:
        return float(bound.touched(image, np.array([by_dim.get(name, 1) for name in names])))

    assert touched(P=4, R=3, C=2) == 2 * 9  # 0 to 8
    assert touched(P=4, R=2) == 5  # of a part of the window it may be every second one
    assert touched(P=4) == 4


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "extents", [{"K": 4, "P": 3}, {"K": 2, "P": 2, "R": 2}, {"K": 3, "C": 2, "P": 2}, {"P": 4, "Q": 2}]
)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("num_per_instance: 8", "num_per_instance: 2"),
        ("read_bytes_per_cycle: 32", "read_bytes_per_cycle: 2"),
        ("write_pj: 1}", "write_pj: 1, read_bytes_per_cycle: 4, write_bytes_per_cycle: 4}"),
    ],
)
def test_no_block_of_any_size_is_faster(extents: dict[str, int], old: str, new: str) -> None:
    machine = tiny(old, new)
    view = block_view(machine, block_limits(machine).max_per_block)
    limits = block_limits(machine)
    layers = [convolution(extents), convolution(extents | {"K": extents.get("K", 1) + 1})]
    least = min(cycles for problem in layers for cycles in all_cycles(problem, machine))
    task = MappingProblem(layers[0], view.machine, "latency", block=limits)
    bound = least_port_cycles(task, view.num_at_once)
    assert 0 < bound <= least


def all_cycles(problem: Problem, machine: object) -> list[int]:
    listed = []
    for mapping in all_mappings(problem, block_view(machine, 4).machine):  # type: ignore[arg-type]
        try:
            listed.append(evaluate_blocks(problem, machine, mapping)[0].cycles)  # type: ignore[arg-type]
        except InfeasibleMapping:
            continue
    return listed


def test_few_outputs_for_each_multiprocessor_are_bound_by_shared_memory() -> None:
    """760 outputs for each of 132 need more words than their multiplications take cycles."""
    machine = load_preset("h200")
    view = block_view(machine, block_limits(machine).max_per_block)
    task = MappingProblem(layer("3_28_128_128_1"), view.machine, "latency", block=block_limits(machine))
    assert least_port_cycles(task, view.num_at_once) > 2 * 428
