"""What runs of any target have in common, without what plans and generates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from tilewright.arrays import Array
from tilewright.ir.graph import Node
from tilewright.records import dataclass

PROCESSOR = (1, 0)
"""The processor, as DLPack numbers devices."""


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


@dataclass(frozen=True, slots=True)
class CodeAtAddresses:
    """Code that runs on memory that the caller vouches for.

    `run` is given the addresses of inputs and outputs in their order, and a stream where the device has some:
    contiguous, of the model's types and shapes, and kept alive until the run has ended. `place` is the device
    in which they lie, as DLPack numbers it; they begin at multiples of `alignment_bytes`.
    """

    run: Callable[[Sequence[int], Sequence[int], int | None], None]
    place: tuple[int, int]
    alignment_bytes: int


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
