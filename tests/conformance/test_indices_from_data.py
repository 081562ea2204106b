"""Indices that are data: negative ones count from the end, others outside the axis are errors of the run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model
from tests.support.accelerator import plan
from tests.support.node_suite import node_cases
from tests.support.run_time import Array, Case, Ways

import tilewright as tw
from tilewright.compiler import compile_graph
from tilewright.errors import InputError, ModelRejected
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Node
from tilewright.ir.nest import Indirect, Opaque
from tilewright.ir.ops import describe
from tilewright.options import Options
from tilewright.target_ref import TargetRef
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.npu.execute import execute

F = np.float32
RNG = np.random.default_rng(11)
X = RNG.standard_normal((9, 37)).astype(F)
CC = shutil.which("gcc") or shutil.which("cc")


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def within(*shape: int, extent: int = 9) -> Array:
    """Indices of both signs, each end among them."""
    indices = RNG.integers(-extent, extent, shape)
    indices.flat[0], indices.flat[-1] = -extent, extent - 1
    return indices


def floats(*shape: int) -> tuple[type[np.generic], tuple[int, ...]]:
    return F, shape


def places(rows: int, columns: int) -> Array:
    """Different rows of indices, so that no element is written twice."""
    return np.stack([RNG.permutation(rows) for _ in range(columns)], axis=1)


ADDING = {"reduction": "add"}  # runs on the host

# The case, which input holds indices, the axis that the error names, and its extent.
CASES: Sequence[tuple[Case, int, int, int]] = [
    (Case("Gather", [X, within(21)], [floats(21, 37)]), 1, 0, 9),
    (Case("Gather", [X, within(21).astype(np.int32)], [floats(21, 37)]), 1, 0, 9),
    (Case("Gather", [X, within(9, 21, extent=37)], [floats(9, 9, 21)], {"axis": 1}), 1, 1, 37),
    (Case("Gather", [X, np.array(-9)], [floats(37)]), 1, 0, 9),
    (Case("Gather", [X[:, 0].copy(), within(131)], [floats(131)]), 1, 0, 9),
    (Case("Gather", [X.astype(np.float16), within(2, 3)], [(np.float16, (2, 3, 37))]), 1, 0, 9),
    (Case("GatherElements", [X, within(7, 37)], [floats(7, 37)]), 1, 0, 9),
    (Case("GatherElements", [X, within(9, 21, extent=37)], [floats(9, 21)], {"axis": 1}), 1, 1, 37),
    (Case("GatherND", [X, within(21, 1)], [floats(21, 37)]), 1, 0, 9),
    (Case("GatherND", [X, within(35, 2)], [floats(35)]), 1, 0, 9),
    (Case("GatherND", [X, within(9, 19, 1, extent=37)], [floats(9, 19)], {"batch_dims": 1}), 1, 1, 37),
    (Case("ScatterElements", [X, places(9, 21) - 9, X[:, :21].copy()], [floats(9, 37)]), 1, 0, 9),
    (Case("ScatterElements", [X, places(9, 1), X[:, :1] + 1], [floats(9, 37)], ADDING), 1, 0, 9),
    (Case("ScatterND", [X, places(9, 1)[:5] - 9, X[:5].copy()], [floats(9, 37)]), 1, 0, 9),
    (Case("ScatterND", [X[:, 0].copy(), places(9, 1), X[:, 1].copy()], [floats(9)]), 1, 0, 9),
    (
        Case(
            "RotaryEmbedding",
            [X[:, :32].reshape(1, 1, 9, 32).copy(), X[:, :16].copy(), X[:, 16:32].copy(), within(1, 9)],
            [floats(1, 1, 9, 32)],
            opset=23,
        ),
        3,
        0,
        9,
    ),
    (
        Case(
            "MaxUnpool",
            [X[:2, :3].reshape(1, 1, 2, 3).copy(), ints(0, 2, 4, 12, 14, 16).reshape(1, 1, 2, 3)],
            [floats(1, 1, 4, 6)],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
        ),
        1,
        0,
        24,
    ),
    (
        Case(
            "RoiAlign",
            [X.reshape(1, 1, 9, 37), np.array([[0, 0, 8, 8]] * 5, F), ints(0, 0, 0, 0, 0)],
            [floats(5, 1, 2, 2)],
            {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
            opset=16,
        ),
        2,
        0,
        1,
    ),
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "position", "axis", "extent"), CASES, ids=[f"{c[0].operator}-{i}" for i, c in enumerate(CASES)]
)
def test_each_side_of_the_axis_is_an_error_however_it_runs(
    case: Case, position: int, axis: int, extent: int, tmp_path: Path
) -> None:
    ways = Ways(case.model(), tmp_path)
    (_, expected), *others = ways.answers(case.feed())
    assert isinstance(expected, list), expected
    for way, found in others:
        assert isinstance(found, list), f"{way}: {found}"
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=way)
    given = case.inputs[position]
    column = given.shape[-1] if case.operator in ("GatherND", "ScatterND") else 1
    for place in {0, given.size // 2 // column * column, given.size - column}:
        for wild in (extent, -extent - 1, 2**31 - 1, -(2**31)):
            indices = given.copy()
            indices.flat[place] = wild
            for way, found in ways.answers(case.feed(position, indices)):
                assert isinstance(found, InputError), f"{way} takes {wild} at {place}: {found}"
                assert found.exit_code == 2
                assert f"{case.operator} 'node': index {wild} " in f"{found} "
                if "out of bounds" not in str(found):  # numpy's words, of operators that run on the host
                    assert f"lies outside axis {axis}, which has {extent} element" in str(found)
    # Nothing of an error stays.
    for way, found in ways.answers(case.feed()):
        assert isinstance(found, list), f"{way}: {found}"


def test_a_sequence_longer_than_time_is_an_error_however_it_runs(tmp_path: Path) -> None:
    given = np.full(37, 9)
    case = Case("ReverseSequence", [X, given], [floats(9, 37)], {"time_axis": 0, "batch_axis": 1})
    ways = Ways(case.model(), tmp_path)
    for way, found in ways.answers(case.feed()):
        assert isinstance(found, list), f"{way}: {found}"
        np.testing.assert_array_equal(found[0], X[::-1])
    for place in (0, 36):
        longer = given.copy()
        longer[place] = 12  # its first step would be the twelfth, which is number 11
        for way, found in ways.answers(case.feed(1, longer)):
            assert isinstance(found, InputError), f"{way}: {found}"
            assert "ReverseSequence 'node': index 11 lies outside axis 0" in str(found)


def test_one_hot_of_an_index_outside_is_all_off(tmp_path: Path) -> None:
    case = Case("OneHot", [ints(5, -6, 4), np.array(5), np.array([0, 1], F)], [floats(3, 5)])
    for _, found in Ways(case.model(), tmp_path).answers(case.feed()):
        assert isinstance(found, list)
        assert found[0].sum(axis=1).tolist() == [0, 0, 1]


@pytest.mark.parametrize("wild", [9, -10, 10**12, -(10**12)])
def test_what_is_reported_does_not_depend_on_how_the_work_is_dealt(wild: int) -> None:
    """The largest index beyond the end, else the least before the start, of the first node that finds any."""
    case = Case("Gather", [X, within(64, 1024)], [floats(64, 1024, 37)])
    indices = case.inputs[1].copy()
    rest = RNG.permutation(indices.size)[:500]
    indices.flat[rest] = np.linspace(9, 10**6, 500).astype(np.int64) * (1 if wild > 0 else -1) - 10 * (
        wild < 0
    )
    indices.flat[rest[250]] = wild if abs(wild) > 10**6 else indices.flat[rest[250]]
    worst = indices.max() if wild > 0 else indices.min()
    for threads in (1, 2):
        compiled = tw.compile(case.model(), threads=threads)
        for _ in range(3):
            with pytest.raises(InputError, match=f"Gather 'node': index {worst} lies outside axis 0"):
                compiled.run(None, case.feed(1, indices))


CHAIN = """<ir_version: 9, opset_import: ["": 18]>
chain (float[9,37] x, int64[11] a, int32[2,5] b, float[5] c)
   => (float[11,37] y, float[2,5,37] z, float[5,1] w)
{
    one = Constant<value = float {1.0}>()
    scaled = Mul(x, x)
    rows = Gather<axis = 0>(scaled, a)
    more = Add(rows, one)
    y = Relu(more)
    others = Gather(x, b)
    cut = Sigmoid(others)
    z = Sub(cut, one)
    places = Cast<to = 7>(c)
    axis = Constant<value = int64[1] {1}>()
    pairs = Unsqueeze(places, axis)
    column = Slice(x, zero, five, axis)
    start = Constant<value = int64[1] {0}>()
    zero = Identity(start)
    five = Constant<value = int64[1] {1}>()
    w = GatherElements<axis = 0>(column, pairs)
}
"""


def chain() -> onnx.ModelProto:
    """Gathers between elementwise operators, and one whose indices the model computes."""
    model = parse_model(CHAIN)
    nodes = {node.output[0]: node for node in model.graph.node}
    for node in model.graph.node:
        node.name = f"to {node.output[0]}"
    order = [n for n in nodes if n not in ("zero", "five", "start")]
    order = ["start", "zero", "five", *order]
    ordered = [nodes[n] for n in order]
    del model.graph.node[:]
    model.graph.node.extend(ordered)
    return model


def test_fused_chains_name_the_first_node_whose_index_is_outside(tmp_path: Path) -> None:
    good = {"x": X, "a": within(11), "b": within(2, 5).astype(np.int32), "c": np.array([0, -9, 8, 3, 1], F)}
    ways = Ways(chain(), tmp_path)
    (_, expected), *others = ways.answers(good)
    assert isinstance(expected, list), expected
    for way, found in others:
        assert isinstance(found, list), f"{way}: {found}"
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=way)
    for name, node in (
        ("a", "Gather 'to rows'"),
        ("b", "Gather 'to others'"),
        ("c", "GatherElements 'to w'"),
    ):
        indices = good[name].copy()
        indices.flat[-1] = 9
        for way, found in ways.answers({**good, name: indices}):
            assert isinstance(found, InputError), f"{way}: {found}"
            assert f"{node}: index 9 lies outside axis 0, which has 9 elements" in str(found), way


ROW_MAKERS = (
    "Abs(x)",
    "Add(x, x)",
    "Transpose<perm = [0, 1]>(x)",
    "Softmax(x)",
    "ReduceMax<axes = [0], keepdims = 1>(x)",
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("made", ROW_MAKERS)
@pytest.mark.parametrize("shape", [(), (1,), (2,)])
@pytest.mark.parametrize("index", [1, -2])
def test_an_axis_of_one_element_is_looked_at_however_its_element_is_made(
    made: str, shape: tuple[int, ...], index: int
) -> None:
    taken = str([*shape, 3])
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 3] x, int64{list(shape) or ""} i) => (float{taken} y) {{
            v = {made}
            g = Gather<axis = 0>(v, i)
            y = Neg(g)
        }}"""
    compiled = tw.compile(parse_model(text), no_cache=True, threads=1)
    x = X[:1, :3].copy()
    compiled.run(None, {"x": x, "i": np.full(shape, -1)})
    with pytest.raises(InputError, match="lies outside axis 0, which has 1 element"):
        compiled.run(None, {"x": x, "i": np.full(shape, index)})


