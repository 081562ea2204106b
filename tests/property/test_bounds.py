"""The proof of `ir/bounds.py` against running the nests, iteration by iteration, on random small nests."""

# mypy: disable-error-code="assignment"

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

import numpy as np
import pytest

from tilewright.ir.bounds import find_nest_problem
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Const, reads_of
from tilewright.ir.graph import Value
from tilewright.ir.nest import Access, Affine, Dim, Index, Lookup, Nest, Operand, affine
from tilewright.ir.ops.build import read

F32 = DType.FLOAT32
SHAPES = ((1,), (2,), (3,), (4,), (6,), (2, 2), (3, 2), (2, 3), (0,), ())
VIEWS = {1: ((1,), (), (1, 1)), 4: ((4,), (2, 2), (1, 4)), 6: ((6,), (2, 3), (3, 2)), 2: ((2,), (1, 2))}


OVERLAP = "not every element of what overlaps"
"""No fault, but not covered for the proof, which takes only parts that share no element."""


def an_index(draw: random.Random, size: int, dims: Sequence[Dim]) -> Index:
    """Mostly one that stays inside an axis of a size, at its very ends; sometimes one place beyond."""
    beyond = draw.choice((0, 0, 0, 0, 0, 0, 0, 1, -1))
    fitting = [dim for dim in dims if dim.extent <= size]
    if not fitting or draw.random() < 0.1:
        return affine(draw.randrange(size) + beyond if size else 0)
    dim = draw.choice(fitting)
    match draw.randrange(6):
        case 0 | 1:
            return affine(dim.name, draw.choice((0, max(size - dim.extent, 0))) + beyond)
        case 2:
            return affine((dim.name, -1), dim.extent - 1 + beyond)
        case 3:
            step = (size - 1) // max(dim.extent - 1, 1)
            return affine((dim.name, max(step, 1)), draw.randrange(2) + beyond)
        case 4 if len(dims) > 1:
            inner = draw.choice([other for other in dims if other is not dim])
            return affine((dim.name, draw.choice((1, inner.extent, inner.extent, 2))), inner.name, beyond)
        case _:
            places = draw.sample(range(size), min(size, dim.extent))
            if places and beyond:
                places[draw.randrange(len(places))] += beyond * draw.choice((1, size))
            return Lookup(tuple(places), dim.name)


def an_access(draw: random.Random, operand: Operand, dims: Sequence[Dim], fill: float | None) -> Access:
    view = None
    if draw.random() < 0.4 and operand.num_elements in VIEWS:
        view = draw.choice(VIEWS[operand.num_elements])
    shape = operand.shape if view is None else view
    return Access(operand, tuple(an_index(draw, size, dims) for size in shape), fill, view)


def some_nests(draw: random.Random) -> tuple[list[Nest], list[Value], list[Value]]:
    """One to four nests over an input, a temporary, a table and a result."""
    x, kept, out = (Operand(kind, 0, F32, draw.choice(SHAPES)) for kind in ("input", "local", "output"))
    table = Operand("table", 0, F32, (3,), np.zeros(3, np.float32))
    nests = []
    targets = [kept] * draw.randrange(3) + [out] * draw.randrange(1, 4)
    for number, target in enumerate(targets):
        sizes = target.shape if draw.random() < 0.7 else draw.choice(SHAPES)
        extents = [size if draw.random() < 0.6 else draw.randrange(size + 1) for size in sizes]
        dims = [Dim(name, extent) for name, extent in zip("ijk", extents, strict=False)]
        sums = [Dim("r", draw.randrange(4), "reduce")] if draw.random() < 0.3 else []
        if draw.random() < 0.5 and len(dims) == len(target.shape):
            index: Sequence[Index] = [
                affine(dim.name, draw.choice((0, 0, 0, size - dim.extent)))
                for dim, size in zip(dims, target.shape, strict=True)
            ]
            write = Access(target, tuple(index))
        else:
            moving = [dim for dim in sums if dim.extent > 1 and draw.random() < 0.1]
            write = an_access(draw, target, [*dims, *moving], None)
        reads = [
            an_access(draw, source, [*dims, *sums], draw.choice((None, None, 0.0)))
            for source in draw.sample([x, table, kept, out], draw.choice((0, 1, 1, 2)))
            if source is not target or number
        ]
        body = Const(1.0, F32)
        for position, access in enumerate(reads):
            body = body + read(position, access)
        if not sums:
            nests.append(Nest(tuple(dims), tuple(reads), write, body))
            continue
        is_kept_after = bool(reads) and "r" not in reads[0].dims() and draw.random() < 0.5
        finish = Acc(F32) + read(0, reads[0]) if is_kept_after else Acc(F32)
        nests.append(Nest((*dims, *sums), tuple(reads), write, body, "sum", None, finish))
    return nests, [Value("x", F32, x.shape)], [Value("y", F32, out.shape)]


