"""What a pass is: a named edit of a graph that keeps its meaning and says what it did."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Protocol, runtime_checkable

from tilewright.ir.graph import Graph
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Remark:
    """One decision about one node: what was done to it, or why it was left alone."""

    node: str
    text: str

    def __str__(self) -> str:
        return f"{self.node}: {self.text}"


@dataclass(frozen=True, slots=True)
class PassResult:
    """How many edits a pass made, and its remarks."""

    num_changes: int = 0
    remarks: tuple[Remark, ...] = ()


@runtime_checkable
class Pass(Protocol):
    """An edit of a graph that it owns; the graph is valid before and after.

    Implementations are frozen dataclasses; their fields are their options.
    """

    name: ClassVar[str]

    def run(self, graph: Graph) -> PassResult:
        """Edit the graph in place."""
        ...


@dataclass(frozen=True, slots=True)
class PassReport:
    """What the pipeline did: (pass, result) in order, and the printed graphs that were asked for."""

    results: tuple[tuple[str, PassResult], ...] = ()
    dumps: dict[str, str] = field(default_factory=dict)

    @property
    def num_changes(self) -> int:
        """Edits of all passes."""
        return sum(result.num_changes for _, result in self.results)
