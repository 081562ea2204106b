"""What lowering gives: kernels on tensors of the model, before any tensor has an address."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.nest import Nest, Operand
from tilewright.partition.base import Partition
from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import Kernel, Layout, Packed
from tilewright.targets.cpu.lower.layouts import Tensor
from tilewright.targets.cpu.products import Products
from tilewright.targets.cpu.runtime.executor import CheckedIndex


@dataclass(frozen=True, slots=True, eq=False)
class PackedTensor:
    """A constant of the model in the arrangement one kernel wants."""

    value: Value
    packed: Packed


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A constant that an operator brought along."""

    operand: Operand


@dataclass(frozen=True, slots=True, eq=False)
class Reports:
    """Where one launch notes indices outside their axes: which, in order."""

    checks: tuple[CheckedIndex, ...]


@dataclass(frozen=True, slots=True)
class NumRows:
    """For how many rows a run is: a number, where others have an address."""


Storage = Value | tuple[int, int] | PackedTensor | Table | Reports | NumRows


@dataclass(frozen=True, slots=True, eq=False)
class KernelLaunch:
    """One kernel on tensors of the model; `nests` are what it computes, `nodes` the operators it serves.

    Kernels that only prepare the operands of another have no nests.
    """

    kernel: Kernel
    args: tuple[Storage, ...]
    nodes: tuple[Node, ...]
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    may_overwrite: tuple[Tensor, ...] = ()
    nests: tuple[Nest, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class HostOperator:
    """An operator without nests, run in Python on row-major tensors."""

    node: Node
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class LoweredGroup:
    """Kernels one after another; no more than `num_cores` threads work on them at a time."""

    launches: tuple[KernelLaunch, ...]
    num_cores: int | None = None

    @property
    def estimate_cycles(self) -> float:
        """Of all its chunks on one core, as far as templates gave estimates."""
        return sum(launch.kernel.estimate_cycles or 0.0 for launch in self.launches)


@dataclass(frozen=True, slots=True, eq=False)
class LoweredStage:
    """Groups of kernels that progress independently of each other; the step behind waits for all of them."""

    groups: tuple[LoweredGroup, ...]

    @classmethod
    def single(cls, launch: KernelLaunch) -> LoweredStage:
        """One kernel on all cores."""
        return cls((LoweredGroup((launch,)),))

    @property
    def longest_first(self) -> tuple[LoweredGroup, ...]:
        """The groups in the order in which threads begin with them, which ends the stage soonest."""
        return tuple(sorted(self.groups, key=lambda group: -group.estimate_cycles))

    @property
    def launches(self) -> tuple[KernelLaunch, ...]:
        """All kernels, group by group: an order in which one thread may run them."""
        return tuple(launch for group in self.groups for launch in group.launches)


LoweredStep = LoweredStage | HostOperator


@dataclass(frozen=True, slots=True, eq=False)
class LoweredTensors:
    """Where tensors lie among each other, before addresses are known.

    `alias` maps a tensor to the tensor whose memory it shares, `offsets` to where in it it starts (elements;
    0 if absent). `layouts` holds the tensors that are not row-major, `locals` temporaries between kernels,
    `products` the contractions by the signature that their kernels carry.
    """

    alias: Mapping[Tensor, Tensor]
    offsets: Mapping[Tensor, int]
    layouts: Mapping[Tensor, Layout]
    locals: Mapping[Tensor, Operand]
    products: Products

    def root(self, tensor: Tensor) -> Tensor:
        """The tensor that owns the memory."""
        return root_of(self.alias, tensor)

    def root_offset(self, tensor: Tensor) -> int:
        """Elements from the start of the root's memory to the tensor."""
        return root_offset_of(self.alias, self.offsets, tensor)


@dataclass(frozen=True, slots=True, eq=False)
class LoweredPartition(LoweredTensors):
    """The kernels of every subgraph, which hold for every schedule.

    Tensors share memory only where they hold the same elements, or different ones of a tensor around them: no
    order makes that wrong. What may be made in place of what depends on the order, and is the memory plan's
    business. `work` lists for each subgraph what runs one after another; `before` and `after` are the
    relayout copies of inputs and outputs. `partition` is the one that was lowered, with the forms and reasons
    that came of it.
    """

    partition: Partition
    work: tuple[tuple[KernelLaunch | HostOperator, ...], ...]
    before: tuple[KernelLaunch, ...]
    after: tuple[KernelLaunch, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LoweredModel(LoweredTensors):
    """Everything the CPU runs for one model, step by step."""

    steps: tuple[LoweredStep, ...]

    @property
    def launches(self) -> tuple[KernelLaunch, ...]:
        """All kernels, step by step."""
        return tuple(x for step in self.steps if isinstance(step, LoweredStage) for x in step.launches)

    @property
    def has_concurrency(self) -> bool:
        """Whether any kernels may run at the same time."""
        return any(isinstance(step, LoweredStage) and len(step.groups) > 1 for step in self.steps)

    @property
    def reports(self) -> tuple[Reports, ...]:
        """Of all launches, in order."""
        return tuple(arg for launch in self.launches for arg in launch.args if isinstance(arg, Reports))

    @property
    def has_rows(self) -> bool:
        """Whether a run may have fewer rows than the graph."""
        return any(isinstance(arg, NumRows) for launch in self.launches for arg in launch.args)

    def takes_any_past(self, graph: Graph) -> bool:
        """Whether nothing but attention, which the run tells how many places there are, touches caches."""
        caches = {v for v in (*graph.inputs, *graph.outputs) if v.name in graph.past_axes}
        if any(caches & {*o.node.operands(), *o.node.results()} for o in self.host_operators):
            return False
        if any(not isinstance(t, Value) or self.root(t) is not t for t in caches):
            return False
        shared = {self.root(tensor) for tensor in self.alias}
        touching = [
            launch
            for launch in self.launches
            if not caches.isdisjoint(self.root(t) for t in (*launch.reads, *launch.writes))
        ]
        return caches.isdisjoint(shared) and all(
            launch.kernel.template == "attention" and any(isinstance(arg, NumRows) for arg in launch.args)
            for launch in touching
        )

    @property
    def host_operators(self) -> tuple[HostOperator, ...]:
        """Operators that run in Python."""
        return tuple(s for s in self.steps if isinstance(s, HostOperator))


def root_of(alias: Mapping[Tensor, Tensor], tensor: Tensor) -> Tensor:
    """The end of a chain of aliases."""
    while tensor in alias:
        tensor = alias[tensor]
    return tensor


def root_offset_of(alias: Mapping[Tensor, Tensor], offsets: Mapping[Tensor, int], tensor: Tensor) -> int:
    """Elements from the start of the root's memory, summed along the chain."""
    total = 0
    while tensor in alias:
        total += offsets.get(tensor, 0)
        tensor = alias[tensor]
    return total
