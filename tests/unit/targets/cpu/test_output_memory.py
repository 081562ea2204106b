"""Memory of large outputs: lent, given back with the last view, bounded, never shared by two results."""

from __future__ import annotations

import gc
import itertools
import os
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.graphs import GraphBuilder
from tests.support.pool_kernels import in_threads

import tilewright as tw
from tilewright.targets.cpu.runtime.output_memory import LARGE_BYTES, OutputMemory

SHAPE = (4, LARGE_BYTES // 16)
FLOAT = np.dtype(np.float32)


def address(array: np.ndarray[Any, Any]) -> int:
    return array.ctypes.data


def test_memory_comes_back_with_the_last_view() -> None:
    memory = OutputMemory([LARGE_BYTES])
    first = memory.empty(SHAPE, FLOAT)
    where, view = address(first), first[1:, ::2].T
    del first
    assert memory.free_bytes == 0
    assert address(memory.empty(SHAPE, FLOAT)) != where
    del view
    assert where in {address(a) for a in [memory.empty(SHAPE, FLOAT), memory.empty(SHAPE, FLOAT)]}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=40))
def test_no_two_arrays_share_memory_and_what_is_kept_is_bounded(steps: list[tuple[bool, int]]) -> None:
    memory, held = OutputMemory([LARGE_BYTES, 2 * LARGE_BYTES]), list[np.ndarray[Any, Any]]()
    for number, (takes, which) in enumerate(steps):
        if takes or not held:
            array = memory.empty((1 + which % 2, *SHAPE), FLOAT)
            array[...] = number
            held.append(array)
        else:
            held.pop(which % len(held))
        assert memory.free_bytes <= 2 * 3 * LARGE_BYTES
        places = sorted((address(a), a.nbytes) for a in held)
        assert all(low + size <= high for (low, size), (high, _) in itertools.pairwise(places))
    assert all((a == a.flat[0]).all() for a in held), "what a caller holds is never written again"


@pytest.mark.parametrize("dtype", [np.float32, np.int8, ml_dtypes.bfloat16])
def test_arrays_are_like_those_of_numpy(dtype: Any) -> None:
    shape = (3, LARGE_BYTES // np.dtype(dtype).itemsize)
    memory = OutputMemory([3 * LARGE_BYTES])
    array = memory.empty(shape, np.dtype(dtype))
    assert array.shape == shape
    assert array.dtype == dtype
    assert array.flags.writeable
    assert array.flags.c_contiguous
    assert address(array) % 64 == 0
    array[...] = 1
    assert np.array_equal(np.from_dlpack(array) if dtype is np.float32 else array, np.ones(shape, dtype))


def test_arrays_outlive_the_memory_they_came_from() -> None:
    memory = OutputMemory([LARGE_BYTES])
    array = memory.empty(SHAPE, FLOAT)
    array[...] = 3
    memory.clear()
    del memory
    gc.collect()
    assert (array == 3).all()


def test_an_array_that_is_left_keeps_no_free_memory() -> None:
    memory = OutputMemory([LARGE_BYTES])
    held, other = memory.empty(SHAPE, FLOAT), memory.empty(SHAPE, FLOAT)
    del other
    assert memory.free_bytes == LARGE_BYTES
    watched = weakref.ref(memory)
    del memory
    assert watched() is None
    assert held.shape == SHAPE


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_its_own_copy_of_what_it_holds() -> None:
    memory = OutputMemory([LARGE_BYTES])
    array = memory.empty(SHAPE, FLOAT)
    array[...] = 1
    (reads, told), (answers, answer) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reads, 1)  # until the parent has written the next result
        os.write(answer, b"yes" if (array == 1).all() else b"no")
        os._exit(0)
    where = address(array)
    del array
    result = memory.empty(SHAPE, FLOAT)
    assert address(result) == where
    result[...] = 2
    os.write(told, b".")
    kept = os.read(answers, 3)
    os.waitpid(child, 0)
    for end in (reads, told, answers, answer):
        os.close(end)
    assert kept == b"yes"


def test_other_sizes_are_numpys_and_not_kept() -> None:
    memory = OutputMemory([8])
    for shape in [(2,), (3, LARGE_BYTES)]:
        assert memory.empty(shape, FLOAT).base is None
    assert memory.free_bytes == 0


def doubled() -> tw.Model:
    b = GraphBuilder("doubled")
    x = b.input(*SHAPE)
    return tw.Model(b.finish(b.op("Add", x, x)), "0" * 64, "doubled")


def test_runs_write_again_what_nobody_holds() -> None:
    with tw.compile(doubled()) as compiled:
        x = np.ones(SHAPE, np.float32)
        held = compiled(x)
        places = set()
        for number in range(6):
            result = compiled(x * number)
            assert (result == 2 * number).all()
            places.add(address(result))
            assert address(result) != address(held)
        assert len(places) <= 2
    assert (held == 2).all(), "a result stays when its model is closed"


def test_runs_at_a_time_have_memory_of_their_own() -> None:
    compiled = tw.compile(doubled())

    def run(number: int) -> None:
        x = np.full(SHAPE, number, np.float32)
        for _ in range(20):
            result = compiled(x)
            assert (result == 2 * number).all()

    in_threads(8, run)
