"""The code that workers and callers run to share a region: IR text for the host's processor and system.

A region is `num_chunks` calls of one kernel. Its state is one 64-bit word, `epoch | high | low`, where
`[low, high)` are tickets that no thread has claimed, each for a chunk. The caller and even workers take from
the low end, odd workers from the high end: with two threads a chunk tends to meet the same core, and what it
left in that core's cache, in region after region (measured: chains of copies of 32 to 128 KiB chunks run in
half the time they take when both claim from one end). Tickets of the upper half are for chunks in reverse, so
that odd workers, too, go on to the chunk behind, whose data processors and kernels fetch ahead. A successful
compare-and-swap claims a chunk *of the published job*:
function and argument pointers share the word's cache line and are rewritten only after every claimed chunk
was reported, so a late worker can never run a chunk of a job that is being replaced. The chunks of a stage
of several groups are threads that take part in it (`stage_ir`).

Waiting is a spin, with yields in a worker, then a futex. Sleepers announce themselves before they look at the
word a last time, and publishers look for sleepers after they publish (both sequentially consistent), so no
wake-up is lost. Systems without a futex let idle workers return to Python instead, which blocks them on a
lock between runs.
"""

from __future__ import annotations

from string import Template

from tilewright.targets.cpu.runtime.stage_ir import OFFSETS as STAGE_OFFSETS
from tilewright.targets.cpu.runtime.stage_ir import STAGE_EXPORT, STAGE_IR, UNLIMITED

CHUNK_BITS = 20
MAX_CHUNKS = (1 << CHUNK_BITS) - 1
"""Largest number of chunks of one region: what fits the claim word."""

# Byte offsets in the pool block. Words written by different threads are two cache lines apart, because
# processors fetch lines in pairs.
WORD, FUNCTION, ARGUMENTS, NUM_CHUNKS = 0, 8, 16, 24
PENDING, CALLER_WAITS = 128, 132
ASLEEP, WAKE_COUNT = 256, 260
BUSY, STOP, RUNNING = 384, 388, 392
SPIN_LIMIT, WAIT_LIMIT, NUM_THREADS = 400, 408, 416
SCRATCH_TABLE = 512

YIELD_MASK = 1023
"""An idle worker gives up its time slice every so many pauses (a power of two, less one).

Where another process keeps a core busy, a spinning worker may share the caller's core and waste whole time
slices of it. Measured with regions of 3 us on two cores of which others use one: median 3.6 us with yields,
6.9 us without, 3.5 us on one thread; on idle cores no difference.
"""

INTERFACE = "3"
"""What kernels, mains and this runtime expect of each other, and where the fields of the block lie: stored
code that expects another one is not used. Raise it with any change of that (a test holds the text to it)."""

EXPORTS = (
    "tw_parallel_for",
    STAGE_EXPORT,
    "tw_worker",
    "tw_run",
    "tw_fill_args",
    "tw_loop",
    "tw_stop",
    "tw_spin",
    "tw_ticks",
)

_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_YIELD_NUMBERS = {"x86_64": 24, "aarch64": 124, "riscv64": 124}
_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
    "arm64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}

_FUTEX = """
declare i64 @syscall(i64, ...)

define internal void @sleep_while(ptr %address, i32 %value) {
  %r = call i64 (i64, ...) @syscall(i64 $futex, ptr %address, i64 128, i32 %value, ptr null, ptr null, i64 0)
  ret void
}

define internal void @yield() {
  %r = call i64 (i64, ...) @syscall(i64 $sched_yield)
  ret void
}

define internal void @wake_all(ptr %at) {
  %r = call i64 (i64, ...) @syscall(i64 $futex, ptr %at, i64 129, i64 $everyone, ptr null, ptr null, i64 0)
  ret void
}
"""

_NO_FUTEX = """
define internal void @sleep_while(ptr %address, i32 %value) {
  %r = call i32 @tw_yield()
  ret void
}

define internal void @yield() {
  %r = call i32 @tw_yield()
  ret void
}

define internal void @wake_all(ptr %address) {
  ret void
}

declare i32 @tw_yield()
"""

