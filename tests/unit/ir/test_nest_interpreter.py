"""The nest interpreter computes what a nest says and refuses nests that break the contract."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.ir.nest_interpreter as module
from tilewright.errors import InputError, InternalError
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Const, Iter, Read, cast
from tilewright.ir.nest import Access, Dim, Indirect, Lookup, Nest, Operand, affine
from tilewright.ir.nest_interpreter import run_nests

F = DType.FLOAT32
X = Operand("input", 0, F, (4,))
Y = Operand("output", 0, F, (4,))
I4 = Dim("i", 4)
DATA = np.array([1, 2, 4, 8], np.float32)


def run(nest: Nest, *inputs: np.ndarray, shape: tuple[int, ...] = (4,), dtype: DType = F) -> list[float]:
    (result,) = run_nests([nest], inputs, [(dtype, shape)])
    assert result is not None
    return result.tolist()


def test_an_index_outside_reads_the_fill() -> None:
    shifted = Access(X, (affine("i", -1),), fill=9.0)
    assert run(Nest((I4,), (shifted,), Access(Y, (affine("i"),)), Read(0, F)), DATA) == [9, 1, 2, 4]


def test_an_index_outside_without_fill_breaks_the_contract() -> None:
    shifted = Access(X, (affine("i", -1),))
    with pytest.raises(InternalError, match=r"in0\[i-1\] leaves \[4\]"):
        run(Nest((I4,), (shifted,), Access(Y, (affine("i"),)), Read(0, F)), DATA)


def test_views_lookups_and_loop_indices() -> None:
    grid = Access(X, (Lookup((1, 0), "i"), affine("j")), view=(2, 2))
    write = Access(Y, (affine(("i", 2), "j"),))
    body = Read(0, F) + cast(Iter("j"), F) * 100
    assert run(Nest((Dim("i", 2), Dim("j", 2)), (grid,), write, body), DATA) == [4, 108, 1, 102]


def test_an_indirect_index_counts_from_the_end_when_negative() -> None:
    where = Operand("input", 1, DType.INT64, (4,))
    reads = (Access(X, (Indirect(1),)), Access(where, (affine("i"),)))
    nest = Nest((I4,), reads, Access(Y, (affine("i"),)), Read(0, F))
    assert run(nest, DATA, np.array([-1, 0, -4, 2])) == [8, 1, 1, 4]
    with pytest.raises(InputError, match="index 4 lies outside axis 0, which has 4 elements"):
        run(nest, DATA, np.array([0, 0, 0, 4]))


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
def test_init_and_finish_apply_once_whatever_the_block_size(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK_ITERATIONS", block)
    source = Access(Operand("input", 0, F, (2, 4)), (affine("i"), affine("k")))
    start = Access(Operand("input", 1, F, (2,)), (affine("i"),))
    write = Access(Operand("output", 0, F, (2,)), (affine("i"),))
    dims = (Dim("i", 2), Dim("k", 4, "reduce"))
    nest = Nest(dims, (source, start), write, Read(0, F), "sum", Read(1, F), Acc(F) * 10)
    data = np.stack([DATA, -DATA])
    assert run(nest, data, np.array([100, 200], np.float32), shape=(2,)) == [1150, 1850]


@pytest.mark.parametrize(
    ("combine", "dtype", "empty"),
    [
        ("sum", F, 0),
        ("prod", F, 1),
        ("max", F, -np.inf),
        ("min", DType.INT32, 2**31 - 1),
        ("and", DType.BOOL, True),
        ("or", DType.BOOL, False),
    ],
)
def test_reducing_nothing_gives_the_neutral_element(combine: str, dtype: DType, empty: float) -> None:
    source = Access(Operand("input", 0, dtype, (0,)), (affine("k"),))
    write = Access(Operand("output", 0, dtype, ()), ())
    nest = Nest((Dim("k", 0, "reduce"),), (source,), write, Read(0, dtype), combine)  # type: ignore[arg-type]
    assert run(nest, np.zeros(0, dtype.numpy), shape=(), dtype=dtype) == empty


def test_small_integers_wrap_in_their_own_type() -> None:
    source = Access(Operand("input", 0, DType.INT8, (3,)), (affine("k"),))
    write = Access(Operand("output", 0, DType.INT8, ()), ())
    nest = Nest((Dim("k", 3, "reduce"),), (source,), write, Read(0, DType.INT8), "sum")
    assert run(nest, np.full(3, 100, np.int8), shape=(), dtype=DType.INT8) == 300 - 256


def constant(write: Access, *dims: Dim) -> Nest:
    return Nest(dims, (), write, Const(1.0, F))


def test_an_element_nobody_writes_is_an_error() -> None:
    nest = constant(Access(Y, (affine("i"),)), Dim("i", 3))
    with pytest.raises(InternalError, match=r"output 0: no nest writes element \[3\]"):
        run(nest)


def test_an_element_written_twice_is_an_error() -> None:
    with pytest.raises(InternalError, match="more than once"):
        run(constant(Access(Y, (affine("i"),)), I4, Dim("j", 2)))
    twice = constant(Access(Y, (affine("i"),)), I4)
    with pytest.raises(InternalError, match="more than once"):
        run_nests([twice, twice], [], [(F, (4,))])


def test_a_write_addressed_by_data_may_overwrite() -> None:
    where = Operand("input", 0, DType.INT64, (1,))
    scatter = Nest((Dim("i", 1),), (Access(where, (affine("i"),)),), Access(Y, (Indirect(0),)), Const(5.0, F))
    zero = constant(Access(Y, (affine("i"),)), I4)
    (result,) = run_nests([zero, scatter], [np.array([2])], [(F, (4,))])
    assert result is not None
    assert result.tolist() == [1, 1, 5, 1]


def test_a_local_read_before_it_is_written_is_an_error() -> None:
    temporary = Operand("local", 0, F, (4,))
    copy = Nest((I4,), (Access(temporary, (affine("i"),)),), Access(Y, (affine("i"),)), Read(0, F))
    with pytest.raises(InternalError, match="before any nest writes it"):
        run(copy)
    half = constant(Access(temporary, (affine("i"),)), Dim("i", 2))
    with pytest.raises(InternalError, match="is read before it is written"):
        run_nests([half, copy], [], [(F, (4,))])


@pytest.mark.parametrize(
    ("nest", "text"),
    [
        (Nest((I4,), (), Access(Y, (affine("i", 1),)), Const(1.0, F)), "writes outside"),
        (Nest((I4, I4), (), Access(Y, (affine("i"),)), Const(1.0, F)), "two dims have one name"),
        (Nest((Dim("i", 4, "reduce"),), (), Access(Y, (affine(),)), Const(1.0, F)), "without a combine"),
        (Nest((I4,), (), Access(Y, (affine("i"),)), Const(1, DType.INT32)), "computes int32 for an operand"),
        (
            Nest((Dim("i", 4, "reduce"),), (), Access(Y, (affine("i"),)), Const(1.0, F), "sum"),
            "writes through a reduce dim",
        ),
        (
            Nest(
                (I4, Dim("k", 4, "reduce")),
                (Access(X, (affine("k"),)),),
                Access(Y, (affine("i"),)),
                Read(0, F),
                "sum",
                Read(0, F),
            ),
            "which depends on a reduce dim",
        ),
        (
            Nest(
                (I4,), (Access(X, (affine("i"),)),), Access(Y, (affine("i"),)), cast(Read(0, DType.INT8), F)
            ),
            "r0 is read as int8, but holds float32",
        ),
    ],
)
def test_malformed_nests_are_refused(nest: Nest, text: str) -> None:
    with pytest.raises(InternalError, match=text):
        run(nest, DATA)
