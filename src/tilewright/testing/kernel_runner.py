"""Runs of generated kernels on numpy arrays between guard pages: the scaffolding of the generators' tests."""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.nest import Operand
from tilewright.targets.cpu.isa import Isa, host_isa
from tilewright.targets.cpu.kernel import ROWS, Kernel, Layouts, OperandKey, Packed
from tilewright.targets.llvm.codegen import JitLibrary, compile_object

ALIGNMENT_BYTES = 64
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_PROT_NONE = 0


def guarded(array: Array, *, at_end: bool = True) -> Array:
    """A copy whose data start at a multiple of 64 bytes and end, or start, at a page without access.

    Up to 63 bytes behind the data can be read, as in the arenas of a model.
    """
    size = max(array.nbytes, 1)
    padded = -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    inside = -(-padded // _PAGE) * _PAGE
    area = mmap.mmap(-1, inside + 2 * _PAGE)
    whole = np.frombuffer(area, np.uint8)  # keeps the mapping for as long as the copy lives
    for page in (whole.ctypes.data, whole.ctypes.data + _PAGE + inside):
        if _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect failed")
    start = _PAGE + (inside - padded if at_end else 0)
    copy = whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@functools.lru_cache(maxsize=1024)
def _object_of(text: str, isa: Isa, optimize: bool) -> bytes:
    """A kernel's code, kept for later runs of equal kernels."""
    return compile_object(text, isa, optimize=optimize)


def library_of(kernels: Iterable[Kernel], isa: Isa) -> JitLibrary:
    """Some kernels by their symbols, equal ones once."""
    distinct = {k.symbol: k for k in kernels}
    images = [_object_of(k.text, isa, k.needs_optimizer) for k in distinct.values()]
    return JitLibrary(images, exports=list(distinct))


class KernelRunner:
    """Compiled kernels with their buffers; call it to run every chunk of each once.

    Those that end with the rows of a run are told how many it has.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        operands: Mapping[OperandKey, Array],
        layouts: Layouts,
        isa: Isa,
        *,
        shift_bytes: int = 0,
    ) -> None:
        """`operands` holds logical arrays for every input and output; locals are allocated here.

        Inputs and outputs start `shift_bytes` behind multiples of 64.
        """
        self.stored: dict[OperandKey, Array] = {}
        self.layouts = layouts
        for key, array in operands.items():
            self.stored[key] = _placed(np.transpose(array, layouts[key].order), shift_bytes)
        self._library = library_of((k for kernel in kernels for k in kernel.all_kernels()), isa)
        self._calls: list[tuple[int, Array, int, int]] = []
        self._keep: list[Array] = []
        self._row_counts: list[Array] = []
        scratch = guarded(np.zeros(max([k.scratch_bytes for k in kernels], default=0), np.uint8))
        self._keep.append(scratch)
        self._scratch = scratch.ctypes.data
        for kernel in kernels:
            pointers = []
            for arg in kernel.args:
                if isinstance(arg, Operand) and arg.kind == ROWS:
                    pointers.append(0)
                elif isinstance(arg, Packed):
                    data = guarded(arg.arrangement.arrange(operands[arg.source.key]))
                    self._keep.append(data)
                    pointers.append(data.ctypes.data)
                else:
                    pointers.append(self._buffer(arg).ctypes.data)
            block = np.array(pointers, np.int64)
            takes_rows = (isinstance(a, Operand) and a.kind == ROWS for a in kernel.args)
            self._row_counts += [block[i : i + 1] for i, takes in enumerate(takes_rows) if takes]
            self._calls.append((self._library[kernel.symbol], block, block.ctypes.data, kernel.num_chunks))

    def _buffer(self, operand: Operand) -> Array:
        if operand.key not in self.stored:
            data = np.zeros(operand.shape, operand.dtype.numpy) if operand.data is None else operand.data
            self.stored[operand.key] = guarded(data)
        return self.stored[operand.key]

    def __call__(self, num_rows: int = 0) -> None:
        """Run every chunk of each kernel once, on so many rows where kernels end with them."""
        for place in self._row_counts:
            place[0] = num_rows
        run = _all_chunks()
        for address, _, pointers, num_chunks in self._calls:
            run(address, pointers, num_chunks, self._scratch)

    def result(self, key: OperandKey) -> Array:
        """The logical array of an operand."""
        order = self.layouts[key].order
        return np.transpose(self.stored[key], np.argsort(order) if order else ())


@functools.cache
def _all_chunks() -> Callable[[int, int, int, int], None]:
    """Calls a kernel for each of its chunks: by machine code, as a model does, for the sake of times."""
    library = JitLibrary([compile_object(_ALL_CHUNKS, host_isa())], ["run"])
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    function = signature(library["run"])

    def run(kernel: int, args: int, num_chunks: int, scratch: int) -> None:
        assert library  # the code lives as long as what calls it
        function(kernel, args, num_chunks, scratch)

    return run


_ALL_CHUNKS = """
define void @run(ptr %kernel, ptr %args, i64 %num_chunks, ptr %scratch) {
entry:
  br label %loop
loop:
  %chunk = phi i64 [0, %entry], [%next, %loop]
  call void %kernel(ptr %args, i64 %chunk, ptr %scratch)
  %next = add i64 %chunk, 1
  %more = icmp slt i64 %next, %num_chunks
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""


def _placed(array: Array, shift_bytes: int) -> Array:
    data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    place = guarded(np.concatenate([np.zeros(shift_bytes, np.uint8), data]))
    return place[shift_bytes:].view(array.dtype).reshape(array.shape)
