"""What is told of the shapes that an open model was compiled for."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.records import dataclass
from tilewright.results import Result, Table
from tilewright.text.formatting import format_shape


@dataclass(frozen=True, slots=True)
class Specialisation:
    """The code for one set of shapes: how long it took to make, and how many runs used it.

    `is_ahead`: it was prepared before any run. `follows_data`: it is of what comes after a shape that data
    decide. `by_code_for`: it has no code of its own, for runs are divided or padded to these extents.
    """

    shapes: Mapping[str, tuple[int, ...]]
    seconds: float
    num_runs: int
    num_kernels: int
    is_ahead: bool
    follows_data: bool
    by_code_for: tuple[int, ...] = ()

    @property
    def shapes_text(self) -> str:
        """The shapes for people."""
        return ", ".join(f"{name}: {format_shape(shape)}" for name, shape in self.shapes.items())


@dataclass(frozen=True, slots=True)
class Specialisations(Result):
    """The shapes that an open model was compiled for: those kept, least recently used first, and counts."""

    kept: tuple[Specialisation, ...]
    num_made: int
    num_dropped: int
    seconds: float
    limit: int

    def tables(self) -> tuple[Table, ...]:
        """A row for each set of shapes that is kept."""
        rows = tuple(
            (s.shapes_text, str(s.num_kernels), f"{s.seconds:.2f} s", str(s.num_runs)) for s in self.kept
        )
        return (Table(("shapes", "kernels", "compiled in", "runs"), rows),)

    def __str__(self) -> str:
        return (
            f"compiled for {self.num_made} sets of shapes in {self.seconds:.1f} s; {len(self.kept)} of at "
            f"most {self.limit} are kept"
        )
