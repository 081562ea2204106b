"""What is written in Timeloop's format reads the same: the mapping, its machine, its problem, every count."""

# mypy: disable-error-code="operator"

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support.timeloop import (
    CONVOLUTION,
    FLAT,
    LIST,
    MAPPING,
    PROCESSED,
    PRODUCT,
    TREE,
    TWO_LEVELS,
)

from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.options import CostOptions
from tilewright.errors import MachineError
from tilewright.hardware.machine import Machine, TensorKind
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import Mapping
from tilewright.loops.problem import Operand, Problem, convolution
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.random import Random
from tilewright.mapping.timeloop import load_architecture, load_mapping, load_problem, write
from tilewright.planning import Budget

KINDS = [str(kind) for kind in TensorKind]


@st.composite
def convolutions(draw: st.DrawFn) -> Problem:
    letters = draw(st.sampled_from(["RSPQCKN", "PQCKG", "RPK", "CKN"]))
    dims = {letter: draw(st.integers(1, 12)) for letter in letters}
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    return convolution(dims, stride=draw(pair), dilation=draw(pair))


@st.composite
def others(draw: st.DrawFn) -> Problem:
    """Any sums of dims with steps as indices, and any names of tensors."""
    dims = tuple((letter, draw(st.integers(1, 9))) for letter in "abCX"[: draw(st.integers(1, 4))])
    terms = st.tuples(st.sampled_from([dim for dim, _ in dims]), st.integers(1, 5))
    axis = st.lists(terms, min_size=1, max_size=2, unique_by=lambda term: term[0]).map(tuple)
    axes = st.lists(axis, min_size=1, max_size=3).map(tuple)
    kinds = (TensorKind.WEIGHT, TensorKind.INPUT, TensorKind.OUTPUT)
    operands = tuple(Operand(f"T{i}", kind, draw(axes)) for i, kind in enumerate(kinds))
    return Problem("any", dims, operands)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    levels = []
    num_levels = draw(st.integers(1, 3))
    for number in range(num_levels + 1):
        level = {
            "name": f"L{number}",
            "word_bits": draw(st.sampled_from([8, 16, 24])),
            "words_per_access": draw(st.sampled_from([1, 4])),
            "read_pj": draw(st.floats(0, 100)),
        }
        level["write_pj"] = level["read_pj"]
        if draw(st.booleans()):
            level["read_bytes_per_cycle"] = draw(st.sampled_from([0.5, 3, 16]))
        if number < num_levels:
            level["capacity_bytes"] = level["word_bits"] * draw(st.integers(3, 200))
            level["num_instances_per_parent"] = draw(st.integers(1, 5))
            level["num_instances_per_access"] = draw(st.sampled_from([1, 2]))
            level["holds"] = draw(st.lists(st.sampled_from(KINDS), min_size=1, unique=True))
        levels.append(level)
    unit = {"name": "mac", "kind": "mac", "macs_per_cycle": {"int8": 1}, "mac_pj": 0.5}
    unit["num_per_instance"] = draw(st.integers(1, 4))
    document = {"name": "drawn", "levels": levels, "units": [unit], "energy_source": "drawn"}
    return parse_machine(yaml.safe_dump(document))


@given(
    st.one_of(convolutions(), others()),
    st.one_of(machines(), st.just(load_preset("simba-cosa-repo"))),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_what_is_written_reads_the_same(problem: Problem, machine: Machine, data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2**32 - 1))
    found = Random(num_valid=1, seed=seed, max_draws=20_000).solve(MappingProblem(problem, machine), Budget())
    assume(isinstance(found, MappingSolution))
    assert isinstance(found, MappingSolution)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, problem, machine, found.mapping)
        again = load_problem(folder / "problem.yaml")
        described = load_architecture(folder / "arch.yaml", folder / "map.yaml", problems=[again])
        mapping = load_mapping(folder / "map.yaml", again, described)
    assert (again.dims, again.operands) == (problem.dims, problem.operands)
    assert mapping == found.mapping
    for cost_options in (CostOptions(), CostOptions(link_transfers=True)):
        ours = evaluate(problem, machine, found.mapping, cost_options)
        assert evaluate(again, described, mapping, cost_options) == ours


