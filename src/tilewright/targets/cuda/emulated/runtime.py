"""What runs the threads of an emulated kernel: fibers, barriers, collectives of warps, copies, bounds.

One module of LLVM IR, which every library of emulated kernels links. A thread runs until it waits: at a
barrier for its block, at a collective (`mma`, `ldmatrix`, shuffles) for its warp. When no lane of a warp can
go on, what they wait for is computed for all of them at once. Nothing else keeps lanes of a warp together.
"""

from __future__ import annotations

from tilewright.records import dataclass

STACK_BYTES = 64 * 1024
MAX_COPIES = 256
"""Copies of one thread that may be under way."""

# A thread's record, in bytes: its stack pointer first.
STATE, OPERATION, TID, LANE, OPERANDS, RESULTS = 8, 12, 16, 28, 32, 160
COMMITTED, OLDEST, NEWEST = 224, 228, 232
RECORD_BYTES = 256
COPY_BYTES = 32  # target, source, group | bytes << 32, bytes that are copied

READY, AT_COLLECTIVE, AT_BARRIER, DONE, FAULT = range(5)

# What a launch is told and tells, 64 bits each.
FIELDS = (
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "num_threads",
    "block_order", "num_blocks", "warp_order", "lane_order", "stacks", "records", "copies", "is_late",
    "shared", "num_shared", "ranges", "num_ranges", "trace", "trace_capacity", "trace_length",
    "fault", "fault_site", "fault_address", "fault_thread", "fault_block", "fault_operation", "fault_bytes",
)  # fmt: skip
FIELD = {name: number for number, name in enumerate(FIELDS)}

# Kinds of faults.
OUT_OF_RANGE, NOT_ALIGNED, DIVERGED, MIXED, TOO_MANY_COPIES, ABSENT, OVERFLOW = range(1, 8)

# Flags of accesses and of ranges: an access goes to a space (0: any), a range lies in one.
WRITES = 1
SPACE_SHIFT = 1

BARRIER_WARP, LDMATRIX, SHUFFLE, MMA = 0, 1, 16, 32


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


def runtime_text() -> str:
    """The module."""
    cases = [f"i32 {BARRIER_WARP}, label %done"]
    calls = []
    for number in (1, 2, 4):
        for trans in (0, 1):
            operation = LDMATRIX + number + 8 * trans
            cases.append(f"i32 {operation}, label %l{operation}")
            calls.append(
                f"l{operation}:\n  %f{operation} = call i1 @ldmatrix(ptr %first, i32 {number}, i1 {trans})\n"
                f"  ret i1 %f{operation}"
            )
    for number in range(len(SHUFFLES)):
        cases.append(f"i32 {SHUFFLE + number}, label %s{number}")
        calls.append(
            f"s{number}:\n  %g{number} = call i1 @shuffle(ptr %first, i32 %count, i32 {number})\n"
            f"  ret i1 %g{number}"
        )
    for number in range(len(PRODUCTS)):
        cases.append(f"i32 {MMA + number}, label %m{number}")
        calls.append(f"m{number}:\n  call void @mma{number}(ptr %first)\n  ret i1 true")
    collective = (
        "define internal i1 @collective(ptr %first, i32 %count, i32 %operation) {\n"
        f"  switch i32 %operation, label %done [ {' '.join(cases)} ]\ndone:\n  ret i1 true\n"
        + "\n".join(calls)
        + "\n}\n"
    )
    products = "".join(_product(number, product) for number, product in enumerate(PRODUCTS))
    return _SCHEDULER + _BOUNDS + _COPIES + _LDMATRIX + _SHUFFLE + collective + products


def _field(name: str, value: str, *, launch: str = "%launch") -> str:
    """The instructions that read a field of the launch into `%value`."""
    return (
        f"  %{value}.in = getelementptr i64, ptr {launch}, i64 {FIELD[name]}\n"
        f"  %{value} = load i64, ptr %{value}.in\n"
    )


def _set_field(name: str, value: str, tag: str) -> str:
    return (
        f"  %{tag}.at = getelementptr i64, ptr %launch, i64 {FIELD[name]}\n"
        f"  store i64 {value}, ptr %{tag}.at\n"
    )


def _fault(kind: int, tag: str, *, operation: str = "0", thread: str = "0") -> str:
    return (
        _set_field("fault", str(kind), f"{tag}.kind")
        + _set_field("fault_operation", operation, f"{tag}.operation")
        + _set_field("fault_thread", thread, f"{tag}.thread")
    )


