"""What a learned cost model sees of work on a machine: named numbers, from loop nests and a description.

Sizes, rates and times are logarithms to base 2 of one more than them, so that models learn ratios. A model
keeps the names and the version of the features that it was trained on, and is refused where they differ.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields
from math import log2, prod
from typing import Protocol, runtime_checkable

import numpy as np

from tilewright.arrays import Array
from tilewright.cost.base import Estimate, KernelWork
from tilewright.cost.energy import EnergyTable
from tilewright.cost.roofline import external_bytes
from tilewright.errors import UsageError
from tilewright.hardware.element_types import ElementTypes, computing_dtype
from tilewright.hardware.host import HOST_NAME
from tilewright.hardware.machine import Machine, Work
from tilewright.hardware.probe import nominal_clock_hz
from tilewright.ir.contraction import ContractionForm, contractions
from tilewright.ir.derive import OperatorClass, flops, input_bytes, macs, nests_of, operator_class
from tilewright.ir.dtype import DType
from tilewright.ir.expr import FUNCTIONS, Call
from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import node_structure
from tilewright.ir.nest import Affine, Nest, row_major_address
from tilewright.records import dataclass

FEATURES_VERSION = 2
"""Changes where a name means something else than before."""

NOMINAL_CLOCK_HZ = 3.0e9
"""Of a processor whose system tells no frequency."""

_COSTLY_FLOP = 4
"""Of a function of one element, from which on it is more than plain arithmetic."""


@dataclass(frozen=True, slots=True)
class WorkFacts:
    """What nests say of a kernel: counts, and the loops of its largest contraction. Padding counts."""

    macs: int = 0
    other_flop: int = 0
    costly_flop: int = 0
    input_bytes: int = 0
    weight_bytes: int = 0
    output_bytes: int = 0
    intermediate_bytes: int = 0
    num_nodes: int = 0
    num_algebraic: int = 0
    num_broadcast: int = 0
    num_reduction: int = 0
    num_complex: int = 0
    num_two_phase: int = 0
    num_infusible: int = 0
    window: int = 1
    stride: int = 1
    channels: int = 1
    rows: int = 1
    columns: int = 1
    batch: int = 1
    innermost: int = 1
    reduced_iterations: int = 0
    iterations: int = 0
    strided_iterations: int = 0
    viewed_iterations: int = 0
    num_runs: int = 0
    shortest_run: int = 0
    padded_iterations: int = 0
    element_bytes: int = 4

    @classmethod
    def of(cls, work: KernelWork) -> WorkFacts:
        """Of the nodes of a kernel.

        Raises:
            UsageError: an operator without loop nests, of which nothing is known.
        """
        made = [v for node in work.nodes for v in node.results()]
        classes = [operator_class(node) for node in work.nodes]
        nests = [nest for node in work.nodes for nest in _nests(node)]
        runs = [_run(nest) for nest in nests]
        weight_bytes = _constant_bytes(work)
        output_bytes = sum(v.size_bytes for v in work.outputs)
        num_macs = sum(macs(node) for node in work.nodes)
        results = work.outputs or tuple(made)
        return cls(
            macs=num_macs,
            other_flop=max(0, sum(flops(node) for node in work.nodes) - 2 * num_macs),
            costly_flop=sum(_costly_flop(nest) for nest in nests),
            input_bytes=max(0, external_bytes(work) - output_bytes - weight_bytes),
            weight_bytes=weight_bytes,
            output_bytes=output_bytes,
            intermediate_bytes=sum(v.size_bytes for v in made if v not in work.outputs),
            num_nodes=len(work.nodes),
            innermost=max((v.shape[-1] for v in results if v.shape), default=1),
            reduced_iterations=max(0, sum(n.num_iterations for n in nests if n.combine) - num_macs),
            iterations=sum(n.num_iterations for n in nests if not n.combine),
            strided_iterations=sum(n.num_iterations for n, run in zip(nests, runs, strict=True) if run == 1),
            viewed_iterations=sum(
                n.num_iterations for n in nests if any(a.view for a in (n.write, *n.reads))
            ),
            num_runs=sum(n.num_iterations // run for n, run in zip(nests, runs, strict=True)),
            shortest_run=min(runs, default=0),
            padded_iterations=sum(
                n.num_iterations for n in nests if any(a.fill is not None for a in n.reads)
            ),
            element_bytes=max((v.dtype.size_bytes for v in results), default=4),
            **{f"num_{c.name.lower()}": classes.count(c) for c in OperatorClass},
            **_loops([form for node in work.nodes for form in contractions(nests_of(node))]),
        )

    @property
    def moved_bytes(self) -> int:
        """Bytes that pass the kernel's border."""
        return self.input_bytes + self.weight_bytes + self.output_bytes


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """How a target would compute a kernel, as it estimates before lowering; 0 where it says nothing.

    Times are of one core: of products by the template that would be chosen, and of loop nests apart what
    their operations, their loads and the bytes that they move take. `separate_ns` is what the operators take
    one by one, `saved_share` what computing block by block saves, `arranged_ns` what the kernel takes with
    its operands laid out as their other users wish. Of elements that lanes cannot take side by side some are
    read, some written, some at steps that fall into one set of a cache. A program's constants tell how cold
    they are.
    """

    num_kernels: int = 0
    least_chunks: int = 0
    separate_ns: float = 0.0
    saved_share: float = 0.0
    matrix_ns: float = 0.0
    winograd_ns: float = 0.0
    contraction_ns: float = 0.0
    integer_ns: float = 0.0
    product_gain: float = 0.0
    operations_ns: float = 0.0
    loads_ns: float = 0.0
    transfers_ns: float = 0.0
    gathered_elements: int = 0
    scattered_elements: int = 0
    conflicting_elements: int = 0
    least_vector: int = 0
    arranged_ns: float = 0.0
    program_constant_bytes: int = 0


