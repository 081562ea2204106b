"""What runs the threads of an emulated kernel: fibers, barriers, collectives of warps, copies, bounds.

One module of LLVM IR, which every library of emulated kernels links. A thread runs until it waits: at a
barrier for its block, at a collective (`mma`, `ldmatrix`, shuffles) for its warp. When no lane of a warp can
go on, what they wait for is computed for all of them at once. Nothing else keeps lanes of a warp together.
"""

from __future__ import annotations

from functools import partial

from tilewright.records import dataclass
from tilewright.targets.llvm.emitter import Emitter, Param
from tilewright.targets.llvm.values import FLOAT, I1, I16, I32, I64, PTR, Int, Operand, Type, Val, vec

STACK_BYTES = 64 * 1024
MAX_COPIES = 256
"""Copies of one thread that may be under way."""

# A thread's record, in bytes: its stack pointer first.
STATE, OPERATION, TID, NUMBER, OPERANDS, RESULTS = 8, 16, 24, 48, 64, 192
COMMITTED, OLDEST, NEWEST = 216, 224, 232
RECORD_BYTES = 256
COPY_BYTES = 40  # target, source, group, bytes, bytes that are copied

READY, AT_COLLECTIVE, AT_BARRIER, DONE, FAULT = range(5)

# What a launch is told and tells, 64 bits each.
FIELDS = (
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "num_threads",
    "block_order", "num_blocks", "warp_order", "lane_order", "stacks", "records", "copies", "is_late",
    "shared", "num_shared", "ranges", "num_ranges", "trace", "trace_capacity", "trace_length", "epoch",
    "fault", "fault_site", "fault_address", "fault_thread", "fault_block", "fault_bytes",
)  # fmt: skip
FIELD = {name: number for number, name in enumerate(FIELDS)}

# Kinds of faults.
OUT_OF_RANGE, NOT_ALIGNED, DIVERGED, MIXED, TOO_MANY_COPIES, ABSENT, OVERFLOW = range(1, 8)

# Flags of accesses and of ranges: an access goes to a space (0: any), a range lies in one.
WRITES = 1
SPACE_SHIFT = 1

SHARED = 3

# Collectives: from the second on, all lanes of a warp must take part.
BARRIER_WARP, SHUFFLE, LDMATRIX, MMA = 0, 1, 16, 32
FIRST_OF_WHOLE_WARPS = LDMATRIX


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the warp, 16 x 8 x `depth`: `per_word` elements lie in 32 bits."""

    suffix: str
    depth: int
    per_word: int
    element: str
    is_signed: tuple[bool, bool] = (True, True)

    @property
    def num_a(self) -> int:
        """Registers of A of a thread."""
        return self.depth // (2 * self.per_word)

    @property
    def num_b(self) -> int:
        """Registers of B of a thread."""
        return self.depth // (4 * self.per_word)

    @property
    def sum_type(self) -> str:
        """LLVM's type of the sums."""
        return "i32" if self.element == "i8" else "float"

    @property
    def argument_types(self) -> tuple[str, ...]:
        """What the intrinsic takes: A, B, sums."""
        operand = "<2 x half>" if self.element == "half" else "i32"
        return (*(operand,) * (self.num_a + self.num_b), *(self.sum_type,) * 4)


PRODUCTS = (
    Product("m16n8k8.row.col.f32.f32", 8, 2, "half"),
    Product("m16n8k16.row.col.f32.f32", 16, 2, "half"),
    Product("m16n8k8.row.col.bf16", 8, 2, "bfloat"),
    Product("m16n8k16.row.col.bf16", 16, 2, "bfloat"),
    Product("m16n8k4.row.col.tf32", 4, 1, "float"),
    Product("m16n8k8.row.col.tf32", 8, 1, "float"),
    Product("m16n8k16.row.col.s8", 16, 4, "i8"),
    Product("m16n8k32.row.col.s8", 32, 4, "i8"),
    Product("m16n8k32.row.col.u8", 32, 4, "i8", (False, False)),
    Product("m16n8k32.row.col.s8.u8", 32, 4, "i8", (True, False)),
    Product("m16n8k32.row.col.u8.s8", 32, 4, "i8", (False, True)),
)
SHUFFLES = ("up", "down", "bfly", "idx")


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


