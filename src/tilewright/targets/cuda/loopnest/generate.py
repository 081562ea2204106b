"""One kernel from one nest: a thread, a warp or a block finds its element and runs the loops left over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tilewright.ir.nest import Nest, Operand, operands_of
from tilewright.targets.cuda.emitter import WARP, CudaEmitter
from tilewright.targets.cuda.kernel import Kernel, KernelArg, ReportsOperand
from tilewright.targets.cuda.loopnest.plan import LoopPlan, aligned_lanes, plan_loops
from tilewright.targets.llvm.exprgen import (
    accumulate,
    combine_values,
    compute_type,
    from_storage,
    neutral_value,
    storage_type,
    stored_literal,
    unsupported_function,
)
from tilewright.targets.llvm.frame import Frame, Reports
from tilewright.targets.llvm.layout import Declined, IndexCheck
from tilewright.targets.llvm.loads import inside_lanes, load_read
from tilewright.targets.llvm.module_text import name_by_content
from tilewright.targets.llvm.refs import Guard, LinearNest, Ref, linearise, simplify
from tilewright.targets.llvm.values import Int, Val

_MAX_CHAIN_STEPS = 384
_BLOCK_STEPS = 256
"""Longer sums of one thread are sums of blocks of so many steps: errors grow with the length of a chain."""


def lower_loops(nest: Nest) -> Kernel | Declined:
    """The kernel of a nest."""
    for expr in (nest.body, nest.init, nest.finish):
        reason = None if expr is None else unsupported_function(expr)
        if reason is not None:
            return Declined(reason)
    linear = linearise(nest, {})
    if isinstance(linear, Declined):
        return linear
    linear = simplify(linear)
    plan = plan_loops(linear)
    operands = [o for o in operands_of([nest]) if any(r.operand.key == o.key for r in linear.all_refs())]
    checks = _checks(linear)
    args: list[KernelArg] = [*operands, *([ReportsOperand()] if checks else [])]
    emitter = CudaEmitter()
    with emitter.kernel(len(args), plan.num_threads) as pointers:
        _LoopKernel(emitter, linear, plan, operands, pointers, checks).emit()
    symbol, text = name_by_content(emitter.text(), "loops")
    return Kernel(
        symbol,
        text,
        (plan.num_blocks, 1, 1),
        (plan.num_threads, 1, 1),
        tuple(args),
        (nest.write.operand.key,),
        "loop-nest",
        shared_bytes=_shared_bytes(linear, plan),
        notes=(f"{plan.lanes} lanes a thread",) if plan.lanes > 1 else (f"a {plan.workers} an element",),
        checks=checks,
    )


def _checks(nest: LinearNest) -> tuple[IndexCheck, ...]:
    terms = (term for ref in nest.all_refs() for term in ref.data)
    return tuple(dict.fromkeys(term.check for term in terms if term.check is not None))


def _shared_bytes(nest: LinearNest, plan: LoopPlan) -> int:
    if plan.workers != "block":
        return 0
    return plan.num_threads // WARP * storage_type(nest.body.result).element_bytes


class NestCode:
    """What threads do with one nest once the loops around it are bound."""

    def __init__(self, emitter: CudaEmitter, nest: LinearNest, num_threads: int) -> None:
        self.e, self.nest, self.num_threads = emitter, nest, num_threads

    def alone(self, frame: Frame) -> None:
        """One thread computes its element, or its neighbours, with all steps of its sum."""
        frame.store(self.total(frame))

    def total(self, frame: Frame) -> Val:
        """The element, or its neighbours, by one thread."""
        nest = self.nest
        if nest.combine is None:
            return frame.value(nest.body)
        frame.hoist(nest.body)
        first = self._neutral(frame.lanes) if nest.init is None else frame.value(nest.init)
        total = self._loops(frame, [d.name for d in nest.reduce], first)
        return total if nest.finish is None else frame.value(nest.finish, total)

    def together(self, frame: Frame, number: Int, num_workers: int, partials: Val | None) -> None:
        """So many threads share the steps of one sum, of which this one is the `number`-th; more than a warp
        leave those of warps in a shared array."""
        e = self.e
        frame.hoist(self.nest.body)
        total = e.warp_total(self._shared_loop(frame, number, num_workers), self._join)
        if partials is not None:
            total = self._block_total(number, total, partials)
        e.if_(e.compare("eq", number, 0), lambda: self._finish(frame.inner(), total))

    @property
    def partial_bytes(self) -> int:
        """Size of the shared array for the totals of a block's warps."""
        return self.num_threads // WARP * storage_type(self.nest.body.result).element_bytes

    def _neutral(self, lanes: int = 1) -> Val:
        nest = self.nest
        assert nest.combine is not None
        type = compute_type(nest.body.result, lanes)
        return self.e.constant(type, neutral_value(nest.combine, nest.body.result))

    def _finish(self, frame: Frame, total: Val) -> None:
        nest = self.nest
        if nest.init is not None:
            total = self._join(frame.value(nest.init), total)
        frame.store(total if nest.finish is None else frame.value(nest.finish, total))

    def _join(self, a: Val, b: Val) -> Val:
        assert self.nest.combine is not None
        return combine_values(self.e, self.nest.combine, self.nest.body.result, a, b)

    def _body(self, place: Frame, total: Val) -> Val:
        nest = self.nest
        assert nest.combine is not None
        return accumulate(self.e, nest.combine, nest.body.result, total, nest.body, place.value)

    def _loops(self, frame: Frame, dims: Sequence[str], total: Val) -> Val:
        """All loops of a sum, outermost first, by one thread."""
        if not dims:
            return self._body(frame, total)
        dim, *inside = dims
        extents = self.nest.extents
        extent, steps = extents[dim], prod(extents[d] for d in inside)
        is_sum = self.nest.combine == "sum" and self.nest.body.result.is_float

        def body(inner: Frame, totals: list[Val]) -> list[Val]:
            return [self._loops(inner, inside, totals[0])]

        if not is_sum or steps > _BLOCK_STEPS or extent * steps <= _MAX_CHAIN_STEPS:
            return frame.loop(dim, 0, extent, 1, body, [total])[0]
        size = max(1, _BLOCK_STEPS // steps)

        def block(start: Int, totals: list[Val]) -> list[Val]:
            end = self.e.min(self.e.add(start, size), extent)
            made = frame.loop(dim, start, end, 1, body, [self.e.zero(total.type)])
            return [self.e.fadd(totals[0], made[0])]

        return self.e.loop(0, extent, size, block, [(total.type, total)])[0]

    def _shared_loop(self, frame: Frame, number: Int, num_workers: int) -> Val:
        """The steps that fall to one of the workers that share a sum."""
        e, dims = self.e, self.nest.reduce
        extents = [d.extent for d in dims]
        neutral = self._neutral()

        def step(place: Int, totals: list[Val]) -> list[Val]:
            inner = frame.inner()
            for dim, index in zip(dims, e.digits_of(place, extents), strict=True):
                inner = inner.bind(dim.name, index)
            return [self._body(inner, totals[0])]

        return e.loop(number, prod(extents), num_workers, step, [(neutral.type, neutral)])[0]

    def _block_total(self, thread: Int, total: Val, partials: Val) -> Val:
        """The total of a block's warps, in every thread."""
        e = self.e
        stored = storage_type(self.nest.body.result)

        def at(warp: Int) -> Val:
            return e.shared_gep(partials, e.mul(warp, stored.element_bytes))

        is_bool = total.type.element == "i1"
        value = e.cast("zext", total, "i8") if is_bool else total
        first = e.compare("eq", e.urem(thread, WARP), 0)
        e.if_(first, lambda: e.shared_store(value, at(e.udiv(thread, WARP))))
        e.barrier()
        load: Callable[[Val], Val] = (lambda v: e.icmp("ne", v, 0)) if is_bool else (lambda v: v)
        made = load(e.shared_load(value.type, at(0)))
        for warp in range(1, self.num_threads // WARP):
            made = self._join(made, load(e.shared_load(value.type, at(warp))))
        return made


class _LoopKernel:
    def __init__(
        self,
        emitter: CudaEmitter,
        nest: LinearNest,
        plan: LoopPlan,
        operands: Sequence[Operand],
        pointers: Sequence[Val],
        checks: Sequence[IndexCheck],
    ) -> None:
        self.e, self.nest, self.plan = emitter, nest, plan
        self.code = NestCode(emitter, nest, plan.num_threads)
        by_key = {o.key: p for o, p in zip(operands, pointers, strict=False)}
        reports = Reports(pointers[-1] if checks else None, tuple(checks))
        places = [by_key[ref.operand.key] for ref in nest.all_refs()]
        self.start = Frame.start(emitter, nest, places, reports, self._load)
        self.vector = nest.parallel[-1].name if plan.lanes > 1 else ""

    def emit(self) -> None:
        """All threads of the grid."""
        e, plan = self.e, self.plan
        thread = e.thread()
        if plan.workers == "block":
            partials = e.shared_array(self.code.partial_bytes)
            self.code.together(self._at(e.block()), thread, plan.num_threads, partials)
            return
        number = e.add(e.mul(e.block(), plan.num_threads), thread)
        lane: Int = 0
        if plan.workers == "warp":
            lane, number = e.urem(number, WARP), e.udiv(number, WARP)
        whole = plan.num_items * (WARP if plan.workers == "warp" else 1) == plan.num_blocks * plan.num_threads

        def item() -> None:
            if plan.workers == "warp":
                self.code.together(self._at(number), lane, WARP, None)
            else:
                self.code.alone(self._at(number))

        e.if_(True if whole else e.compare("slt", number, plan.num_items), item)

    def _at(self, number: Int) -> Frame:
        """Where an item is, its parallel loops bound."""
        e, lanes, frame = self.e, self.plan.lanes, self.start.inner()
        dims = self.nest.parallel
        extents = [d.extent // (lanes if d.name == self.vector else 1) for d in dims]
        for dim, index in zip(dims, e.digits_of(number, extents), strict=True):
            if dim.name == self.vector:
                frame = frame.bind(dim.name, e.mul(index, lanes), 0, dim.extent - lanes)
                frame = frame.vectorised(dim.name, lanes)
            else:
                frame = frame.bind(dim.name, index)
        return frame

    def _load(self, frame: Frame, read: int, ref: Ref, open_guards: Sequence[Guard]) -> Val:
        """A read, sixteen bytes at once where they are neighbours and lie at a multiple of that."""
        lanes = frame.lanes
        if lanes == 1 or not frame.varies(read) or ref.tables or ref.data:
            return load_read(frame, read, ref, open_guards)
        e, dtype = frame.emitter, ref.operand.dtype
        stored = storage_type(dtype, lanes)
        align_bytes = aligned_lanes(ref, self.vector, lanes) * stored.element_bytes
        pointer = frame.pointer(read)
        # By the plan no guard tells lanes apart.
        mask = inside_lanes(frame.scalar(), ref, open_guards)
        if mask is None:
            return from_storage(e, e.load(stored, pointer, align_bytes=align_bytes), dtype)
        padding = e.constant(stored, stored_literal(0 if ref.fill is None else ref.fill, dtype))
        raw = e.if_(
            mask, lambda: [e.load(stored, pointer, align_bytes=align_bytes)], lambda: [padding], [stored]
        )
        return from_storage(e, raw[0], dtype)