# A worker that finds nothing for its spin budget: sleep here, or return to Python (1) between runs.
_REST_ON_FUTEX = """
rest:
  %wakes = load atomic i32, ptr %wake_count seq_cst, align 4
  %st = load atomic i32, ptr %stop seq_cst, align 4
  %stopped = icmp ne i32 %st, 0
  br i1 %stopped, label %leave, label %announce
announce:
  store atomic i32 1, ptr %asleep seq_cst, align 4
  %s2 = load atomic i64, ptr %pool seq_cst, align 64
  %idle2 = call i1 @is_empty(i64 %s2)
  br i1 %idle2, label %sleep, label %outer
sleep:
  call void @sleep_while(ptr %wake_count, i32 %wakes)
  br label %outer
leave:
  ret i32 0
"""

_REST_IN_PYTHON = """
rest:
  %st = load atomic i32, ptr %stop seq_cst, align 4
  %stopped = icmp ne i32 %st, 0
  br i1 %stopped, label %leave, label %look
look:
  %run = load atomic i32, ptr %running seq_cst, align 4
  %runs = icmp ne i32 %run, 0
  br i1 %runs, label %outer, label %back
back:
  ret i32 1
leave:
  ret i32 0
"""

_IR = """
$declare_pause
declare i64 @$counter()
$system

define internal i1 @is_empty(i64 %s) {
  %low = and i64 %s, $mask
  %shifted = lshr i64 %s, $bits
  %high = and i64 %shifted, $mask
  %empty = icmp eq i64 %low, %high
  ret i1 %empty
}

; The chunk of a ticket: those of the upper half lie in reverse.
define internal i64 @chunk_of(i64 %ticket, i64 %n) {
  %half = lshr i64 %n, 1
  %middle = sub i64 %n, %half
  %is_upper = icmp uge i64 %ticket, %middle
  %last = add i64 %n, -1
  %ends = add i64 %middle, %last
  %reverse = sub i64 %ends, %ticket
  %chunk = select i1 %is_upper, i64 %reverse, i64 %ticket
  ret i64 %chunk
}

; Claims and runs chunks until none is left; returns how many. %step is 1 (low end) or minus one high ticket.
define internal i32 @drain(ptr %pool, i64 %step, ptr %scratch) {
entry:
  %num_chunks_at = getelementptr i8, ptr %pool, i64 $NUM_CHUNKS
  %function_at = getelementptr i8, ptr %pool, i64 $FUNCTION
  %arguments_at = getelementptr i8, ptr %pool, i64 $ARGUMENTS
  %from_low = icmp eq i64 %step, 1
  br label %fetch
fetch:
  %count = phi i32 [0, %entry], [%count1, %run]
  %first = load atomic i64, ptr %pool acquire, align 64
  br label %try
try:
  %s = phi i64 [%first, %fetch], [%seen, %claim]
  %low = and i64 %s, $mask
  %shifted = lshr i64 %s, $bits
  %high = and i64 %shifted, $mask
  %none = icmp eq i64 %low, %high
  br i1 %none, label %done, label %claim
claim:
  %next = add i64 %s, %step
  %swap = cmpxchg ptr %pool, i64 %s, i64 %next seq_cst seq_cst
  %seen = extractvalue { i64, i1 } %swap, 0
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %run, label %try
run:
  %top = add i64 %high, -1
  %ticket = select i1 %from_low, i64 %low, i64 %top
  %num_chunks = load i64, ptr %num_chunks_at, align 8
  %chunk = call i64 @chunk_of(i64 %ticket, i64 %num_chunks)
  %function = load ptr, ptr %function_at, align 8
  %arguments = load ptr, ptr %arguments_at, align 8
  call void %function(ptr %arguments, i64 %chunk, ptr %scratch)
  %count1 = add i32 %count, 1
  br label %fetch
done:
  ret i32 %count
}

; Runs a region to its end. A null pool runs it on the calling thread.
define void @tw_parallel_for(ptr %pool, ptr %function, ptr %args, i64 %n, ptr %scratch) {
entry:
  %alone = icmp eq ptr %pool, null
  %single = icmp ule i64 %n, 1
  %serial = or i1 %alone, %single
  br i1 %serial, label %loop, label %publish
loop:
  %i = phi i64 [0, %entry], [%i1, %body]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %exit
body:
  call void %function(ptr %args, i64 %i, ptr %scratch)
  %i1 = add i64 %i, 1
  br label %loop
publish:
  %function_at = getelementptr i8, ptr %pool, i64 $FUNCTION
  %arguments_at = getelementptr i8, ptr %pool, i64 $ARGUMENTS
  %pending = getelementptr i8, ptr %pool, i64 $PENDING
  %waits = getelementptr i8, ptr %pool, i64 $CALLER_WAITS
  %asleep = getelementptr i8, ptr %pool, i64 $ASLEEP
  %wake_count = getelementptr i8, ptr %pool, i64 $WAKE_COUNT
  %wait_limit_at = getelementptr i8, ptr %pool, i64 $WAIT_LIMIT
  %n32 = trunc i64 %n to i32
  store atomic i32 %n32, ptr %pending monotonic, align 4
  store ptr %function, ptr %function_at, align 8
  store ptr %args, ptr %arguments_at, align 8
  %num_chunks_at = getelementptr i8, ptr %pool, i64 $NUM_CHUNKS
  store i64 %n, ptr %num_chunks_at, align 8
  %old = load atomic i64, ptr %pool monotonic, align 64
  %epoch_bits = lshr i64 %old, $epoch_shift
  %epoch = add i64 %epoch_bits, 1
  %epoch_up = shl i64 %epoch, $epoch_shift
  %high_up = shl i64 %n, $bits
  %word = or i64 %epoch_up, %high_up
  %was = atomicrmw xchg ptr %pool, i64 %word seq_cst
  %sleepers = load atomic i32, ptr %asleep seq_cst, align 4
  %any = icmp ne i32 %sleepers, 0
  br i1 %any, label %wake, label %share
wake:
  %cleared = atomicrmw xchg ptr %asleep, i32 0 seq_cst
  %bumped = atomicrmw add ptr %wake_count, i32 1 seq_cst
  call void @wake_all(ptr %wake_count)
  br label %share
share:
  %mine = call i32 @drain(ptr %pool, i64 1, ptr %scratch)
  %all_mine = icmp eq i32 %mine, %n32
  br i1 %all_mine, label %exit, label %report
report:
  %before = atomicrmw sub ptr %pending, i32 %mine seq_cst
  %last = icmp eq i32 %before, %mine
  br i1 %last, label %exit, label %wait
wait:
  %wait_limit = load i64, ptr %wait_limit_at, align 8
  br label %spin
spin:
  %k = phi i64 [0, %wait], [%k1, %again]
  %left = load atomic i32, ptr %pending seq_cst, align 4
  %finished = icmp eq i32 %left, 0
  br i1 %finished, label %exit, label %pause
pause:
  $pause
  %k1 = add i64 %k, 1
  %enough = icmp ugt i64 %k1, %wait_limit
  br i1 %enough, label %block, label %again
again:
  br label %spin
block:
  store atomic i32 1, ptr %waits seq_cst, align 4
  br label %check
check:
  %left2 = load atomic i32, ptr %pending seq_cst, align 4
  %finished2 = icmp eq i32 %left2, 0
  br i1 %finished2, label %unblock, label %sleep
sleep:
  call void @sleep_while(ptr %pending, i32 %left2)
  br label %check
unblock:
  store atomic i32 0, ptr %waits seq_cst, align 4
  br label %exit
exit:
  ret void
}

; A worker's life: 0 when told to stop, 1 when idle on a system without a futex.
define i32 @tw_worker(ptr %pool, i64 %index) {
entry:
  %pending = getelementptr i8, ptr %pool, i64 $PENDING
  %waits = getelementptr i8, ptr %pool, i64 $CALLER_WAITS
  %asleep = getelementptr i8, ptr %pool, i64 $ASLEEP
  %wake_count = getelementptr i8, ptr %pool, i64 $WAKE_COUNT
  %stop = getelementptr i8, ptr %pool, i64 $STOP
  %running = getelementptr i8, ptr %pool, i64 $RUNNING
  %spin_limit_at = getelementptr i8, ptr %pool, i64 $SPIN_LIMIT
  %table = getelementptr i8, ptr %pool, i64 $SCRATCH_TABLE
  %scratch_at = getelementptr ptr, ptr %table, i64 %index
  %odd = and i64 %index, 1
  %is_odd = icmp ne i64 %odd, 0
  %step = select i1 %is_odd, i64 $minus_high, i64 1
  br label %outer
outer:
  %spin_limit = load i64, ptr %spin_limit_at, align 8
  br label %spin
spin:
  %k = phi i64 [0, %outer], [%k1, %again], [%k1, %yield]
  %s = load atomic i64, ptr %pool acquire, align 64
  %idle = call i1 @is_empty(i64 %s)
  br i1 %idle, label %pause, label %work
work:
  %scratch = load atomic ptr, ptr %scratch_at monotonic, align 8
  %count = call i32 @drain(ptr %pool, i64 %step, ptr %scratch)
  %nothing = icmp eq i32 %count, 0
  br i1 %nothing, label %outer, label %report
report:
  %before = atomicrmw sub ptr %pending, i32 %count seq_cst
  %last = icmp eq i32 %before, %count
  br i1 %last, label %tell, label %outer
tell:
  %w = load atomic i32, ptr %waits seq_cst, align 4
  %waiting = icmp ne i32 %w, 0
  br i1 %waiting, label %wake, label %outer
wake:
  call void @wake_all(ptr %pending)
  br label %outer
pause:
  $pause
  %k1 = add i64 %k, 1
  %enough = icmp ugt i64 %k1, %spin_limit
  br i1 %enough, label %rest, label %again
again:
  %since = and i64 %k1, $yield_mask
  %yields = icmp eq i64 %since, 0
  br i1 %yields, label %yield, label %spin
yield:
  call void @yield()
  br label %spin
$rest
}

; One run of a main: on the pool if it is free (1), else on the calling thread alone (0).
define i32 @tw_run(ptr %pool, ptr %main, ptr %args, ptr %scratch, ptr %stamps) {
entry:
  %alone = icmp eq ptr %pool, null
  br i1 %alone, label %serial, label %try
try:
  %busy = getelementptr i8, ptr %pool, i64 $BUSY
  %running = getelementptr i8, ptr %pool, i64 $RUNNING
  %swap = cmpxchg ptr %busy, i32 0, i32 1 seq_cst seq_cst
  %mine = extractvalue { i32, i1 } %swap, 1
  br i1 %mine, label %pooled, label %serial
pooled:
  store atomic i32 1, ptr %running seq_cst, align 4
  call void %main(ptr %pool, ptr %args, ptr %scratch, ptr %stamps)
  store atomic i32 0, ptr %running seq_cst, align 4
  store atomic i32 0, ptr %busy seq_cst, align 4
  ret i32 1
serial:
  call void %main(ptr null, ptr %args, ptr %scratch, ptr %stamps)
  ret i32 0
}

; out[i] = bases[table[2 i]] + table[2 i + 1]
define void @tw_fill_args(ptr %table, i64 %n, ptr %bases, ptr %out) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %body]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %exit
body:
  %row = getelementptr { i64, i64 }, ptr %table, i64 %i
  %index = load i64, ptr %row, align 8
  %offset_at = getelementptr i8, ptr %row, i64 8
  %offset = load i64, ptr %offset_at, align 8
  %base_at = getelementptr i64, ptr %bases, i64 %index
  %base = load i64, ptr %base_at, align 8
  %address = add i64 %base, %offset
  %out_at = getelementptr i64, ptr %out, i64 %i
  store i64 %address, ptr %out_at, align 8
  %i1 = add i64 %i, 1
  br label %loop
exit:
  ret void
}

; Runs a main for steps [%start, %end) of a loop and returns the step at which it ended: where the byte at
; %condition, unless null, is 0 after a step. Before each, its number is stored at %number. After each, copies
; of { base or -1, address, base, bytes }, then bases move on by { base, stride } and change places { base,
; base }. Counts and rows of these tables stand in %plan: { copies, n, moves, n, swaps, n }.
define i64 @tw_loop(ptr %pool, ptr %main, ptr %scratch, ptr %table, i64 %n, ptr %bases, ptr %args, ptr %plan,
                    i64 %start, i64 %end, ptr %number, ptr %condition) {
entry:
  %copies = load ptr, ptr %plan, align 8
  %num_copies_at = getelementptr i8, ptr %plan, i64 8
  %num_copies = load i64, ptr %num_copies_at, align 8
  %moves_at = getelementptr i8, ptr %plan, i64 16
  %moves = load ptr, ptr %moves_at, align 8
  %num_moves_at = getelementptr i8, ptr %plan, i64 24
  %num_moves = load i64, ptr %num_moves_at, align 8
  %swaps_at = getelementptr i8, ptr %plan, i64 32
  %swaps = load ptr, ptr %swaps_at, align 8
  %num_swaps_at = getelementptr i8, ptr %plan, i64 40
  %num_swaps = load i64, ptr %num_swaps_at, align 8
  %endless = icmp eq ptr %condition, null
  br label %next
next:
  %step = phi i64 [%start, %entry], [%step1, %again]
  %more = icmp slt i64 %step, %end
  br i1 %more, label %run, label %done
run:
  store i64 %step, ptr %number, align 8
  call void @tw_fill_args(ptr %table, i64 %n, ptr %bases, ptr %args)
  %shared = call i32 @tw_run(ptr %pool, ptr %main, ptr %args, ptr %scratch, ptr null)
  br label %copy
copy:
  %c = phi i64 [0, %run], [%c1, %copied]
  %has_copy = icmp ult i64 %c, %num_copies
  br i1 %has_copy, label %copying, label %move
copying:
  %copy_row = getelementptr { i64, i64, i64, i64 }, ptr %copies, i64 %c
  %source_base = load i64, ptr %copy_row, align 8
  %source_at = getelementptr i8, ptr %copy_row, i64 8
  %fixed = load i64, ptr %source_at, align 8
  %is_fixed = icmp slt i64 %source_base, 0
  %source_index = select i1 %is_fixed, i64 0, i64 %source_base
  %source_base_at = getelementptr i64, ptr %bases, i64 %source_index
  %of_base = load i64, ptr %source_base_at, align 8
  %source_number = select i1 %is_fixed, i64 %fixed, i64 %of_base
  %source = inttoptr i64 %source_number to ptr
  %target_at = getelementptr i8, ptr %copy_row, i64 16
  %target_base = load i64, ptr %target_at, align 8
  %target_base_at = getelementptr i64, ptr %bases, i64 %target_base
  %target_number = load i64, ptr %target_base_at, align 8
  %target = inttoptr i64 %target_number to ptr
  %bytes_at = getelementptr i8, ptr %copy_row, i64 24
  %bytes = load i64, ptr %bytes_at, align 8
  br label %byte
byte:
  %b = phi i64 [0, %copying], [%b1, %one]
  %has_byte = icmp ult i64 %b, %bytes
  br i1 %has_byte, label %one, label %copied
one:
  %from = getelementptr i8, ptr %source, i64 %b
  %value = load i8, ptr %from, align 1
  %to = getelementptr i8, ptr %target, i64 %b
  store i8 %value, ptr %to, align 1
  %b1 = add i64 %b, 1
  br label %byte
copied:
  %c1 = add i64 %c, 1
  br label %copy
move:
  %m = phi i64 [0, %copy], [%m1, %moving]
  %has_move = icmp ult i64 %m, %num_moves
  br i1 %has_move, label %moving, label %swap
moving:
  %move_row = getelementptr { i64, i64 }, ptr %moves, i64 %m
  %moved = load i64, ptr %move_row, align 8
  %stride_at = getelementptr i8, ptr %move_row, i64 8
  %stride = load i64, ptr %stride_at, align 8
  %moved_at = getelementptr i64, ptr %bases, i64 %moved
  %moved_from = load i64, ptr %moved_at, align 8
  %moved_to = add i64 %moved_from, %stride
  store i64 %moved_to, ptr %moved_at, align 8
  %m1 = add i64 %m, 1
  br label %move
swap:
  %w = phi i64 [0, %move], [%w1, %swapping]
  %has_swap = icmp ult i64 %w, %num_swaps
  br i1 %has_swap, label %swapping, label %again_or_end
swapping:
  %swap_row = getelementptr { i64, i64 }, ptr %swaps, i64 %w
  %one_index = load i64, ptr %swap_row, align 8
  %other_index_at = getelementptr i8, ptr %swap_row, i64 8
  %other_index = load i64, ptr %other_index_at, align 8
  %one_at = getelementptr i64, ptr %bases, i64 %one_index
  %other_at = getelementptr i64, ptr %bases, i64 %other_index
  %one_base = load i64, ptr %one_at, align 8
  %other_base = load i64, ptr %other_at, align 8
  store i64 %other_base, ptr %one_at, align 8
  store i64 %one_base, ptr %other_at, align 8
  %w1 = add i64 %w, 1
  br label %swap
again_or_end:
  %step1 = add i64 %step, 1
  br i1 %endless, label %again, label %look
look:
  %goes_on = load i8, ptr %condition, align 1
  %ends = icmp eq i8 %goes_on, 0
  br i1 %ends, label %ended, label %again
again:
  br label %next
ended:
  ret i64 %step1
done:
  ret i64 %step
}

; Workers leave at their next idle moment; a run in progress ends on its caller.
define void @tw_stop(ptr %pool) {
  %stop = getelementptr i8, ptr %pool, i64 $STOP
  %spin_limit_at = getelementptr i8, ptr %pool, i64 $SPIN_LIMIT
  %wake_count = getelementptr i8, ptr %pool, i64 $WAKE_COUNT
  store atomic i32 1, ptr %stop seq_cst, align 4
  store i64 0, ptr %spin_limit_at, align 8
  %bumped = atomicrmw add ptr %wake_count, i32 1 seq_cst
  call void @wake_all(ptr %wake_count)
  ret void
}

; %n pauses: to learn what one costs.
define void @tw_spin(i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  $pause
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %n
  br i1 %more, label %loop, label %exit
exit:
  ret void
}

define i64 @tw_ticks() {
  %t = call i64 @$counter()
  ret i64 %t
}
"""


