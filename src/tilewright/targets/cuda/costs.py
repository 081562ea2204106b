"""Estimates of work on a GPU: arithmetic or traffic, in waves of blocks, and a node of the graph for each.

A kernel is cut as its template would cut it for the multiprocessors that it gets, so that an estimate knows
of tiles that leave multiprocessors idle, and of split sums that fill them. Groups of a stage share the
machine: they take as long as the longest alone, or as all of them keep multiprocessors busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

from tilewright.arrays import Array
from tilewright.cost.base import Estimate, KernelWork
from tilewright.hardware.machine import Machine
from tilewright.ir.expr import FUNCTIONS, Call
from tilewright.ir.fuse import FusedNodes
from tilewright.ir.nest import Nest, Opaque, operands_of
from tilewright.options import Accuracy
from tilewright.records import dataclass
from tilewright.targets.cuda.attention import find_attention, plan_attention
from tilewright.targets.cuda.emitter import WARP
from tilewright.targets.cuda.loopnest.plan import plan_loops
from tilewright.targets.cuda.loopnest.rows import match_rows
from tilewright.targets.cuda.lower import KernelLaunch, Work, copied_to, is_empty, made_chains
from tilewright.targets.cuda.products import made_choice
from tilewright.targets.cuda.products.match import Product, match_made_product, match_product
from tilewright.targets.cuda.products.tiles import plan_made, plan_product
from tilewright.targets.cuda.rates import Kind, Rates
from tilewright.targets.llvm.attention import NUM_NESTS, AttentionProblem, attention_run
from tilewright.targets.llvm.layout import Declined, OperandKey
from tilewright.targets.llvm.refs import linearise, simplify
from tilewright.targets.llvm.shared_loops import form_groups

_THREADS_AT_ONCE = 512
"""Threads of a multiprocessor whose loads under way fill its share of the memory's rate."""