def place(index: Index, at: Mapping[str, int]) -> int | None:
    match index:
        case Affine(terms, offset):
            return offset + sum(c * at[dim] for dim, c in terms)
        case Lookup(table, dim):
            return table[at[dim]] if at[dim] < len(table) else None
    raise AssertionError(index)


def element(access: Access, at: Mapping[str, int]) -> int | None:
    """The element that an access is of in an iteration, in row-major order; None outside."""
    number = 0
    for index, size in zip(access.index, access.shape, strict=True):
        found = place(index, at)
        if found is None or not 0 <= found < size:
            return None
        number = number * size + found
    return number


def iterations(dims: Sequence[Dim]) -> Iterator[dict[str, int]]:
    for at in product(*(range(dim.extent) for dim in dims)):
        yield dict(zip((dim.name for dim in dims), at, strict=True))


def faults(nests: Sequence[Nest], outputs: Sequence[Value]) -> Iterator[str]:
    """What goes wrong when nests run, in the words of the proof."""
    written: dict[tuple[str, int], set[int]] = {}
    for nest in nests:
        for number, access in enumerate(nest.reads):
            is_late = number in reads_of(nest.init, nest.finish)
            for at in iterations(nest.parallel_dims if is_late else nest.dims):
                found = element(access, {**dict.fromkeys(("r",), 0), **at})
                if any(isinstance(i, Lookup) and len(i.table) <= at[i.dim] for i in access.index) or (
                    found is None and access.fill is None
                ):
                    yield "leaves its tensor"
                elif (
                    found is not None
                    and access.operand.kind in ("local", "output")
                    and found not in written.get(access.operand.key, ())
                ):
                    yield "not written yet"
        places = Counter(element(nest.write, {"r": 0, **at}) for at in iterations(nest.parallel_dims))
        if None in {element(nest.write, at) for at in iterations(nest.dims)} or None in places:
            yield "leaves its tensor"
        moving = {d.name for d in nest.reduce_dims if d.extent > 1}
        if places and moving & set(nest.write.dims()):
            yield "depends on a dim that is reduced"
        if any(count > 1 for count in places.values()):
            yield "written more than once"
        before = written.setdefault(nest.write.operand.key, set())
        if before & places.keys():
            yield OVERLAP
        before.update(p for p in places if p is not None)
    for number, value in enumerate(outputs):
        if len(written.get(("output", number), ())) < prod(value.shape):
            yield "not every element"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_the_proof_says_what_running_the_nests_shows(seed: int) -> None:
    """Where the proof refuses what runs, it is a read or a cover of several parts that overlap."""
    draw, seen = random.Random(seed), Counter[str]()
    for _ in range(400):
        nests, inputs, outputs = some_nests(draw)
        said = find_nest_problem(nests, inputs, outputs)
        found = set(faults(nests, outputs))
        wrong = found - {OVERLAP}
        text = "\n".join(map(str, nests))
        if said is None:
            assert not wrong, text
            seen["accepted"] += 1
        elif not wrong:
            assert "not written yet" in said or (OVERLAP in found and "not every" in said), f"{said}\n{text}"
            seen["cautious"] += 1
        else:
            assert any(words in said for words in (*wrong, "not written yet")), f"{said} {wrong}\n{text}"
            seen[next((words for words in sorted(wrong) if words in said), "cautious")] += 1
    assert seen["accepted"] > 40
    assert seen["cautious"] < 10