_KEPT = ("%rbp", "%rbx", "%r12", "%r13", "%r14", "%r15")
_SWITCH = "; ".join(
    [
        *(f"pushq {register}" for register in _KEPT),
        "movq %rsp, (%rdi); movq %rsi, %rsp",
        *(f"popq {register}" for register in reversed(_KEPT)),
        "retq",
    ]
)
_SCHEDULER = f"""
@emu_current = global ptr null
@emu_grid = global [9 x i32] zeroinitializer
@emu_launch = global ptr null
@main_stack = internal global ptr null

define internal void @switch(ptr %save, ptr %to) naked noinline {{
  call void asm sideeffect "{_SWITCH}", "~{{memory}}"()
  unreachable
}}

define void @emu_wait(i32 %state, i32 %operation) noinline {{
  %thread = load ptr, ptr @emu_current
  %state.at = getelementptr i8, ptr %thread, i64 {STATE}
  store i32 %state, ptr %state.at
  %operation.at = getelementptr i8, ptr %thread, i64 {OPERATION}
  store i32 %operation, ptr %operation.at
  %to = load ptr, ptr @main_stack
  call void @switch(ptr %thread, ptr %to)
  ret void
}}

@kernel = internal global ptr null
@arguments = internal global ptr null

define internal void @start() noinline {{
  %kernel = load ptr, ptr @kernel
  %arguments = load ptr, ptr @arguments
  call void %kernel(ptr %arguments)
  call void @emu_wait(i32 {DONE}, i32 0)
  unreachable
}}

define internal void @prepare(ptr %launch, i64 %n) {{
{_field("records", "records")}{_field("stacks", "stacks")}{_field("block_x", "x")}{_field("block_y", "y")}
  %record.offset = mul i64 %n, {RECORD_BYTES}
  %record.address = add i64 %records, %record.offset
  %record = inttoptr i64 %record.address to ptr
  call void @llvm.memset.p0.i64(ptr %record, i8 0, i64 {RECORD_BYTES}, i1 false)
  %next = add i64 %n, 1
  %stack.offset = mul i64 %next, {STACK_BYTES}
  %top.address = add i64 %stacks, %stack.offset
  %canary.offset = mul i64 %n, {STACK_BYTES}
  %canary.address = add i64 %stacks, %canary.offset
  %canary = inttoptr i64 %canary.address to ptr
  store i64 81985529216486895, ptr %canary
  %top = inttoptr i64 %top.address to ptr
  %frame = getelementptr i8, ptr %top, i64 -64
  call void @llvm.memset.p0.i64(ptr %frame, i8 0, i64 64, i1 false)
  %entry.at = getelementptr i8, ptr %top, i64 -16
  store ptr @start, ptr %entry.at
  store ptr %frame, ptr %record
  %tx = urem i64 %n, %x
  %rest = udiv i64 %n, %x
  %ty = urem i64 %rest, %y
  %tz = udiv i64 %rest, %y
  %tx.short = trunc i64 %tx to i32
  %ty.short = trunc i64 %ty to i32
  %tz.short = trunc i64 %tz to i32
  %tx.at = getelementptr i8, ptr %record, i64 {TID}
  store i32 %tx.short, ptr %tx.at
  %ty.at = getelementptr i8, ptr %record, i64 {TID + 4}
  store i32 %ty.short, ptr %ty.at
  %tz.at = getelementptr i8, ptr %record, i64 {TID + 8}
  store i32 %tz.short, ptr %tz.at
  %n.short = trunc i64 %n to i32
  %lane.at = getelementptr i8, ptr %record, i64 {LANE}
  store i32 %n.short, ptr %lane.at
  ret void
}}

define internal i32 @run_warp(ptr %launch, ptr %first, i32 %count) {{
entry:
{_field("lane_order", "order")}
  %order.at = inttoptr i64 %order to ptr
  br label %lanes
lanes:
  br label %lane
lane:
  %i = phi i64 [ 0, %lanes ], [ %i.next, %lane.end ]
  %number.at = getelementptr i32, ptr %order.at, i64 %i
  %number = load i32, ptr %number.at
  %there = icmp ult i32 %number, %count
  br i1 %there, label %live, label %lane.end
live:
  %number.long = zext i32 %number to i64
  %offset = mul i64 %number.long, {RECORD_BYTES}
  %thread = getelementptr i8, ptr %first, i64 %offset
  %state.at = getelementptr i8, ptr %thread, i64 {STATE}
  %state = load i32, ptr %state.at
  %ready = icmp eq i32 %state, {READY}
  br i1 %ready, label %resume, label %lane.end
resume:
  store ptr %thread, ptr @emu_current
  %to = load ptr, ptr %thread
  call void @switch(ptr @main_stack, ptr %to)
  %state.now = load i32, ptr %state.at
  %failed = icmp eq i32 %state.now, {FAULT}
  br i1 %failed, label %fault, label %lane.end
lane.end:
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, 32
  br i1 %more, label %lane, label %count.lanes
count.lanes:
  br label %sum
sum:
  %j = phi i32 [ 0, %count.lanes ], [ %j.next, %sum ]
  %collective = phi i32 [ 0, %count.lanes ], [ %collective.next, %sum ]
  %barrier = phi i32 [ 0, %count.lanes ], [ %barrier.next, %sum ]
  %mixed = phi i1 [ false, %count.lanes ], [ %mixed.next, %sum ]
  %operation = phi i32 [ -1, %count.lanes ], [ %operation.next, %sum ]
  %j.long = zext i32 %j to i64
  %j.offset = mul i64 %j.long, {RECORD_BYTES}
  %other = getelementptr i8, ptr %first, i64 %j.offset
  %other.state.at = getelementptr i8, ptr %other, i64 {STATE}
  %other.state = load i32, ptr %other.state.at
  %at.collective = icmp eq i32 %other.state, {AT_COLLECTIVE}
  %at.barrier = icmp eq i32 %other.state, {AT_BARRIER}
  %one = zext i1 %at.collective to i32
  %two = zext i1 %at.barrier to i32
  %collective.next = add i32 %collective, %one
  %barrier.next = add i32 %barrier, %two
  %other.operation.at = getelementptr i8, ptr %other, i64 {OPERATION}
  %other.operation = load i32, ptr %other.operation.at
  %operation.next = select i1 %at.collective, i32 %other.operation, i32 %operation
  %first.seen = icmp eq i32 %operation, -1
  %same = icmp eq i32 %other.operation, %operation
  %fits = or i1 %same, %first.seen
  %differs = xor i1 %fits, true
  %mixed.now = and i1 %at.collective, %differs
  %mixed.next = or i1 %mixed, %mixed.now
  %j.next = add i32 %j, 1
  %j.more = icmp ult i32 %j.next, %count
  br i1 %j.more, label %sum, label %decide
decide:
  %none = icmp eq i32 %collective.next, 0
  br i1 %none, label %rest, label %check
rest:
  %waits = icmp ne i32 %barrier.next, 0
  %answer = zext i1 %waits to i32
  ret i32 %answer
check:
  %some.at.barrier = icmp ne i32 %barrier.next, 0
  %whole = icmp eq i32 %collective.next, 32
  %needs.whole = icmp uge i32 %operation.next, {MMA}
  %is.matrix = icmp ult i32 %operation.next, {SHUFFLE}
  %is.load = icmp uge i32 %operation.next, {LDMATRIX}
  %is.ldmatrix = and i1 %is.matrix, %is.load
  %must = or i1 %needs.whole, %is.ldmatrix
  %part = xor i1 %whole, true
  %partly = and i1 %must, %part
  %bad.1 = or i1 %some.at.barrier, %partly
  %bad = or i1 %bad.1, %mixed.next
  br i1 %bad, label %diverged, label %together
together:
  %fine = call i1 @collective(ptr %first, i32 %count, i32 %operation.next)
  br i1 %fine, label %wake, label %fault
wake:
  %k = phi i32 [ 0, %together ], [ %k.next, %wake.end ]
  %k.long = zext i32 %k to i64
  %k.offset = mul i64 %k.long, {RECORD_BYTES}
  %sleeper = getelementptr i8, ptr %first, i64 %k.offset
  %sleeper.state.at = getelementptr i8, ptr %sleeper, i64 {STATE}
  %sleeper.state = load i32, ptr %sleeper.state.at
  %sleeps = icmp eq i32 %sleeper.state, {AT_COLLECTIVE}
  br i1 %sleeps, label %wake.one, label %wake.end
wake.one:
  store i32 {READY}, ptr %sleeper.state.at
  br label %wake.end
wake.end:
  %k.next = add i32 %k, 1
  %k.more = icmp ult i32 %k.next, %count
  br i1 %k.more, label %wake, label %lanes
diverged:
  %operation.long = zext i32 %operation.next to i64
  %head = getelementptr i8, ptr %first, i64 {LANE}
  %head.number = load i32, ptr %head
  %head.long = zext i32 %head.number to i64
{_fault(DIVERGED, "diverged", operation="%operation.long", thread="%head.long")}
  ret i32 -1
fault:
  ret i32 -1
}}

define i32 @emu_run(ptr %kernel, ptr %arguments, ptr %launch) {{
entry:
  store ptr %kernel, ptr @kernel
  store ptr %arguments, ptr @arguments
  store ptr %launch, ptr @emu_launch
{_field("num_blocks", "blocks")}{_field("block_order", "order")}{_field("num_threads", "threads")}
{_field("grid_x", "gx")}{_field("grid_y", "gy")}{_field("grid_z", "gz")}
{_field("block_x", "bx")}{_field("block_y", "by")}{_field("block_z", "bz")}
{_field("shared", "shared")}{_field("num_shared", "num.shared")}{_field("warp_order", "warp.order")}
{_field("records", "records")}{_field("stacks", "stacks")}
  %order.at = inttoptr i64 %order to ptr
  %shared.at = inttoptr i64 %shared to ptr
  %warp.order.at = inttoptr i64 %warp.order to ptr
  %records.at = inttoptr i64 %records to ptr
  %stacks.at = inttoptr i64 %stacks to ptr
  %up = add i64 %threads, 31
  %warps = udiv i64 %up, 32
{
    "".join(
        f'''  %s{n} = trunc i64 %{v} to i32
  %s{n}.at = getelementptr i32, ptr @emu_grid, i64 {n}
  store i32 %s{n}, ptr %s{n}.at
'''
        for n, v in ((3, "bx"), (4, "by"), (5, "bz"), (6, "gx"), (7, "gy"), (8, "gz"))
    )
}
  br label %block
block:
  %b = phi i64 [ 0, %entry ], [ %b.next, %block.end ]
  %number.at = getelementptr i32, ptr %order.at, i64 %b
  %number.short = load i32, ptr %number.at
  %number = zext i32 %number.short to i64
{_set_field("fault_block", "%number", "now")}
  %cx = urem i64 %number, %gx
  %c.rest = udiv i64 %number, %gx
  %cy = urem i64 %c.rest, %gy
  %cz = udiv i64 %c.rest, %gy
{
    "".join(
        f'''  %t{n} = trunc i64 %{v} to i32
  %t{n}.at = getelementptr i32, ptr @emu_grid, i64 {n}
  store i32 %t{n}, ptr %t{n}.at
'''
        for n, v in ((0, "cx"), (1, "cy"), (2, "cz"))
    )
}
  %any.shared = icmp ugt i64 %num.shared, 0
  br i1 %any.shared, label %clear, label %threads.begin
clear:
  %s = phi i64 [ 0, %block ], [ %s.next, %clear ]
  %s.twice = mul i64 %s, 2
  %s.at = getelementptr i64, ptr %shared.at, i64 %s.twice
  %s.address = load i64, ptr %s.at
  %s.size.at = getelementptr i64, ptr %s.at, i64 1
  %s.size = load i64, ptr %s.size.at
  %s.ptr = inttoptr i64 %s.address to ptr
  call void @llvm.memset.p0.i64(ptr %s.ptr, i8 -1, i64 %s.size, i1 false)
  %s.next = add i64 %s, 1
  %s.more = icmp ult i64 %s.next, %num.shared
  br i1 %s.more, label %clear, label %threads.begin
threads.begin:
  br label %thread
thread:
  %t = phi i64 [ 0, %threads.begin ], [ %t.next, %thread ]
  call void @prepare(ptr %launch, i64 %t)
  %t.next = add i64 %t, 1
  %t.more = icmp ult i64 %t.next, %threads
  br i1 %t.more, label %thread, label %round
round:
  br label %warp
warp:
  %w = phi i64 [ 0, %round ], [ %w.next, %warp.end ]
  %waiting = phi i32 [ 0, %round ], [ %waiting.next, %warp.end ]
  %w.at = getelementptr i32, ptr %warp.order.at, i64 %w
  %w.short = load i32, ptr %w.at
  %w.long = zext i32 %w.short to i64
  %w.first = mul i64 %w.long, 32
  %w.left = sub i64 %threads, %w.first
  %w.full = icmp ugt i64 %w.left, 32
  %w.count = select i1 %w.full, i64 32, i64 %w.left
  %w.count.short = trunc i64 %w.count to i32
  %w.offset = mul i64 %w.first, {RECORD_BYTES}
  %w.record = getelementptr i8, ptr %records.at, i64 %w.offset
  %status = call i32 @run_warp(ptr %launch, ptr %w.record, i32 %w.count.short)
  %failed = icmp slt i32 %status, 0
  br i1 %failed, label %fault, label %warp.end
warp.end:
  %waiting.next = or i32 %waiting, %status
  %w.next = add i64 %w, 1
  %w.more = icmp ult i64 %w.next, %warps
  br i1 %w.more, label %warp, label %round.end
round.end:
  %over = icmp eq i32 %waiting.next, 0
  br i1 %over, label %finish, label %release.begin
release.begin:
  br label %release
release:
  %r = phi i64 [ 0, %release.begin ], [ %r.next, %release.end ]
  %barrier = phi i32 [ -1, %release.begin ], [ %barrier.next, %release.end ]
  %r.offset = mul i64 %r, {RECORD_BYTES}
  %r.record = getelementptr i8, ptr %records.at, i64 %r.offset
  %r.state.at = getelementptr i8, ptr %r.record, i64 {STATE}
  %r.state = load i32, ptr %r.state.at
  %r.waits = icmp eq i32 %r.state, {AT_BARRIER}
  br i1 %r.waits, label %release.one, label %release.end
release.one:
  %r.operation.at = getelementptr i8, ptr %r.record, i64 {OPERATION}
  %r.operation = load i32, ptr %r.operation.at
  store i32 {READY}, ptr %r.state.at
  %r.none = icmp eq i32 %barrier, -1
  %r.same = icmp eq i32 %barrier, %r.operation
  %r.fits = or i1 %r.none, %r.same
  br i1 %r.fits, label %release.end, label %mixed
release.end:
  %barrier.next = phi i32 [ %barrier, %release ], [ %r.operation, %release.one ]
  %r.next = add i64 %r, 1
  %r.more = icmp ult i64 %r.next, %threads
  br i1 %r.more, label %release, label %round
finish:
  br label %canary
canary:
  %k = phi i64 [ 0, %finish ], [ %k.next, %canary.end ]
  %k.offset = mul i64 %k, {STACK_BYTES}
  %k.at = getelementptr i8, ptr %stacks.at, i64 %k.offset
  %k.value = load i64, ptr %k.at
  %k.whole = icmp eq i64 %k.value, 81985529216486895
  br i1 %k.whole, label %canary.end, label %overflow
canary.end:
  %k.next = add i64 %k, 1
  %k.more = icmp ult i64 %k.next, %threads
  br i1 %k.more, label %canary, label %block.end
block.end:
  %b.next = add i64 %b, 1
  %b.more = icmp ult i64 %b.next, %blocks
  br i1 %b.more, label %block, label %end
end:
  ret i32 0
mixed:
{_fault(MIXED, "mixed", thread="%r")}
  ret i32 1
overflow:
{_fault(OVERFLOW, "overflow", thread="%k")}
  ret i32 1
fault:
  ret i32 1
}}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1 immarg)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1 immarg)

define bfloat @__truncsfbf2(float %value) {{
  %bits = bitcast float %value to i32
  %is.nan = fcmp uno float %value, 0.0
  %low = lshr i32 %bits, 16
  %odd = and i32 %low, 1
  %bias = add i32 %odd, 32767
  %rounded = add i32 %bits, %bias
  %kept = select i1 %is.nan, i32 2143289344, i32 %rounded
  %high = lshr i32 %kept, 16
  %short = trunc i32 %high to i16
  %answer = bitcast i16 %short to bfloat
  ret bfloat %answer
}}
"""

