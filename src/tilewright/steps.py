"""What a compiled model does, step by step, what it costs and the memory it needs: what an artifact keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final, Literal

from tilewright.planning.quality import Bound
from tilewright.records import dataclass
from tilewright.results import Result, Table, about, in_json
from tilewright.text.formatting import counted, format_ms

if TYPE_CHECKING:
    from tilewright.memory.base import MemoryPlan, MemoryProblem
    from tilewright.partition.form import Form
    from tilewright.planning.quality import Quality
    from tilewright.schedule.base import Schedule

KERNEL_PREFIX = "k"

SearchName = Literal["reformer", "evolutionary", "conventional", "flat"]
"""What tuning searches: the forms of subgraphs, parts first or as wholes; parts first, but without complex
operators that share a kernel; or only how products are computed."""


@dataclass(frozen=True, slots=True)
class TuningSettings:
    """Which measurements choose how kernels are made, and how those are come by.

    `source`: what an earlier search `stored`, or without that a search, if there is a budget; a search
    `anew` that goes on from stored measurements; or one `afresh` that measures all again. `workers` is the
    address of the cluster that measures, `runners` are commands that start processes that do; without either
    this machine does. Without a `search` forms are varied, parts first.
    """

    source: Literal["stored", "anew", "afresh"] = "stored"
    search: SearchName | None = None
    workers: str = ""
    runners: tuple[str, ...] = ()


STORED_TUNING: Final = TuningSettings()
"""What compiling does that is not asked to tune."""


@dataclass(frozen=True, slots=True)
class NodeOrigin:
    """One node of the model as it was loaded, and the nodes of the optimised graph that do its work."""

    name: str
    op_type: str
    became: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One launch of generated code, or one operator that runs on the host (`template` is then `host`).

    `nodes` are the names of the operators it serves, none for a copy between two layouts. `notes` are the
    generator's remarks; `macs` multiply-accumulates. `estimate_ns` is what the target's cost model says of
    it, None where it says nothing of single kernels, and in artifacts that are older than such estimates.
    `plan` is the text of what it was generated from, empty where its template prints none.
    """

    id: str
    symbol: str
    template: str
    nodes: tuple[str, ...]
    subgraph_id: int | None
    num_chunks: int = 1
    macs: int = 0
    scratch_bytes: int = 0
    notes: tuple[str, ...] = ()
    estimate_ns: float | None = None
    plan: str = ""

    @property
    def is_host(self) -> bool:
        """Whether it runs in Python through the reference implementation."""
        return self.template == "host"


@dataclass(frozen=True, slots=True)
class StepInfo:
    """Kernels that run side by side, after the step before and before the one behind."""

    index: int
    kernels: tuple[KernelInfo, ...]


@dataclass(frozen=True, slots=True)
class BufferInfo:
    """One buffer: in which level of memory it lies and where, and the steps during which it is needed."""

    name: str
    offset_bytes: int
    size_bytes: int
    first_step: int
    last_step: int
    level: int = 0