TICK_COUNTER = "llvm.readcyclecounter"
"""The intrinsic that reads a cheap, constant-rate counter from user code: on AArch64 the virtual counter, as
LLVM gives 0 for its steady one."""


def has_futex(triple: str) -> bool:
    """Whether threads of this system can sleep on a word of memory."""
    return "linux" in triple and triple.partition("-")[0] in _FUTEX_NUMBERS


def pause_ir(triple: str) -> tuple[str, str]:
    """Declaration and call of the instruction that makes a spinning core yield resources; empty if none."""
    return _PAUSES.get(triple.partition("-")[0], ("", ""))


def pool_ir(triple: str, *, use_futex: bool) -> str:
    """The runtime as one module; imports `tw_yield` (give up the time slice) where no futex is used."""
    architecture = triple.partition("-")[0]
    declare_pause, pause = pause_ir(triple)
    offsets = {
        "FUNCTION": FUNCTION,
        "ARGUMENTS": ARGUMENTS,
        "NUM_CHUNKS": NUM_CHUNKS,
        "PENDING": PENDING,
        "CALLER_WAITS": CALLER_WAITS,
        "ASLEEP": ASLEEP,
        "WAKE_COUNT": WAKE_COUNT,
        "BUSY": BUSY,
        "STOP": STOP,
        "RUNNING": RUNNING,
        "SPIN_LIMIT": SPIN_LIMIT,
        "WAIT_LIMIT": WAIT_LIMIT,
        "NUM_THREADS": NUM_THREADS,
        "SCRATCH_TABLE": SCRATCH_TABLE,
        **STAGE_OFFSETS,
    }
    system = (
        Template(_FUTEX).substitute(
            futex=_FUTEX_NUMBERS[architecture], everyone=2**31 - 1, sched_yield=_YIELD_NUMBERS[architecture]
        )
        if use_futex
        else _NO_FUTEX
    )
    return Template(_IR + STAGE_IR).substitute(
        offsets,
        declare_pause=declare_pause,
        pause=pause,
        counter=TICK_COUNTER,
        system=system,
        rest=_REST_ON_FUTEX if use_futex else _REST_IN_PYTHON,
        mask=MAX_CHUNKS,
        yield_mask=YIELD_MASK,
        bits=CHUNK_BITS,
        epoch_shift=2 * CHUNK_BITS,
        minus_high=-(1 << CHUNK_BITS),
        unlimited=UNLIMITED,
    )