_BOUNDS = f"""
define internal i1 @find(i32 %site, i64 %address, i64 %size, i64 %align, i32 %flags, ptr %slot, i64 %thread)
{{
entry:
  %launch = load ptr, ptr @emu_launch
  %end = add i64 %address, %size
  %low.bits = sub i64 %align, 1
  %odd = and i64 %address, %low.bits
  %straight = icmp eq i64 %odd, 0
  %site.long = zext i32 %site to i64
  br i1 %straight, label %slots, label %crooked
slots:
  %lo = load i64, ptr %slot
  %hi.at = getelementptr i64, ptr %slot, i64 1
  %hi = load i64, ptr %hi.at
  %above = icmp uge i64 %address, %lo
  %below = icmp ule i64 %end, %hi
  %hit = and i1 %above, %below
  br i1 %hit, label %known, label %scan.begin
known:
  ret i1 true
scan.begin:
{_field("ranges", "ranges")}{_field("num_ranges", "num")}
  %ranges.at = inttoptr i64 %ranges to ptr
  %space = lshr i32 %flags, {SPACE_SHIFT}
  %writes = and i32 %flags, {WRITES}
  br label %scan
scan:
  %i = phi i64 [ 0, %scan.begin ], [ %i.next, %scan.end ]
  %left = icmp ult i64 %i, %num
  br i1 %left, label %look, label %absent
look:
  %row = mul i64 %i, 3
  %start.at = getelementptr i64, ptr %ranges.at, i64 %row
  %start = load i64, ptr %start.at
  %stop.at = getelementptr i64, ptr %start.at, i64 1
  %stop = load i64, ptr %stop.at
  %kind.at = getelementptr i64, ptr %start.at, i64 2
  %kind.long = load i64, ptr %kind.at
  %kind = trunc i64 %kind.long to i32
  %kind.space = lshr i32 %kind, {SPACE_SHIFT}
  %same.space = icmp eq i32 %kind.space, %space
  %any.space = icmp eq i32 %space, 0
  %space.fits = or i1 %same.space, %any.space
  %granted = and i32 %kind, %writes
  %may = icmp eq i32 %granted, %writes
  %from = icmp uge i64 %address, %start
  %to = icmp ule i64 %end, %stop
  %inside.1 = and i1 %from, %to
  %inside.2 = and i1 %may, %space.fits
  %inside = and i1 %inside.1, %inside.2
  br i1 %inside, label %found, label %scan.end
scan.end:
  %i.next = add i64 %i, 1
  br label %scan
found:
{_field("trace", "trace")}
  %untraced = icmp eq i64 %trace, 0
  br i1 %untraced, label %remember, label %record
remember:
  store i64 %start, ptr %slot
  store i64 %stop, ptr %hi.at
  ret i1 true
record:
{_field("trace_capacity", "capacity")}{_field("trace_length", "length")}
  %length.next = add i64 %length, 1
  store i64 %length.next, ptr %length.in
  %room = icmp ult i64 %length, %capacity
  br i1 %room, label %write, label %traced
write:
  %trace.at = inttoptr i64 %trace to ptr
  %entry.row = mul i64 %length, 3
  %entry.at = getelementptr i64, ptr %trace.at, i64 %entry.row
  store i64 %site.long, ptr %entry.at
  %entry.thread = getelementptr i64, ptr %entry.at, i64 1
  store i64 %thread, ptr %entry.thread
  %entry.address = getelementptr i64, ptr %entry.at, i64 2
  store i64 %address, ptr %entry.address
  br label %traced
traced:
  ret i1 true
absent:
  ; what a thread has of its own
{_field("stacks", "stacks")}
  %stack.offset = mul i64 %thread, {STACK_BYTES}
  %stack.low = add i64 %stacks, %stack.offset
  %stack.high = add i64 %stack.low, {STACK_BYTES}
  %over.low = icmp uge i64 %address, %stack.low
  %under.high = icmp ule i64 %end, %stack.high
  %own.1 = and i1 %over.low, %under.high
  %generic = icmp eq i32 %space, 0
  %own = and i1 %own.1, %generic
  br i1 %own, label %traced, label %outside
outside:
{_fault(OUT_OF_RANGE, "outside", thread="%thread")}
{_set_field("fault_site", "%site.long", "outside.site")}
{_set_field("fault_address", "%address", "outside.address")}
{_set_field("fault_bytes", "%size", "outside.bytes")}
  ret i1 false
crooked:
{_fault(NOT_ALIGNED, "crooked", thread="%thread")}
{_set_field("fault_site", "%site.long", "crooked.site")}
{_set_field("fault_address", "%address", "crooked.address")}
{_set_field("fault_bytes", "%align", "crooked.bytes")}
  ret i1 false
}}

define void @emu_check(i32 %site, i64 %address, i64 %size, i64 %align, i32 %flags, ptr %slot) noinline {{
  %thread = load ptr, ptr @emu_current
  %lane.at = getelementptr i8, ptr %thread, i64 {LANE}
  %lane = load i32, ptr %lane.at
  %lane.long = zext i32 %lane to i64
  %fine = call i1 @find(i32 %site, i64 %address, i64 %size, i64 %align, i32 %flags, ptr %slot, i64 %lane.long)
  br i1 %fine, label %end, label %fault
fault:
  call void @emu_wait(i32 {FAULT}, i32 0)
  unreachable
end:
  ret void
}}
"""

