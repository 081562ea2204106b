"""The parts of a machine: levels of memory, compute units, networks, thread limits, fixed costs.

The text below each field is what `tilewright schema machine` and docs/machines.md say of it. All parts are
frozen; what only a whole machine can check (names of levels, sources of energies) is checked in `machine.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import prod
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from tilewright.hardware.quantity import (
    Bytes,
    BytesPerSecond,
    Count,
    Flag,
    Nanoseconds,
    NotNegative,
    Number,
    Picojoules,
)
from tilewright.ir.dtype import DType
from tilewright.text.suggestions import closest

Name = Annotated[str, Field(min_length=1, max_length=100)]


class TensorKind(StrEnum):
    """What a level may hold, seen from one operator."""

    WEIGHT = "weight"
    INPUT = "input"
    OUTPUT = "output"


ALL_KINDS = tuple(TensorKind)


def _of_factors(table: dict[TensorKind, Any]) -> dict[TensorKind, Any]:
    if TensorKind.OUTPUT in table:
        raise ValueError("output is no operand of a multiplication; write weight or input")
    return table


Zeros = Annotated[dict[TensorKind, Literal["gate", "skip"]], AfterValidator(_of_factors)]
Densities = Annotated[dict[TensorKind, Annotated[float, Field(gt=0, le=1)]], AfterValidator(_of_factors)]


class Work(StrEnum):
    """The operation class of work, which says what kind of compute unit takes it."""

    CONTRACTION = "contraction"  # sums of products over channels: convolution, matrix product
    DEPTHWISE = "depthwise"  # convolution of each channel alone
    ELEMENTWISE = "elementwise"  # plain arithmetic on each element
    REDUCTION = "reduction"  # pooling, sums, norms, softmax
    SPECIAL = "special"  # exponentials and other functions of each element
    MOVEMENT = "movement"  # copies and changes of layout


MULTIPLYING = (Work.CONTRACTION, Work.DEPTHWISE)
"""Operation classes that are counted in multiply-accumulates; the others in operations."""
_ARITHMETIC = (Work.DEPTHWISE, Work.ELEMENTWISE, Work.REDUCTION, Work.SPECIAL)
_USUAL_WORK: dict[str, tuple[Work, ...]] = {
    "mac": (Work.CONTRACTION, Work.DEPTHWISE),
    "matrix": (Work.CONTRACTION,),
    "vector": _ARITHMETIC,
    "scalar": _ARITHMETIC,
    "special": (Work.SPECIAL,),
    "mover": (Work.MOVEMENT,),
}


def _known_dtypes(table: dict[str, float]) -> dict[str, float]:
    known = [str(d) for d in DType]
    for name in table:
        if name not in known:
            raise ValueError(f"{name!r} is not an element type; {closest(name, known)}")
    return table


PerDType = Annotated[
    dict[str, Number], AfterValidator(_known_dtypes), WithJsonSchema({"$comment": "PerDType"})
]
PerOperator = Annotated[dict[str, Number], WithJsonSchema({"$comment": "PerOperator"})]


class MachinePart(BaseModel):
    """What all parts share: unknown keys are mistakes, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, use_attribute_docstrings=True)


def _one_of(part: MachinePart, what: str, keys: tuple[str, str]) -> None:
    if all(getattr(part, key) is not None for key in keys):
        raise ValueError(f"{keys[1]}: {what} is given as {keys[0]} too; leave one of them out")


class Share(MachinePart):
    """Part of a level's capacity that only some kinds of tensor may use, and that they may not exceed."""

    holds: tuple[TensorKind, ...] = Field(min_length=1)
    """Kinds of tensor in this share."""
    capacity_bytes: Bytes
    """Size of the share."""