@dataclass(frozen=True, slots=True)
class LevelInfo:
    """What one level of memory holds: the end of its highest buffer, and the least that this could be.

    `capacity_bytes` None: no limit is known.
    """

    name: str
    capacity_bytes: int | None
    peak_bytes: int
    lower_bound_bytes: int
    num_buffers: int


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Memory of a compiled model: what lies between kernels, level by level, and constants.

    `levels` are in order from the inside out; without any given, there is one, the arena, which exists once
    for each run at a time. The peak and its bound are the outermost level's. Constants exist once.
    """

    peak_bytes: int
    lower_bound_bytes: int
    constant_bytes: int
    scratch_bytes: int
    buffers: tuple[BufferInfo, ...] = ()
    levels: tuple[LevelInfo, ...] = ()

    def __post_init__(self) -> None:
        if not self.levels:
            arena = LevelInfo("arena", None, self.peak_bytes, self.lower_bound_bytes, len(self.buffers))
            object.__setattr__(self, "levels", (arena,))

    @classmethod
    def of(
        cls, problem: MemoryProblem, plan: MemoryPlan, *, constant_bytes: int = 0, scratch_bytes: int = 0
    ) -> MemoryInfo:
        """A memory plan, with its buffers in order of first use."""
        buffers = tuple(
            BufferInfo(
                b.name, plan.offsets[b.name], b.size_bytes, b.first_step, b.last_step, plan.levels[b.name]
            )
            for b in problem.buffers
        )
        levels = tuple(
            LevelInfo(u.level.name, u.level.capacity_bytes, u.peak_bytes, u.lower_bound_bytes, u.num_buffers)
            for u in plan.uses
        )
        return cls(plan.peak_bytes, plan.lower_bound_bytes, constant_bytes, scratch_bytes, buffers, levels)

    @property
    def peak(self) -> int:
        """Bytes of the outermost level: planned and used."""
        return self.peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCost:
    """What a run takes on a machine that is described: time, bytes, energy. Every figure is an estimate."""

    time_s: float
    energy_j: float | None = field(
        metadata=about("Of all clusters, static power included; null without energies.", nullable=True)
    )
    energy_by_j: Mapping[str, float] = field(metadata=about("By level, unit and static power."))
    energy_source: str
    max_power_w: float | None = field(
        metadata=about("What the machine can draw; null where its file does not say.", nullable=True)
    )
    bytes: Mapping[str, int] = field(metadata=about("By level and direction, of one cluster."))
    utilization: Mapping[str, float] = field(metadata=about("Share of the time that each unit runs."))
    lower_bound_s: float = field(
        metadata=about("Lower bound of all plans of the network that run the same way, of any partition.")
    )
    bound_by: str = field(metadata=about("The unit that is busy for so long at least."))

    @in_json
    def gap(self) -> float:
        """How far the time is above its lower bound, relative to the bound."""
        return self.time_s / self.lower_bound_s - 1 if self.lower_bound_s else 0.0

    @in_json
    def power_w(self) -> float | None:
        """Mean power of all clusters; None where the machine gives no energies."""
        if self.energy_j is None:
            return None
        return self.energy_j / self.time_s if self.time_s else 0.0

    @in_json
    def exceeds_power(self) -> bool:
        """Whether that is more than the machine can draw: it would run slower, or energies are too high."""
        return self.max_power_w is not None and (self.power_w or 0.0) > self.max_power_w

    @in_json
    def most_energy_by(self) -> str:
        """The part that takes most energy."""
        return max(self.energy_by_j, key=lambda part: self.energy_by_j[part], default="")

    @in_json
    def provenance(self) -> Literal["estimated"]:
        """Nothing was measured."""
        return "estimated"


@dataclass(frozen=True, slots=True)
class CostInfo:
    """Cost of a plan by the target's cost model, with lower bounds of spaces of plans that hold it.

    `simulated` is there where the target simulates; nothing here was measured.
    """

    cost: float
    unit: str = field(metadata=about("ns, pJ, or pJ ns where their product is minimised."))
    source: str = field(metadata=about("The cost model."))
    bounds: tuple[Bound, ...] = field(
        metadata=about("Lower bounds, each with its space of plans, the widest first.")
    )
    simulated: SimulatedCost | None = field(
        default=None, metadata=about("Time, bytes and energy on a machine that is described.")
    )

    @classmethod
    def of(cls, quality: Quality, source: str, simulated: SimulatedCost | None = None) -> CostInfo:
        """The cost of a schedule, as its planner states it."""
        return cls(quality.cost, quality.unit, source, quality.bounds, simulated)

    @in_json
    def bound(self) -> float:
        """The widest of the bounds."""
        return self.bounds[0].value

    @in_json
    def is_proven(self) -> bool:
        """Whether the widest bound is proven under the model, or estimated too."""
        return self.bounds[0].is_proven

    @in_json
    def gap(self) -> float | None:
        """How far the cost is above the widest bound, relative to it; None where that says nothing."""
        if self.cost == self.bound:
            return 0.0
        gap = self.cost / self.bound - 1 if self.bound > 0 else math.inf
        return gap if math.isfinite(gap) else None


@dataclass(frozen=True, slots=True)
class SubgraphTuning:
    """What tuning made of the form of a subgraph, at all places of equal ones together.

    `nodes` name the first operator of each place. `form` is what replaced the estimates' form, None where
    that stayed; `after_ns` the time of the best alternative, taken or not, None where none was measured. Of
    `num_priced` forms that were looked at, if only by their estimates, `num_measured` were measured;
    `num_failed` crashed, hung, or gave wrong values.
    """

    nodes: tuple[str, ...]
    num_parts: int = field(metadata=about("Mini-subgraphs that were tuned before the whole."))
    num_priced: int
    num_measured: int
    num_failed: int
    before_ns: float
    after_ns: float | None = field(metadata=about("Of the best alternative, taken or not."))
    form: str | None = field(metadata=about("What replaced the estimates' form; null where that stayed."))
    why: str

    def row(self) -> tuple[object, ...]:
        """Its first operator, at how many places it stands, what was tried, times and outcome."""
        before, after = (
            "-" if time_ns is None else format_ms(time_ns / 1e6)
            for time_ns in (self.before_ns, self.after_ns)
        )
        tried = f"{self.num_measured} of {self.num_priced}"
        return (
            self.nodes[0] if self.nodes else "-",
            len(self.nodes),
            tried,
            before,
            after,
            self.form or "as it was",
            self.why,
        )

    def __str__(self) -> str:
        parts = f" in {self.num_parts} parts" if self.num_parts > 1 else ""
        failed = f", {self.num_failed} of them failed" if self.num_failed else ""
        other = "" if self.after_ns is None else f", best other {format_ms(self.after_ns / 1e6)}"
        return (
            f"subgraph of {self.nodes[0]} ({len(self.nodes)} x): {self.num_measured} of {self.num_priced} "
            f"forms measured{parts}{failed}; by estimate {format_ms(self.before_ns / 1e6)}{other}; "
            f"{self.form or 'as it was'}: {self.why}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class TuningInfo(Result):
    """How the kernels of a model were chosen by measurement.

    `plain_ns` and `tuned_ns` are whole runs beside each other, 0 where no alternative was good enough to be
    compared. `forms` are empty where the plain plan won. `is_stored`: an earlier search found it.
    """

    plain_ns: float = field(
        metadata=about("A run with the estimates' choices; 0 if nothing was compared with it.")
    )
    tuned_ns: float
    num_trials: int
    is_complete: bool
    is_interrupted: bool = False
    is_stored: bool = field(default=False, metadata=about("An earlier search found it."))
    subgraphs: tuple[SubgraphTuning, ...] = ()
    forms: Mapping[int, Form] = field(default_factory=dict, metadata=about(hidden=True))
    search: SearchName = "reformer"
    num_priced: int = field(default=0, metadata=about("Forms that were looked at, if only by estimates."))
    num_candidates: int = field(
        default=0,
        metadata=about("Forms of subgraphs that were looked at beside the estimates' own; 0 if unknown."),
    )
    num_measured: int = field(default=0, metadata=about("How many of them were, now or before."))
    why_unmeasured: str = field(
        default="", metadata=about("Why no candidate was measured; empty where any was.")
    )
    measured_on: str = field(
        default="", metadata=about("Where, if not here: a processor, or an emulator of one.")
    )
    is_emulated: bool = field(
        default=False, metadata=about("An emulator measured, whose times are no processor's.")
    )

    @property
    def changes(self) -> bool:
        """Whether anything is made in another way than the estimates chose."""
        return bool(self.forms)

    @in_json
    def speedup(self) -> float:
        """Time of the plain plan over that of the plan taken: 1 where they are the same."""
        return self.plain_ns / self.tuned_ns if self.changes and self.tuned_ns else 1.0

    @property
    def outcome(self) -> str:
        """How many candidates of how many were measured, or why none was, and what was kept, in a line."""
        if self.why_unmeasured:
            return f"nothing was measured: {self.why_unmeasured}; kept: {self._kept}"
        earlier = " by an earlier search" if self.is_stored else ""
        of_all = f" of {self.num_candidates}" if self.num_candidates or not self.num_measured else ""
        measured = f"{self.num_measured}{of_all} candidates measured{earlier}"
        return f"{measured}; kept: {self._kept}"

    @property
    def _kept(self) -> str:
        if not self.changes:
            return "the estimates' choices"
        changed = f"other forms of {counted(len(self.forms), 'subgraph')}"
        if not self.plain_ns:
            return f"{changed}, which nothing was compared with"
        times = f"{format_ms(self.plain_ns / 1e6)} became {format_ms(self.tuned_ns / 1e6)}"
        return f"{changed}, {times} ({self.speedup:.2f} x)"

    def tables(self) -> Sequence[Table]:
        """A row for each kind of subgraph, the slowest first."""
        heads = ("subgraph from", "places", "forms measured", "by estimate", "best other", "form", "why")
        subgraphs = sorted(self.subgraphs, key=lambda s: -s.before_ns)
        return (Table(heads, tuple(subgraph.row() for subgraph in subgraphs), "", (1, 2, 3, 4), (1, 2, 6)),)

    def lines(self) -> Sequence[str]:
        """What measuring brought, and where."""
        where = (f"measured on {self.measured_on}",) if self.measured_on else ()
        caution = ("these times are the emulator's: a processor may rank kernels otherwise",)
        return (self.outcome, *where, *(caution if self.is_emulated else ()))


def planned_steps(schedule: Schedule, template: str) -> tuple[StepInfo, ...]:
    """One step per stage and one kernel per instance: for targets that generate no code."""
    steps: list[StepInfo] = []
    count = 0
    for index, stage in enumerate(schedule.stages):
        kernels: list[KernelInfo] = []
        for instance in stage.instances():
            subgraph = schedule.partition.subgraphs[instance.subgraph_id]
            nodes = tuple(node.name for node in subgraph.nodes)
            kernels.append(
                KernelInfo(f"{KERNEL_PREFIX}{count}", f"subgraph_{instance}", template, nodes, subgraph.id)
            )
            count += 1
        steps.append(StepInfo(index, tuple(kernels)))
    return tuple(steps)