def test_a_step_on_the_host_never_sees_what_was_taken_in_place_of_an_index(tmp_path: Path) -> None:
    model = parse_model(
        '<ir_version: 9, opset_import: ["": 18]> '
        "g (float[9,4] x, int64[4] i) => (float[4,4] y) "
        "{ rows = Gather(x, i) d = Det(rows) y = Mul(rows, d) }"
    )
    ways = Ways(model, tmp_path)
    square = X[:, :4].copy()
    for _, found in ways.answers({"x": square, "i": ints(0, 1, 2, 3)}):
        assert isinstance(found, list)
    for way, found in ways.answers({"x": square, "i": ints(0, 1, 2, 9)}):
        assert isinstance(found, InputError), f"{way}: {found}"


def test_runs_side_by_side_report_each_its_own() -> None:
    case = Case("Gather", [X, within(4096)], [floats(4096, 37)])
    compiled = tw.compile(case.model(), threads=2)

    def run(number: int) -> str:
        indices = case.inputs[1].copy()
        if number % 3:
            indices[number] = 1000 + number
        try:
            compiled.run(None, case.feed(1, indices))
        except InputError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(8) as pool:
        for number, message in enumerate(pool.map(run, range(60))):
            assert (f"index {1000 + number} lies" in message) if number % 3 else not message


