"""What runs the threads of an emulated kernel: fibers, barriers, collectives of warps, copies, bounds.

One module of LLVM IR, which every library of emulated kernels links. A thread runs until it waits: at a
barrier for its block, at a collective (`mma`, `ldmatrix`, shuffles) for its warp. When no lane of a warp can
go on, what they wait for is computed for all of them at once. Nothing else keeps lanes of a warp together.
"""

from __future__ import annotations

from functools import partial

from tilewright.targets.cuda.emulated.collectives import FIRST_OF_WHOLE_WARPS, PRODUCTS, Collectives
from tilewright.targets.cuda.emulated.records import (
    AT_BARRIER,
    AT_COLLECTIVE,
    COMMITTED,
    COPY_BYTES,
    DIVERGED,
    DONE,
    FAULT,
    MAX_COPIES,
    MIXED,
    NEWEST,
    NOT_ALIGNED,
    NUMBER,
    OLDEST,
    OPERATION,
    OUT_OF_RANGE,
    OVERFLOW,
    READY,
    RECORD_BYTES,
    SPACE_SHIFT,
    STACK_BYTES,
    STATE,
    TID,
    TOO_MANY_COPIES,
    WRITES,
)
from tilewright.targets.llvm.emitter import Param
from tilewright.targets.llvm.values import FLOAT, I1, I32, I64, PTR, Int, Operand, Type, Val, vec

# What a thread keeps over a switch, as its processor's convention says (System V, x86-64).
_KEPT = ("%rbp", "%rbx", "%r12", "%r13", "%r14", "%r15")
_SWITCH = "; ".join(
    [
        *(f"pushq {register}" for register in _KEPT),
        "movq %rsp, (%rdi); movq %rsi, %rsp",
        *(f"popq {register}" for register in reversed(_KEPT)),
        "retq",
    ]
)
_CANARY = 0x0123456789ABCDEF
_GLOBALS = ("emu_current", "emu_launch", "emu_kernel", "emu_arguments", "emu_scheduler")


def runtime_text() -> str:
    """The module."""
    return _Runtime().module()


