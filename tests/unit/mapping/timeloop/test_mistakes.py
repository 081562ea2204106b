"""Every mistake in a file of Timeloop's is one line that names the file and the place."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.timeloop import CONVOLUTION, FLAT, LIST, MAPPING, PRODUCT, TREE, TWO_LEVELS, written

from tilewright.errors import MachineError
from tilewright.hardware.machine_file import parse_machine
from tilewright.mapping.timeloop import (
    load_architecture,
    load_mapping,
    load_problem,
    read_document,
    sections_of,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mapping: []", {"mapping"}),
        ("version: 1\n'arch' : {}\nproblem:\n  shape: x\n", {"arch", "problem"}),
        (TWO_LEVELS, set()),
        ("description: |\n  arch: a word in a text\n", set()),
        ("mapping: [", {"mapping"}),
    ],
)
def test_what_is_timeloops_shows_in_its_lines(text: str, expected: set[str]) -> None:
    assert sections_of(text) == expected


def _loaded(kind: str, path: Path) -> object:
    if kind == "mapping":
        problem = load_problem(written(path.parent, PRODUCT, "product.yaml"))
        return load_mapping(path, problem, parse_machine(TWO_LEVELS))
    return load_architecture(path) if kind == "architecture" else load_problem(path)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("kind", "text", "old", "new", "message"),
    [
        ("architecture", TREE, "memory_depth", "memory_deth", "attributes.memory_deth: unknown key"),
        ("architecture", TREE, "memory_depth: 512", "memory_depth: 0", "memory_depth: 0 is not between 1"),
        ("architecture", TREE, "memory_depth: 512", "memory_depth: 2**9", "a whole number, found '2\\*\\*9'"),
        ("architecture", TREE, "memory_depth: 512, ", "", "GlobalBuffer has no size"),
        ("architecture", TREE, "width: 64", "width: 60", "60 bits is no multiple of its words of 16 bits"),
        (
            "architecture",
            TREE,
            "instances: 256",
            "instances: 250",
            "250 of Registers cannot be spread evenly",
        ),
        ("architecture", TREE, "class: intmac", "class: XY_NoC", "there is no compute unit"),
        ("architecture", TREE, "class: XY_NoC", "class: gizmo", "the class 'gizmo' is neither a memory"),
        ("architecture", TREE, "read_bandwidth: 16", "shared_bandwidth: 16", "give read_bandwidth and write"),
        ("architecture", TREE, "[0..15]", "[15..0]", "'PE\\[15..0\\]' counts down"),
        (
            "architecture",
            TREE,
            "subtree:\n      - name: PE",
            "subtre:\n      - name: PE",
            "did you mean subtree",
        ),
        ("architecture", TREE, "  - name: System", "  - name: Other\n  - name: System", "a second branch"),
        ("architecture", TREE, "name: Registers", "name: DRAM", "the name 'DRAM' is given twice"),
        (
            "architecture",
            TREE,
            "multiple-buffering: 2",
            "multiple-buffering: 0.5",
            "not between 1 and the 64",
        ),
        (
            "architecture",
            LIST,
            "!Parallel",
            "!!python/object:os.system",
            "tag !!python/object:os.system;",
        ),
        ("architecture", LIST, "!Parallel", "!Fancy", "the tag !Fancy is unknown"),
        ("architecture", LIST, "{meshX: 14}", "{meshZ: 14}", "spatial.meshZ: unknown key of spatial"),
        (
            "architecture",
            LIST,
            "    attributes: {type",
            "    constraints: {dataspace: {bypass: [Inputs, Weights, Outputs]}}\n    attributes: {type",
            "DRAM is the outermost memory and must keep every tensor",
        ),
        (
            "architecture",
            LIST,
            "name: glb",
            "nam: glb",
            "nodes\\[2\\].nam: unknown key of a node; did you mean",
        ),
        ("architecture", LIST, "architecture:", "architecure:", "unknown section; did you mean architecture"),
        ("architecture", FLAT, "instances: 2,", "", "instances is missing"),
        ("architecture", FLAT, "target: Registers", "target: Register", "there is no memory 'Register'"),
        (
            "architecture",
            FLAT,
            "target: Registers, type: datatype, keep: [Weights], bypass",
            "target: Register, type: datatype, bypass",
            "there is no memory 'Register'",
        ),
        ("architecture", FLAT, "arch:", "problem:", "there is no architecture section"),
        ("problem", CONVOLUTION, "[[M]]", "[[K]]", "'K' is neither a dimension nor a coefficient"),
        ("problem", CONVOLUTION, "M: 6, ", "", "the extent of M is missing"),
        ("problem", CONVOLUTION, "M: 6", "M: -6", "instance.M: -6 is not between 1"),
        ("problem", CONVOLUTION, "M: 6", "MM: 6", "instance.MM: unknown key of this instance"),
        (
            "problem",
            CONVOLUTION,
            "read-write: True",
            "read-write: False",
            "exactly one data space is written",
        ),
        ("problem", CONVOLUTION, "[R, Wdilation]", "[R, P]", "exactly one dimension, not 2"),
        ("problem", CONVOLUTION, "[R, Wdilation]", "[P, Wdilation]", "a dim occurs twice in one axis"),
        ("problem", CONVOLUTION, "Hstride: 3}", "Hstride: 3, densities: {A: 0.5}}", "sparse data is not"),
        ("problem", CONVOLUTION, "[C, M, R", "[C, C, R", "the dim C is given twice"),
        ("problem", CONVOLUTION, "coefficients", "coeficients", "did you mean coefficients"),
        ("problem", CONVOLUTION, "problem:", "mapping:", "there is no problem section"),
        ("mapping", MAPPING, "target: Buffer, factors", "target: Buf, factors", "there is no level 'Buf'"),
        (
            "mapping",
            MAPPING,
            "target: Buffer, type: bypass, keep: [A, B, Z], bypass: []",
            "target: Bufer, type: bypass, bypass: [A]",
            "there is no level 'Bufer'",
        ),
        ("mapping", MAPPING, "K = 4", "K <= 4", "'K <= 4' is no factor such as C=4"),
        ("mapping", MAPPING, "K = 4", "K = 3", "factors of K multiply to 6, its extent is 8"),
        ("mapping", MAPPING, "K = 4", "L = 4", "there is no dim 'L'; the problem has I, J, K"),
        ("mapping", MAPPING, "K = 4", "K = 99999999999999999999", "the factor of K is too large"),
        ("mapping", MAPPING, '"I1', '"I0', "a second factor of 0 for I"),
        ("mapping", MAPPING, "[J, K]", "[J, J]", "the dim J is named twice"),
        ("mapping", MAPPING, "JIK", "JIX", "there is no dim 'X'"),
        ("mapping", MAPPING, "keep: [A, B, Z], bypass: []", "bypass: [A]", "Buffer keeps A; load"),
        ("mapping", MAPPING, "type: spatial", "type: sideways", "'sideways' is none of temporal"),
        ("mapping", MAPPING, "type: spatial", "type: temporal", "a second directive for the temporal loops"),
        ("mapping", MAPPING, "split: 1", "splits: 1", "unknown key of a directive; did you mean split"),
        (
            "architecture",
            LIST,
            "name: ifmap_spad",
            "name: ifmap_spad\n      spatial: {meshX: 2}",
            "nodes\\[5\\].nodes\\[0\\]: a mesh inside !Parallel is not modelled",
        ),
        ("problem", CONVOLUTION, "M: 6", "M: 1099511627777", "M: 1099511627777 is not between 1 and"),
        ("problem", CONVOLUTION, "[C, M, R", f"[{'A, ' * 64}C, M, R", "dimensions: 71 dims; at most 64"),
        ("problem", CONVOLUTION, "projection: [", f"projection: [{'C, ' * 64}", "68 axes; at most 64"),
        (
            "problem",
            "{{include('a')}}\nproblem: {}",
            "",
            "",
            "line 1: a template, which only Timeloop's front",
        ),
        (
            "mapping",
            MAPPING,
            "K = 4",
            "K = 4, 3",
            "'K = 4, 3' leaves a remainder, which is not modelled; pad K",
        ),
        ("mapping", MAPPING, "K = 4", "A" * 100_000, "'AAA"),
        ("mapping", MAPPING, "K = 4", " " * 100_000, "factors of K multiply to 2, its extent is 8"),
        ("mapping", MAPPING, "type: spatial", "type: skew", "skewed loops are not modelled"),
        ("mapping", MAPPING, "split: 1", "no_link_transfer: [A]", "exceptions to the reuse of data are not"),
        (
            "mapping",
            "mapping: [" + "{target: Buffer}, " * 1001 + "]",
            "",
            "",
            "1001 directives; at most 1000",
        ),
        ("mapping", "mapping: &a [*a]", "", "", "aliases are not allowed"),
        ("mapping", "mapping: {a: 1}", "", "", "expected a list, found keys and values"),
        ("mapping", "[", "", "", "line 1"),
    ],
)
def test_every_mistake_is_one_line_with_file_and_path(
    kind: str, text: str, old: str, new: str, message: str, tmp_path: Path
) -> None:
    assert old in text
    path = written(tmp_path, text.replace(old, new, 1))
    with pytest.raises(MachineError, match=message) as caught:
        _loaded(kind, path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_file_that_is_no_timeloop_file(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be read"):
        read_document(tmp_path / "missing.yaml")
    with pytest.raises(MachineError, match="unknown section"):
        read_document(written(tmp_path, TWO_LEVELS))
