"""What parts of the emulation's runtime share: a thread's record, a launch's fields, faults, the trace."""

from __future__ import annotations

from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import I1, I32, I64, PTR, Int, Operand, Type, Val

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


class Records(Emitter):
    """Code that reads and writes records of threads and fields of a launch."""

    # Words of records, launches and globals.

    def get(self, pointer: Val, offset: Int = 0, type: Type = I64) -> Val:
        """A word, of so many bytes behind a pointer."""
        return self.load(type, self.gep(pointer, offset), align_bytes=min(4, type.element_bytes))

    def put(self, value: Operand, pointer: Val, offset: Int = 0) -> None:
        """Store one."""
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
        """Store fields of the launch."""
        for name, value in values.items():
            self.put(value, self.known("launch"), 8 * FIELD[name])

    def record(self, first: Val, number: Int) -> Val:
        """The record of a thread behind the first one's."""
        return self.gep(first, self.mul(number, RECORD_BYTES))

    def switch(self, save: Val, to: Val) -> None:
        """Go on with another fiber."""
        self.line(f"call void @switch({save.typed}, {to.typed})")

    def item(self, array: Val, place: Int) -> Val:
        """An entry of an order, 32 bits each."""
        return self.cast("zext", self.load(I32, self.gep(array, place, "i32")), "i64")

    def fill(self, pointer: Val, byte: int, size_bytes: Int) -> None:
        """Set bytes."""
        self.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        self.line(f"call void @llvm.memset.p0.i64({pointer.typed}, i8 {byte}, i64 {size_bytes}, i1 false)")

    def is_traced(self) -> Val:
        """Whether accesses are noted."""
        return self.op(f"icmp ne ptr {self.pointer('trace')}, null", I1)

    def note(self, site: Val, thread: Val, address: Val) -> None:
        """Write an access, or a fence, to the trace."""
        length = self.field("trace_length")
        self.set_fields(trace_length=self.iadd(length, 1))

        def write() -> None:
            entry = self.gep(self.pointer("trace"), self.mul(length, 32))
            for place, value in enumerate((site, thread, address, self.field("epoch"))):
                self.put(value, entry, 8 * place)

        self.if_(self.icmp("slt", length, self.field("trace_capacity")), write)
