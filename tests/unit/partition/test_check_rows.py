"""What instances of a chain make, read, keep and hold, row by row, on values of one column."""

# mypy: disable-error-code="operator"

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.region import Region, full_region, input_regions, volume
from tilewright.partition.check_rows import Link, chain_links, leaving, link_peaks, needs

Rows = dict[str, tuple[int, int]]


class Columns(GraphBuilder):
    """Values of so many rows; each operator is a layer of its own."""

    def column(self, rows: int) -> Value:
        return self.input(1, 1, rows)

    def window(self, x: Value, height: int = 3, before: int = 1, after: int = 1, **attributes: Any) -> Value:
        """A window over rows, by stride and dilation of 1 unless told."""
        stride, spread = (attributes.get(name, (1,))[0] for name in ("strides", "dilations"))  # type: ignore[index]
        rows = (x.shape[2] + before + after - (height - 1) * spread - 1) // stride + 1
        pads = (before, after)
        return self.op("MaxPool", x, shape=(1, 1, rows), kernel_shape=(height,), pads=pads, **attributes)  # type: ignore[arg-type]

    def part(self, x: Value, start: int, stop: int, step: int = 1) -> Value:
        bounds = (self.integers(number) for number in (start, stop, 2, step))
        return self.op("Slice", x, *bounds, shape=(1, 1, -(-(stop - start) // step)))

    @property
    def layers(self) -> list[list[Node]]:
        return [[node] for node in self.graph.nodes]


def slices(value: Value, *cuts: int) -> list[dict[Value, Region]]:
    """Parts of a value's rows, cut there."""
    ends = (0, *cuts, value.shape[2])
    return [{value: ((0, 1), (0, 1), part)} for part in pairwise(ends)]


def rows(regions: Mapping[Value, Region]) -> Rows:
    return {value.name: region[2] for value, region in regions.items()}


def by_rows(
    layers: Sequence[Sequence[Node]], parts: Sequence[Mapping[Value, Region]]
) -> list[tuple[Rows, list[Rows], dict[str, tuple[int, int, int]]]]:
    """Of operators with one result each: what every instance makes, what its layers read, and what it keeps
    for which last one, from sets of rows."""
    there: dict[Value, set[int]] = {}
    instances = []
    for outputs in parts:
        wanted = {v: set(range(*region[2])) for v, region in outputs.items()}
        made: dict[Value, set[int]] = {}
        read: list[dict[Value, set[int]]] = [{} for _ in layers]
        for number, (node,) in reversed(list(enumerate(layers))):
            new = wanted.get(node.output, set()) - there.get(node.output, set())
            if not new:
                continue
            made[node.output] = new
            for row in new:
                regions = input_regions(node, ((0, 1), (0, 1), (row, row + 1)))
                for operand, region in zip(node.inputs, regions, strict=True):
                    if operand is not None and region is not None and not operand.is_constant:
                        read[number].setdefault(operand, set()).update(range(*region[2]))
            for operand, its in read[number].items():
                wanted.setdefault(operand, set()).update(its)
        for value, its in made.items():
            there.setdefault(value, set()).update(its)
        instances.append((made, read))
    found = []
    for place, (made, read) in enumerate(instances):
        kept = {}
        for value, its in made.items():
            later = [
                (n, its & r[value])
                for n, (_, reads) in enumerate(instances)
                for r in reads
                if n > place and value in r and its & r[value]
            ]
            if later and value not in parts[0]:
                everything = set().union(*(part for _, part in later))
                kept[value.name] = (min(everything), max(everything) + 1, max(n for n, _ in later))
        found.append((as_rows(made), [as_rows(layer) for layer in read], kept))
    return found


def as_rows(sets: Mapping[Value, set[int]]) -> Rows:
    return {value.name: (min(its), max(its) + 1) for value, its in sets.items()}


def told(links: Sequence[Link]) -> list[tuple[Rows, list[Rows], dict[str, tuple[int, int, int]]]]:
    return [
        (
            rows(link.made),
            [rows(read) for read in link.read],
            {v.name: (*region[2], until) for v, (region, until) in link.kept.items()},
        )
        for link in links
    ]


def chain(rng: random.Random) -> Columns:
    """Windows of several heights, one behind the other; the last may read an earlier value, too."""
    b = Columns()
    values = [b.column(rng.randint(12, 16))]
    for _ in range(rng.randint(1, 4)):
        height = rng.randint(1, 5)
        before = rng.randint(0, height - 1)
        stride = rng.choice((1, 1, 2)) if height > 1 else 1
        values.append(b.window(values[-1], height, before, height - 1 - before, strides=(stride,)))
    alike = [v for v in values[:-1] if v.shape == values[-1].shape]
    if alike:
        values.append(b.op("Add", rng.choice(alike), values[-1]))
    b.finish(values[-1])
    return b


def test_no_row_is_made_twice_and_none_is_missing() -> None:
    num_kept = 0
    for seed in range(40):
        rng = random.Random(seed)
        b = chain(rng)
        (result,) = b.graph.outputs
        cuts = sorted(rng.sample(range(1, result.shape[2]), min(3, result.shape[2] - 1)))
        parts = slices(result, *cuts)
        expected = by_rows(b.layers, parts)
        assert told(chain_links(b.layers, parts)) == expected, seed
        num_kept += sum(len(kept) for _, _, kept in expected)
    assert num_kept > 70


def links_of(b: Columns, result: Value, *cuts: int) -> list[Link]:
    b.finish(result)
    return chain_links(b.layers, slices(result, *cuts))


def test_the_first_instance_begins_where_all_do() -> None:
    """A spread window whose first place reads row 1, and whose second row 0."""
    b = Columns()
    x = b.op("Relu", b.column(8), name="v")
    links = links_of(b, b.window(x, 3, 3, 3, dilations=(2,)), 1, 5)
    assert [rows(link.made)["v"] for link in links] == [(0, 2), (2, 6), (6, 8)]


def test_the_first_instance_ends_where_all_do_if_that_is_nearer() -> None:
    """The same from the other end; of both ends equally far the last."""
    b = Columns()
    x = b.op("Relu", b.column(8), name="v")
    turned = b.op("Slice", x, *(b.integers(n) for n in (-1, -9, 2, -1)), shape=x.shape)
    links = links_of(b, b.window(turned, 3, 3, 3, dilations=(2,)), 1, 5)
    assert [rows(link.made)["v"] for link in links] == [(6, 8), (2, 6), (0, 2)]
    for start, stop, made in ((2, 4, (2, 6)), (1, 4, (0, 4)), (2, 5, (2, 6))):
        b = Columns()
        x = b.op("Relu", b.column(6), name="v")
        first = b.part(x, start, stop)
        joined = b.op("Concat", first, x, shape=(1, 1, 6 + stop - start), axis=2)
        links = links_of(b, joined, stop - start)
        rest = (0, 2) if made[0] else (4, 6)
        assert [rows(link.made)["v"] for link in links] == [made, rest]


@pytest.mark.parametrize(
    ("parts", "made"),
    [
        (((2, 4), (1, 6)), [(1, 4), (4, 6)]),
        (((2, 4), (1, 5), (0, 6)), [(2, 6), (1, 2), (0, 1)]),
        (((0, 2), (1, 5), (5, 6)), [(0, 2), (2, 5), (5, 6)]),
    ],
)
def test_parts_that_are_read_one_after_the_other(
    parts: Sequence[tuple[int, int]], made: list[tuple[int, int]]
) -> None:
    b = Columns()
    x = b.op("Relu", b.column(6), name="v")
    ends = [sum(stop - start for start, stop in parts[: n + 1]) for n in range(len(parts))]
    joined = b.op("Concat", *(b.part(x, *part) for part in parts), shape=(1, 1, ends[-1]), axis=2)
    links = links_of(b, joined, *ends[:-1])
    assert [rows(link.made)["v"] for link in links] == made


def test_rows_on_both_sides_of_those_that_are_there_are_no_box() -> None:
    """The first instance reads nothing of a value, the second its middle, the third all."""
    b = Columns()
    other = b.column(2)
    x = b.op("Relu", b.column(6), name="v")
    joined = b.op("Concat", other, b.part(x, 2, 4), b.part(x, 0, 6), shape=(1, 1, 10), axis=2)
    links = links_of(b, joined, 2, 4)
    assert [rows(link.made).get("v") for link in links] == [None, (2, 4), (0, 6)]
    assert not any(link.kept for link in links)


@pytest.mark.parametrize("wide_first", [False, True])
def test_a_value_that_two_layers_read_is_made_as_far_as_either_reads(wide_first: bool) -> None:
    b = Columns()
    x = b.op("Relu", b.column(6), name="v")
    readers = [b.window, lambda value: b.op("Neg", value)]
    both = [read(x) for read in (readers if wide_first else reversed(readers))]
    links = links_of(b, b.op("Add", *both), 3)
    assert [rows(link.made)["v"] for link in links] == [(0, 4), (4, 6)]
    assert [rows(links[1].read[0])] == [{b.graph.inputs[0].name: (4, 6)}]


def test_what_is_missing_and_no_box_is_made_again() -> None:
    """Squares along a diagonal, of which the second is not beside the first."""
    b = GraphBuilder()
    x = b.op("Relu", b.input(4, 4), name="v")
    squares = []
    for start in (0, 2):
        bounds = (b.integers(*both) for both in ((start, start), (start + 2, start + 2), (0, 1)))
        squares.append(b.op("Slice", x, *bounds, shape=(2, 2), name=f"part{start}"))
    y = b.op("Concat", *squares, shape=(4, 2), axis=0, name="y")
    layers = [[node] for node in b.finish(y).nodes]
    parts = [{y: ((0, 2), (0, 2))}, {y: ((2, 4), (0, 2))}]
    first, second = chain_links(layers, parts)
    made = {v.name: region for v, region in first.made.items()}
    assert made["v"] == ((0, 2), (0, 2))
    assert {v.name: region for v, region in second.made.items()}["v"] == ((2, 4), (2, 4))
    assert not first.kept


def test_results_that_are_read_inside_are_made_again() -> None:
    b = Columns()
    x = b.op("Relu", b.column(6), name="v")
    y = b.window(x)
    b.finish(x, y)
    halves = [{**one, **two} for one, two in zip(slices(x, 3), slices(y, 3), strict=True)]
    links = chain_links(b.layers, halves)
    assert [rows(link.made)["v"] for link in links] == [(0, 4), (2, 6)]
    assert not links[0].kept
    # 4 rows of the operand and 4 results, then those and 3 more.
    assert peaks(links, b.layers, [x, y]) == [(7, 8), (7, 8)]


def test_layers_of_several_operators_leave_what_others_read() -> None:
    b = Columns()
    x = b.column(6)
    y = b.window(x)
    inner = b.op("Relu", y, name="inner")
    z = b.op("Neg", inner, name="z")
    dead = b.op("Abs", x, name="dead")
    last = b.window(z)
    b.finish(last)
    window, relu, neg, unread, end = b.graph.nodes
    assert leaving([window, relu, neg], {}) == [z]
    assert leaving([window, relu], {}) == [inner]
    assert leaving([window, relu, neg], {inner: full_region(inner.shape)}) == [inner, z]
    assert leaving([neg, unread], {}) == [z]
    assert leaving([unread], {}) == [dead]
    assert leaving([end], {}) == [last]
    links = chain_links([[window, relu, neg], [end]], slices(last, 3))
    assert [rows(link.made) for link in links] == [
        {last.name: (0, 3), "z": (0, 4), "inner": (0, 4), y.name: (0, 4)},
        {last.name: (3, 6), "z": (4, 6), "inner": (4, 6), y.name: (4, 6)},
    ]
    assert [rows(read) for read in links[1].read] == [{x.name: (3, 6)}, {"z": (2, 6)}]
    assert {v.name for v in links[0].kept} == {"z"}


def test_needs_are_those_of_all_results_and_operands_but_no_constants() -> None:
    b = Columns()
    x, other = b.column(6), b.column(6)
    one, two = b.ops("Split", [x], [(1, 1, 3), (1, 1, 3)], axis=2, num_outputs=2)
    total = b.op("Add", b.op("Add", two, two), b.constant(1, 1, 3))
    clipped = b.graph.value("clip", DType.FLOAT32, (1, 1, 3))
    b.graph.append(Node("Clip", [total, None, b.constant(value=6.0)], [clipped]))
    joined = b.op("Concat", clipped, one, other, shape=(1, 1, 12), axis=2)
    nodes = list(b.finish(joined).nodes)

    def reached(start: int, stop: int) -> Rows:
        return rows(needs(nodes, {joined: ((0, 1), (0, 1), (start, stop))}))

    assert reached(1, 2)[x.name] == (4, 5)
    assert other.name not in reached(1, 2)
    assert reached(4, 5)[x.name] == (1, 2)
    assert reached(2, 4)[x.name] == (0, 6)
    assert reached(3, 8)[other.name] == (0, 2)
    assert all(not name.startswith(("w", "n")) for name in reached(0, 12))


def test_what_a_branch_captures_is_wanted_whole() -> None:
    b = Columns()
    flag, x = b.graph.add_input(Value("flag", DType.BOOL, ())), b.column(6)
    weight = b.constant(1, 1, 6)
    result = b.graph.value("result", DType.FLOAT32, x.shape)
    node = b.graph.append(Node("If", [flag], [result], captures=[x, weight]))
    assert rows({x: needs([node], {result: ((0, 1), (0, 1), (2, 3))})[x]}) == {x.name: (0, 6)}
    assert weight not in needs([node], {result: full_region(x.shape)})


def peaks(
    links: Sequence[Link], layers: Sequence[Sequence[Node]], outputs: Sequence[Value], *, reuses: bool = True
) -> list[tuple[int, int]]:
    """Peaks of all instances, in rows."""
    return [
        link_peaks(
            links,
            place,
            layers,
            {v: link.made[v] for v in outputs},
            lambda _, region: volume(region),
            lambda layer, value: reuses and isinstance(value, Value),
        )
        for place, link in enumerate(links)
    ]


def test_rows_that_are_kept_are_held_until_their_last_reader() -> None:
    """Twelve rows in three parts: x -> y -> z, windows of three rows each."""
    b = Columns()
    y = b.window(b.column(12))
    z = b.window(y)
    links = links_of(b, z, 4, 8)
    assert [rows(link.made)[y.name] for link in links] == [(0, 5), (5, 9), (9, 12)]
    assert [{v.name: region[2] for v, (region, _) in link.kept.items()} for link in links] == [
        {y.name: (3, 5)},
        {y.name: (7, 9)},
        {},
    ]
    # First: 6 rows of x and 5 of y; then y, 2 kept rows of it and 4 results. Second: 6 of x, 2 kept, 4 of y;
    # then those, 2 of y that are kept and 4 results. Last: 4 of x, 2 kept, 3 of y; then 5 and 4 results.
    assert peaks(links, b.layers, [z], reuses=False) == [(11, 11), (12, 12), (9, 9)]
    # In place of x and y, but for the last 4 results, of which only 3 rows of y are of no further use.
    assert peaks(links, b.layers, [z]) == [(7, 11), (8, 12), (9, 9)]


@pytest.mark.parametrize("seed", range(12))
def test_peaks_are_those_of_a_list_of_what_is_held(seed: int) -> None:
    """Step by step: while a layer runs, and when its operands are gone and rows that are kept are copied."""
    rng = random.Random(seed)
    b = chain(rng)
    (result,) = b.graph.outputs
    cuts = sorted(rng.sample(range(1, result.shape[2]), min(3, result.shape[2] - 1)))
    parts = slices(result, *cuts)
    links = chain_links(b.layers, parts)
    never = len(b.layers)
    for place, link in enumerate(links):
        last = {v: n for n, read in enumerate(link.read) for v in read}
        # Rows, from which layer on (a half more: when it is done) and up to which layer.
        held: list[tuple[int, float, int]] = []
        for v in last.keys() - {node.output for node in b.graph.nodes}:
            spans = [read[v][2] for read in link.read if v in read]
            held.append((max(stop for _, stop in spans) - min(start for start, _ in spans), -1, last[v]))
        for earlier in links[:place]:
            for v, (region, until) in earlier.kept.items():
                if until >= place:
                    held.append((volume(region), -1, never if until > place else last[v]))
        for number, node in enumerate(b.graph.nodes):
            v = node.output
            if v in link.made:
                kept = link.kept[v][0] if v in link.kept else None
                stays = v in parts[0] or kept == link.made[v]
                held.append((volume(link.made[v]), number, never if stays else last[v]))
                if kept is not None and not stays:
                    held.append((volume(kept), number + 0.5, never))
        least = most = 0
        for number in range(never):
            there = [(size, until) for size, start, until in held if start < number <= until]
            before = sum(size for size, _ in there)
            new = sum(size for size, start, _ in held if start == number)
            after = sum(size for size, start, until in held if start <= number + 0.5 and until > number)
            is_reused = any(size >= new and until == number for size, until in there)
            least = max(least, before if is_reused else before + new, after)
            most = max(most, before + new, after)
        assert peaks(links, b.layers, [result])[place] == (least, most), (seed, place)
        assert peaks(links, b.layers, [result], reuses=False)[place] == (most, most)
