"""What a cost model says of a mapping: accesses per level and tensor, cycles, energy; all estimated."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.results import about, in_json


@dataclass(frozen=True, slots=True)
class TensorCount:
    """Words of one tensor at one level, for one of the level's used instances.

    Reads serve the levels inside (or the parent, for an output on its way out), updates are partial sums that
    arrive from inside, fills are words that arrive from outside. `tile_words` lie there at once,
    `partition_words` is the instance's share of the whole tensor.
    """

    tile_words: int
    partition_words: int
    num_instances: int = field(metadata=about(key="instances"))
    reads: int = field(metadata=about(key="reads_per_instance"))
    updates: int = field(metadata=about(key="updates_per_instance"))
    fills: int = field(metadata=about(key="fills_per_instance"))
    temporal_reductions: int = field(metadata=about(key="temporal_reductions_per_instance"))
    energy_pj: float = field(metadata=about("Of all instances.", key="energy_pJ_total"))
    fill_energy_pj: float = field(default=0.0, metadata=about("Of it, what fills take.", hidden=True))

    @in_json
    def energy_pj_per_instance(self) -> float:
        """Of one instance."""
        return self.energy_pj / self.num_instances

    @property
    def read_words(self) -> int:
        """What all instances deliver."""
        return self.reads * self.num_instances

    @property
    def written_words(self) -> int:
        """What all instances take in."""
        return (self.updates + self.fills) * self.num_instances


@dataclass(frozen=True, slots=True)
class LevelCount:
    """One level: its tensors by name, the cycles it needs, the share of the full rate it allows."""

    level: str = field(metadata=about(hidden=True))
    tensors: dict[str, TensorCount]
    cycles: int
    throttling: float
    vector_access_pj: float = field(metadata=about(key="vector_access_energy_pJ"))


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimated cost of one operator under one mapping.

    `cycles` is the largest of the levels' and of `compute_cycles`; `utilization` the share of the machine's
    units that would be busy if every unit worked on real (not padded) operations all the time.
    """

    cycles: int
    compute_cycles: int
    energy_pj: float
    mac_energy_pj: float
    num_units_used: int
    utilization: float
    levels: tuple[LevelCount, ...]  # outermost first

    @property
    def moved_words(self) -> int:
        """Words that pass the outermost level, in and out."""
        return sum(t.read_words + t.written_words for t in self.levels[0].tensors.values())

    @property
    def edp(self) -> float:
        """Energy times delay, in pJ * cycles."""
        return self.energy_pj * self.cycles
