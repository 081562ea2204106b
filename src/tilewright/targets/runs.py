"""What runs of any target have in common, without what plans and generates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tilewright.ir.graph import Node

Array = np.ndarray[Any, Any]


@runtime_checkable
class RunsRows(Protocol):
    """An executable whose runs may have fewer rows, along `row_axes` of inputs if it has any: see `ir.rows`.

    That much of its work, `rows_share`, is in proportion to them; the rest is done for all.
    """

    row_axes: Mapping[str, int]
    rows_share: float

    def run_rows(self, feed: Mapping[str, Array], num_rows: int) -> dict[str, Array]:
        """As `Executable.run` on inputs that have all rows; of the outputs, the first rows are right."""
        ...


@runtime_checkable
class RunsPast(Protocol):
    """An executable whose runs may have shorter caches, along `row_axes` of inputs and outputs: `ir.past`."""

    row_axes: Mapping[str, int]

    def run_past(
        self, feed: Mapping[str, Array], outputs: Mapping[str, Sequence[int]], num_past: int
    ) -> dict[str, Array]:
        """Outputs of a run with so many places; caches among them have the shapes of `outputs`."""
        ...


class HostRunner(Protocol):
    """What runs an operator whole on the host: see `ir.interpret.run_node`."""

    def __call__(
        self, node: Node, arrays: Sequence[Array | None], *, captures: Sequence[Array] = ()
    ) -> tuple[Array | None, ...]:
        """Outputs of one node."""
        ...


class RunsControlFlow(Protocol):
    """A control-flow node whose bodies are code for given shapes of its operands."""

    def run(
        self, operands: Sequence[Array | None], captures: Sequence[Array]
    ) -> tuple[Array | None, ...] | None:
        """Its results, given contiguous arrays of those shapes; None for a branch in which data decide
        shapes."""
        ...


def written_into(results: dict[str, Array], into: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs that were computed elsewhere, those copied that have an array to lie in."""
    for name, array in into.items():
        array[...] = results[name]
        results[name] = array
    return results