def test_a_profiled_run_checks_too() -> None:
    case = CASES[0][0]
    program = compile_graph(load_onnx(case.model()), Options(target=TargetRef.parse("cpu"))).program
    executable = CpuTarget().generate(program, profile=True).load(1)
    assert executable.run_profiled(case.feed())
    bad = case.inputs[1].copy()
    bad[3] = 9
    with pytest.raises(InputError, match="index 9 lies outside axis 0"):
        executable.run_profiled(case.feed(1, bad))


def test_the_simulated_accelerator_checks_too() -> None:
    case, position, _, extent = CASES[0]
    planned = plan(load_onnx(case.model()), load_preset("stcp920"))
    np.testing.assert_array_equal(execute(planned.scopes, case.feed())["y0"], X[case.inputs[1]])
    bad = case.inputs[position].copy()
    bad[-1] = extent
    with pytest.raises(InputError, match=f"Gather 'node': index {extent} lies outside"):
        execute(planned.scopes, case.feed(position, bad))


@pytest.mark.parametrize("number", [0, 6, 9, 11, 13, 16])
def test_constants_outside_are_refused_before_anything_runs(number: int) -> None:
    case, position, _, extent = CASES[number]
    for wild in (extent, -extent - 1):
        model = case.model()
        bad = case.inputs[position].copy()
        bad.flat[0] = wild
        name = model.graph.input[position].name
        model.graph.initializer.append(numpy_helper.from_array(bad, name))
        with pytest.raises(
            ModelRejected, match=f"holds the index {wild}, but the axis has {extent} elements"
        ):
            load_onnx(model)


