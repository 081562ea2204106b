"""A program with addresses, and all that is generated for it: what a main is made of, and an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.arrays import Array
from tilewright.content_pool import ContentPool
from tilewright.errors import UsageError
from tilewright.hardware.probe import resolve_threads
from tilewright.ir.control_flow import CONTROL_FLOW
from tilewright.ir.graph import Graph, Node, Value
from tilewright.memory.base import MemoryPlan, MemoryProblem
from tilewright.partition.base import Partition
from tilewright.program import Program
from tilewright.records import dataclass
from tilewright.steps import KERNEL_PREFIX, KernelInfo, MemoryInfo, StepInfo
from tilewright.system.mapped_file import mapped_file_of
from tilewright.targets.cpu.costs.model import LaunchCost, clock_ghz
from tilewright.targets.cpu.image.image import CpuImage
from tilewright.targets.cpu.image.released_constants import ReleasedConstants
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.lower.arrange import numbered
from tilewright.targets.cpu.lower.lowered import HostOperator, KernelLaunch, LoweredModel, NumRows
from tilewright.targets.cpu.lower.storage import Placement, Weights, arena_bytes
from tilewright.targets.cpu.runtime.executable import CpuExecutable, HostStep
from tilewright.targets.cpu.runtime.executor import CheckedIndex
from tilewright.targets.cpu.runtime.main_code import ArgRef, HostCall, Launch, LaunchGroup, MainStep, Stage

_MACS_PER_CYCLE, _BYTES_PER_CYCLE = 16, 8


@dataclass(frozen=True, slots=True, eq=False)
class CpuCode:
    """Everything generated for a model: the image that runs, and the plans that led to it."""

    program: Program
    isa: Isa
    lowered: LoweredModel
    image: CpuImage
    memory: MemoryPlan
    memory_problem: MemoryProblem
    weights: Weights
    emit: Callable[[], Sequence[tuple[CpuImage, Weights]]]

    @property
    def images(self) -> Sequence[tuple[CpuImage, Weights]]:
        """Of every instruction set that was asked for, in that order; those but `image` are generated now."""
        return self.emit()

    @property
    def kernel_objects(self) -> tuple[bytes, ...]:
        """Machine code of each kernel."""
        return self.image.objects[:-1]

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """What runs, in order."""
        num_cores, clock = resolve_threads(self.program.options.num_threads), clock_ghz()
        return describe_steps(
            self.lowered,
            self.program.partition,
            lambda launch: LaunchCost.of(launch, self.isa).time_ns(num_cores, clock),
        )

    @property
    def memory_info(self) -> MemoryInfo:
        """What memory it needs."""
        step_of = [step for step, _, _ in numbered(self.lowered)]
        buffers = tuple(
            replace(b, first_step=step_of[b.first_step], last_step=step_of[b.last_step])
            for b in self.memory_problem.buffers
        )
        return MemoryInfo.of(
            replace(self.memory_problem, buffers=buffers),
            self.memory,
            constant_bytes=self.image.constants.size_bytes,
            scratch_bytes=self.image.scratch_bytes,
        )

    @property
    def weight_bytes(self) -> int:
        """Size of the constants."""
        return self.image.constants.size_bytes

    def load(self, num_threads: int | None) -> CpuExecutable:
        """Make it runnable in this process.

        Raises:
            UsageError: it is for another processor.
        """
        if not self.isa.runs_on_host:
            raise UsageError(
                f"this code is for {self.isa.name} and does not run here: save it, and open it there."
            )
        return self.image.load(num_threads)

    def load_sharing(self, num_threads: int | None, pool: ContentPool) -> CpuExecutable:
        """The same, with the constants that a pool has already."""
        return self.image.load_sharing(num_threads, pool)

    def load_releasing(
        self, num_threads: int | None, pool: ContentPool | None = None
    ) -> tuple[CpuExecutable, Callable[[], None]]:
        """The same, while the program lacks large constants that the code has; and what gives them back."""
        steps = self.image.host_steps
        read = {v for step in steps for v in (*step.node.inputs, *step.node.captures) if v is not None}
        constants = ReleasedConstants(self.weights, read, pool)
        try:
            return self.image.placed(constants.shared, num_threads), constants.restore
        except BaseException:
            constants.restore()
            raise


@dataclass(frozen=True, slots=True, eq=False)
class PlacedModel:
    """A lowered model whose tensors have their addresses: what a main is made of.

    `program` has the forms and reasons that lowering gave its partition.
    """

    program: Program
    lowered: LoweredModel
    steps: tuple[MainStep, ...]
    host_steps: tuple[HostStep, ...]
    weights: Weights
    memory: MemoryPlan
    problem: MemoryProblem

    @property
    def kernels(self) -> dict[str, Kernel]:
        """All code that it needs, by symbol."""
        return {k.symbol: k for launch in self.lowered.launches for k in launch.kernel.all_kernels()}

    @property
    def arena_bytes(self) -> int:
        """Size of the arena of a run; its reports follow it."""
        return arena_bytes(self.memory.peak_bytes)

    @property
    def row_axes(self) -> dict[str, int]:
        """Axes of inputs along which a run may have fewer rows; none where each run is for all.

        Or those of caches, inputs and outputs, along which it may have fewer places.
        """
        if self.program.graph.past_axes:
            return (
                dict(self.program.graph.past_axes) if self.lowered.takes_any_past(self.program.graph) else {}
            )
        return dict(self.program.graph.row_axes) if self.lowered.has_rows else {}

    @property
    def rows_share(self) -> float:
        """The part of the estimated work that is as much as a run has rows; the rest is done for all."""
        work = [(launch, _estimated_cycles(launch.kernel)) for launch in self.lowered.launches]
        ends = sum(cycles for launch, cycles in work if any(isinstance(arg, NumRows) for arg in launch.args))
        total = sum(cycles for _, cycles in work)
        return ends / total if total else 0.0

    @property
    def index_checks(self) -> tuple[CheckedIndex, ...]:
        """What the reports are of, in order."""
        return tuple(check for reports in self.lowered.reports for check in reports.checks)

    @property
    def scratch_bytes(self) -> int:
        """Of the area that every thread needs for itself."""
        return max((k.scratch_bytes for k in self.kernels.values()), default=0)


def _estimated_cycles(kernel: Kernel) -> float:
    """Of all chunks, also where its template gives none: then a share needs no more than the order."""
    if kernel.estimate_cycles is not None:
        return kernel.estimate_cycles
    return kernel.macs / _MACS_PER_CYCLE + kernel.argument_bytes / _BYTES_PER_CYCLE


def main_steps(lowered: LoweredModel, placement: Placement) -> tuple[list[MainStep], list[HostStep]]:
    """What a main runs, in order, and the operators that it calls the host for."""
    steps: list[MainStep] = []
    host_steps: list[HostStep] = []
    for step in lowered.steps:
        if isinstance(step, HostOperator):
            steps.append(HostCall(len(host_steps)))
            host_steps.append(_host_step(step.node, placement))
            continue
        groups = tuple(
            LaunchGroup(tuple(_launch(launch, placement) for launch in group.launches), group.num_cores)
            for group in step.longest_first
        )
        is_plain = len(step.launches) == 1 and groups[0].max_threads is None
        steps.append(groups[0].launches[0] if is_plain else Stage(groups))
    return steps, host_steps


def _launch(launch: KernelLaunch, placement: Placement) -> Launch:
    args = tuple(placement.reference(storage) for storage in launch.args)
    work = launch.kernel.estimate_cycles or 0.0
    return Launch(launch.kernel.symbol, launch.kernel.num_chunks, args, work=work)


def _host_step(node: Node, placement: Placement) -> HostStep:
    def references(values: tuple[Value | None, ...]) -> tuple[ArgRef | None, ...]:
        return tuple(None if v is None else placement.reference(v) for v in values)

    return HostStep(node, references((*node.inputs, *node.captures)), references(node.outputs))


def passthrough(graph: Graph) -> dict[str, Array | str]:
    """Outputs that are an initializer, an input, or a repeated output, which no kernel writes."""
    inputs = set(graph.inputs)
    result: dict[str, Array | str] = {}
    for value in graph.outputs:
        if value in inputs:
            result[value.name] = value.name
        elif value.data is not None:
            is_mapped = mapped_file_of(value.data) is not None  # and its file may change
            result[value.name] = value.data.copy() if is_mapped else value.data
    return result


EstimateNs = Callable[[KernelLaunch | HostOperator], float]


def describe_steps(
    lowered: LoweredModel, partition: Partition, estimate_ns: EstimateNs
) -> tuple[StepInfo, ...]:
    """Every launch in order, numbered over all steps, with its estimate."""
    steps: list[StepInfo] = []
    count = 0
    for index, step in enumerate(lowered.steps):
        launches: tuple[KernelLaunch | HostOperator, ...] = (
            (step,) if isinstance(step, HostOperator) else step.launches
        )
        kernels = tuple(
            replace(
                _kernel(f"{KERNEL_PREFIX}{count + i}", x, partition), estimate_ns=round(estimate_ns(x), 1)
            )
            for i, x in enumerate(launches)
        )
        count += len(kernels)
        steps.append(StepInfo(index, kernels))
    return tuple(steps)


def _kernel(identifier: str, launch: KernelLaunch | HostOperator, partition: Partition) -> KernelInfo:
    if isinstance(launch, HostOperator):
        return KernelInfo(
            id=identifier,
            symbol=launch.node.op_type,
            template="bodies" if launch.node.op_type in CONTROL_FLOW else "host",
            nodes=(launch.node.name,),
            subgraph_id=_subgraph_id((launch.node,), partition),
            notes=(launch.reason,),
        )
    kernel = launch.kernel
    return KernelInfo(
        id=identifier,
        symbol=kernel.symbol,
        template=kernel.template if launch.nodes else "reorder",
        nodes=tuple(node.name for node in launch.nodes),
        subgraph_id=_subgraph_id(launch.nodes, partition),
        num_chunks=kernel.num_chunks,
        macs=kernel.macs,
        scratch_bytes=kernel.scratch_bytes,
        plan="" if kernel.plan is None else str(kernel.plan),
        notes=(
            *kernel.notes,
            *(() if kernel.choice is None else (f"measured to be the best: {kernel.choice}",)),
        ),
    )


def _subgraph_id(nodes: tuple[Node, ...], partition: Partition) -> int | None:
    return partition.subgraph_of(nodes[0]).id if nodes else None