class _Runtime(Emitter):
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

    # Words of records, launches and globals.

    def get(self, pointer: Val, offset: Int = 0, type: Type = I64) -> Val:
        return self.load(type, self.gep(pointer, offset), align_bytes=min(4, type.element_bytes))

    def put(self, value: Operand, pointer: Val, offset: Int = 0) -> None:
        value = value if isinstance(value, Val) else Val(str(value), I64)
        self.store(value, self.gep(pointer, offset), align_bytes=min(4, value.type.element_bytes))

    def known(self, name: str) -> Val:
        """A global pointer."""
        return self.load(PTR, Val(f"@emu_{name}", PTR))

    def field(self, name: str) -> Val:
        """A field of the launch."""
        return self.get(self.known("launch"), 8 * FIELD[name])

    def pointer(self, name: str) -> Val:
        """A field of the launch that is an address."""
        return self.get(self.known("launch"), 8 * FIELD[name], PTR)

    def set_fields(self, **values: Operand) -> None:
        for name, value in values.items():
            self.put(value, self.known("launch"), 8 * FIELD[name])

    def record(self, first: Val, number: Int) -> Val:
        """The record of a thread behind the first one's."""
        return self.gep(first, self.mul(number, RECORD_BYTES))

    def switch(self, save: Val, to: Val) -> None:
        self.line(f"call void @switch({save.typed}, {to.typed})")

    def item(self, array: Val, place: Int) -> Val:
        """An entry of an order, 32 bits each."""
        return self.cast("zext", self.load(I32, self.gep(array, place, "i32")), "i64")

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

    def fill(self, pointer: Val, byte: int, size_bytes: Int) -> None:
        self.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        self.line(f"call void @llvm.memset.p0.i64({pointer.typed}, i8 {byte}, i64 {size_bytes}, i1 false)")

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

                note = partial(self._note, site, thread, address)
                self.if_(self._is_traced(), note, remember)
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
            self.if_(self._is_traced(), partial(self._note, site, thread, Val("0", I64)))

    def _is_traced(self) -> Val:
        return self.op(f"icmp ne ptr {self.pointer('trace')}, null", I1)

    def _note(self, site: Val, thread: Val, address: Val) -> None:
        """Write an access, or a fence, to the trace."""
        length = self.field("trace_length")
        self.set_fields(trace_length=self.iadd(length, 1))

        def write() -> None:
            entry = self.gep(self.pointer("trace"), self.mul(length, 32))
            for place, value in enumerate((site, thread, address, self.field("epoch"))):
                self.put(value, entry, 8 * place)

        self.if_(self.icmp("slt", length, self.field("trace_capacity")), write)

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

    # What warps do together.

    def _collective(self) -> None:
        parameters = [Param("first", PTR), Param("count", I64), Param("operation", I64)]
        with self.function("collective", parameters, result=I1) as (first, count, operation):

            def case(number: int, name: str, arguments: list[Val]) -> None:
                def answer() -> None:
                    fine = self.call(name, arguments, I1, declare=False)
                    self.ret(fine)

                self.if_(self.icmp("eq", operation, number), answer)

            for number in range(len(PRODUCTS)):
                case(MMA + number, f"mma{number}", [first])
            for matrices in (1, 2, 4):
                for across in range(2):
                    arguments = [first, Val(str(matrices), I64), Val(str(across), I1)]
                    case(LDMATRIX + matrices + 8 * across, "ldmatrix", arguments)
            for mode in range(len(SHUFFLES)):
                case(SHUFFLE + mode, "shuffle", [first, count, Val(str(mode), I64)])
            self.ret(Val("true", I1))

    def _ldmatrix(self) -> None:
        """Lane 8 m + r gives the address of row r of matrix m, whose words go to lanes 4 r + word; across,
        its element c goes to half r % 2 of lane 4 c + r / 2."""
        parameters = [Param("first", PTR), Param("count", I64), Param("across", I1)]
        with self.function("ldmatrix", parameters, result=I1) as (first, count, across):

            def row(place: Int, _: list[Val]) -> None:
                matrix, r = self.udiv(place, 8), self.urem(place, 8)
                giver = self.record(first, place)
                address, site = self.get(giver, OPERANDS), self.get(giver, OPERANDS + 8)
                asked = [Val(str(n), I64) for n in (16, 16, SHARED << SPACE_SHIFT)]
                told = [site, address, *asked, self.get(giver, OPERANDS + 16, PTR), self.get(giver, NUMBER)]
                fine = self.call("find", told, I1, declare=False)
                assert fine is not None
                self.if_(self.not_(fine), lambda: self.ret(Val("false", I1)))
                source = self.get(giver, OPERANDS, PTR)
                result = self.add(self.mul(matrix, 4), RESULTS)

                def along() -> None:
                    for word in range(4):
                        lane = self.record(first, self.add(self.mul(r, 4), word))
                        self.put(self.get(source, 4 * word, I32), lane, result)

                def transposed() -> None:
                    half = self.add(result, self.mul(self.urem(r, 2), 2))
                    for column in range(8):
                        lane = self.record(first, self.add(self.udiv(r, 2), 4 * column))
                        self.put(self.get(source, 2 * column, I16), lane, half)

                self.if_(across, transposed, along)

            self.loop(0, self.mul(count, 8), 1, row, nonempty=True)
            self.ret(Val("true", I1))

    def _shuffle(self) -> None:
        """The rules of PTX's `shfl.sync`: which lane a value comes from."""
        parameters = [Param("first", PTR), Param("count", I64), Param("mode", I64)]
        with self.function("shuffle", parameters, result=I1) as (first, count, mode):

            def lane(place: Int, _: list[Val]) -> None:
                i, record = self.index(place), self.record(first, place)

                def give() -> None:
                    mask, b, c = (
                        self.cast("zext", self.get(record, OPERANDS + offset, I32), "i64")
                        for offset in (0, 8, 12)
                    )
                    b, segment = self.and_(b, 31), self.and_(self.lshr(c, 8), 31)
                    inverse = self.xor(segment, 31)
                    least = self.and_(i, segment)
                    most = self.or_(least, self.and_(self.and_(c, 31), inverse))
                    up = self.isub(i, b)
                    lanes = [up, self.iadd(i, b), self.xor(i, b), self.or_(least, self.and_(b, inverse))]
                    fits = [
                        self.icmp("sge", up, most),
                        *(self.icmp("sle", other, most) for other in lanes[1:]),
                    ]
                    giver = i
                    for number, (other, is_in) in enumerate(zip(lanes, fits, strict=True)):
                        chosen = self.and_(self.icmp("eq", mode, number), is_in)
                        giver = self.select(chosen, other, giver)
                    exists = self.icmp("slt", giver, count)
                    source = self.record(first, self.select(exists, giver, 0))
                    here = self.icmp("eq", self.get(source, STATE), AT_COLLECTIVE)
                    named = self.and_(self.lshr(mask, giver), self.lshr(mask, i))
                    named = self.icmp("eq", self.and_(named, 1), 1)

                    def absent() -> None:
                        self.set_fields(fault=ABSENT, fault_thread=self.get(record, NUMBER))
                        self.ret(Val("false", I1))

                    self.if_(self.not_(self.and_(self.and_(exists, here), named)), absent)
                    self.put(self.get(source, OPERANDS + 4, I32), record, RESULTS)

                self.if_(self.icmp("eq", self.get(record, STATE), AT_COLLECTIVE), give)

            self.loop(0, count, 1, lane, nonempty=True)
            self.ret(Val("true", I1))

    def _product(self, number: int, product: Product) -> None:
        """`mma`: operands of all lanes become two matrices of float32 (of integers: of 32 bits), whose
        product is added up in the order of their depth."""
        depth, per_word = product.depth, product.per_word
        single = vec(product.sum_type)
        with self.function(f"mma{number}", [Param("first", PTR)], result=I1) as (first,):
            a, b, c = (self.alloca(single, 8 * n) for n in (2 * depth, depth, 16))

            def at(matrix: Val, row: Int, column: Int, width: int) -> Val:
                return self.gep(matrix, self.add(self.mul(row, width), column), single.element)

            def gather(lane: Int, _: list[Val]) -> None:
                record, g, t = self.record(first, lane), self.udiv(lane, 4), self.urem(lane, 4)
                for r in range(product.num_a):
                    word = self._widened(product, self.gep(record, OPERANDS + 4 * r), is_a=True)
                    column = self.add(self.mul(t, per_word), 4 * per_word * (r // 2))
                    self.store(word, at(a, self.add(g, 8 * (r % 2)), column, depth))
                for r in range(product.num_b):
                    offset = OPERANDS + 4 * (product.num_a + r)
                    word = self._widened(product, self.gep(record, offset), is_a=False)
                    for i in range(per_word):
                        row = self.add(self.mul(t, per_word), 4 * per_word * r + i)
                        self.store(self.extract(word, i), at(b, row, g, 8))
                for half in range(2):
                    offset = OPERANDS + 4 * (product.num_a + product.num_b) + 8 * half
                    sums = self.load(single.with_lanes(2), self.gep(record, offset))
                    self.store(sums, at(c, self.add(g, 8 * half), self.mul(t, 2), 8))

            def multiply(row: Int, _: list[Val]) -> None:
                wide = single.with_lanes(8)
                total = self.load(wide, at(c, row, 0, 8))
                for k in range(depth):
                    x, y = self.broadcast_load(wide, at(a, row, k, depth)), self.load(wide, at(b, k, 0, 8))
                    total = self.fma(x, y, total) if single.is_float else self.iadd(total, self.imul(x, y))
                self.store(total, at(c, row, 0, 8))

            def scatter(lane: Int, _: list[Val]) -> None:
                record, g, t = self.record(first, lane), self.udiv(lane, 4), self.urem(lane, 4)
                for half in range(2):
                    sums = self.load(single.with_lanes(2), at(c, self.add(g, 8 * half), self.mul(t, 2), 8))
                    self.store(sums, self.gep(record, RESULTS + 8 * half))

            self.loop(0, 32, 1, gather)
            self.loop(0, 16, 1, multiply)
            self.loop(0, 32, 1, scatter)
            self.ret(Val("true", I1))

    def _widened(self, product: Product, pointer: Val, *, is_a: bool) -> Val:
        """A register's elements in the type of the sums; tf32 keeps 10 bits of the fraction."""
        element, lanes = product.element, product.per_word
        if element == "float":
            return self.bitcast(self.and_(self.load(I32, pointer), -8192), FLOAT)
        if element == "i8":
            is_signed = product.is_signed[0 if is_a else 1]
            return self.cast("sext" if is_signed else "zext", self.load(vec("i8", lanes), pointer), "i32")
        if element == "bfloat":
            bits = self.cast("zext", self.load(vec("i16", lanes), pointer), "i32")
            return self.bitcast(self.shl(bits, 16), vec("float", lanes))
        return self.cast("fpext", self.load(vec("half", lanes), pointer), "float")