def test_constants_inside_cost_a_run_nothing() -> None:
    """Over the node suite: an index is looked at while running exactly where it is data."""
    seen = 0
    for case in node_cases():
        if "gather" not in case.name and "scatter" not in case.name:
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        inputs, _ = case.data_sets[0]
        position = 2 if "tensorscatter" in case.name else 1
        model.graph.initializer.append(
            numpy_helper.from_array(np.asarray(inputs[position]), model.graph.input[position].name)
        )
        for is_constant, proto in ((False, case.model), (True, model)):
            for node in load_onnx(proto).nodes:
                indices = _indirect(node)
                assert not (is_constant and any(i.node is not None for i in indices)), case.name
                seen += bool(indices)
    assert seen > 3


def _indirect(node: Node) -> list[Indirect]:
    nests = describe(node)
    if isinstance(nests, Opaque):
        return []
    accesses = (a for nest in nests for a in (*nest.reads, nest.write))
    return [i for a in accesses for i in a.index if isinstance(i, Indirect)]


@pytest.mark.skipif(CC is None, reason="no C compiler (gcc) on this machine")
def test_an_exported_function_returns_a_status_of_its_own(tmp_path: Path) -> None:
    case = CASES[0][0]
    onnx.save(case.model(), tmp_path / "rows.onnx")
    tw.export(tmp_path / "rows.onnx", tmp_path)
    command = [str(CC), "-O2", "-Wall", "-Werror", "example.c", "rows.o", "-o", "rows", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    bad = case.inputs[1].copy()
    bad[20] = -10
    for indices, status in ((case.inputs[1], 0), (bad, 1), (case.inputs[1], 0)):
        X.tofile(tmp_path / "x.bin")
        indices.tofile(tmp_path / "i.bin")
        made = subprocess.run(
            ["./rows", "rows.weights", "x.bin", "i.bin", "y.bin"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert made.returncode == status, made.stderr
        assert ("rows_run returned 3" in made.stderr) == bool(status)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "y.bin", F).reshape(21, 37), X[case.inputs[1]])