Dim = Annotated[str, Field(min_length=1, max_length=20, pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]


class Axis(MachinePart):
    """One axis of an array, and the loops that run along it: a part of the machine's dataflow.

    `C` are channels that are summed, `K` those of the result, `G` groups (the channels of a depthwise
    convolution), `P`, `Q` and `N` rows, columns and samples of the result, `R` and `S` those of a window. In
    other products loops go by what they move: summed ones as C, those of weights and results as K, those of
    inputs and results as P, Q or N, those of all three as G; or by their own names.
    """

    dims: tuple[Dim, ...] = Field(min_length=1)
    """Dims that are spread along the axis; together no more iterations than its size."""
    size: Count
    """Instances, or multipliers, along the axis."""


def _each_once(axes: tuple[Axis, ...]) -> None:
    dims = [dim for axis in axes for dim in axis.dims]
    again = next((dim for i, dim in enumerate(dims) if dim in dims[:i]), None)
    if again is not None:
        raise ValueError(f"axes: {again} is listed twice; leave it on one of them")


class Format(MachinePart):
    """How a level keeps kinds of tensor without their zeros."""

    holds: tuple[TensorKind, ...] = Field(min_length=1)
    """Kinds of tensor that are kept so."""
    kind: Literal["bitmask", "coordinates", "run-length"]
    """A bit for each word that says whether it is there, the place in the tile of each value, or 5 bits for
    the zeros before each value."""


class Level(MachinePart):
    """One level of the memory hierarchy. All numbers are those of one instance.

    An access moves `word_bits` times `words_per_access`.
    """

    name: Name
    """Name of the level, unique in the machine; units, networks and mappings refer to it."""
    capacity_bytes: Bytes | None = None
    """Size of one instance; only the outermost level may leave it out (unlimited)."""
    shares: tuple[Share, ...] = ()
    """Parts of the capacity kept for some kinds of tensor; kinds without a share have the rest together."""
    holds: tuple[TensorKind, ...] = Field(default=ALL_KINDS, min_length=1)
    """Kinds of tensor that stay here; others bypass the level."""
    num_instances_per_parent: Count = 1
    """Instances that one instance of the next outer level feeds: the spatial fan-out below that level. At the
    outermost level: how many there are."""
    axes: tuple[Axis, ...] = ()
    """Dataflow of the array of instances of the next inner level that one instance feeds: dims are spread
    along these axes alone. Left out: any dims may be spread."""
    formats: tuple[Format, ...] = ()
    """Kinds of tensor that the level keeps without their zeros; others are kept whole."""
    per: Literal["core", "cluster", "machine"] | None = None
    """One instance per core, per cluster, or for the whole machine; checked against the counts."""
    managed_by: Literal["software", "hardware"] = "software"
    """A scratchpad that the schedule fills, or a cache."""
    line_bytes: Bytes | None = None
    """Line of a cache."""
    word_bits: Count = 8
    """Width of one word."""
    words_per_access: Count = 1
    """Words that one access moves (Timeloop's block size)."""
    num_instances_per_access: Count = 1
    """Neighbouring instances that share one access, as in one bank (Timeloop's cluster size): its energy is
    charged once for all of them."""
    read_bytes_per_s: BytesPerSecond | None = None
    """Read bandwidth; or give it per cycle."""
    read_bytes_per_cycle: Number | None = None
    """Read bandwidth, per cycle of clock_hz."""
    write_bytes_per_s: BytesPerSecond | None = None
    """Write bandwidth; or give it per cycle."""
    write_bytes_per_cycle: Number | None = None
    """Write bandwidth, per cycle of clock_hz."""
    has_shared_port: Flag = False
    """Reads and writes take turns: together they are no faster than one of them alone."""
    latency_ns: Nanoseconds | None = None
    """Time from a request to its first data."""
    component: (
        Literal["register-file", "sram", "ddr", "ddr3", "lpddr", "lpddr4", "gddr5", "hbm2", "hmc"] | None
    ) = None
    """What the level is made of, for energies that the file leaves out, where it gives `technology_nm`; left
    out: registers up to 128 bytes, SRAM above, and DDR if it is the outermost."""
    read_pj: Picojoules | None = None
    """Energy of one read access."""
    write_pj: Picojoules | None = None
    """Energy of one write access; left out: that of a read."""

    @model_validator(mode="after")
    def _consistent(self) -> Level:
        for way in ("read", "write"):
            _one_of(self, f"{way} bandwidth", (f"{way}_bytes_per_s", f"{way}_bytes_per_cycle"))
        if self.write_pj is not None and self.read_pj is None:
            raise ValueError("write_pj: is given without read_pj; give both, reads would be free")
        _each_once(self.axes)
        if self.component in ("register-file", "sram") and self.capacity_bytes is None:
            raise ValueError(
                f"component: what {self.component} takes follows from its size; add capacity_bytes"
            )
        kept = [kind for form in self.formats for kind in form.holds]
        again = next((kind for i, kind in enumerate(kept) if kind in kept[:i]), None)
        if again is not None:
            raise ValueError(f"formats: {str(again)!r} has two formats; leave it in one of them")
        held = [kind for share in self.shares for kind in share.holds]
        twice = next((kind for i, kind in enumerate(held) if kind in held[:i]), None)
        if twice is not None:
            raise ValueError(f"shares: {str(twice)!r} has two shares; add them up to one")
        beyond = next((kind for kind in held if kind not in self.holds), None)
        if beyond is not None:
            raise ValueError(f"shares: {str(beyond)!r} has a share, but holds leaves it out; add it there")
        shared = sum(share.capacity_bytes for share in self.shares)
        if self.capacity_bytes is not None and shared > self.capacity_bytes:
            raise ValueError(
                f"shares: take {shared} of {self.capacity_bytes} bytes; make one of them smaller"
            )
        return self

    def format_of(self, kind: str) -> str | None:
        """How a kind of tensor is kept without zeros; None where it is kept whole."""
        return next((f.kind for f in self.formats if kind in f.holds), None)

    @property
    def read_access_pj(self) -> float:
        """Energy of one read access; 0 where none is given."""
        return self.read_pj or 0.0

    @property
    def write_access_pj(self) -> float:
        """Energy of one write access; that of a read where none is given."""
        return self.read_access_pj if self.write_pj is None else self.write_pj

    def capacity_for_bytes(self, kind: TensorKind) -> int | None:
        """Bytes that tensors of this kind may use: None without a limit, 0 where they bypass the level."""
        if kind not in self.holds:
            return 0
        share_bytes = next((s.capacity_bytes for s in self.shares if kind in s.holds), None)
        if share_bytes is not None or self.capacity_bytes is None:
            return share_bytes
        return self.capacity_bytes - sum(s.capacity_bytes for s in self.shares)


class Unit(MachinePart):
    """Compute units of one sort, or engines that move data. Rates are those of one unit."""

    name: Name
    """Name of the sort of unit, unique in the machine."""
    kind: Literal["mac", "matrix", "vector", "scalar", "special", "mover"]
    """`mac` multiplies and adds one pair, `matrix` a tile of them, `vector` works on lanes, `scalar` on
    single values, `special` on functions such as exp; a `mover` is a DMA engine: it copies between two
    levels."""
    level: Name | None = None
    """Level that the unit reads from, one set of units per instance; left out: the innermost. A DMA engine
    must have one."""
    num_per_instance: Count = 1
    """Units beside each instance of that level."""
    runs: tuple[Work, ...] = ()
    """Operation classes that the unit takes; left out: what is usual for its kind, without depthwise
    convolutions where `axes` have only channels."""
    axes: tuple[Axis, ...] = ()
    """Dataflow of the multipliers of the units beside one instance of that level: dims are spread along these
    axes alone. Left out: any dims may be spread."""
    macs_per_cycle: PerDType = Field(default_factory=dict)
    """Multiply-accumulates per cycle, by element type. Networks of floating-point numbers are kept in a type
    that a unit for contractions has here."""
    ops_per_cycle: PerDType = Field(default_factory=dict)
    """Other scalar operations per cycle, by element type; of a type that is missing those of one that holds
    all its values."""
    ops_per_element: PerOperator = Field(default_factory=dict)
    """Operations that one element of an operator's output costs, by ONNX operator; others cost 1."""
    zeros: Zeros = Field(default_factory=dict)
    """What multipliers do where an operand is zero, in the order in which they look: `gate` saves energy,
    `skip` also time. Left out: they multiply."""
    efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the rates that real kernels reach."""
    vector_bytes: tuple[Count, ...] = ()
    """Widths of the vectors that code uses, the widest first; of a `vector` unit of a processor."""
    tile: tuple[Count, ...] = ()
    """Shape of what one issue works on; extents that do not fill it waste the rest."""
    between: tuple[Name, Name] | None = None
    """The two levels that a DMA engine copies between."""
    bytes_per_s: BytesPerSecond | None = None
    """Rate of a DMA engine, both directions together; or give it per cycle."""
    bytes_per_cycle: Number | None = None
    """Rate of a DMA engine, both directions together, per cycle of clock_hz."""
    mac_pj: Picojoules | None = None
    """Energy of one multiply-accumulate."""
    op_pj: Picojoules | None = None
    """Energy of one other operation."""
    pj_per_byte: Picojoules | None = None
    """Energy of a DMA engine for one byte, without the accesses at both ends."""

    @model_validator(mode="after")
    def _consistent(self) -> Unit:
        _one_of(self, "the rate", ("bytes_per_s", "bytes_per_cycle"))
        if self.kind == "mover":
            extra = next((k for k in ("macs_per_cycle", "ops_per_cycle") if getattr(self, k)), None)
            if extra is not None:
                raise ValueError(
                    f"{extra}: a DMA engine (kind: mover) does not compute; give bytes_per_s, or another kind"
                )
            for key, example in (("between", "between: [Buffer, DRAM]"), ("level", "level: Buffer")):
                if getattr(self, key) is None:
                    raise ValueError(f"{key}: is missing of a DMA engine (kind: mover); add it, as {example}")
            if self.bytes_per_s is None and self.bytes_per_cycle is None:
                raise ValueError("bytes_per_s: is missing of a DMA engine (kind: mover); add its rate")
            return self
        moves = next((k for k in ("between", "bytes_per_s", "bytes_per_cycle") if getattr(self, k)), None)
        if moves is not None:
            raise ValueError(f"{moves}: only a DMA engine has it; leave it out, or write kind: mover")
        if not self.macs_per_cycle and not self.ops_per_cycle:
            raise ValueError("has no rate; give macs_per_cycle or ops_per_cycle by element type")
        _each_once(self.axes)
        asked = prod(axis.size for axis in self.axes)
        there = self.num_per_instance * max(self.macs_per_cycle.values(), default=0)
        if self.axes and asked != there:
            raise ValueError(
                f"axes: sizes multiply to {asked}, but num_per_instance and macs_per_cycle to {there:g}; "
                "change one of them"
            )
        return self

    def takes(self, work: Work) -> bool:
        """Whether the unit runs this operation class."""
        if not self.runs and work is Work.DEPTHWISE and self.axes:
            along = {dim for axis in self.axes for dim in axis.dims}
            return bool(along - {"C", "K"}) and work in _USUAL_WORK[self.kind]
        return work in (self.runs or _USUAL_WORK[self.kind])

    def rates_of(self, work: Work) -> Mapping[str, float]:
        """What the unit does of an operation class per cycle, by element type; empty if that is not given."""
        return self.macs_per_cycle if work in MULTIPLYING else self.ops_per_cycle


class Network(MachinePart):
    """What carries data between the instances of two neighbouring levels, or of one level."""

    name: Name
    """Name of the network."""
    inner: Name
    """Level on the inner side."""
    outer: Name
    """The next outer level; or the same, for a network among the instances of one level."""
    kind: Literal["bus", "crossbar", "ring", "mesh", "tree"]
    """Its shape. A mesh has two dimensions; packets go along a row first, then along a column."""
    shape: tuple[Count, ...] = ()
    """Rows and columns of a mesh."""
    bytes_per_s: BytesPerSecond | None = None
    """Bandwidth of one link and direction of a ring or mesh, else of the whole; or give it per cycle."""
    bytes_per_cycle: Number | None = None
    """The same per cycle of clock_hz."""
    flit_bytes: Bytes | None = None
    """Unit of flow control: what one link carries at once."""
    switching: Literal["wormhole", "store-and-forward", "circuit"] | None = None
    """How packets pass a router."""
    hop_latency_ns: Nanoseconds | None = None
    """Time to pass one router and the link to the next, at least a cycle; or give it in cycles."""
    hop_latency_cycles: NotNegative | None = None
    """The same in cycles of clock_hz."""
    hop_pj_per_byte: Picojoules | None = None
    """Energy of one byte over one hop."""
    has_multicast: Flag = False
    """One sent copy reaches many receivers."""

    @model_validator(mode="after")
    def _consistent(self) -> Network:
        _one_of(self, "bandwidth", ("bytes_per_s", "bytes_per_cycle"))
        _one_of(self, "the latency of a hop", ("hop_latency_ns", "hop_latency_cycles"))
        if self.shape and (self.kind != "mesh" or len(self.shape) != 2):
            raise ValueError("shape: only a mesh has one, and it has two numbers, rows and columns")
        return self


class Threads(MachinePart):
    """What limits a block of threads on a core of a GPU."""

    registers: Name
    """Level of the registers."""
    shared: Name
    """Level of the memory that a block's threads share."""
    num_per_warp: Count = 32
    """Threads that execute together."""
    max_per_block: Count
    """Threads in one block."""
    max_block_shape: tuple[Count, ...] = ()
    """Extents of a block along x, y and z."""
    max_per_core: Count
    """Threads that live on a core at the same time."""
    max_blocks_per_core: Count | None = None
    """Blocks that live on a core at the same time."""
    register_bytes: Bytes = 4
    """Size of one register."""
    max_registers_per_thread: Count | None = None
    """Registers that one thread can name."""
    max_register_bytes_per_block: Bytes | None = None
    """Bytes of registers of one block; left out: all that the core has."""
    max_shared_bytes_per_block: Bytes | None = None
    """Bytes of shared memory of one block; left out: all that the core has."""
    block_tiles: tuple[tuple[Count, Count], ...] = ()
    """Rows and columns of a sum of products that kernels give a block, of which networks take for each kernel
    the fastest; left out: cores share its work evenly."""


Launches = Literal["once", "each subgraph"]
"""How a machine runs a network: as one program, or as a kernel for each subgraph."""

Word = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Instructions(MachinePart):
    """What the processors of a machine execute, in LLVM's words: for machines that code is generated for."""

    triple: Word
    """Architecture, vendor and system, as in `x86_64-unknown-linux-gnu`."""
    processor: Word
    """LLVM's name of the processor, or of a family, as in `x86-64-v3`."""
    features: tuple[Word, ...] = ()
    """What it has, beside what its name says."""
    missing_features: tuple[Word, ...] = ()
    """What it lacks, although processors of the name may have it."""

    @property
    def architecture(self) -> str:
        """First word of the triple."""
        return self.triple.split("-", 1)[0]


class Overheads(MachinePart):
    """Fixed costs of the machine's runtime."""

    kernel_launch_ns: Nanoseconds = 0.0
    """Start of one kernel."""
    barrier_ns: Nanoseconds = 0.0
    """Meeting of all cores of a cluster, as between two layers of a kernel."""
    join_ns: Nanoseconds = 0.0
    """Waiting for several groups of kernels that ran at the same time, before what follows is launched."""
    copy_setup_ns: Nanoseconds = 0.0
    """Start of one transfer of a DMA engine; parts of a tile that are simulated as one count as one."""
