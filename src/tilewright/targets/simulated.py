"""Plans on machines that are described: what they are, what they cost, and what every unit does when.

A target that simulates (`SimulatingTarget` in `base.py`) tells of its plans in these words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import groupby
from operator import itemgetter

from tilewright.records import dataclass
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
    keeps_rows: bool = field(metadata=about("Whether slices keep rows for the next one, in order."))
    output_shapes: tuple[tuple[int, ...], ...]
    instance_shapes: tuple[tuple[int, ...], ...]
    binding: tuple[int, ...] = field(
        metadata=about("Parts of an instance's output along each axis, one for each core.")
    )


@dataclass(frozen=True, slots=True)
class MappedLevel:
    """A level or a unit: what it takes for the sums of products as mapped, each alone from main memory to
    main memory, and for the whole plan as simulated. Times are null where none is simulated."""

    level: str
    mapped_j: float
    simulated_j: float
    mapped_s: float | None = field(metadata=about("Of one instance, busy."))
    simulated_s: float | None = field(metadata=about("Of the engine or the unit, busy."))


@dataclass(frozen=True, slots=True)
class MappedDifference:
    """What a simulation counts beyond the mappings, or leaves out; null: it changes nothing of that."""

    what: str
    time_s: float | None
    energy_j: float | None


@dataclass(frozen=True, slots=True)
class MappedCosts:
    """The sums of products of a plan on one cluster beside their mappings, level by level."""

    num_products: int = field(metadata=about("Steps that sum products."))
    num_whole: int = field(metadata=about("Of them those that run their whole mapping, all levels included."))
    mapped_s: float = field(metadata=about("One mapping after another."))
    simulated_s: float
    mapped_j: float
    simulated_j: float = field(metadata=about("Without static power."))
    levels: tuple[MappedLevel, ...] = field(metadata=about("The outermost first, then units."))
    differences: tuple[MappedDifference, ...]


@dataclass(frozen=True, slots=True)
class LoweredType:
    """As what the machine keeps elements of a type of the file."""

    file: str
    stored: str
    border: str = field(metadata=about("The same of the network's inputs and results, in main memory."))

    def __str__(self) -> str:
        if self.file == self.stored:
            return self.file
        border = f" ({self.border} in inputs and results)" if self.border != self.stored else ""
        return f"{self.file} as {self.stored}{border}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedNetwork(SimulatedCost):
    """A network as a described machine runs it, and what this costs."""

    element_types: tuple[LoweredType, ...] = field(metadata=about("Of all values, constants included."))
    computed_in: Mapping[str, tuple[str, ...]] = field(
        metadata=about("By unit: the element types in which it computes.")
    )

    energy_by_layer_j: Mapping[str, float] = field(
        metadata=about("By step of the plan, slices together; of all clusters, without static power.")
    )

    subgraphs: tuple[SimulatedSubgraph, ...]
    order: tuple[str, ...]
    buffers: Mapping[str, int] = field(metadata=about("Buffers by the level that they live in."))
    spilled_bytes: int
    resident_bytes: int = field(
        metadata=about("Weights that stay on the chip from batch to batch; the first one fetches them, too.")
    )


Region = tuple[tuple[int, int], ...]
"""Of each axis of a value the first element, and the first behind the last."""


@dataclass(frozen=True, slots=True)
class PlannedValue:
    """An input or a result of the network, as a whole in main memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlannedLevel:
    """A level of memory of one cluster: its cores' buffers together, the shared one, or main memory."""

    name: str
    title: str
    capacity_bytes: int | None = field(
        metadata=about("All of it; null where the machine has no such level, or sets no limit.")
    )
    placed_capacity_bytes: int | None = field(metadata=about("What buffers may take of it; null: no limit."))
    peak_bytes: int = field(
        metadata=about("The end of the highest buffer; weights and tiles pass behind it.")
    )
    num_buffers: int


@dataclass(frozen=True, slots=True)
class PlannedBuffer:
    """A region of a value in its place, from the step that makes it to its last reader."""

    number: int
    value: str
    dtype: str
    region: Region
    size_bytes: int = field(metadata=about("As the machine keeps its elements."))
    level: str
    offset_bytes: int
    first_step: int = field(metadata=about("The step that makes it."))
    last_step: int = field(
        metadata=about("The last that reads it; of a result of the network the last of all.")
    )
    start_s: float = field(metadata=about("When the step that makes it begins to."))
    made_s: float = field(metadata=about("When all of it is there."))
    end_s: float = field(metadata=about("When the last of its readers has ended."))
    in_place_of: int | None = field(
        metadata=about("The operand in whose place it is written; null: of none.")
    )
    is_result: bool = field(metadata=about("Whether it is a part of a result of the network."))
    is_spilled: bool = field(metadata=about("Whether it was to live further inside."))


@dataclass(frozen=True, slots=True)
class PlannedInstance:
    """A slice of a subgraph, or the concatenation, copy or redistribution of a value that one reads."""

    number: int
    kind: str
    subgraph: int
    index: int = field(metadata=about("Which slice of its subgraph."))
    slices: Mapping[str, Region] = field(metadata=about("What it makes, by value."))
    cores: tuple[int, ...] = field(
        metadata=about("Parts of what it makes along each axis, one for each core; empty: nothing is asked.")
    )


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """What a step reads of a buffer."""

    value: str
    region: Region
    buffer: int | None = field(metadata=about("Null for an input of the network."))
    tiles: tuple[int, ...] = field(
        metadata=about(
            "For each tile of the step, up to which tile of the step that makes the buffer it waits; "
            "empty: for all of them."
        )
    )