_COPIES = f"""
define void @emu_copy(ptr %target, ptr %source, i64 %size, i64 %valid) noinline {{
entry:
  %launch = load ptr, ptr @emu_launch
{_field("is_late", "late")}
  %now = icmp eq i64 %late, 0
  br i1 %now, label %early, label %queue
early:
  call void @copy(ptr %target, ptr %source, i64 %size, i64 %valid)
  ret void
queue:
{_field("copies", "copies")}
  %thread = load ptr, ptr @emu_current
  %lane.at = getelementptr i8, ptr %thread, i64 {LANE}
  %lane = load i32, ptr %lane.at
  %lane.long = zext i32 %lane to i64
  %oldest.at = getelementptr i8, ptr %thread, i64 {OLDEST}
  %newest.at = getelementptr i8, ptr %thread, i64 {NEWEST}
  %committed.at = getelementptr i8, ptr %thread, i64 {COMMITTED}
  %oldest = load i32, ptr %oldest.at
  %newest = load i32, ptr %newest.at
  %committed = load i32, ptr %committed.at
  %waiting = sub i32 %newest, %oldest
  %full = icmp uge i32 %waiting, {MAX_COPIES}
  br i1 %full, label %fault, label %push
push:
  %place = urem i32 %newest, {MAX_COPIES}
  %place.long = zext i32 %place to i64
  %first = mul i64 %lane.long, {MAX_COPIES}
  %number = add i64 %first, %place.long
  %offset = mul i64 %number, {COPY_BYTES}
  %base = inttoptr i64 %copies to ptr
  %at = getelementptr i8, ptr %base, i64 %offset
  store ptr %target, ptr %at
  %at.source = getelementptr i8, ptr %at, i64 8
  store ptr %source, ptr %at.source
  %at.group = getelementptr i8, ptr %at, i64 16
  store i32 %committed, ptr %at.group
  %at.size = getelementptr i8, ptr %at, i64 20
  %size.short = trunc i64 %size to i32
  store i32 %size.short, ptr %at.size
  %at.valid = getelementptr i8, ptr %at, i64 24
  store i64 %valid, ptr %at.valid
  %newest.next = add i32 %newest, 1
  store i32 %newest.next, ptr %newest.at
  ret void
fault:
{_fault(TOO_MANY_COPIES, "full", thread="%lane.long")}
  call void @emu_wait(i32 {FAULT}, i32 0)
  unreachable
}}

define internal void @copy(ptr %target, ptr %source, i64 %size, i64 %valid) {{
entry:
  %whole = icmp eq i64 %valid, 16
  br i1 %whole, label %vector, label %bytes
vector:
  %value = load <4 x i32>, ptr %source, align 16
  store <4 x i32> %value, ptr %target, align 16
  ret void
bytes:
  call void @llvm.memset.p0.i64(ptr %target, i8 0, i64 %size, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %valid, i1 false)
  ret void
}}

define void @emu_commit() noinline {{
  %thread = load ptr, ptr @emu_current
  %committed.at = getelementptr i8, ptr %thread, i64 {COMMITTED}
  %committed = load i32, ptr %committed.at
  %next = add i32 %committed, 1
  store i32 %next, ptr %committed.at
  ret void
}}

define void @emu_wait_group(i32 %allowed) noinline {{
entry:
  %launch = load ptr, ptr @emu_launch
{_field("copies", "copies")}
  %thread = load ptr, ptr @emu_current
  %lane.at = getelementptr i8, ptr %thread, i64 {LANE}
  %lane = load i32, ptr %lane.at
  %lane.long = zext i32 %lane to i64
  %oldest.at = getelementptr i8, ptr %thread, i64 {OLDEST}
  %newest.at = getelementptr i8, ptr %thread, i64 {NEWEST}
  %committed.at = getelementptr i8, ptr %thread, i64 {COMMITTED}
  %newest = load i32, ptr %newest.at
  %committed = load i32, ptr %committed.at
  %limit = sub i32 %committed, %allowed
  %base = inttoptr i64 %copies to ptr
  %first = mul i64 %lane.long, {MAX_COPIES}
  br label %next
next:
  %oldest = load i32, ptr %oldest.at
  %left = icmp ne i32 %oldest, %newest
  br i1 %left, label %look, label %end
look:
  %place = urem i32 %oldest, {MAX_COPIES}
  %place.long = zext i32 %place to i64
  %number = add i64 %first, %place.long
  %offset = mul i64 %number, {COPY_BYTES}
  %at = getelementptr i8, ptr %base, i64 %offset
  %at.group = getelementptr i8, ptr %at, i64 16
  %group = load i32, ptr %at.group
  %due = icmp slt i32 %group, %limit
  br i1 %due, label %do, label %end
do:
  %target = load ptr, ptr %at
  %at.source = getelementptr i8, ptr %at, i64 8
  %source = load ptr, ptr %at.source
  %at.size = getelementptr i8, ptr %at, i64 20
  %size.short = load i32, ptr %at.size
  %size = zext i32 %size.short to i64
  %at.valid = getelementptr i8, ptr %at, i64 24
  %valid = load i64, ptr %at.valid
  call void @copy(ptr %target, ptr %source, i64 %size, i64 %valid)
  %oldest.next = add i32 %oldest, 1
  store i32 %oldest.next, ptr %oldest.at
  br label %next
end:
  ret void
}}
"""

