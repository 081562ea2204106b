"""Small kernels with known answers, and executors of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.runtime.executor import Executor, HostCallback
from tilewright.targets.cpu.runtime.main_code import MainStep, build_main, link_main
from tilewright.targets.llvm.codegen import compile_object

# counts[chunk] += 1, atomically: a chunk that two threads run at the same instant still counts twice.
COUNT = """
define void @count(ptr %args, i64 %chunk, ptr %scratch) {
  %counts = load ptr, ptr %args
  %at = getelementptr i64, ptr %counts, i64 %chunk
  %old = atomicrmw add ptr %at, i64 1 monotonic
  ret void
}
"""

# out[chunk] = 2 * in[chunk] + 1
AFFINE = """
define void @affine(ptr %args, i64 %chunk, ptr %scratch) {
  %in = load ptr, ptr %args
  %second = getelementptr ptr, ptr %args, i64 1
  %out = load ptr, ptr %second
  %from = getelementptr i64, ptr %in, i64 %chunk
  %to = getelementptr i64, ptr %out, i64 %chunk
  %value = load i64, ptr %from
  %double = shl i64 %value, 1
  %result = add i64 %double, 1
  store i64 %result, ptr %to
  ret void
}
"""

# Writes the chunk's number all over its scratch, waits a little, and reports whether anybody interfered.
OWN_SCRATCH = """
define void @own_scratch(ptr %args, i64 %chunk, ptr %scratch) {
entry:
  %report = load ptr, ptr %args
  br label %fill
fill:
  %i = phi i64 [0, %entry], [%i1, %fill]
  %at = getelementptr i64, ptr %scratch, i64 %i
  store volatile i64 %chunk, ptr %at
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, 512
  br i1 %more, label %fill, label %nap
nap:
  %k = phi i64 [0, %fill], [%k1, %nap]
  store volatile i64 %chunk, ptr %scratch
  %k1 = add i64 %k, 1
  %tired = icmp ult i64 %k1, 100000
  br i1 %tired, label %nap, label %look
look:
  %j = phi i64 [0, %nap], [%j1, %look]
  %same = phi i64 [1, %nap], [%same1, %look]
  %from = getelementptr i64, ptr %scratch, i64 %j
  %seen = load volatile i64, ptr %from
  %equal = icmp eq i64 %seen, %chunk
  %equal64 = zext i1 %equal to i64
  %same1 = and i64 %same, %equal64
  %j1 = add i64 %j, 1
  %more2 = icmp ult i64 %j1, 512
  br i1 %more2, label %look, label %done
done:
  %address = ptrtoint ptr %scratch to i64
  %low = and i64 %address, 63
  %aligned = icmp eq i64 %low, 0
  %aligned64 = zext i1 %aligned to i64
  %good = and i64 %aligned64, %same1
  %to = getelementptr i64, ptr %report, i64 %chunk
  store i64 %good, ptr %to
  ret void
}
"""

# Spins through `args[1]` (a pointer to the number) loop iterations.
BUSY = """
define void @busy(ptr %args, i64 %chunk, ptr %scratch) {
entry:
  %number_at = load ptr, ptr %args
  %number = load i64, ptr %number_at
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %i1 = add i64 %i, 1
  store volatile i64 %i1, ptr %scratch
  %more = icmp ult i64 %i1, %number
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""

# order[chunk] = how many chunks began before, by a counter; owner[chunk] = the thread's scratch.
ORDER = """
define void @order(ptr %args, i64 %chunk, ptr %scratch) {
entry:
  %counter = load ptr, ptr %args
  %second = getelementptr ptr, ptr %args, i64 1
  %order = load ptr, ptr %second
  %third = getelementptr ptr, ptr %args, i64 2
  %owner = load ptr, ptr %third
  %number = atomicrmw add ptr %counter, i64 1 seq_cst
  %order_at = getelementptr i64, ptr %order, i64 %chunk
  store i64 %number, ptr %order_at
  %owner_at = getelementptr i64, ptr %owner, i64 %chunk
  %address = ptrtoint ptr %scratch to i64
  store i64 %address, ptr %owner_at
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %i1 = add i64 %i, 1
  store volatile i64 %i1, ptr %scratch
  %more = icmp ult i64 %i1, 20000
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""

# counts[chunk] += 1, but only after as many loop iterations as `args[1]` points at.
LATE = """
define void @late(ptr %args, i64 %chunk, ptr %scratch) {
entry:
  %counts = load ptr, ptr %args
  %second = getelementptr ptr, ptr %args, i64 1
  %number_at = load ptr, ptr %second
  %number = load i64, ptr %number_at
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %i1 = add i64 %i, 1
  store volatile i64 %i1, ptr %scratch
  %more = icmp ult i64 %i1, %number
  br i1 %more, label %loop, label %exit
exit:
  %at = getelementptr i64, ptr %counts, i64 %chunk
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  ret void
}
"""

# args[0] = {how many are inside now, the most there ever were}; each stays for some loop iterations.
INSIDE = """
define void @inside(ptr %args, i64 %chunk, ptr %scratch) {
entry:
  %inside = load ptr, ptr %args
  %most = getelementptr i64, ptr %inside, i64 1
  %before = atomicrmw add ptr %inside, i64 1 seq_cst
  %now = add i64 %before, 1
  %old = atomicrmw max ptr %most, i64 %now seq_cst
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %i1 = add i64 %i, 1
  store volatile i64 %i1, ptr %scratch
  %more = icmp ult i64 %i1, 2000
  br i1 %more, label %loop, label %exit
exit:
  %left = atomicrmw sub ptr %inside, i64 1 seq_cst
  ret void
}
"""

# args[1][chunk] = whether the first number of args[0] became other than 0 before patience ended.
AWAIT = """
define void @await(ptr %args, i64 %chunk, ptr %scratch) {
entry:
  %flag = load ptr, ptr %args
  %second = getelementptr ptr, ptr %args, i64 1
  %report = load ptr, ptr %second
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %i1 = add i64 %i, 1
  %value = load atomic volatile i64, ptr %flag seq_cst, align 8
  %set = icmp ne i64 %value, 0
  %tired = icmp ugt i64 %i1, 20000000000
  %stop = or i1 %set, %tired
  br i1 %stop, label %exit, label %loop
exit:
  %to = getelementptr i64, ptr %report, i64 %chunk
  %set64 = zext i1 %set to i64
  store i64 %set64, ptr %to
  ret void
}
"""

KERNELS = {
    "order": ORDER,
    "late": LATE,
    "count": COUNT,
    "affine": AFFINE,
    "own_scratch": OWN_SCRATCH,
    "busy": BUSY,
    "inside": INSIDE,
    "await": AWAIT,
}


def executor(
    steps: Sequence[MainStep],
    num_threads: int,
    *,
    profile: bool = False,
    trace: bool = False,
    arena_bytes: int = 0,
    scratch_bytes: int = 0,
    callbacks: Sequence[HostCallback] = (),
    max_contexts: int | None = None,
) -> Executor:
    isa = host_isa()
    main = build_main(steps, isa, profile=profile or trace, trace=trace)
    objects = [compile_object(KERNELS[symbol], isa) for symbol in main.kernel_symbols]
    return Executor(
        main,
        link_main(main, objects, isa),
        num_threads=num_threads,
        arena_bytes=arena_bytes,
        scratch_bytes=scratch_bytes,
        callbacks=callbacks,
        max_contexts=max_contexts,
    )


def in_threads(number: int, action: Callable[[int], None], timeout_s: float = 60) -> None:
    failures: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            action(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(index,), daemon=True) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures
