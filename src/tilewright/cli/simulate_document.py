"""The document of `tilewright simulate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tilewright.results import Result, about


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


@dataclass(frozen=True, slots=True)
class SimulatedPlan:
    """A plan of a network and what it costs one cluster; every figure is an estimate."""

    recipe: str
    subgraphs: tuple[SimulatedSubgraph, ...]
    order: tuple[str, ...]
    buffers: Mapping[str, int] = field(metadata=about("Pieces by the level that they live in."))
    spilled_bytes: int
    time_s: float
    throughput_per_s: float = field(metadata=about("Of all clusters."))
    energy_j: float = field(metadata=about("Of all clusters, static power included."))
    energy_by_j: Mapping[str, float]
    energy_source: str
    bytes: Mapping[str, int] = field(metadata=about("By level and direction, of one cluster."))
    utilization: Mapping[str, float]
    lower_bound_s: float
    bound_by: str
    gap: float
    provenance: Literal["estimated"]


@dataclass(frozen=True, slots=True)
class TriedRecipe:
    """A plan of the portfolio; null where it cannot be made."""

    recipe: str
    time_s: float | None


@dataclass(frozen=True, slots=True)
class TriedBatch:
    """Throughput of all clusters with so many samples for each."""

    batch: int
    throughput_per_s: float


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A run of so many samples on each cluster: planned for just these, padded, or as plans for parts."""

    samples: int
    buckets: tuple[int, ...] = field(metadata=about("Powers of two, run one after another."))
    direct_s: float | None = field(metadata=about("null where it cannot be planned."))
    padded_s: float | None = field(metadata=about("As the next power of two."))
    in_buckets_s: float | None
    best: Literal["direct", "padded", "buckets"]
    throughput_per_s: float = field(metadata=about("Of all clusters, in the best way."))


@dataclass(frozen=True, slots=True)
class SimulateReport(SimulatedPlan, Result):
    """A network on a described accelerator."""

    machine: str
    network: str
    samples_per_cluster: int
    batches: tuple[TriedBatch, ...]
    runs: tuple[SimulatedRun, ...]
    tried: tuple[TriedRecipe, ...] = field(
        metadata=about("Of the portfolio and the search; empty for other recipes.")
    )
    num_simulated: int = field(metadata=about("How many of them came to different plans."))
    compared: Mapping[str, SimulatedPlan]
    values_checked: bool