_ROW = f"i32 %site, i64 %address, i64 16, i64 16, i32 {3 << SPACE_SHIFT}"
_LDMATRIX = f"""
define internal i1 @ldmatrix(ptr %first, i32 %count, i1 %trans) {{
entry:
  br label %matrix
matrix:
  %m = phi i32 [ 0, %entry ], [ %m.next, %matrix.end ]
  %m.first = mul i32 %m, 8
  br label %row
row:
  %r = phi i32 [ 0, %matrix ], [ %r.next, %row.end ]
  %r.lane = add i32 %m.first, %r
  %r.long = zext i32 %r.lane to i64
  %r.offset = mul i64 %r.long, {RECORD_BYTES}
  %r.record = getelementptr i8, ptr %first, i64 %r.offset
  %address.at = getelementptr i8, ptr %r.record, i64 {OPERANDS}
  %address = load i64, ptr %address.at
  %site.at = getelementptr i8, ptr %r.record, i64 {OPERANDS + 8}
  %site = load i32, ptr %site.at
  %slot.at = getelementptr i8, ptr %r.record, i64 {OPERANDS + 16}
  %slot = load ptr, ptr %slot.at
  %number.at = getelementptr i8, ptr %r.record, i64 {LANE}
  %number = load i32, ptr %number.at
  %number.long = zext i32 %number to i64
  %fine = call i1 @find({_ROW}, ptr %slot, i64 %number.long)
  br i1 %fine, label %move, label %fault
move:
  %source = inttoptr i64 %address to ptr
  br label %word
word:
  %w = phi i32 [ 0, %move ], [ %w.next, %word.end ]
  %w.long = zext i32 %w to i64
  %result = mul i32 %m, 4
  %result.plain = add i32 %result, {RESULTS}
  br i1 %trans, label %across, label %along
along:
  ; lane 4 r + w holds word w of row r
  %a.row = mul i32 %r, 4
  %a.lane = add i32 %a.row, %w
  %a.long = zext i32 %a.lane to i64
  %a.offset = mul i64 %a.long, {RECORD_BYTES}
  %a.record = getelementptr i8, ptr %first, i64 %a.offset
  %a.place = zext i32 %result.plain to i64
  %a.at = getelementptr i8, ptr %a.record, i64 %a.place
  %a.source = getelementptr i32, ptr %source, i64 %w.long
  %a.value = load i32, ptr %a.source
  store i32 %a.value, ptr %a.at
  br label %word.end
across:
  ; lane 4 c + r / 2 holds element c of row r in its half r % 2: two columns c at a time
  %c.half = and i32 %r, 1
  %c.bytes = mul i32 %c.half, 2
  %c.place = add i32 %result.plain, %c.bytes
  %c.place.long = zext i32 %c.place to i64
  %c.pair = lshr i32 %r, 1
  %c.0 = mul i32 %w, 8
  %c.lane.0 = add i32 %c.0, %c.pair
  %c.lane.1 = add i32 %c.lane.0, 4
  %c.long.0 = zext i32 %c.lane.0 to i64
  %c.long.1 = zext i32 %c.lane.1 to i64
  %c.offset.0 = mul i64 %c.long.0, {RECORD_BYTES}
  %c.offset.1 = mul i64 %c.long.1, {RECORD_BYTES}
  %c.record.0 = getelementptr i8, ptr %first, i64 %c.offset.0
  %c.record.1 = getelementptr i8, ptr %first, i64 %c.offset.1
  %c.at.0 = getelementptr i8, ptr %c.record.0, i64 %c.place.long
  %c.at.1 = getelementptr i8, ptr %c.record.1, i64 %c.place.long
  %c.source.0 = getelementptr i32, ptr %source, i64 %w.long
  %c.source.1 = getelementptr i8, ptr %c.source.0, i64 2
  %c.value.0 = load i16, ptr %c.source.0
  %c.value.1 = load i16, ptr %c.source.1
  store i16 %c.value.0, ptr %c.at.0
  store i16 %c.value.1, ptr %c.at.1
  br label %word.end
word.end:
  %w.next = add i32 %w, 1
  %w.more = icmp ult i32 %w.next, 4
  br i1 %w.more, label %word, label %row.end
row.end:
  %r.next = add i32 %r, 1
  %r.more = icmp ult i32 %r.next, 8
  br i1 %r.more, label %row, label %matrix.end
matrix.end:
  %m.next = add i32 %m, 1
  %m.more = icmp ult i32 %m.next, %count
  br i1 %m.more, label %matrix, label %end
end:
  ret i1 true
fault:
  ret i1 false
}}
"""

