"""Writes kernels of a GPU: threads, blocks, shared memory, shuffles and barriers beside the emitter's rest.

Each intrinsic is a function of the emulation, too: a name that it lacks is found by the first test that
runs the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tilewright.memory.base import aligned
from tilewright.targets.llvm.emitter import Emitter, Param
from tilewright.targets.llvm.module_text import SYMBOL_PLACEHOLDER
from tilewright.targets.llvm.values import I32, I64, PTR, Int, Type, Val, vec

WARP = 32
"""Threads that run in lockstep where they are told to."""
SHARED = vec("ptr addrspace(3)")


class CudaEmitter(Emitter):
    """One module under construction, with what threads of a block have in common."""

    shared_bytes = 0
    """The bytes of all shared arrays, one behind another as they are aligned."""

    _table_space = "addrspace(1) "
    has_lrint = False
    narrow_guards = True
    _counter = I32  # 64 bits are two registers, and two instructions each time

    # Functions.

    @contextmanager
    def kernel(
        self, num_params: int, num_threads: int, *, takes_all_registers: bool = False
    ) -> Iterator[tuple[Val, ...]]:
        """A kernel around the emitted body; gives the addresses of its operands.

        One that `takes_all_registers` does not spill some so that more blocks share a multiprocessor.
        """
        params = [Param(f"p{i}", PTR, "noalias") for i in range(num_params)]
        attributes = f'nounwind "nvvm.maxntid"="{num_threads}"'
        if takes_all_registers:
            attributes += ' "nvvm.minctasm"="1"'
        name = SYMBOL_PLACEHOLDER.removeprefix("@")
        with self.function(name, params, linkage="ptx_kernel", attributes=attributes) as pointers:
            yield pointers

    # Tables that all lanes of a warp read at one place.

    def look_up_table(self, values: Sequence[int]) -> Val:
        """A table of numbers of 32 bits."""
        name = f"@steps{len(self._globals)}"
        listed = ", ".join(f"i32 {value}" for value in values)
        kind = f"[{len(values)} x i32]"
        self._globals[name] = f"private unnamed_addr addrspace(4) constant {kind} [{listed}], align 4"
        return Val(name, vec("ptr addrspace(4)"))

    def look_up(self, table: Val, entry: Int) -> Val:
        """An entry of a table."""
        at = self.op(f"getelementptr i32, {table.typed}, i64 {entry}", table.type)
        return self.op(f"load i32, {at.typed}, align 4", I32)

    # Threads.

    def special(self, register: str) -> Val:
        """A register that says which thread this is, as an index."""
        name = f"i32 @llvm.nvvm.read.ptx.sreg.{register}()"
        self.declare(f"declare {name}")
        return self.cast("zext", self.op(f"call {name}", I32), "i64")

    def thread(self) -> Val:
        """Number of the thread in its block."""
        return self.special("tid.x")

    def block(self, axis: str = "x") -> Val:
        """Number of the block in its grid."""
        return self.special(f"ctaid.{axis}")

    def barrier(self) -> None:
        """Every thread of the block has come here; what they stored in shared memory is seen by all."""
        name = "void @llvm.nvvm.barrier.cta.sync.aligned.all("
        self.declare(f"declare {name}i32)")
        self.line(f"call {name}i32 0)")

    def fence(self) -> None:
        """What this thread has seen or stored before is before what it does to atomic places after."""
        self.line('fence syncscope("device") acq_rel')

    def is_last_block(self, counter: Val, num_blocks: int, word: Val) -> Val:
        """Whether this is the last of so many blocks that come here: it sees what the others stored before.

        `counter` is zero again then; `word` is of shared memory, which nothing uses meanwhile.
        """
        self.barrier()

        def arrive() -> None:
            self.fence()  # atomic operations of PTX have no order of their own through LLVM
            text = f'atomicrmw uinc_wrap {counter.typed}, i32 {num_blocks - 1} syncscope("device") monotonic'
            number = self.op(f"{text}, align 4", I32)
            self.fence()
            self.shared_store(number, word)

        self.if_(self.compare("eq", self.thread(), 0), arrive)
        self.barrier()
        return self.icmp("eq", self.shared_load(I32, word), num_blocks - 1)

    # Shared memory.

    def shared_array(self, size_bytes: int, *, align_bytes: int = 16) -> Val:
        """Memory that the threads of a block share."""
        self.shared_bytes = aligned(self.shared_bytes, align_bytes) + size_bytes
        name = f"@shared{sum(key.startswith('@shared') for key in self._globals)}"
        self._globals[name] = f"internal addrspace(3) global [{size_bytes} x i8] undef, align {align_bytes}"
        return Val(name, SHARED)

    def shared_gep(self, pointer: Val, offset: Int) -> Val:
        """A shared address moved by bytes."""
        if isinstance(offset, int) and offset == 0:
            return pointer
        return self.op(f"getelementptr i8, {pointer.typed}, i64 {offset}", SHARED)

    def shared_load(self, type: Type, pointer: Val, *, align_bytes: int = 0) -> Val:
        """A value from shared memory."""
        return self.op(f"load {type.text}, {pointer.typed}, align {align_bytes or type.element_bytes}", type)

    def shared_store(self, value: Val, pointer: Val, *, align_bytes: int = 0) -> None:
        """A value to shared memory."""
        self.line(f"store {value.typed}, {pointer.typed}, align {align_bytes or value.type.element_bytes}")

    # Lanes of a warp.

    def from_lane(self, value: Val, xor: int) -> Val:
        """The value of the thread whose number in the warp differs in the bits of `xor`."""
        return self._in_words(value, lambda word: self._shuffle(word, xor))

    def _shuffle(self, word: Val, xor: int) -> Val:
        name = "i32 @llvm.nvvm.shfl.sync.bfly.i32("
        self.declare(f"declare {name}i32, i32, i32, i32)")
        return self.op(f"call {name}i32 -1, {word.typed}, i32 {xor}, i32 {WARP - 1})", I32)

    def _in_words(self, value: Val, change: Callable[[Val], Val]) -> Val:
        """A scalar whose 32-bit parts are changed one by one."""
        type = value.type
        if type.element in ("i1", "i8", "i16"):
            return self.cast("trunc", change(self.cast("zext", value, "i32")), type.element)
        if type.size_bytes == 4:
            return self.bitcast(change(self.bitcast(value, I32)), type)
        bits = self.bitcast(value, I64)
        low = change(self.cast("trunc", bits, "i32"))
        high = change(self.cast("trunc", self.lshr(bits, 32), "i32"))
        joined = self.or_(self.cast("zext", low, "i64"), self.shl(self.cast("zext", high, "i64"), 32))
        return self.bitcast(joined, type)

    def warp_total(self, value: Val, combine: Callable[[Val, Val], Val]) -> Val:
        """One value from all lanes, in every lane the same bits: neighbours, then pairs, then fours."""
        distance = WARP // 2
        while distance:
            value = combine(value, self.from_lane(value, distance))
            distance //= 2
        return value

    def from_float(self, value: Val, element: str) -> Val:
        """As elsewhere, but that GPUs have an instruction for bfloat16."""
        if element == "bfloat":
            return self.cast("fptrunc", value, element)
        return super().from_float(value, element)

    def digits_of(self, number: Int, extents: Sequence[int]) -> list[Int]:
        """The index of each of nested loops, outermost first, at one of their combinations."""
        return list(self.digits(number, extents))[::-1]

    # Asynchronous copies.

    def copy_async(self, target: Val, source: Val, size_bytes: int, valid: Val | None = None) -> None:
        """Begin a copy to shared memory; with `valid`, only so many bytes are read, the others are zero."""
        level = "cg" if size_bytes == 16 else "ca"
        name = f"void @llvm.nvvm.cp.async.{level}.shared.global.{size_bytes}{'' if valid is None else '.s'}("
        more = "" if valid is None else ", i32"
        self.declare(f"declare {name}ptr addrspace(3), ptr addrspace(1){more})")
        source = self.op(f"addrspacecast ptr {source} to ptr addrspace(1)", GLOBAL)
        number = "" if valid is None else f", {valid.typed}"
        self.line(f"call {name}{target.typed}, {source.typed}{number})")

    def commit_copies(self) -> None:
        """Copies begun since the last time are one group from here on."""
        self.declare("declare void @llvm.nvvm.cp.async.commit.group()")
        self.line("call void @llvm.nvvm.cp.async.commit.group()")

    def wait_for_copies(self, allowed: int) -> None:
        """Until at most so many groups of this thread are under way."""
        self.declare("declare void @llvm.nvvm.cp.async.wait.group(i32 immarg)")
        self.line(f"call void @llvm.nvvm.cp.async.wait.group(i32 {allowed})")

    # Tensor cores.

    def load_matrix(self, row: Val) -> list[Val]:
        """Four matrices of 8 rows of 16 bytes, whose addresses lanes give; each lane has a word of each."""
        name = "@llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p3(ptr addrspace(3)"
        words = "{ i32, i32, i32, i32 }"
        self.declare(f"declare {words} {name})")
        made = self.op(f"call {words} {name} {row})", I32)
        return [self.op(f"extractvalue {words} {made}, {i}", I32) for i in range(4)]

    def multiply_matrix(
        self, kind: str, left: Sequence[Val], right: Sequence[Val], sums: Sequence[Val]
    ) -> list[Val]:
        """Sums with a product of 16 rows and 8 columns by 32 bytes of depth added."""
        name, word = _PRODUCTS.get(kind, (f"m16n8k32.row.col.{kind}", "i32"))
        total = sums[0].type
        four = f"{{ {', '.join([total.text] * 4)} }}"
        name = f"{four} @llvm.nvvm.mma.{name}("
        self.declare(f"declare {name}{', '.join([word] * 6 + [total.text] * 4)})")
        words = [
            w if word == "i32" else self.op(f"bitcast {w.typed} to {word}", I32) for w in (*left, *right)
        ]
        listed = ", ".join([f"{word} {w}" for w in words] + [s.typed for s in sums])
        made = self.op(f"call {name}{listed})", total)
        return [self.op(f"extractvalue {four} {made}, {i}", total) for i in range(4)]


GLOBAL = vec("ptr addrspace(1)")
_PRODUCTS = {
    "f16": ("m16n8k16.row.col.f32.f32", "<2 x half>"),
    "bf16": ("m16n8k16.row.col.bf16", "i32"),
    "tf32": ("m16n8k8.row.col.tf32", "i32"),
}
"""Names and types of a register, of all but bytes, whose kinds are names."""
