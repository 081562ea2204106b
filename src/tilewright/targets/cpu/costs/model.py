"""What work costs on this processor: the templates' estimates in ns, for threads that share cores and memory.

Nothing is measured and no code is generated: a kernel costs what the templates say of its nests, and a
subgraph that was lowered what they said of its real kernels. Cycles become ns by a nominal clock, so every
number here is an estimate, bounds too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod

from tilewright.cost.base import Estimate, KernelWork
from tilewright.cost.features import PlanFacts
from tilewright.cost.roofline import external_bytes
from tilewright.errors import MachineError
from tilewright.hardware.machine import Machine
from tilewright.hardware.probe import nominal_clock_hz
from tilewright.ir.derive import macs
from tilewright.ir.fuse import FusedNodes, NestGroup
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.nest import Nest, Opaque, access_dims, operands_of
from tilewright.options import Accuracy
from tilewright.partition.base import Subgraph
from tilewright.records import dataclass
from tilewright.targets.cpu.attention import ATTENTION
from tilewright.targets.cpu.costs.stage_times import Launched, stage_ns
from tilewright.targets.cpu.cut import choose_num_chunks
from tilewright.targets.cpu.fused.prices import GroupEstimates
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined, Kernel, Layout, Layouts, OperandKey
from tilewright.targets.cpu.loopnest import LOOP_NEST
from tilewright.targets.cpu.loopnest.estimate import LoopCycles, loop_cycles
from tilewright.targets.cpu.lower.arrange import Barriers
from tilewright.targets.cpu.lower.layouts import Tensor, assign_layouts
from tilewright.targets.cpu.lower.lowered import HostOperator, KernelLaunch
from tilewright.targets.cpu.lower.sharing import make_alias
from tilewright.targets.cpu.lower.tensors import ModelTensors, Names
from tilewright.targets.cpu.lower.views import find_views
from tilewright.targets.cpu.product.contraction import CONTRACTION
from tilewright.targets.cpu.product.matrix import unit_pays
from tilewright.targets.cpu.product.select import product_way
from tilewright.targets.cpu.recurrent import estimate_steps
from tilewright.targets.cpu.repeats import nest_facts
from tilewright.targets.cpu.runtime.stage_ir import NEAR_WORK
from tilewright.targets.cpu.template import START_CYCLES, Context, operand_bytes, transfer_cycles
from tilewright.targets.cpu.template import Estimate as TemplateEstimate
from tilewright.targets.cpu.trees import estimate_trees
from tilewright.targets.llvm.attention import attention_run
from tilewright.tuning import Choice

NOMINAL_CLOCK_HZ = 3.0e9
"""Of a processor whose system tells no frequency."""

# Fitted to measured networks of the zoo: what the estimates say too much, what a step takes whose chunks
# threads claim, and one of a single chunk, which is a call.
_CYCLES_PER_ESTIMATED = 0.72
_STEP_NS = 500.0
_CALL_NS = 50.0
# What a kernel takes longer in all when several threads share it: they bring what they read into more caches
# and do not end at the same time.
_SHARING = 0.05
# By which a thread reads what another one wrote, as long as that is in the other's cache.
_REMOTE_BYTES_PER_NS = 64.0
# Of a barrier, for each thread beside the first.
_BARRIER_NS = 500.0
# Of main memory, all cores together, and an operator in Python, beside the bytes that it touches.
_MEMORY_BYTES_PER_NS = 20.0
_HOST_CALL_NS = 20_000.0
_HOST_BYTES_PER_NS = 1.0
# Multiply-adds of a convolution over those of Winograd's F(4x4, 3x3).
_MOST_SAVED = 4.0
_INTEGERS = ("int8", "uint8")
# No read is faster than from the first cache.
_CACHE_BYTES_PER_CYCLE = 128.0


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """One kernel: cycles of one core, chunks that run apart, bytes that come from beyond the caches."""

    cycles: float
    num_chunks: int
    memory_bytes: int = 0
    python_ns: float = 0.0  # of an operator on the host, which one thread runs

    @classmethod
    def of(cls, launch: KernelLaunch | HostOperator, isa: Isa) -> LaunchCost:
        """Of what lowering gave."""
        if isinstance(launch, HostOperator):
            return cls.of_host((launch.node,))
        kernel = launch.kernel
        size_bytes = min(kernel.argument_bytes, _touched_bytes(launch.nests) or kernel.argument_bytes)
        return cls(kernel_cycles(kernel, isa), kernel.num_chunks, _beyond_caches(size_bytes, isa))

    @classmethod
    def of_host(cls, nodes: Iterable[Node]) -> LaunchCost:
        """Of operators in Python."""
        sizes = (v.size_bytes for node in nodes for v in (*node.operands(), *node.results()))
        return cls(0.0, 1, python_ns=_HOST_CALL_NS + sum(sizes) / _HOST_BYTES_PER_NS)

    def time_ns(self, num_cores: int, clock_ghz: float) -> float:
        """Alone on so many cores: whole chunks, and no faster than memory gives."""
        rounds = -(-self.num_chunks // num_cores) / self.num_chunks
        compute_ns = self.cycles * _CYCLES_PER_ESTIMATED * rounds / clock_ghz
        if min(num_cores, self.num_chunks) > 1:
            compute_ns *= 1 + _SHARING
        return max(compute_ns, self.memory_bytes / _MEMORY_BYTES_PER_NS) + self.python_ns

    def step_ns(self, num_cores: int) -> float:
        """What the step takes beside the kernel, alone on so many cores."""
        if self.num_chunks == 1 and not self.python_ns:
            return _CALL_NS
        return _STEP_NS + _BARRIER_NS * (num_cores - 1)

    def launched(self, clock_ghz: float, remote_ns: float = 0.0) -> Launched:
        """The same among others of a stage; time in Python is told apart.

        `remote_ns` is the time to bring what it reads from caches of other threads.
        """
        work_ns = self.time_ns(1, clock_ghz) - self.python_ns
        share = self.memory_bytes / _MEMORY_BYTES_PER_NS / work_ns if work_ns else 0.0
        start_ns = _CALL_NS if self.num_chunks == 1 else _STEP_NS
        chunk_ns = (work_ns + remote_ns) / self.num_chunks
        return Launched(chunk_ns, self.num_chunks, start_ns, _BARRIER_NS, share, _SHARING)


@dataclass(frozen=True, slots=True)
class _Part:
    """Nests that one kernel computes by one template."""

    nests: tuple[Nest, ...]
    template: str
    estimate: TemplateEstimate
    layouts: Layouts


_Track = tuple[LaunchCost, float]
"""A launch of a group, and the time to bring what it reads from caches of other threads."""


def clock_ghz() -> float:
    """The clock by which cycles become ns."""
    return (nominal_clock_hz() or NOMINAL_CLOCK_HZ) / 1e9


class CpuCosts:
    """Prices kernels of one graph; see `CostModel`. Equal layers are estimated once."""

    proves_bounds = False

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        isa: Isa,
        num_cores: int,
        accuracy: Accuracy,
        fuse: FusedNodes,
        barriers: Barriers = "stages",
    ) -> None:
        self._graph = graph
        self._barriers = barriers
        self._fuse = fuse
        self._machine = machine
        self._isa = isa
        self.blocks = GroupEstimates(isa if unit_pays(isa, accuracy) else isa.without_matrix_unit, fuse)
        self._num_cores = num_cores
        self._run_bytes = ModelTensors(graph).run_bytes
        self._accuracy = accuracy
        self._clock_ghz = clock_ghz()
        self.source = f"the templates' estimates at a nominal {self._clock_ghz:g} GHz"
        self._lowered: dict[Subgraph, tuple[LaunchCost, ...]] = {}
        self._by_work: dict[Hashable, tuple[LaunchCost, ...]] = {}
        self._by_facts: dict[Hashable, tuple[LaunchCost, ...]] = {}
        self._launch_numbers: dict[tuple[LaunchCost, ...], int] = {}
        self._group_facts: dict[tuple[KernelWork, ...], Hashable] = {}
        self._bounds: dict[Hashable, float] = {}
        self._cycles: dict[Node, float] = {}
        rates = [item for unit in machine.units for item in unit.macs_per_cycle.items()]
        self._integer_rate = max((rate for name, rate in rates if name in _INTEGERS), default=0.0)
        self._float_rate = max((rate for name, rate in rates if name not in _INTEGERS), default=1.0)

    def lowered(
        self, subgraphs: Iterable[Subgraph], work: Iterable[Sequence[KernelLaunch | HostOperator]]
    ) -> None:
        """From now on these subgraphs cost what their kernels do."""
        for subgraph, launches in zip(subgraphs, work, strict=True):
            self._lowered[subgraph] = tuple(LaunchCost.of(launch, self._isa) for launch in launches)
        self._group_facts.clear()

    def kernel(self, work: KernelWork, num_cores: int | None = None) -> Estimate:
        """Its launches one after the other, each on all the cores that it is given."""
        return self._steps(self._launches(work), self._bound_ns(work), num_cores)

    def fused(self, work: KernelWork) -> Estimate:
        """Less what it saves to compute all block by block, where that is estimated to gain."""
        apart = self.kernel(work)
        if isinstance(work, Subgraph) and work in self._lowered:
            return apart  # as its kernels are
        blocks = self.blocks.of_one(work.nodes, work.outputs)
        if blocks is None:
            return apart
        time_ns = apart.time_ns * (1 - blocks.saved_share)
        return Estimate(time_ns, apart.bound_ns, self.source)

    def stage(self, groups: Sequence[Sequence[KernelWork]], num_cores: Sequence[int | None] = ()) -> Estimate:
        """Groups share the threads as stages run: independently of each other, or in lockstep."""
        limits = tuple(num_cores) or (None,) * len(groups)
        launches = [[x for work in group for x in self._launches(work)] for group in groups]
        bound_ns = sum(self._bound_ns(work) for group in groups for work in group)
        if len(groups) == 1 or self._num_cores == 1:
            in_a_row = [launch for group in launches for launch in group]
            most = None if len(groups) > 1 else limits[0]
            return self._steps(in_a_row, bound_ns, min(most or self._num_cores, self._num_cores))
        remote_ns = [time for group in groups for time in self._remote_ns(group)]
        numbered = iter(remote_ns)
        tracks = [[(launch, next(numbered)) for launch in group] for group in launches]
        total_ns = 0.0
        for together in self._parts(tracks):
            python_ns = sum(launch.python_ns for group in together for launch, _ in group)
            members = [(group, n) for group, n in zip(together, limits, strict=True) if group]
            running = [[x.launched(self._clock_ghz, remote) for x, remote in group] for group, _ in members]
            near_ns = NEAR_WORK * _CYCLES_PER_ESTIMATED / self._clock_ghz
            threads_ns = stage_ns(running, [n for _, n in members], self._num_cores, near_ns)
            total_ns += threads_ns + python_ns + _BARRIER_NS * (self._num_cores - 1)
        return Estimate(total_ns, bound_ns, self.source)

    def stage_facts(self, groups: Sequence[Sequence[KernelWork]]) -> Hashable:
        """Kernels that were lowered by what they really do; what each group brings from other threads."""
        return tuple(map(self._facts, groups))

    def _facts(self, group: Sequence[KernelWork]) -> Hashable:
        key = tuple(group)
        if key not in self._group_facts:
            numbers = self._launch_numbers
            kernels = tuple(numbers.setdefault(self._launches(work), len(numbers)) for work in group)
            self._group_facts[key] = kernels, tuple(self._remote_ns(group))
        return self._group_facts[key]

    def _remote_ns(self, group: Sequence[KernelWork]) -> Iterator[float]:
        """For each launch of a group the time to bring what other threads wrote: the first of a kernel does.

        Threads share what ran before the stage, and within a group nothing has to be brought; what is larger
        than their caches is in none of them.
        """
        most_bytes = self._isa.caches.l2_bytes * self._num_cores
        remote_share = (self._num_cores - 1) / self._num_cores
        made: set[Value] = set()
        for work in group:
            made.update(v for node in work.nodes for v in node.results())
            read = dict.fromkeys(v for node in work.nodes for v in node.operands())
            sizes = (v.size_bytes for v in read if not v.is_constant and v not in made)
            size_bytes = sum(size for size in sizes if size <= most_bytes)
            for number, _ in enumerate(self._launches(work)):
                yield 0.0 if number else size_bytes * remote_share / _REMOTE_BYTES_PER_NS

    def _parts(self, groups: Sequence[Sequence[_Track]]) -> Iterator[Sequence[Sequence[_Track]]]:
        """What runs between barriers: in lockstep one launch of each group, else all up to its next operator
        on the host, that operator included."""
        rest = [list(group) for group in groups]
        while any(rest):
            part: list[list[_Track]] = []
            for group in rest:
                hosts = [n for n, (launch, _) in enumerate(group) if launch.python_ns]
                most = 1 if self._barriers == "strict" else len(group)
                end = min(most, hosts[0] + 1 if hosts else most)
                part.append(group[:end])
                del group[:end]
            yield part

    def transfer(self, size_bytes: int, source_level: str, target_level: str) -> Estimate:
        """A copy by one core, at the rate of where so much data stays.

        Raises:
            MachineError: there is no such level.
        """
        for name in (source_level, target_level):
            if name not in {level.name for level in self._machine.levels}:
                raise MachineError(f"machine {self._machine.name!r} has no level {name!r}.")
        time_ns = transfer_cycles((size_bytes, size_bytes), self._isa) / self._clock_ghz
        return Estimate(time_ns, 0.0, self.source)

    def least(self, kernels: Sequence[KernelWork], num_groups: int = 1) -> Estimate:
        """Arithmetic at the peak of all cores, or operands once from the first cache. Groups share both."""
        bound_ns = sum(self._bound_ns(work) for work in kernels)
        return Estimate(bound_ns, bound_ns, self.source)

    def _steps(
        self, launches: Sequence[LaunchCost], bound_ns: float, num_cores: int | None = None
    ) -> Estimate:
        """One launch after the other."""
        cores = num_cores or self._num_cores
        total_ns = sum(x.time_ns(cores, self._clock_ghz) + x.step_ns(cores) for x in launches)
        return Estimate(total_ns, bound_ns, self.source)

    def _launches(self, work: KernelWork) -> tuple[LaunchCost, ...]:
        if isinstance(work, Subgraph) and work in self._lowered:
            return self._lowered[work]
        key = (work.nodes, work.outputs)
        if key not in self._by_work:
            group = self._fuse(work.nodes, work.outputs)
            self._by_work[key] = self._separate(work) if isinstance(group, Opaque) else self._of_group(group)
        return self._by_work[key]

    def _separate(self, work: KernelWork) -> tuple[LaunchCost, ...]:
        """Operators one by one, as what does not fuse is lowered."""
        launches: list[LaunchCost] = []
        for node in work.nodes:
            group = self._fuse((node,), tuple(node.results()))
            launches += self._of_opaque(node) if isinstance(group, Opaque) else self._of_group(group)
        return tuple(launches)

    def _of_opaque(self, node: Node) -> tuple[LaunchCost, ...]:
        """A loop over steps, or a walk, if there is a kernel for it, else an operator on the host."""
        estimate = estimate_steps(node, self._isa) or estimate_trees(node)
        if estimate is None:
            return (LaunchCost.of_host((node,)),)
        return (LaunchCost(estimate.cycles, estimate.num_chunks),)

    def _of_group(self, group: NestGroup) -> tuple[LaunchCost, ...]:
        facts = tuple(nest_facts(nest, {}) for nest in group.nests)
        key = None if None in facts else (facts, tuple(v.is_constant for v in group.inputs))
        known = None if key is None else self._by_facts.get(key)
        if known is None:
            known = self._estimated(group)
            if key is not None:
                self._by_facts[key] = known
        return known

    def _estimated(self, group: NestGroup) -> tuple[LaunchCost, ...]:
        """What the templates that would be chosen say of a group that is alone in the world."""
        return tuple(self._of_nests(part.nests, part.estimate.cycles) for part in self._templates(group))

    def _templates(self, group: NestGroup, outside: Mapping[Tensor, Layout] | None = None) -> Iterator[_Part]:
        """The kernels of a group, by the templates that would be chosen.

        `outside` are the layouts of its inputs and outputs; without them it is alone in the world.
        """
        tensors = ModelTensors(self._graph)
        tensors.layouts = assign_layouts([group], frozenset())
        if outside is not None:
            ends = (*group.inputs, *group.outputs)
            tensors.layouts = {t: x for t, x in tensors.layouts.items() if not isinstance(t, Value)}
            tensors.layouts.update({v: outside[v] for v in ends if v in outside})
        names = Names(tensors, 0, group)
        # Parts of a result that lie where it does, as those of merged operators, cost nothing.
        tensors.place(find_views([(group, names.tensor)], tensors.layouts, frozenset(group.inputs)))
        cached = names.cached_constants(self._isa.caches.l2_bytes)
        others: list[Nest] = []

        def loops() -> Iterator[_Part]:
            if others:
                context = Context(self._isa, names.layouts(others), self._accuracy)
                estimate = LOOP_NEST.estimate(others, Choice(LOOP_NEST.name), context)
                yield _Part(tuple(others), LOOP_NEST.name, estimate, context.layouts)
                others.clear()

        done = 0
        for number, nest in enumerate(group.nests):
            if number < done or make_alias(nest, names, tensors):
                continue
            run = attention_run(group.nests, number, grows=True)
            attention = None if run is None else self._attention(run, names)
            if attention is not None:
                yield from loops()
                yield attention
                done = number + len(attention.nests)
                continue
            context = self._context(names.layouts([nest]), names, cached)
            way = product_way(nest, context)
            if way is None:
                others.append(nest)
                continue
            yield from loops()
            yield _Part((nest,), *way, context.layouts)
        yield from loops()

    def _context(
        self, layouts: Layouts, names: Names, cached: frozenset[OperandKey] = frozenset()
    ) -> Context:
        """What surrounds nests of a group."""
        return Context(
            self._isa,
            layouts,
            self._accuracy,
            names.constants,
            cached,
            names.num_locals,
            run_bytes=self._run_bytes,
            shared=names.shared_constants(),
        )

    def _attention(self, run: tuple[Nest, ...], names: Names) -> _Part | None:
        """Nests that may be one attention, if one kernel computes them."""
        context = self._context(names.layouts(run), names)
        problem = ATTENTION.match(run, context)
        if isinstance(problem, Declined):
            return None
        (way,) = ATTENTION.algorithms(problem, context)
        return _Part(run, ATTENTION.name, ATTENTION.estimate(problem, way, context), context.layouts)

    @property
    def num_threads(self) -> int:
        """Of a run."""
        return self._num_cores

    def plan_facts(self, work: KernelWork) -> PlanFacts:
        """How a kernel would be computed, among the operators around it; see `TellsPlans`."""
        launches = self._launches(work)
        group = self._fuse(work.nodes, work.outputs)
        groups = [group] if not isinstance(group, Opaque) else list(map(self._alone, work.nodes))
        parts = [
            part
            for each in groups
            if not isinstance(each, Opaque)
            for part in self._templates(each, self._program_layouts)
        ]
        per_ns = _CYCLES_PER_ESTIMATED / self._clock_ghz
        products: dict[str, float] = {}
        loops: list[LoopCycles] = []
        for part in parts:
            if part.template == LOOP_NEST.name:
                loops.append(loop_cycles(part.nests, part.layouts, self._isa))
            else:
                # An attention is two products of plain kernels, and its softmax hides between them.
                template = CONTRACTION.name if part.template == ATTENTION.name else part.template
                products[template] = products.get(template, 0.0) + part.estimate.cycles * per_ns
        blocks = self.blocks.of_one(work.nodes, work.outputs)
        arranged = [self._of_nests(part.nests, part.estimate.cycles) for part in parts]
        return PlanFacts(
            num_kernels=len(launches),
            least_chunks=min((launch.num_chunks for launch in launches), default=0),
            separate_ns=sum(self._alone_ns(node) for node in work.nodes),
            saved_share=0.0 if blocks is None else blocks.saved_share,
            **{f"{template}_ns": ns for template, ns in products.items()},
            product_gain=max((part.estimate.gain for part in parts), default=0.0),
            operations_ns=sum(x.operations for x in loops) * per_ns,
            loads_ns=sum(x.loads for x in loops) * per_ns,
            transfers_ns=sum(x.transfers for x in loops) * per_ns,
            gathered_elements=sum(x.gathered for x in loops),
            scattered_elements=sum(x.scattered for x in loops),
            conflicting_elements=sum(x.conflicting for x in loops),
            least_vector=min((x.least_vector for x in loops), default=0),
            arranged_ns=self._steps(arranged, 0.0, 1).time_ns,
            program_constant_bytes=self._constant_bytes,
        )

    @cached_property
    def _program_layouts(self) -> Mapping[Tensor, Layout]:
        """Of values, as all operators of the graph wish together."""
        groups = [g for g in map(self._alone, self._graph.nodes) if not isinstance(g, Opaque)]
        known = assign_layouts(groups, frozenset())
        return {t: layout for t, layout in known.items() if isinstance(t, Value)}

    @cached_property
    def _constant_bytes(self) -> int:
        return sum(v.size_bytes for v in self._graph.initializers)

    def _alone(self, node: Node) -> NestGroup | Opaque:
        return self._fuse((node,), tuple(node.results()))

    def _alone_ns(self, node: Node) -> float:
        group = self._alone(node)
        launches = self._of_opaque(node) if isinstance(group, Opaque) else self._of_group(group)
        return self._steps(launches, 0.0, 1).time_ns

    def _of_nests(self, nests: Sequence[Nest], cycles: float) -> LaunchCost:
        size_bytes = _touched_bytes(nests)
        iterations = sum(nest.num_iterations for nest in nests)
        return LaunchCost(
            cycles, choose_num_chunks(iterations, iterations), _beyond_caches(size_bytes, self._isa)
        )

    def _bound_ns(self, work: KernelWork) -> float:
        key = (work.nodes, work.outputs)
        if key not in self._bounds:
            arithmetic = sum(map(self._least_cycles, work.nodes))
            moved = external_bytes(work) / _CACHE_BYTES_PER_CYCLE
            self._bounds[key] = max(arithmetic, moved) / self._num_cores / self._clock_ghz
        return self._bounds[key]

    def _least_cycles(self, node: Node) -> float:
        """Multiply-adds at the peak of one core. Winograd's algorithms need fewer of them."""
        if node not in self._cycles:
            is_float = all(v.dtype.is_float for v in node.results())
            rate = self._float_rate if is_float else max(self._float_rate, self._integer_rate)
            self._cycles[node] = macs(node) / rate / _MOST_SAVED
        return self._cycles[node]


def kernel_cycles(kernel: Kernel, isa: Isa) -> float:
    """The template's estimate, or for kernels that only prepare operands the time to read and write them."""
    if kernel.estimate_cycles is not None:
        return kernel.estimate_cycles
    return START_CYCLES + transfer_cycles((kernel.argument_bytes,), isa)


def _touched_bytes(nests: Sequence[Nest]) -> int:
    """Of inputs and outputs the bytes that iterations can reach: few of a table whose rows data select."""
    reached: dict[tuple[str, int], int] = {}
    for nest in nests:
        extents = nest.extents
        for access in (*nest.reads, nest.write):
            count = prod(extents[dim] for dim in access_dims(nest, access))
            key = access.operand.key
            reached[key] = reached.get(key, 0) + count * access.operand.dtype.size_bytes
    kept = (o for o in operands_of(nests) if o.kind in ("input", "output"))
    return sum(min(operand_bytes(o), reached[o.key]) for o in kept)


def _beyond_caches(size_bytes: int, isa: Isa) -> int:
    return size_bytes if size_bytes > isa.caches.l3_bytes else 0
