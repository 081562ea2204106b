"""Graphs that state wrong shapes are found before code is generated from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.property.checks import EXAMPLES
from tests.property.mixed_graphs import mixed_graphs

from tilewright.ir.bounds import find_out_of_bounds
from tilewright.ir.graph import Graph
from tilewright.ir.text import parse_graph

HEAD = 'graph "g" opset 17 {\n input %x: float32[4, 6]\n input %w: float32[6, 5]\n'


def found(line: str, result: str = "y") -> str | None:
    return find_out_of_bounds(parse_graph(f"{HEAD}{line}\n return %{result}\n}}"))


@EXAMPLES
@given(graph=mixed_graphs(max_nodes=6))
def test_graphs_with_the_shapes_of_their_operators_stay_inside(graph: Graph) -> None:
    assert find_out_of_bounds(graph) is None


@pytest.mark.parametrize(
    "line",
    [
        "%y: float32[4, 6] = Relu(%x)",
        "%y: float32[4, 5] = MatMul(%x, %w)",
        "%y: float32[6, 4] = Transpose(%x) {perm = [1, 0]}",
        "%y: float32[4, 12] = Concat(%x, %x) {axis = 1}",
    ],
)
def test_right_shapes_are_accepted(line: str) -> None:
    assert found(line) is None


@pytest.mark.parametrize(
    "line",
    [
        "%y: float32[4, 7] = Relu(%x)",
        "%y: float32[400, 6] = Relu(%x)",
        "%y: float32[4, 50] = MatMul(%x, %w)",
        "%y: float32[40, 5] = MatMul(%x, %w)",
        "%y: float32[4, 6] = MatMul(%x, %x)",
        "%y: float32[60, 4] = Transpose(%x) {perm = [1, 0]}",
        "%y: float32[4, 120] = Concat(%x, %x) {axis = 1}",
        "%y: float32[9, 6] = Add(%x, %x)",
    ],
)
def test_wrong_shapes_are_refused(line: str) -> None:
    """By this check, or because the operator cannot be described with them."""
    try:
        problem = found(line)
    except (AssertionError, ValueError, LookupError, TypeError, ArithmeticError):
        return
    assert problem is not None
    assert "'y'" in problem
