"""A described accelerator as a target: networks are planned for its buffers, and simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from tilewright.cost.energy import EnergyTable
from tilewright.errors import MachineError, UsageError
from tilewright.hardware.densities import with_densities
from tilewright.hardware.element_types import ElementTypes, Lowered, element_types
from tilewright.hardware.machine import Machine
from tilewright.hardware.missing_fields import missing_fields, refusal, require_networks
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.options import Options
from tilewright.planning import Spec, option
from tilewright.planning.member_options import with_options
from tilewright.target_ref import TargetRef
from tilewright.targets.base import Support
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.batches import MAX_BATCH, batches_of
from tilewright.targets.npu.mapped_products import MappedBy
from tilewright.targets.npu.node_work import works_of
from tilewright.targets.npu.recipes import NAMED
from tilewright.targets.npu.simulate import Overlap, Policy
from tilewright.targets.npu.tile_mapping import MapperName, tiler_of
from tilewright.targets.npu.tiles import Tiler
from tilewright.targets.npu.work import Works


@dataclass(frozen=True, slots=True)
class NpuTarget:
    """One cluster of a machine whose buffers the schedule fills."""

    machine: Machine
    overlap: Overlap = option("layers", "What of loading, computing and storing overlaps.")
    keeps_weights: bool = option(True, "The shared buffer keeps weights from step to step.")
    resident_weights: bool = option(False, "Weights that fit stay on the chip from batch to batch.")
    launches: Literal["as described", "once", "each subgraph", "each step"] = option(
        "as described", "One program, or a kernel for each subgraph or step; as the machine's file says."
    )
    dtype: Lowered | None = option(
        None, "What floating-point numbers are lowered to; none: the widest type that the machine multiplies."
    )
    weight_density: float | None = option(
        None, "Share of the elements of weights that are not zero; none: the machine's."
    )
    input_density: float | None = option(None, "The same of the inputs of products.")
    mapper: MapperName = option("exact", "Mapper that tiles sums of products whose operands are read again.")
    mappings: MappedBy = option(
        "search", "How the cores' parts of sums of products are mapped: by a search, or by GraphTurbo's rule."
    )
    family: ClassVar[str] = "npu"
    is_measurable: ClassVar[bool] = False
    runs_slices: ClassVar[bool] = True
    runs_steps: ClassVar[bool] = False
    code_store: ClassVar[None] = None
    max_batch: ClassVar[int] = MAX_BATCH

    def __post_init__(self) -> None:
        given = {"weight": self.weight_density, "input": self.input_density}
        asked = {kind: share for kind, share in given.items() if share is not None}
        changed = with_densities(self.machine, asked)
        if changed.densities != self.machine.densities:
            object.__setattr__(self, "machine", changed)

    @property
    def name(self) -> str:
        """The machine's."""
        return self.machine.name

    @property
    def types(self) -> ElementTypes:
        """As what elements are kept.

        Raises:
            MachineError: the machine does not multiply in the type that is asked for.
        """
        return element_types(self.machine, None if self.dtype is None else DType[self.dtype.upper()])

    def supports(self, node: Node) -> Support:
        """Whatever the interpreter computes, if some unit of the machine has a rate for it."""
        missing = missing_fields(self.machine, tuple(works_of(node)))
        if missing:
            return Support.no(refusal(self.machine, missing).rstrip("."))
        try:
            Works(self.machine, self.types).require(node)
        except MachineError as error:
            return Support.no(str(error).rstrip("."))
        return Support.yes()

    def backend(self, graph: Graph, options: Options) -> NpuBackend:
        """What plans and simulates a graph.

        Raises:
            UsageError: an instruction set is asked for, or the least energy of a machine that gives none.
            MachineError: the machine lacks buffers of cores, or a rate for what it has to do; says all of it.
        """
        if options.isa is not None:
            raise UsageError(f"target {self.name}: has no instruction set; leave out --isa {options.isa}.")
        missing = EnergyTable.of(self.machine).missing
        if options.hint in ("energy", "edp") and missing is not None:
            raise UsageError(
                f"hint {options.hint}: energy is unavailable: machine {self.name!r} gives no {missing}; "
                "add it to the machine's file, or give --hint latency."
            )
        self._require(graph)
        how = self.policy, self.tiler, self.mapper, self.mappings
        return NpuBackend(self, self.machine, self.types, *how, graph, options)

    def policy(self, execution: str = "") -> Policy:
        """How it runs steps; `execution` are options that take the place of its own.

        Raises:
            UsageError: there is no such option.
        """
        run = self._running(execution)
        launches = self.machine.launches if run.launches == "as described" else run.launches
        return Policy(run.overlap, run.keeps_weights, run.resident_weights, launches)

    def _running(self, execution: str) -> NpuTarget:
        return with_options(self, Spec.parse(f"{self.family}{{{execution}}}")) if execution else self

    def tiler(self, execution: str = "") -> Tiler:
        """What tiles steps; `execution` as of `policy`."""
        return tiler_of(self.machine, self._running(execution).mapper)

    def named_plans(self, target: TargetRef) -> Mapping[str, Options]:
        """The paper's own and its baselines."""
        return {name: baseline.options(target) for name, baseline in NAMED.items()}

    def batches(self, graph: Graph, batched: Sequence[Value]) -> tuple[int, ...]:
        """As many as instances hold of the paper's partition.

        Raises:
            InfeasibleMapping: there is none.
            MachineError: as of `backend`.
        """
        self._require(graph)
        return batches_of(graph, self.machine, self.types, batched)

    def _require(self, graph: Graph) -> None:
        """What takes planning is not begun for a machine that cannot run the network."""
        works = {work for node in graph.nodes for work in works_of(node)}
        require_networks(self.machine, works, graph.name)
        rated = Works(self.machine, self.types)
        for node in graph.nodes:
            rated.require(node)