@runtime_checkable
class TellsPlans(Protocol):
    """A cost model that says how its target would compute a kernel, and on how many threads a run has."""

    @property
    def num_threads(self) -> int:
        """Of a run."""
        ...

    def plan_facts(self, work: KernelWork) -> PlanFacts:
        """Of a kernel alone."""
        ...


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Rates, sizes and energies of a described machine; 0 where its description says nothing.

    `bytes_per_file_byte` is how large it keeps floats, relative to float32 in a file.
    """

    macs_per_ns: float
    ops_per_ns: float
    memory_bytes_per_ns: float
    num_cores: int
    local_bytes: int
    shared_bytes: int
    vector_bytes: int
    launch_ns: float
    bytes_per_file_byte: float
    energies: EnergyTable

    @classmethod
    def of(
        cls, machine: Machine, types: ElementTypes | None = None, clock_hz: float | None = None
    ) -> MachineFacts:
        """Of one cluster; the clock is the described one, else the nominal one of this host.

        Raises:
            MachineError: energies without a source.
        """
        ghz = (machine.clock_hz or clock_hz or nominal_clock_hz() or NOMINAL_CLOCK_HZ) / 1e9
        stored = (types or ElementTypes()).stored(DType.FLOAT32)
        clusters = machine.num_clusters
        on_chip = sorted((x for x in machine.levels[:-1]), key=machine.num_instances)
        return cls(
            macs_per_ns=_rate(machine, Work.CONTRACTION, stored) * ghz / clusters,
            ops_per_ns=_rate(machine, Work.ELEMENTWISE, stored) * ghz / clusters,
            memory_bytes_per_ns=(machine.read_bytes_per_s(machine.outermost) or 0.0) / 1e9,
            num_cores=machine.num_cores_per_cluster,
            local_bytes=max((x.capacity_bytes or 0 for x in on_chip if x.per == "core"), default=0),
            shared_bytes=max((x.capacity_bytes or 0 for x in on_chip if x.per != "core"), default=0),
            vector_bytes=max((b for unit in machine.units for b in unit.vector_bytes), default=0),
            launch_ns=machine.overheads.kernel_launch_ns,
            bytes_per_file_byte=stored.size_bytes / DType.FLOAT32.size_bytes,
            energies=EnergyTable.of(machine),
        )

    def roofline(self, work: WorkFacts) -> Estimate:
        """Arithmetic or traffic, and a launch (Williams et al. 2009); what has no rate costs nothing."""
        moved_bytes = work.moved_bytes * self.bytes_per_file_byte
        times_ns = (
            work.macs / self.macs_per_ns if self.macs_per_ns else 0.0,
            work.other_flop / self.ops_per_ns if self.ops_per_ns else 0.0,
            moved_bytes / self.memory_bytes_per_ns if self.memory_bytes_per_ns else 0.0,
        )
        time_ns = max(times_ns) + self.launch_ns
        inner_bytes = moved_bytes + 2 * work.intermediate_bytes * self.bytes_per_file_byte
        energy = self.energies.energy(work.macs, work.other_flop, moved_bytes, inner_bytes, time_ns)
        energy_pj = None if energy.joules is None else energy.joules * 1e12
        return Estimate(time_ns, time_ns, "roofline of the described machine", energy_pj, energy_pj or 0.0)


def identity_of(machine: Machine) -> str:
    """The name of a machine, that of this host with its processor."""
    return f"{machine.name}, {machine.description}" if machine.name == HOST_NAME else machine.name


_MACHINE = tuple(f.name for f in fields(MachineFacts) if f.name != "energies")
_WORK = tuple(f.name for f in fields(WorkFacts))
_PLAN = tuple(f.name for f in fields(PlanFacts))
FEATURES: tuple[str, ...] = (
    *_WORK,
    *_PLAN,
    "separate_ratio",
    "flop_per_byte",
    "largest_dim",
    "num_threads",
    *_MACHINE,
    "roofline_ns",
    "estimate_ns",
)
"""Names of the features, in order."""


def features_of(
    facts: WorkFacts,
    machine: MachineFacts,
    num_threads: int,
    estimate_ns: float,
    plan: PlanFacts | None = None,
) -> Array:
    """The features of a kernel on so many threads that the target itself estimates at `estimate_ns`.

    >>> from tilewright.hardware.presets import load_preset
    >>> features = features_of(WorkFacts(macs=7), MachineFacts.of(load_preset("zcu102")), 1, 1.0)
    >>> float(features[FEATURES.index("macs")])
    3.0
    """
    plan = plan or PlanFacts()
    flop = 2 * facts.macs + facts.other_flop
    values = (
        *(getattr(facts, name) for name in _WORK),
        *(getattr(plan, name) for name in _PLAN),
        plan.separate_ns / estimate_ns if estimate_ns else 0.0,
        flop / (facts.moved_bytes + 1),
        max(facts.rows, facts.columns, facts.batch),
        num_threads,
        *(getattr(machine, name) for name in _MACHINE),
        machine.roofline(facts).time_ns,
        estimate_ns,
    )
    return np.array([log2(1 + max(0.0, float(value))) for value in values])


def work_structure(work: KernelWork) -> Hashable:
    """What the cost of a kernel depends on: operators, what they touch, and how they are connected."""
    numbers: dict[Value, int] = {}
    found: list[Hashable] = []
    for node in work.nodes:
        operands = (*node.inputs, *node.captures, *node.outputs)
        places = tuple(None if v is None else numbers.setdefault(v, len(numbers)) for v in operands)
        kinds = tuple(None if v is None else (v.dtype, v.is_constant) for v in operands)
        found.append((node.op_type, node_structure(node), places, kinds))
    return tuple(found), tuple(numbers[v] for v in work.outputs if v in numbers)


def _nests(node: Node) -> tuple[Nest, ...]:
    nests = nests_of(node)
    if not nests:
        raise UsageError(
            f"{node.op_type} {node.name!r}: has no loop nests, so no features that a learned cost model "
            "could price it by; leave the learned model out for this network."
        )
    return nests


def _constant_bytes(work: KernelWork) -> int:
    read: dict[Value, int] = {}
    for node in work.nodes:
        sizes = input_bytes(node)
        for position, value in enumerate(node.inputs):
            if value is not None and value.is_constant:
                read[value] = max(read.get(value, 0), sizes.get(position, 0))
    return sum(read.values())


def _costly_flop(nest: Nest) -> int:
    costs = (
        FUNCTIONS[e.function].cost_flop
        for e in nest.body.walk()
        if isinstance(e, Call) and e.function != "cast"
    )
    return sum(cost for cost in costs if cost >= _COSTLY_FLOP) * nest.num_iterations


def _run(nest: Nest) -> int:
    """Elements in a row that are written, and each operand of them read, without a jump (or read again)."""
    written = row_major_address(nest.write)
    reads = [row_major_address(access) for access in nest.reads if access.view is None]
    if written is None:
        return 1
    extents = nest.extents
    steps = sorted((c, d) for d, c in written.terms if extents[d] > 1)
    run = 1
    for step, dim in steps:
        if step != run or any(r is not None and r.coefficient(dim) not in (0, run) for r in reads):
            break
        run *= extents[dim]
    return run


def _loops(forms: list[ContractionForm]) -> dict[str, int]:
    """The loops of the largest contraction."""
    if not forms:
        return {}
    form = max(forms, key=lambda f: f.nest.num_iterations)
    extents = form.nest.extents

    def size(dims: tuple[str, ...]) -> int:
        return prod(extents[d] for d in dims)

    parallel = {d.name for d in form.nest.parallel_dims}
    strides = [
        abs(c)
        for index in form.accesses[0].index
        if isinstance(index, Affine) and len(index.terms) > 1
        for d, c in index.terms
        if d in parallel
    ]
    channels = size(form.channels)
    return {
        "channels": channels,
        "window": max(1, size(form.summed) // max(1, channels)),
        "stride": max(strides, default=1),
        "rows": size(form.rows),
        "columns": size(form.columns),
        "batch": size(form.batch),
    }


def _rate(machine: Machine, work: Work, dtype: DType) -> float:
    """Per cycle, of the units of one sort that do most of an operation class in this type of elements."""
    most = 0.0
    for unit in machine.units:
        rates = unit.rates_of(work)
        if unit.takes(work) and rates:
            computing = computing_dtype(rates, dtype)
            rate = max(rates.values()) if computing is None else rates[str(computing)]
            most = max(most, rate * machine.num_units(unit) * unit.efficiency)
    return most
