"""Runs lowered nests on buffers that end (or begin) at unmapped pages, and compares with the interpreter."""

# mypy: disable-error-code="call-overload"

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from tilewright.ir.nest import Nest, Operand, operands_of
from tilewright.ir.nest_interpreter import run_nests
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import (
    REPORT_BYTES,
    Kernel,
    Layout,
    Layouts,
    OperandKey,
    Packed,
    reports_operand,
)
from tilewright.targets.cpu.loopnest import lower_nests
from tilewright.targets.llvm.codegen import JitLibrary
from tilewright.testing.kernel_runner import library_of
from tilewright.tuning import Choice

Array = np.ndarray[Any, Any]
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_CANARY = 0xA5


class Guarded:
    """Bytes between two unmapped pages, touching the later one (or the earlier one)."""

    def __init__(self, size_bytes: int, *, at_end: bool) -> None:
        pages = -(-max(size_bytes, 1) // _PAGE)
        self._total = (pages + 2) * _PAGE
        base = _libc.mmap(None, self._total, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        assert base not in (None, ctypes.c_void_p(-1).value)
        self._base = base
        for page in (base, base + (pages + 1) * _PAGE):
            assert _libc.mprotect(page, _PAGE, 0) == 0
        self._first = base + _PAGE
        self._mapped = pages * _PAGE
        ctypes.memset(self._first, _CANARY, self._mapped)
        self.size_bytes = size_bytes
        self.address = self._first + (self._mapped - size_bytes if at_end else 0)

    def array(self, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
        view = (ctypes.c_char * self.size_bytes).from_address(self.address)
        return np.frombuffer(view, dtype=dtype).reshape(shape)

    def slack_is_untouched(self) -> bool:
        whole = ctypes.string_at(self._first, self._mapped)
        offset = self.address - self._first
        outside = whole[:offset] + whole[offset + self.size_bytes :]
        return outside == bytes([_CANARY]) * len(outside)

    def close(self) -> None:
        _libc.munmap(self._base, self._total)


def num_stored(operand: Operand, layout: Layout) -> int:
    """Elements from the first to the last one of an operand, both included."""
    if 0 in operand.shape:
        return 0
    return 1 + sum((e - 1) * s for e, s in zip(operand.shape, layout.strides(operand.shape), strict=True))


def in_memory(buffer: Guarded, operand: Operand, layout: Layout) -> Array:
    """The operand's elements where they lie, under its logical shape."""
    dtype = operand.dtype.numpy
    flat = buffer.array(dtype, (num_stored(operand, layout),))
    steps = [s * dtype.itemsize for s in layout.strides(operand.shape)]
    return np.lib.stride_tricks.as_strided(flat, operand.shape, steps)


def between_is_untouched(buffer: Guarded, operand: Operand, layout: Layout) -> bool:
    """Whether the elements of a larger tensor between those of a window were left alone."""
    itemsize = operand.dtype.numpy.itemsize
    whole = np.frombuffer(ctypes.string_at(buffer.address, buffer.size_bytes), np.uint8)
    whole = whole.reshape(-1, itemsize).copy()
    places = np.zeros(operand.shape, np.int64)
    for axis, (extent, step) in enumerate(zip(operand.shape, layout.strides(operand.shape), strict=True)):
        places += (np.arange(extent) * step).reshape([-1 if a == axis else 1 for a in range(places.ndim)])
    whole[places.ravel()] = _CANARY
    return bool((whole == _CANARY).all())


def run_kernels(
    nests: Sequence[Nest],
    inputs: Mapping[int, Array],
    isa: Isa,
    layouts: Layouts | None = None,
    *,
    at_end: bool = True,
    reports: list[Array] | None = None,
    choice: Choice | None = None,
) -> dict[int, Array]:
    """Outputs by position, computed by the lowered kernels, as chosen if anything is.

    `reports` gets what each says of its indices.
    """
    layouts = dict(layouts or {})
    kernels = lower_nests(tuple(nests), layouts, isa, lambda members: choice)
    with closing(library_of(kernels, isa)) as library:
        return _run(nests, inputs, kernels, library, layouts, at_end=at_end, reports=reports)


def _run(
    nests: Sequence[Nest],
    inputs: Mapping[int, Array],
    kernels: Sequence[Kernel],
    library: JitLibrary,
    layouts: Layouts,
    *,
    at_end: bool,
    reports: list[Array] | None = None,
) -> dict[int, Array]:
    buffers: dict[OperandKey, Guarded] = {}
    operands: dict[OperandKey, Operand] = {o.key: o for o in operands_of(nests)}
    everything: list[Guarded] = []
    try:
        for key, operand in operands.items():
            layout = layouts.get(key, Layout.row_major(len(operand.shape)))
            size = num_stored(operand, layout) * operand.dtype.numpy.itemsize
            buffer = buffers[key] = Guarded(size, at_end=at_end)
            everything.append(buffer)
            data = inputs.get(operand.position) if operand.kind == "input" else None
            data = operand.data if operand.kind == "table" else data
            if data is not None and size:
                in_memory(buffer, operand, layout)[...] = np.asarray(data, operand.dtype.numpy)
        for kernel in kernels:
            assert not any(isinstance(a, Packed) for a in kernel.args)
            if kernel.checks:
                report = reports_operand(len(kernel.checks))
                buffers[report.key] = Guarded(REPORT_BYTES * len(kernel.checks), at_end=at_end)
                everything.append(buffers[report.key])
                found = in_memory(buffers[report.key], report, Layout.row_major(2))
                found[...] = 0
            addresses = [buffers[a.key].address for a in kernel.args if isinstance(a, Operand)]
            block = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
            # Scratch is 64-byte aligned by contract.
            scratch = Guarded(-(-kernel.scratch_bytes // 64) * 64, at_end=True)
            everything.append(scratch)
            function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(
                library[kernel.symbol]
            )
            for chunk in reversed(range(kernel.num_chunks)):
                function(ctypes.addressof(block), chunk, scratch.address)
            if kernel.checks and reports is not None:
                reports.append(found.copy())
        assert all(b.slack_is_untouched() for b in everything)
        results = {}
        for key, operand in operands.items():
            if key[0] == "output":
                layout = layouts.get(key, Layout.row_major(len(operand.shape)))
                results[key[1]] = in_memory(buffers[key], operand, layout).copy()
                assert between_is_untouched(buffers[key], operand, layout)
        return results
    finally:
        for buffer in everything:
            buffer.close()


def expected(nests: Sequence[Nest], inputs: Mapping[int, Array]) -> dict[int, Array]:
    outputs = {o.position: (o.dtype, o.shape) for o in operands_of(nests) if o.kind == "output"}
    given = [inputs.get(i) for i in range(max(inputs, default=-1) + 1)]
    specs = [outputs.get(i) for i in range(max(outputs) + 1)]
    made = run_nests(nests, given, specs)
    return {i: a for i, a in enumerate(made) if a is not None}


def assert_same(
    nests: Sequence[Nest],
    inputs: Mapping[int, Array],
    isa: Isa,
    layouts: Layouts | None = None,
    *,
    rtol: float = 2e-5,
    atol: float = 1e-5,
    both_ends: bool = True,
    choice: Choice | None = None,
) -> None:
    """The kernels give what the interpreter gives, from buffers at either side of unmapped memory."""
    want, layouts = expected(nests, inputs), dict(layouts or {})
    kernels = lower_nests(tuple(nests), layouts, isa, lambda members: choice)
    with closing(library_of(kernels, isa)) as library:
        found = [
            _run(nests, inputs, kernels, library, layouts, at_end=at_end)
            for at_end in ((True, False) if both_ends else (True,))
        ]
    for got in found:
        assert got.keys() == want.keys()
        for position, array in want.items():
            assert got[position].dtype == array.dtype
            if array.dtype.kind in "iub":
                np.testing.assert_array_equal(got[position], array)
            else:
                np.testing.assert_allclose(
                    got[position].astype(np.float64), array.astype(np.float64), rtol=rtol, atol=atol
                )
