"""Plans on machines that are described: what they are, what they cost, and what every unit does when.

A target that simulates (`SimulatingTarget` in `base.py`) tells of its plans in these words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.results import about
from tilewright.steps import SimulatedCost


@dataclass(frozen=True, slots=True)
class SimulatedSubgraph:
    """Operators compiled together, and how they run."""

    nodes: tuple[str, ...]
    split_dim: int | None = field(metadata=about("The axis of the outermost cut; null where nothing is cut."))
    factor: int = field(metadata=about("Instances: slices of the output."))
    cuts: tuple[tuple[int, int], ...] = field(
        metadata=about("Axes that are cut with their factors, the outer first.")
    )
    output_shapes: tuple[tuple[int, ...], ...]
    instance_shapes: tuple[tuple[int, ...], ...]
    binding: tuple[int, ...] = field(
        metadata=about("Parts of an instance's output along each axis, one for each core.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedNetwork(SimulatedCost):
    """A network as a described machine runs it, and what this costs."""

    subgraphs: tuple[SimulatedSubgraph, ...]
    order: tuple[str, ...]
    buffers: Mapping[str, int] = field(metadata=about("Buffers by the level that they live in."))
    spilled_bytes: int


@dataclass(frozen=True, slots=True)
class UnitRun:
    """A unit at work: on which step, doing what, from when to when."""

    unit: str
    step: int
    what: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class LevelOverTime:
    """How full a level of memory is, step by step. `title` says which memory it is."""

    name: str
    title: str
    capacity_bytes: int | None
    live_bytes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Timeline:
    """What every unit does when, and how full levels are meanwhile, on one cluster of a machine."""

    machine: str
    network: str
    units: tuple[str, ...]
    steps: tuple[str, ...]
    runs: tuple[UnitRun, ...]
    levels: tuple[LevelOverTime, ...]

    @cached_property
    def step_starts_s(self) -> tuple[float | None, ...]:
        """When the first task of each step starts; None for steps that take no time."""
        starts: list[float | None] = [None] * len(self.steps)
        for run in self.runs:
            known = starts[run.step]
            starts[run.step] = run.start_s if known is None else min(known, run.start_s)
        return tuple(starts)