class _Runtime(Collectives):
    def module(self) -> str:
        self._globals |= {f"@{name}": "global ptr null" for name in _GLOBALS}
        self._globals["@emu_grid"] = "global [9 x i32] zeroinitializer"
        # Kernels that are not optimised for it round to bfloat16 by a function.
        with self.function("__truncsfbf2", [Param("x", FLOAT)], result=vec("bfloat")) as (value,):
            self.ret(self.from_float(value, "bfloat"))
        self._threads()
        self._bounds()
        self._copies()
        self._ldmatrix()
        self._shuffle()
        for number, product in enumerate(PRODUCTS):
            self._product(number, product)
        self._collective()
        self._warp()
        self._blocks()
        return self.text() + (
            "define internal void @switch(ptr %save, ptr %to) naked noinline {\n"
            f'  call void asm sideeffect "{_SWITCH}", "~{{memory}}"()\n  unreachable\n}}\n'
        )

    # Threads.

    def _threads(self) -> None:
        with self.function("emu_wait", [Param("state", I64), Param("operation", I64)]) as (state, operation):
            thread = self.known("current")
            self.put(state, thread, STATE)
            self.put(operation, thread, OPERATION)
            self.switch(thread, self.known("scheduler"))
        with self.function("start"):
            self.line(f"call void {self.known('kernel')}({self.known('arguments').typed})")
            self.call("emu_wait", [Val(str(DONE), I64), Val("0", I64)], declare=False)
        with self.function("prepare", [Param("n", I64)]) as (number,):
            record = self.record(self.pointer("records"), number)
            self.fill(record, 0, RECORD_BYTES)
            stack = self.gep(self.pointer("stacks"), self.mul(number, STACK_BYTES))
            self.put(_CANARY, stack)
            # What the first switch takes off the stack: kept registers, and where it goes on.
            frame = self.gep(stack, STACK_BYTES - 64)
            self.fill(frame, 0, 64)
            self.put(Val("@start", PTR), stack, STACK_BYTES - 16)
            self.put(frame, record)
            x, y = self.field("block_x"), self.field("block_y")
            rest = self.udiv(number, x)
            for axis, index in enumerate((self.urem(number, x), self.urem(rest, y), self.udiv(rest, y))):
                self.put(index, record, TID + 8 * axis)
            self.put(number, record, NUMBER)

    def _warp(self) -> None:
        """Run the lanes of a warp until all are at a barrier or done: 1, 0, or -1 after a fault."""
        with self.function("warp", [Param("first", PTR), Param("count", I64)], result=I64) as (first, count):
            order = self.pointer("lane_order")

            def resume(number: Val) -> None:
                thread = self.record(first, number)
                self.store(thread, Val("@emu_current", PTR))
                self.switch(Val("@emu_scheduler", PTR), self.get(thread, 0, PTR))
                failed = self.icmp("eq", self.get(thread, STATE), FAULT)
                self.if_(failed, lambda: self.ret(Val("-1", I64)))

            def lane(place: Int, _: list[Val]) -> None:
                number = self.item(order, place)
                exists = self.icmp("slt", number, count)
                number = self.select(exists, number, 0)
                ready = self.icmp("eq", self.get(self.record(first, number), STATE), READY)
                self.if_(self.and_(exists, ready), lambda: resume(number))

            def tally(place: Int, so_far: list[Val]) -> list[Val]:
                collective, barrier, most, least = so_far
                thread = self.record(first, place)
                state, operation = self.get(thread, STATE), self.get(thread, OPERATION)
                at = self.icmp("eq", state, AT_COLLECTIVE)
                waits = self.icmp("eq", state, AT_BARRIER)
                return [
                    self.iadd(collective, self.cast("zext", at, "i64")),
                    self.iadd(barrier, self.cast("zext", waits, "i64")),
                    self.smax(most, self.select(at, operation, -1)),
                    self.smin(least, self.select(at, operation, 1 << 32)),
                ]

            def wake(place: Int, _: list[Val]) -> None:
                thread = self.record(first, place)
                waits = self.icmp("eq", self.get(thread, STATE), AT_COLLECTIVE)
                self.if_(waits, lambda: self.put(READY, thread, STATE))

            def round_(_: list[Val]) -> tuple[Val, list[Operand]]:
                self.loop(0, 32, 1, lane)
                start: list[tuple[Type, Operand]] = [(I64, 0), (I64, 0), (I64, -1), (I64, 1 << 32)]
                collective, barrier, most, least = self.loop(0, count, 1, tally, start, nonempty=True)
                some = self.icmp("ne", barrier, 0)
                none = self.icmp("eq", collective, 0)
                self.if_(none, lambda: self.ret(self.cast("zext", some, "i64")))
                partly = self.and_(
                    self.icmp("ne", collective, 32), self.icmp("sge", most, FIRST_OF_WHOLE_WARPS)
                )
                mixed = self.or_(self.or_(some, partly), self.icmp("ne", most, least))

                def diverged() -> None:
                    self.set_fields(fault=DIVERGED, fault_thread=self.get(first, NUMBER))
                    self.ret(Val("-1", I64))

                self.if_(mixed, diverged)
                fine = self.call("collective", [first, count, most], I1, declare=False)
                assert fine is not None
                self.if_(self.not_(fine), lambda: self.ret(Val("-1", I64)))
                self.loop(0, count, 1, wake, nonempty=True)
                return Val("true", I1), []

            self.do_while(round_)
            self.ret(Val("0", I64))

    def _blocks(self) -> None:
        """Run the blocks of a launch: 0, or 1 after a fault."""
        parameters = [Param("kernel", PTR), Param("arguments", PTR), Param("launch", PTR)]
        with self.function("emu_run", parameters, result=I32) as given:
            for value, name in zip(given, ("kernel", "arguments", "launch"), strict=True):
                self.store(value, Val(f"@emu_{name}", PTR))
            grid = Val("@emu_grid", PTR)
            sizes = [self.field(f"{what}_{axis}") for what in ("block", "grid") for axis in "xyz"]
            for place, size in enumerate(sizes):
                self.put(self.cast("trunc", size, "i32"), grid, 12 + 4 * place)
            x, y = sizes[3], sizes[4]
            threads, records = self.field("num_threads"), self.pointer("records")
            warps = self.udiv(self.iadd(threads, 31), 32)

            def fault(**told: Operand) -> None:
                self.set_fields(**told)
                self.ret(Val("1", I32))

            def warp(place: Int, waiting: list[Val]) -> list[Val]:
                first = self.mul(self.item(self.pointer("warp_order"), place), 32)
                count = self.index(self.min(self.sub(threads, first), 32))
                status = self.call("warp", [self.record(records, first), count], I64, declare=False)
                assert status is not None
                self.if_(self.icmp("slt", status, 0), lambda: fault())
                return [self.or_(waiting[0], status)]

            def release(number: Int, barrier: list[Val]) -> list[Operand]:
                """Let a thread go on, which must be at the same barrier as the one before."""
                thread = self.record(records, number)

                def one() -> list[Operand]:
                    own = self.get(thread, OPERATION)
                    fits = self.or_(self.icmp("eq", barrier[0], -1), self.icmp("eq", barrier[0], own))
                    self.if_(self.not_(fits), lambda: fault(fault=MIXED, fault_thread=self.index(number)))
                    self.put(READY, thread, STATE)
                    return [own]

                waits = self.icmp("eq", self.get(thread, STATE), AT_BARRIER)
                return [*self.if_(waits, one, lambda: [barrier[0]], [I64])]

            def round_(_: list[Val]) -> tuple[Val, list[Operand]]:
                (waiting,) = self.loop(0, warps, 1, warp, [(I64, 0)], nonempty=True)
                self.loop(0, threads, 1, release, [(I64, -1)], nonempty=True)
                self.set_fields(epoch=self.iadd(self.field("epoch"), 1))
                return self.icmp("ne", waiting, 0), []

            def canary(number: Int, _: list[Val]) -> None:
                stack = self.gep(self.pointer("stacks"), self.mul(number, STACK_BYTES))
                whole = self.icmp("eq", self.get(stack), _CANARY)
                self.if_(self.not_(whole), lambda: fault(fault=OVERFLOW, fault_thread=self.index(number)))

            def prepare(number: Int, _: list[Val]) -> None:
                self.call("prepare", [self.index(number)], declare=False)

            def clear(number: Int, _: list[Val]) -> None:
                array = self.gep(self.pointer("shared"), self.mul(number, 16))
                self.fill(self.get(array, 0, PTR), -1, self.get(array, 8))

            def block(place: Int, _: list[Val]) -> None:
                number = self.item(self.pointer("block_order"), place)
                self.set_fields(fault_block=number)
                rest = self.udiv(number, x)
                for axis, index in enumerate((self.urem(number, x), self.urem(rest, y), self.udiv(rest, y))):
                    self.put(self.cast("trunc", self.index(index), "i32"), grid, 4 * axis)
                self.loop(0, self.field("num_shared"), 1, clear)
                self.loop(0, threads, 1, prepare)
                self.do_while(round_)
                self.loop(0, threads, 1, canary)

            self.loop(0, self.field("num_blocks"), 1, block)
            self.ret(Val("0", I32))

    # Accesses.

    def _bounds(self) -> None:
        """`find`: whether an access lies in one of the launch's ranges, which its slot keeps then."""
        names = ("site", "address", "size", "align", "flags")
        parameters = [*(Param(name, I64) for name in names), Param("slot", PTR)]
        with self.function("find", [*parameters, Param("thread", I64)], result=I1) as given:
            site, address, size, align, flags, slot, thread = given
            end = self.iadd(address, size)

            def fault(kind: int, told: Val) -> None:
                self.set_fields(fault=kind, fault_thread=thread, fault_site=site)
                self.set_fields(fault_address=address, fault_bytes=told)
                self.ret(Val("false", I1))

            def within(low: Val, high: Val) -> Val:
                return self.and_(self.icmp("sge", address, low), self.icmp("sle", end, high))

            odd = self.icmp("ne", self.and_(address, self.isub(align, 1)), 0)
            self.if_(odd, lambda: fault(NOT_ALIGNED, align))
            self.if_(within(self.get(slot), self.get(slot, 8)), lambda: self.ret(Val("true", I1)))
            space, writes = self.lshr(flags, SPACE_SHIFT), self.and_(flags, WRITES)
            generic = self.icmp("eq", space, 0)

            def found(low: Val, high: Val) -> None:
                def remember() -> None:
                    self.put(low, slot)
                    self.put(high, slot, 8)

                note = partial(self.note, site, thread, address)
                self.if_(self.is_traced(), note, remember)
                self.ret(Val("true", I1))

            def look(number: Int, _: list[Val]) -> None:
                entry = self.gep(self.pointer("ranges"), self.mul(number, 24))
                low, high, kind = (self.get(entry, 8 * place) for place in range(3))
                fits = self.or_(self.icmp("eq", self.lshr(kind, SPACE_SHIFT), space), generic)
                may = self.icmp("eq", self.and_(kind, writes), writes)
                self.if_(self.and_(self.and_(within(low, high), fits), may), lambda: found(low, high))

            self.loop(0, self.field("num_ranges"), 1, look)
            # What a thread has of its own lies on its stack.
            low = self.iadd(self.field("stacks"), self.imul(thread, STACK_BYTES))
            own = self.and_(within(low, self.iadd(low, STACK_BYTES)), generic)
            self.if_(own, lambda: self.ret(Val("true", I1)))
            fault(OUT_OF_RANGE, size)
        with self.function("emu_check", parameters) as given:
            thread = self.get(self.known("current"), NUMBER)
            fine = self.call("find", [*given, thread], I1, declare=False)
            assert fine is not None
            self.if_(self.not_(fine), self._give_up)

        with self.function("emu_fence", [Param("site", I64)]) as (site,):
            thread = self.get(self.known("current"), NUMBER)
            self.if_(self.is_traced(), partial(self.note, site, thread, Val("0", I64)))

    def _give_up(self) -> None:
        """Leave the running thread after a fault."""
        self.call("emu_wait", [Val(str(FAULT), I64), Val("0", I64)], declare=False)

    # Asynchronous copies: in a queue of each thread, if they are to be late.

    def _copies(self) -> None:
        parameters = [Param("to", PTR), Param("of", PTR), Param("size", I64), Param("valid", I64)]
        with self.function("copy", parameters) as (to, of, size, valid):

            def parts() -> None:
                self.fill(to, 0, size)
                self.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
                self.line(
                    f"call void @llvm.memcpy.p0.p0.i64({to.typed}, {of.typed}, {valid.typed}, i1 false)"
                )

            def whole() -> None:
                self.store(self.load(vec("i32", 4), of, align_bytes=16), to, align_bytes=16)

            self.if_(self.icmp("eq", valid, 16), whole, parts)
        with self.function("emu_copy", parameters) as given:

            def now() -> None:
                self.call("copy", given, declare=False)

            def push() -> None:
                thread = self.known("current")
                newest = self.get(thread, NEWEST)
                full = self.icmp("sge", self.isub(newest, self.get(thread, OLDEST)), MAX_COPIES)

                def refuse() -> None:
                    self.set_fields(fault=TOO_MANY_COPIES, fault_thread=self.get(thread, NUMBER))
                    self._give_up()

                self.if_(full, refuse)
                entry = self._entry(thread, newest)
                for place, value in enumerate((*given, self.get(thread, COMMITTED))):
                    self.put(value, entry, 8 * place)
                self.put(self.iadd(newest, 1), thread, NEWEST)

            late = self.icmp("ne", self.field("is_late"), 0)
            self.if_(late, push, now)
        with self.function("emu_commit"):
            thread = self.known("current")
            self.put(self.iadd(self.get(thread, COMMITTED), 1), thread, COMMITTED)
        with self.function("emu_wait_group", [Param("allowed", I64)]) as (allowed,):
            thread = self.known("current")
            limit = self.isub(self.get(thread, COMMITTED), allowed)

            def next_(_: list[Val]) -> tuple[Val, list[Operand]]:
                oldest = self.get(thread, OLDEST)
                entry = self._entry(thread, oldest)
                left = self.icmp("slt", oldest, self.get(thread, NEWEST))
                due = self.and_(left, self.icmp("slt", self.get(entry, 32), limit))

                def do() -> None:
                    ends = [self.get(entry, 0, PTR), self.get(entry, 8, PTR)]
                    self.call("copy", [*ends, self.get(entry, 16), self.get(entry, 24)], declare=False)
                    self.put(self.iadd(oldest, 1), thread, OLDEST)

                self.if_(due, do)
                return due, []

            self.do_while(next_)

    def _entry(self, thread: Val, number: Val) -> Val:
        place = self.add(self.mul(self.get(thread, NUMBER), MAX_COPIES), self.urem(number, MAX_COPIES))
        return self.gep(self.pointer("copies"), self.mul(place, COPY_BYTES))