@dataclass(frozen=True, slots=True, eq=False)
class _Nest:
    """What one nest asks of the machine; `product` where tiles compute it, or it begins an `attention`."""

    product: Product | None
    kind: Kind
    flop: int
    num_bytes: int
    num_threads: int
    is_launched: bool = True
    attention: AttentionProblem | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GpuCosts:
    """Costs on one described GPU, at an accuracy."""

    machine: Machine
    rates: Rates
    accuracy: Accuracy
    fuse: FusedNodes
    known: dict[tuple[object, ...], tuple[_Nest, ...] | None]

    proves_bounds = False

    @property
    def source(self) -> str:
        """The machine's rates."""
        return f"rates of {self.machine.name}, kernels cut for its multiprocessors"

    def kernel(self, work: KernelWork, num_cores: int | None = None) -> Estimate:
        """A subgraph alone on so many multiprocessors: its kernels one after another."""
        time_ns, _ = self._times(work, num_cores or self.rates.num_multiprocessors)
        return Estimate(time_ns, time_ns, self.source)

    def fused(self, work: KernelWork) -> Estimate:
        """As any."""
        return self.kernel(work)

    def stage(self, groups: Sequence[Sequence[KernelWork]], num_cores: Sequence[int | None] = ()) -> Estimate:
        """The longest group, or as long as all of them together keep the machine busy; and a join."""
        longest_ns = busy_ns = 0.0
        for place, group in enumerate(groups):
            given = num_cores[place] if num_cores else None
            times = [self._times(work, given or self.rates.num_multiprocessors) for work in group]
            longest_ns = max(longest_ns, sum(time_ns for time_ns, _ in times))
            busy_ns += sum(area_ns for _, area_ns in times)
        time_ns = max(longest_ns, busy_ns) + (self.join_ns if len(groups) > 1 else 0.0)
        return Estimate(time_ns, time_ns, self.source)

    @property
    def join_ns(self) -> float:
        """What a stage of several groups costs beside them."""
        return self.machine.overheads.join_ns or 0.0

    def transfer(self, size_bytes: int, source_level: str, target_level: str) -> Estimate:
        """A copy reads and writes."""
        time_ns = 2 * size_bytes / self.rates.bytes_per_ns
        return Estimate(time_ns, time_ns, self.source)

    def least(self, kernels: Sequence[KernelWork], num_groups: int = 1) -> Estimate:
        """As long as they keep the machine busy, and as groups with equal shares of their times take."""
        times = [self._times(work, self.rates.num_multiprocessors) for work in kernels]
        time_ns = max(sum(a for _, a in times), sum(t for t, _ in times) / num_groups)
        return Estimate(time_ns, time_ns, self.source)

    def work_ns(self, work: Work | None) -> float:
        """A kernel that was made; what the host does, and a joint, count as a node."""
        if not isinstance(work, KernelLaunch):
            return self.rates.launch_ns
        kernel = work.kernel
        busy = min(kernel.num_blocks, self.rates.num_multiprocessors)
        arithmetic_ns = kernel.macs / (self.rates.macs_per_ns["fma"] * busy)
        return self.rates.launch_ns + max(arithmetic_ns, kernel.argument_bytes / self.rates.bytes_per_ns)

    # What nests take.

    def _times(self, work: KernelWork, num_cores: int) -> tuple[float, float]:
        """Time of a subgraph on so many multiprocessors; and that times its share of the machine."""
        nests = self._nests(work)
        if nests is None:
            return self.rates.launch_ns, self.rates.launch_ns
        time_ns = area_ns = 0.0
        for nest in nests:
            own_ns, share = self._nest_ns(nest, num_cores)
            time_ns += own_ns + (self.rates.launch_ns if nest.is_launched else 0.0)
            area_ns += own_ns * share
        return time_ns, area_ns

    def _nest_ns(self, nest: _Nest, num_cores: int) -> tuple[float, float]:
        """Time of a nest beside its launch, and its share of the machine meanwhile."""
        whole = self.rates.num_multiprocessors
        if nest.attention is not None:
            rates = replace(self.rates, num_multiprocessors=num_cores)
            plan = plan_attention(nest.attention, self.accuracy, rates)
            assert not isinstance(plan, Declined)
            share = min(plan.num_blocks, num_cores) / whole
            return max(plan.time_ns, nest.num_bytes / self.rates.bytes_per_ns / share), share
        if nest.product is None:
            wanted = min(num_cores, ceil(nest.num_threads / _THREADS_AT_ONCE))
            share = max(wanted, 1) / whole
            flop_per_ns = 2 * self.rates.macs_per_ns["fma"] * whole
            own_ns = max(nest.flop / flop_per_ns, nest.num_bytes / self.rates.bytes_per_ns) / share
            return own_ns, share
        rates = replace(self.rates, num_multiprocessors=num_cores)
        is_made = any(side.is_made for side in nest.product.sides)
        choice = plan_made(nest.product, nest.kind, rates) if is_made else None
        choice = choice or plan_product(nest.product, nest.kind, rates)
        share = min(choice.num_blocks, num_cores) / whole
        return max(choice.time_ns, nest.num_bytes / self.rates.bytes_per_ns / share), share

    def _nests(self, work: KernelWork) -> tuple[_Nest, ...] | None:
        """The kernels of a subgraph; None for what runs on the host."""
        key = (*work.nodes, *work.outputs)
        if key not in self.known:
            group = self.fuse(work.nodes, work.outputs)
            nests = None if isinstance(group, Opaque) else group.nests
            constants = {
                ("input", i): v.data
                for i, v in enumerate(() if isinstance(group, Opaque) else group.inputs)
                if v.data is not None
            }
            kept = [n for n in nests or () if not is_empty(n) and copied_to(n) is None]
            self.known[key] = None if nests is None else self._launched(kept, constants)
        return self.known[key]

    def _launched(self, nests: Sequence[Nest], constants: Mapping[OperandKey, Array]) -> tuple[_Nest, ...]:
        """Nests as they are launched: those that share loops in one kernel, as lowering has it."""
        found = [self._nest(nest, constants) for nest in nests]
        self._find_attention(nests, found)
        self._find_made_products(nests, found, constants)
        run: list[int] = []
        for number, nest in enumerate([*found, None]):
            if nest is not None and nest.product is None and nest.attention is None and nest.is_launched:
                run.append(number)
                continue
            for places in form_groups([nests[i] for i in run]):
                part = [nests[run[place]] for place in places]
                others = [n for n in nests if n not in part]
                if len(part) > 1 and not isinstance(match_rows(part, others), Declined):
                    for place in places[1:]:
                        found[run[place]] = replace(found[run[place]], is_launched=False)
            run = []
        return tuple(found)

    def _find_attention(self, nests: Sequence[Nest], found: list[_Nest]) -> None:
        """Let the first nest of each attention stand for all of them."""
        for number in range(len(nests)):
            run = attention_run(nests, number)
            problem = None if run is None else find_attention(run)
            if problem is None or isinstance(problem, Declined):
                continue
            if isinstance(plan_attention(problem, self.accuracy, self.rates), Declined):
                continue
            num_bytes = sum(w.operand.num_elements * w.operand.dtype.size_bytes for w in problem.operands)
            found[number] = _Nest(None, "fma", 2 * problem.num_macs, num_bytes, 0, attention=problem)
            for other in range(number + 1, number + NUM_NESTS):
                found[other] = _Nest(None, "fma", 0, 0, 1, is_launched=False)

    def _find_made_products(
        self, nests: Sequence[Nest], found: list[_Nest], constants: Mapping[OperandKey, Array]
    ) -> None:
        """Let a product stand for the nests before it, too, that make its factor in the same kernel."""
        for number in range(len(nests)):
            for maker, place in made_chains(nests, number) if found[number].is_launched else ():
                nest = nests[place]
                product = match_made_product(maker, nest, constants)
                if isinstance(product, Declined):
                    continue
                if isinstance(made_choice(product, nest, self.accuracy, self.rates), Declined):
                    continue
                kept = [o for o in operands_of([maker, nest]) if o.key != maker.write.operand.key]
                num_bytes = sum(o.num_elements * o.dtype.size_bytes for o in kept)
                found[place] = replace(found[place], product=product, num_bytes=num_bytes)
                for other in range(number, place):
                    found[other] = _Nest(None, "fma", 0, 0, 1, is_launched=False)
                break

    def _nest(self, nest: Nest, constants: Mapping[OperandKey, Array]) -> _Nest:
        num_bytes = sum(o.num_elements * o.dtype.size_bytes for o in operands_of([nest]))
        flop = nest.num_iterations * sum(
            FUNCTIONS[part.function].cost_flop for part in nest.body.walk() if isinstance(part, Call)
        )
        product = match_product(nest, constants)
        if not isinstance(product, Declined):
            return _Nest(product, product.kind(self.accuracy), flop, num_bytes, 0)
        linear = linearise(nest, {})
        if isinstance(linear, Declined):
            return _Nest(None, "fma", flop, num_bytes, 1)
        plan = plan_loops(simplify(linear))
        per_item = {"thread": 1, "warp": WARP, "block": plan.num_threads}[plan.workers]
        return _Nest(None, "fma", flop, num_bytes, plan.num_items * per_item)