FANS = """
name: fans
levels:
  - {name: Inner, capacity_bytes: 4 KiB, num_instances_per_parent: 30}
  - {name: Middle, capacity_bytes: 4 KiB, num_instances_per_parent: 42}
  - {name: Outer}
units: [{name: MAC, kind: mac, num_per_instance: 5, macs_per_cycle: {int8: 1}}]
"""
LOOPS = [
    "{target: Outer, type: temporal, factors: K2 C3, permutation: KC}",
    "{target: Outer, type: spatial, factors: C2 K3, permutation: KC}",
    "{target: inter_Middle_spatial, type: spatial, factors: K7, permutation: K}",
    "{target: Middle, type: temporal, factors: P2}",
    "{target: Middle, type: spatial, factors: P5}",
    "{target: inter_Inner_spatial, type: spatial, factors: P2 K3, permutation: PK}",
    "{target: Inner, type: temporal, factors: C0}",
]
BYPASSES = [
    "{target: inter_Middle_spatial, type: datatype, keep: [], bypass: [Weights, Inputs, Outputs]}",
    "{target: Middle, type: datatype, keep: [Weights, Inputs, Outputs]}",
]


def read(directives: list[str]) -> Mapping:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "map.yaml"
        path.write_text("mapping:\n" + "".join(f"- {one}\n" for one in directives))
        return load_mapping(path, convolution({"K": 126, "C": 24, "P": 20}), parse_machine(FANS))


@given(st.permutations([*LOOPS, *BYPASSES]))
@settings(max_examples=60, deadline=None)
def test_the_order_of_directives_says_nothing(shuffled: list[str]) -> None:
    found = read(shuffled)
    assert found == read(LOOPS)
    spatial = {loops.level: [(x.dim, x.factor) for x in loops.spatial] for loops in found.levels}
    # From the outermost inwards; what fans out inside a level's own instances is inside its own loops.
    assert spatial == {"Outer": [("C", 2), ("K", 21)], "Middle": [("K", 3), ("P", 10)], "Inner": []}


@given(st.lists(st.integers(0, 9), min_size=2, max_size=2), st.booleans())
@settings(max_examples=30, deadline=None)
def test_fan_outs_known_by_their_place_may_be_listed_both_ways(places: list[int], inwards: bool) -> None:
    """Two between Middle and Inner under other names; directives that say what is kept stand anywhere."""
    named = [
        one.replace("inter_Inner", "inter_rows") if "inter_Inner" in one else one
        for one in LOOPS
        if "inter_Middle" not in one
    ]
    named.insert(4, "{target: inter_columns_spatial, type: spatial, factors: K7 C2, permutation: CK}")
    listed = named if inwards else named[::-1]
    for place, bypass in zip(places, BYPASSES[1:] * 2, strict=True):
        listed = [*listed[:place], bypass, *listed[place:]]
    spatial = {loops.level: [(x.dim, x.factor) for x in loops.spatial] for loops in read(listed).levels}
    assert spatial == {"Outer": [("C", 2), ("K", 3)], "Middle": [("C", 2), ("K", 21), ("P", 10)], "Inner": []}


SAMPLES = {"LIST": LIST, "TREE": TREE, "FLAT": FLAT, "PROCESSED": PROCESSED, "CONVOLUTION": CONVOLUTION}
TOKENS = re.compile(r"[A-Za-z_.-]+|\d+|[^\sA-Za-z\d]")
ODDITIES = [
    "", "0", "-1", "1e400", ".nan", "99999999999999999999", "null", "true", "~", "[]", "{}", "[", "}", "&a",
    "*a", "!x", "<<", "2001-01-01", "0x10", "[[[]]]", "{a: {b: c}}", "é", "\t", "'", "name", "[0..3]",
]  # fmt: skip


def diagnostic(sample: str, path: Path) -> str | None:
    try:
        if sample == "MAPPING":
            product = path.with_name("product.yaml")
            product.write_text(PRODUCT)
            load_mapping(path, load_problem(product), parse_machine(TWO_LEVELS))
        elif sample == "CONVOLUTION":
            load_problem(path)
        else:
            load_architecture(path)
    except MachineError as error:
        return str(error)
    return None


@given(st.sampled_from([*SAMPLES, "MAPPING"]), st.data())
@settings(max_examples=120, deadline=None)
def test_a_mutated_file_is_read_or_refused_in_one_line(sample: str, data: st.DataObject) -> None:
    text = SAMPLES.get(sample, MAPPING)
    for _ in range(data.draw(st.integers(1, 2))):
        places = [match.span() for match in TOKENS.finditer(text)]
        first, last = data.draw(st.sampled_from(places))
        text = text[:first] + data.draw(st.sampled_from(ODDITIES)) + text[last:]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "mutated.yaml"
        path.write_text(text, encoding="utf-8")
        found = diagnostic(sample, path)
    if found is not None:
        assert str(path) in found
        assert "\n" not in found
