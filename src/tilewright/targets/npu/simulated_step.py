"""A step as an accelerator runs it: what it moves, fetches and computes, by tiles, and on which cores."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.region import Region
from tilewright.schedule.binding import Binding, Scope
from tilewright.schedule.instances import Kind
from tilewright.targets.npu.groups import StepGroup
from tilewright.targets.npu.kernels import Kernel, StepLane
from tilewright.targets.npu.tiles import Tiling
from tilewright.targets.npu.work import UnitWork


@dataclass(frozen=True, slots=True)
class Load:
    """A region that a step reads. `producer` is the step that made it, or that brought it to the cores where
    this one reads it; None for the network's inputs.

    Tile t waits for the producer's tiles up to `tiles[t]`; without an entry, for all of them. `moved_bytes`
    change cores on the way.
    """

    value: str
    region: Region
    size_bytes: int
    scope: Scope
    producer: int | None
    tiles: tuple[int, ...]
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Store:
    """What a step writes, and where it goes."""

    value: str
    size_bytes: int
    scope: Scope
    is_result: bool


@dataclass(frozen=True, slots=True)
class Weight:
    """The part of a constant that a step needs, and in how many copies the cores together hold it.

    Without a name it is not kept: rows of a table that data choose. `key` names the part among those of all
    constants.
    """

    name: str | None
    size_bytes: int
    region: Region = ()
    num_copies: int = 1
    key: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        key = None if self.name is None else f"{self.name} {self.region}"
        object.__setattr__(self, "key", key)


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedStep:
    """One step with all that takes time. `after` are steps whose places in memory it reuses.

    Where kernels are launched separately, `kernel` is the one that it belongs to, `lane` what of its cores
    runs the step if not all do, `binding` how its main result is distributed over cores. Where groups of
    cores work side by side, `group` is what runs it. `multiplied` are the values that its products read.
    """

    number: int
    name: str
    kind: Kind
    works: tuple[UnitWork, ...]
    loads: tuple[Load, ...]
    stores: tuple[Store, ...]
    weights: tuple[Weight, ...]
    tiling: Tiling
    after: tuple[int, ...]
    kernel: Kernel | None = None
    binding: Binding = ()
    group: StepGroup | None = None
    lane: StepLane | None = None
    multiplied: frozenset[str] = frozenset()

    @property
    def share(self) -> float:
        """What of the cores runs it."""
        cores = self.lane or self.group or self.kernel
        return 1.0 if cores is None else cores.share

    def holds(self, weight: Weight) -> bool:
        """Whether the cores that run it keep a weight once they have it."""
        return self.group is not None and weight.key in self.group.held
