"""Tables IV and V and figure 5: what the paper defines, from our descriptions of operators and machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.cost.nest_analysis import evaluate
from tilewright.hardware.machine import Level, Machine, TensorKind
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import convolution
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.cosa.bench import MACHINE, Bench
from tilewright.reproduce.cosa.paper import TABLE_4_DIMS, TABLE_4_LEVELS, TABLE_5

_OF_THE_PAPER = "simba-cosa-paper"
_TENSORS = {"W": TensorKind.WEIGHT, "IA": TensorKind.INPUT, "OA": TensorKind.OUTPUT}
_NUM_ELEMENTS = 4


def table_4(bench: Bench) -> Exhibit:
    """Which dims a tensor depends on and which levels hold it: from the operator's nest, and the machine."""
    depends = {o.kind: frozenset(o.dims()) for o in convolution({}).operands}
    levels = [(level.name, level.holds) for level in bench.machine.levels]
    of_dims = [
        (dim, [(dim in depends[kind], dim in TABLE_4_DIMS[tensor]) for tensor, kind in _TENSORS.items()])
        for dim in "RSPQCKN"
    ]
    of_levels = [
        (name, [(kind in holds, name in TABLE_4_LEVELS[tensor]) for tensor, kind in _TENSORS.items()])
        for name, holds in levels
    ]
    figures = []
    for what, rows in (("A", of_dims), ("B", of_levels)):
        alike = [ours == paper for _, cells in rows for ours, paper in cells]
        figures.append(Figure(f"matrix {what}: entries as in the paper", sum(alike), len(alike)))
    return Exhibit(
        "Table IV",
        "which dims a tensor depends on (matrix A), which levels hold it (matrix B)",
        "A follows from the loop nest of a convolution: no table says it. Of inputs the paper marks R and S "
        "as special, since they move along the axes of P and Q. B is that of the published configuration, "
        "whose registers hold weights only, where the paper's example has all three tensors.",
        tuple(figures),
        heads=("dim or level", *(head for tensor in _TENSORS for head in (tensor, "the paper's"))),
        rows=tuple(
            (name, *(_mark(known) for pair in cells for known in pair))
            for name, cells in (*of_dims, *of_levels)
        ),
        basis=Basis.COUNTED,
    )


def _mark(holds: bool) -> str:
    return "yes" if holds else "-"


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Words of a tensor at the level outside the elements and at all elements together."""

    outside: int
    inside: int


def figure_5(bench: Bench) -> Exhibit:
    """Multicast, unicast and reduction between the global buffer and four elements."""
    cases = (
        ("a", "P", "W", "multicast"),
        ("b", "C", "W", "unicast"),
        ("c", "C", "OA", "reduction"),
        ("d", "P", "OA", "unicast"),
    )
    rows, figures = [], []
    for label, dim, tensor, papers in cases:
        traffic = _traffic(bench.machine, dim, _TENSORS[tensor])
        ratio = traffic.inside / traffic.outside
        expected = 1 if papers == "unicast" else _NUM_ELEMENTS
        figures.append(Figure(f"{label}: {tensor} with {dim} spatial, elements for a word", ratio, expected))
        rows.append((label, dim, tensor, str(traffic.outside), str(traffic.inside), papers))
    return Exhibit(
        "Figure 5",
        f"patterns of traffic between {_NUM_ELEMENTS} elements and the level outside them",
        "One loop of the layer is spread over the elements, counted by the analytical model. A word that "
        "all elements take, or add to, passes the level outside once: multicast or reduction; else each "
        "element has words of its own: unicast. All four cases are as in the paper.",
        tuple(figures),
        heads=(
            "case",
            "spatial dim",
            "tensor",
            "words outside",
            "words at the elements",
            "the paper's pattern",
        ),
        rows=tuple(rows),
        basis=Basis.COUNTED,
    )


def _traffic(machine: Machine, dim: str, kind: TensorKind) -> _Traffic:
    """Of a layer with one dim spread over the elements and the others in the innermost buffer."""
    problem = convolution({"P": _NUM_ELEMENTS, "C": _NUM_ELEMENTS, "K": 2})
    others = tuple(Loop(d, extent) for d, extent in problem.dims if d != dim and extent > 1)
    inner = next(level.name for level in machine.levels if TensorKind.OUTPUT in level.holds)
    mapping = Mapping(
        (LevelLoops("GlobalBuffer", (), (Loop(dim, _NUM_ELEMENTS),)), LevelLoops(inner, others))
    )
    (operand,) = (o for o in problem.operands if o.kind is kind)
    elements = machine.level("InputBuffer")
    place = machine.levels.index(elements)
    inside = next(level for level in reversed(machine.levels[: place + 1]) if kind in level.holds)
    outside = next(level for level in machine.levels[place + 1 :] if kind in level.holds)
    counts = {level.level: level.tensors for level in evaluate(problem, machine, mapping).levels}
    of_inside, of_outside = counts[inside.name][operand.name], counts[outside.name][operand.name]
    passed = of_outside.updates if kind is TensorKind.OUTPUT else of_outside.reads
    return _Traffic(passed * of_outside.num_instances, of_inside.fills * of_inside.num_instances)


def table_5(bench: Bench) -> Exhibit:
    """Sizes of the paper's machine and of the published configuration's."""
    ours = dict(_sizes(load_preset(_OF_THE_PAPER)))
    published = dict(_sizes(bench.machine))
    return Exhibit(
        "Table V",
        "the accelerator",
        f"Sizes of {_OF_THE_PAPER}, which is made from this table, counted from its description, and of "
        f"{MACHINE}, the published configuration, on which all other exhibits run: its multipliers are as "
        "many, its buffers of other sizes. That one describes no network; the simulator takes this table's.",
        tuple(Figure(what, ours.get(what), paper) for what, paper in TABLE_5.items()),
        heads=("what", _OF_THE_PAPER, MACHINE, "the paper's"),
        rows=tuple(
            (what, *(_number(sizes.get(what)) for sizes in (ours, published, TABLE_5))) for what in TABLE_5
        ),
        basis=Basis.COUNTED,
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _sizes(machine: Machine) -> Iterator[tuple[str, float]]:
    """As the table names them; an element is an instance of the input buffer."""
    elements = machine.num_instances(machine.level("InputBuffer"))

    def of_element(name: str, unit: int) -> float:
        return _bytes(machine.level(name)) * machine.num_instances(machine.level(name)) / elements / unit

    yield "multipliers of an element", machine.num_instances(machine.level("Registers")) / elements
    yield "elements", elements
    yield "bits of inputs and weights", machine.level("InputBuffer").word_bits
    yield "bits of partial sums", machine.level("AccumulationBuffer").word_bits
    yield "registers of an element, B", of_element("Registers", 1)
    yield "accumulation buffer of an element, KiB", of_element("AccumulationBuffer", 1024)
    yield "weight buffer of an element, KiB", of_element("WeightBuffer", 1024)
    yield "input buffer of an element, KiB", of_element("InputBuffer", 1024)
    yield "global buffer, KiB", _bytes(machine.level("GlobalBuffer")) / 1024
    for network in machine.networks:
        if network.flit_bytes is not None:
            yield "flit, bits", 8 * network.flit_bytes


def _bytes(level: Level) -> int:
    return level.capacity_bytes or 0