@dataclass(frozen=True, slots=True)
class PlannedWeight:
    """What a step reads of a constant. Without a name: rows of a table that data choose."""

    name: str | None
    region: Region
    size_bytes: int
    fetch_s: float | None = field(
        metadata=about("When the first of it sets out for this step; null: nothing of it has to.")
    )
    resident_in: str | None = field(
        metadata=about("The level where it stays from batch to batch; null: it comes from main memory.")
    )


@dataclass(frozen=True, slots=True)
class PlannedPassage:
    """How an operand passes the cores' buffers, of all cores together."""

    moved_bytes: int = field(
        metadata=about("In all tiles, with what is read again; a broadcast counts once.")
    )
    outer_bytes: int = field(metadata=about("Of these, what also passes main memory's port."))
    held_bytes: int = field(metadata=about("At a time: of the whole of it if it is kept, else of one tile."))
    is_kept: bool = field(metadata=about("Whether it is there from before the first tile to the last."))
    outer_held_bytes: int = field(metadata=about("At a time in the shared buffer, on its way."))
    is_counted: bool = field(
        default=False, metadata=about("Whether it passes as the step's whole mapping counts and charges it.")
    )


@dataclass(frozen=True, slots=True)
class PlannedTiles:
    """How a step's work is cut, so that what it needs comes while other tiles are computed.

    Of what lives in the cores' buffers nothing passes: null.
    """

    axis: int | None = field(metadata=about("Of the largest result; null: every tile may need everything."))
    number: int
    loops: str = field(metadata=about("Their order, for people."))
    weights: tuple[PlannedPassage | None, ...]
    reads: tuple[PlannedPassage | None, ...]
    writes: tuple[PlannedPassage | None, ...]


@dataclass(frozen=True, slots=True)
class PlannedCores:
    """A group of neighbouring cores of a cluster, or of those that a kernel is given."""

    first_core: int
    num_cores: int


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A layer of an instance, or what a concatenation, copy or redistribution moves."""

    number: int
    name: str
    instance: int
    cores: PlannedCores | None = field(
        metadata=about(
            "Those that run it, of all cores or of those that its kernel is given; null: all of these."
        )
    )
    operators: tuple[str, ...] = field(metadata=about("In their order; none of one that only moves buffers."))
    reads: tuple[PlannedRead, ...]
    writes: tuple[int, ...] = field(metadata=about("The buffers that it makes."))
    weights: tuple[PlannedWeight, ...]
    tiles: PlannedTiles
    after: tuple[int, ...] = field(
        metadata=about("Steps whose places in memory it takes: they must have ended.")
    )
    fetch_s: float = field(metadata=about("When the first of what it needs sets out: weights come ahead."))
    start_s: float = field(
        metadata=about("When its operators begin; without any, when the first of what it moves arrives.")
    )
    end_s: float


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """All that one cluster does for a batch: enough to generate code from, and to check it."""

    inputs: tuple[PlannedValue, ...]
    results: tuple[PlannedValue, ...]
    levels: tuple[PlannedLevel, ...] = field(metadata=about("From the inside out."))
    buffers: tuple[PlannedBuffer, ...] = field(metadata=about("By number."))
    instances: tuple[PlannedInstance, ...] = field(metadata=about("By number; `order` names them."))
    steps: tuple[PlannedStep, ...] = field(metadata=about("In the order in which they are issued."))


@dataclass(frozen=True, slots=True)
class UnitRun:
    """A unit at work on a task: from when to when, of which step and tile, doing what.

    `what` is `fetch` (weights towards the shared buffer), `weights` (to the cores), `load`, `move` (between
    cores), `compute` or `store`. `tile` is -1 for what is brought before the first tile. `name` is the value
    or the weight that moves, `size_bytes` how much of it. `num_cores` is on how many cores it ran; 0: all of
    the unit. `part` is the number of what is loaded among the step's loads, of which several may be parts of
    one value.
    """

    unit: str
    start_s: float
    end_s: float
    step: int
    what: str
    tile: int = -1
    size_bytes: int = 0
    name: str = ""
    num_cores: int = 0
    part: int = 0


Curve = tuple[tuple[float, int], ...]
"""Bytes over time: from which second on how many, in order of time."""


@dataclass(frozen=True, slots=True)
class LevelOverTime:
    """What a level of memory holds over time, by what it is: `placed` buffers, `weights` and so on.

    What is never there is left out.
    """

    level: PlannedLevel
    held: Mapping[str, Curve]

    def totals(self) -> Iterator[tuple[float, tuple[int, ...]]]:
        """From when on how many bytes of each kind, in order of time."""
        changes = sorted(
            (at_s, kind, size_bytes)
            for kind, curve in enumerate(self.held.values())
            for at_s, size_bytes in curve
        )
        now = [0] * len(self.held)
        for at_s, together in groupby(changes, key=itemgetter(0)):
            for _, kind, size_bytes in together:
                now[kind] = size_bytes
            yield at_s, tuple(now)


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """What every unit does when, and what levels hold meanwhile, on one cluster of a machine."""

    machine: str
    network: str
    subgraphs: tuple[SimulatedSubgraph, ...]
    plan: NetworkPlan
    units: tuple[str, ...]
    runs: tuple[UnitRun, ...]
    levels: tuple[LevelOverTime, ...]