# The rules of PTX's `shfl.sync`: which lane a value comes from.
_SHUFFLE = f"""
define internal i1 @shuffle(ptr %first, i32 %count, i32 %mode) {{
entry:
  br label %lane
lane:
  %i = phi i32 [ 0, %entry ], [ %i.next, %lane.end ]
  %i.long = zext i32 %i to i64
  %offset = mul i64 %i.long, {RECORD_BYTES}
  %record = getelementptr i8, ptr %first, i64 %offset
  %state.at = getelementptr i8, ptr %record, i64 {STATE}
  %state = load i32, ptr %state.at
  %here = icmp eq i32 %state, {AT_COLLECTIVE}
  br i1 %here, label %look, label %lane.end
look:
  %mask.at = getelementptr i8, ptr %record, i64 {OPERANDS}
  %mask = load i32, ptr %mask.at
  %b.at = getelementptr i8, ptr %record, i64 {OPERANDS + 8}
  %b.all = load i32, ptr %b.at
  %c.at = getelementptr i8, ptr %record, i64 {OPERANDS + 12}
  %c = load i32, ptr %c.at
  %b = and i32 %b.all, 31
  %clamp = and i32 %c, 31
  %segment.1 = lshr i32 %c, 8
  %segment = and i32 %segment.1, 31
  %inverse = xor i32 %segment, 31
  %least = and i32 %i, %segment
  %most.1 = and i32 %clamp, %inverse
  %most = or i32 %least, %most.1
  switch i32 %mode, label %idx [ i32 0, label %up i32 1, label %down i32 2, label %bfly ]
up:
  %up.lane = sub i32 %i, %b
  %up.in = icmp sge i32 %up.lane, %most
  br label %choose
down:
  %down.lane = add i32 %i, %b
  %down.in = icmp sle i32 %down.lane, %most
  br label %choose
bfly:
  %bfly.lane = xor i32 %i, %b
  %bfly.in = icmp sle i32 %bfly.lane, %most
  br label %choose
idx:
  %idx.1 = and i32 %b, %inverse
  %idx.lane = or i32 %least, %idx.1
  %idx.in = icmp sle i32 %idx.lane, %most
  br label %choose
choose:
  %candidate = phi i32 [ %up.lane, %up ], [ %down.lane, %down ], [ %bfly.lane, %bfly ], [ %idx.lane, %idx ]
  %in = phi i1 [ %up.in, %up ], [ %down.in, %down ], [ %bfly.in, %bfly ], [ %idx.in, %idx ]
  %from = select i1 %in, i32 %candidate, i32 %i
  %from.long = zext i32 %from to i64
  %from.offset = mul i64 %from.long, {RECORD_BYTES}
  %giver = getelementptr i8, ptr %first, i64 %from.offset
  %giver.state.at = getelementptr i8, ptr %giver, i64 {STATE}
  %exists = icmp ult i32 %from, %count
  %from.bit = lshr i32 %mask, %from
  %own.bit = lshr i32 %mask, %i
  %bits.1 = and i32 %from.bit, %own.bit
  %bits = and i32 %bits.1, 1
  %named = icmp eq i32 %bits, 1
  %fine.1 = and i1 %exists, %named
  br i1 %fine.1, label %check, label %absent
check:
  %giver.state = load i32, ptr %giver.state.at
  %giver.here = icmp eq i32 %giver.state, {AT_COLLECTIVE}
  br i1 %giver.here, label %move, label %absent
move:
  %value.at = getelementptr i8, ptr %giver, i64 {OPERANDS + 4}
  %value = load i32, ptr %value.at
  %to = getelementptr i8, ptr %record, i64 {RESULTS}
  store i32 %value, ptr %to
  br label %lane.end
lane.end:
  %i.next = add i32 %i, 1
  %more = icmp ult i32 %i.next, %count
  br i1 %more, label %lane, label %end
end:
  ret i1 true
absent:
  %launch = load ptr, ptr @emu_launch
  %number.at = getelementptr i8, ptr %record, i64 {LANE}
  %number = load i32, ptr %number.at
  %number.long = zext i32 %number to i64
{_fault(ABSENT, "absent", thread="%number.long")}
  ret i1 false
}}
"""


