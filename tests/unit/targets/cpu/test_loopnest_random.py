"""Random affine nests in random layouts: kernels give what the interpreter gives, nothing else is touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.loopnest_harness import assert_same

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Expr, Iter, Read, call, cast
from tilewright.ir.nest import Access, Affine, Dim, Index, Indirect, Lookup, Nest, Operand, affine
from tilewright.targets.cpu.isa import isa_by_name
from tilewright.targets.cpu.kernel import Layout

ISAS = [isa_by_name(name) for name in ("avx512", "avx2") if isa_by_name(name).runs_on_host]
EXTENTS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 20, 33, 40, 70])
ELEMENTS = [
    DType.FLOAT32, DType.FLOAT32, DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16,
    DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64, DType.UINT32,
]  # fmt: skip
MAX_ITERATIONS = 30_000


class Drawn:
    """One random nest with its inputs and layouts."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.inputs: dict[int, np.ndarray[Any, Any]] = {}
        self.layouts: dict[tuple[str, int], Layout] = {}
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        dtype = draw(st.sampled_from(ELEMENTS))
        num_parallel, num_reduce = draw(st.integers(1, 4)), draw(st.integers(0, 2))
        dims = [Dim(f"p{i}", draw(EXTENTS)) for i in range(num_parallel)]
        dims += [Dim(f"r{i}", draw(st.sampled_from([1, 2, 3, 5, 19])), "reduce") for i in range(num_reduce)]
        while np.prod([d.extent for d in dims]) > MAX_ITERATIONS:
            largest = max(range(len(dims)), key=lambda i: dims[i].extent)
            dims[largest] = Dim(dims[largest].name, max(1, dims[largest].extent // 3), dims[largest].role)
        self.dims = dims
        self.reads: list[Access] = []
        for _ in range(draw(st.integers(1, 3))):
            self.add_read(dtype, dims)
        self.nest = self.build(dtype)

    def add_read(self, dtype: DType, dims: list[Dim], *, limit: int | None = None) -> int:
        """A read of a new operand; `limit` asks for integers in [-limit, limit), for use as an index."""
        draw = self.draw
        shape: list[int] = []
        indices: list[Index] = []
        fill = draw(st.sampled_from([None, None, 0, 1])) if limit is None else None
        for _ in range(draw(st.integers(1, 3))):
            dim = draw(st.sampled_from(dims))
            kind = draw(st.sampled_from(["dim", "dim", "dim", "pair", "constant", "lookup", "data"]))
            if kind == "data" and limit is None and len(self.inputs) < 5:
                extent = draw(st.sampled_from([1, 3, 20]))
                parallel = [d for d in dims if d.role == "parallel"]
                indices.append(Indirect(self.add_read(DType.INT64, parallel, limit=extent)))
                shape.append(extent)
            elif kind == "lookup":
                top = draw(st.integers(1, 12))
                table = tuple(int(v) for v in self.rng.integers(0, top, dim.extent))
                indices.append(Lookup(table, dim.name))
                shape.append(top if fill is None else max(1, top - 1))
            elif kind == "constant":
                indices.append(affine(draw(st.integers(0, 2))))
                shape.append(3)
            else:
                self.add_affine(dim, dims if kind == "pair" else [], fill is not None, shape, indices)
        position = len(self.inputs)
        operand = Operand("input", position, dtype, tuple(shape))
        if limit is not None:
            self.inputs[position] = self.rng.integers(-limit, limit, shape)
        elif dtype.is_float:
            self.inputs[position] = self.rng.uniform(-2, 2, shape).astype(dtype.numpy)
        else:
            self.inputs[position] = self.rng.integers(-3 if dtype.is_signed else 0, 5, shape).astype(
                dtype.numpy
            )
        self.permute(operand)
        self.reads.append(Access(operand, tuple(indices), fill))
        return len(self.reads) - 1

    def add_affine(
        self, dim: Dim, others: list[Dim], padded: bool, shape: list[int], indices: list[Index]
    ) -> None:
        draw = self.draw
        terms: dict[str, int] = {dim.name: draw(st.sampled_from([1, 1, 1, 2, 3, 5, -1]))}
        if others:
            other = draw(st.sampled_from(others))
            if other.name != dim.name:
                terms[other.name] = draw(st.sampled_from([1, 2]))
        form = affine(*terms.items())
        low, high = form.bounds({d.name: d.extent for d in self.dims})
        extent = high - low + 1
        offset = -low
        if padded:
            cut = draw(st.integers(0, min(2, extent - 1)))
            offset -= cut
            extent = max(1, extent - cut - draw(st.integers(0, 2)))
        indices.append(Affine(form.terms, form.offset + offset))
        shape.append(extent)

    def permute(self, operand: Operand) -> None:
        order = self.draw(st.permutations(range(len(operand.shape))))
        self.layouts[operand.key] = Layout(tuple(order))

    def build(self, dtype: DType) -> Nest:
        draw = self.draw
        parallel = [d for d in self.dims if d.role == "parallel"]
        order = draw(st.permutations(parallel))
        target = Operand("output", 0, dtype, tuple(d.extent for d in order))
        self.permute(target)
        compute = dtype.compute
        usable = [i for i, a in enumerate(self.reads) if a.operand.dtype is dtype]
        value: Expr = Read(usable[0], compute)
        for index in usable[1:]:
            function = draw(st.sampled_from(["add", "mul", "max", "sub", "min"]))
            value = call(function, value, Read(index, compute))
        if draw(st.booleans()):
            value = value + cast(Iter(draw(st.sampled_from(self.dims)).name), compute)
        write = Access(target, tuple(affine(d.name) for d in order))
        if not any(d.role == "reduce" for d in self.dims):
            return Nest(tuple(self.dims), tuple(self.reads), write, value)
        combine = draw(st.sampled_from(["sum", "sum", "max", "min"]))
        finish = draw(st.sampled_from([None, call("max", Acc(compute), 0)]))
        return Nest(tuple(self.dims), tuple(self.reads), write, value, combine, None, finish)


def check(isa: Any, data: st.DataObject) -> None:
    drawn = Drawn(data.draw)
    half = drawn.nest.write.operand.dtype in (DType.FLOAT16, DType.BFLOAT16)
    scale = max(d.extent for d in drawn.dims)
    rtol = 1e-2 if half else 1e-4
    assert_same(
        (drawn.nest,), drawn.inputs, isa, drawn.layouts, rtol=rtol, atol=rtol * scale, both_ends=False
    )


SETTINGS = settings(
    max_examples=60, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@SETTINGS
@given(data=st.data())
def test_random_nests_give_what_the_interpreter_gives(isa: Any, data: st.DataObject) -> None:
    check(isa, data)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@settings(SETTINGS, max_examples=1500)
@given(data=st.data())
def test_many_more_random_nests(isa: Any, data: st.DataObject) -> None:
    check(isa, data)