def _product(number: int, product: Product) -> str:
    """`mma`: operands of all lanes become two matrices of float32 (of integers: of 32 bits), whose product is
    added up in the order of their depth."""
    depth, per_word, kind = product.depth, product.per_word, product.sum_type
    lines = [
        f"define internal void @mma{number}(ptr %first) {{\nentry:",
        f"  %a = alloca [{16 * depth} x {kind}], align 32",
        f"  %b = alloca [{8 * depth} x {kind}], align 32",
        f"  %c = alloca [128 x {kind}], align 32",
        "  br label %gather\ngather:",
        "  %lane = phi i64 [ 0, %entry ], [ %lane.next, %gather ]",
        f"  %offset = mul i64 %lane, {RECORD_BYTES}",
        "  %record = getelementptr i8, ptr %first, i64 %offset",
        "  %g = lshr i64 %lane, 2\n  %t = and i64 %lane, 3",
        f"  %et = mul i64 %t, {per_word}",
    ]
    for r in range(product.num_a + product.num_b):
        is_a = r < product.num_a
        lines += [
            f"  %w{r}.at = getelementptr i8, ptr %record, i64 {OPERANDS + 4 * r}",
            *_widened(product, r, is_signed=product.is_signed[0 if is_a else 1]),
        ]
        if is_a:
            lines += [
                f"  %w{r}.row = add i64 %g, {8 * (r % 2)}",
                f"  %w{r}.rows = mul i64 %w{r}.row, {depth}",
                f"  %w{r}.column = add i64 %et, {4 * per_word * (r // 2)}",
                f"  %w{r}.place = add i64 %w{r}.rows, %w{r}.column",
                f"  %w{r}.to = getelementptr {kind}, ptr %a, i64 %w{r}.place",
                f"  store <{per_word} x {kind}> %w{r}, ptr %w{r}.to, align 4",
            ]
            continue
        for i in range(per_word):
            lines += [
                f"  %w{r}.{i}.k = add i64 %et, {4 * per_word * (r - product.num_a) + i}",
                f"  %w{r}.{i}.rows = mul i64 %w{r}.{i}.k, 8",
                f"  %w{r}.{i}.place = add i64 %w{r}.{i}.rows, %g",
                f"  %w{r}.{i}.to = getelementptr {kind}, ptr %b, i64 %w{r}.{i}.place",
                f"  %w{r}.{i} = extractelement <{per_word} x {kind}> %w{r}, i32 {i}",
                f"  store {kind} %w{r}.{i}, ptr %w{r}.{i}.to",
            ]
    sums = OPERANDS + 4 * (product.num_a + product.num_b)
    lines += ["  %row = mul i64 %g, 8", "  %column = mul i64 %t, 2", "  %place = add i64 %row, %column"]
    for half in range(2):
        lines += [
            f"  %s{half}.at = getelementptr i8, ptr %record, i64 {sums + 8 * half}",
            f"  %s{half} = load <2 x {kind}>, ptr %s{half}.at, align 4",
            f"  %s{half}.place = add i64 %place, {64 * half}",
            f"  %s{half}.to = getelementptr {kind}, ptr %c, i64 %s{half}.place",
            f"  store <2 x {kind}> %s{half}, ptr %s{half}.to, align 4",
        ]
    lines += [
        "  %lane.next = add i64 %lane, 1\n  %lane.more = icmp ult i64 %lane.next, 32",
        "  br i1 %lane.more, label %gather, label %multiply\nmultiply:",
        "  %m = phi i64 [ 0, %gather ], [ %m.next, %multiply ]",
        f"  %m.row = mul i64 %m, {depth}\n  %m.sums = mul i64 %m, 8",
        f"  %m.c = getelementptr {kind}, ptr %c, i64 %m.sums",
        f"  %m.a = getelementptr {kind}, ptr %a, i64 %m.row",
        f"  %sum.0 = load <8 x {kind}>, ptr %m.c, align 32",
    ]
    for k in range(depth):
        lines += [
            f"  %x{k}.at = getelementptr {kind}, ptr %m.a, i64 {k}",
            f"  %x{k} = load {kind}, ptr %x{k}.at",
            f"  %x{k}.1 = insertelement <8 x {kind}> poison, {kind} %x{k}, i32 0",
            f"  %x{k}.8 = shufflevector <8 x {kind}> %x{k}.1, <8 x {kind}> poison, <8 x i32> zeroinitializer",
            f"  %y{k}.at = getelementptr {kind}, ptr %b, i64 {8 * k}",
            f"  %y{k} = load <8 x {kind}>, ptr %y{k}.at, align 32",
        ]
        if kind == "float":
            lines.append(
                f"  %sum.{k + 1} = call <8 x float> @llvm.fma.v8f32(<8 x float> %x{k}.8, <8 x float> %y{k}, "
                f"<8 x float> %sum.{k})"
            )
        else:
            lines += [
                f"  %p{k} = mul <8 x i32> %x{k}.8, %y{k}",
                f"  %sum.{k + 1} = add <8 x i32> %sum.{k}, %p{k}",
            ]
    lines += [
        f"  store <8 x {kind}> %sum.{depth}, ptr %m.c, align 32",
        "  %m.next = add i64 %m, 1\n  %m.more = icmp ult i64 %m.next, 16",
        "  br i1 %m.more, label %multiply, label %scatter\nscatter:",
        "  %l = phi i64 [ 0, %multiply ], [ %l.next, %scatter ]",
        f"  %l.offset = mul i64 %l, {RECORD_BYTES}",
        f"  %l.start = add i64 %l.offset, {RESULTS}",
        "  %l.record = getelementptr i8, ptr %first, i64 %l.start",
        "  %l.place = mul i64 %l, 2",  # 8 g + 2 t
    ]
    for half in range(2):
        lines += [
            f"  %d{half}.place = add i64 %l.place, {64 * half}",
            f"  %d{half}.at = getelementptr {kind}, ptr %c, i64 %d{half}.place",
            f"  %d{half} = load <2 x {kind}>, ptr %d{half}.at, align 4",
            f"  %d{half}.to = getelementptr i8, ptr %l.record, i64 {8 * half}",
            f"  store <2 x {kind}> %d{half}, ptr %d{half}.to, align 4",
        ]
    lines += [
        "  %l.next = add i64 %l, 1\n  %l.more = icmp ult i64 %l.next, 32",
        "  br i1 %l.more, label %scatter, label %end\nend:\n  ret void\n}\n",
    ]
    declared = "declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)\n"
    return (declared if number == 0 else "") + "\n".join(lines)


def _widened(product: Product, r: int, *, is_signed: bool) -> list[str]:
    """A register's elements in the type of the sums: tf32 keeps 10 bits of the fraction, as the unit does."""
    at, per_word = f"ptr %w{r}.at, align 4", product.per_word
    if product.element == "float":
        return [
            f"  %w{r}.all = load <1 x i32>, {at}",
            f"  %w{r}.kept = and <1 x i32> %w{r}.all, splat (i32 -8192)",
            f"  %w{r} = bitcast <1 x i32> %w{r}.kept to <1 x float>",
        ]
    if product.element == "i8":
        return [
            f"  %w{r}.short = load <4 x i8>, {at}",
            f"  %w{r} = {'sext' if is_signed else 'zext'} <4 x i8> %w{r}.short to <4 x i32>",
        ]
    if product.element == "bfloat":
        return [
            f"  %w{r}.short = load <2 x i16>, {at}",
            f"  %w{r}.long = zext <2 x i16> %w{r}.short to <2 x i32>",
            f"  %w{r}.bits = shl <2 x i32> %w{r}.long, splat (i32 16)",
            f"  %w{r} = bitcast <2 x i32> %w{r}.bits to <2 x float>",
        ]
    return [
        f"  %w{r}.short = load <{per_word} x half>, {at}",
        f"  %w{r} = fpext <{per_word} x half> %w{r}.short to <{per_word} x float>",
    ]
