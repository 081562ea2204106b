"""If, Loop and Scan with compiled bodies, beside the interpreter and by hand."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

import tilewright as tw
from tilewright.errors import InputError, ModelClosed, ModelRejected
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, SubgraphAttribute, Value
from tilewright.specialise import control_flow as specialised
from tilewright.targets.cpu.runtime import control_flow
from tilewright.targets.cpu.runtime.executor import Executor

Array = np.ndarray[Any, Any]


def model_of(text: str) -> ModelProto:
    return parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')


def agreed(model: ModelProto, feed: Mapping[str, Any]) -> list[Array]:
    """Outputs of both targets, which are the same."""
    arrays = {name: np.asarray(value) for name, value in feed.items()}
    expected = tw.compile(model, target="interpreter").run(None, arrays)
    compiled = tw.compile(model, target="cpu")
    for _ in range(2):
        found = compiled.run(None, arrays)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return found


LOOP = """g (int64 n, float[3] x) => (float[3] y, float[?,3] s) {
  c = Constant<value = bool {1}>()
  y, s = Loop (n, c, x) <body = b (int64 i, bool ci, float[3] a) => (bool co, float[3] a1, float[3] r) {
    co = Identity(ci)
    a1 = Add(a, x)
    two = Constant<value = float {2.0}>()
    r = Mul(a1, two)
  }>
}"""


@pytest.mark.parametrize("count", [0, 1, 2, 7, 5000])
def test_a_loop_stacks_as_many_rows_as_its_trip_count_says(count: int) -> None:
    x = np.array([0.5, -1, 2], np.float32)
    state, stacked = tw.compile(model_of(LOOP)).run(None, {"n": np.array(count), "x": x})
    steps = np.arange(1, count + 1, dtype=np.float32)[:, None]
    assert stacked.shape == (count, 3)
    np.testing.assert_allclose(state, x * (count + 1), rtol=1e-5)
    np.testing.assert_allclose(stacked, 2 * (steps + 1) * x, rtol=1e-5)


def test_a_loop_ends_with_its_condition() -> None:
    text = """g (int64 n, float[2] x) => (float[2] y, int64[?] s) {
      y, s = Loop (, , x) <body = b (int64 i, bool ci, float[2] a) => (bool co, float[2] b, int64 j) {
        b = Add(a, x)
        co = Less(i, n)
        j = Identity(i)
      }>
    }"""
    for count in (0, 3, 200):
        state, numbers = agreed(model_of(text), {"n": count, "x": np.ones(2, np.float32)})
        np.testing.assert_array_equal(numbers, np.arange(count + 1))
        np.testing.assert_array_equal(state, np.full(2, count + 2))


def test_states_that_change_places_and_constants_are_handed_on() -> None:
    text = """g (int64 n, float[2] x, float[2] z)
    => (float[2] a, float[2] b, float[2] c, float[2] d, float[?,2] s) {
      t = Constant<value = bool {1}>()
      a, b, c, d, s = Loop (n, t, x, z, x, z) <body = body
        (int64 i, bool ci, float[2] p, float[2] q, float[2] r, float[2] k)
        => (bool co, float[2] q1, float[2] r1, float[2] e, float[2] k1, float[2] p1) {
        co = Identity(ci)
        q1 = Identity(q)
        r1 = Identity(r)
        e = Constant<value_floats = [5.0, 6.0]>()
        k1 = Identity(k)
        p1 = Identity(p)
      }>
    }"""
    for count in (0, 1, 2, 3, 4):
        feed = {"n": count, "x": np.array([1, 2], np.float32), "z": np.array([3, 4], np.float32)}
        *_, kept, _ = agreed(model_of(text), feed)
        np.testing.assert_array_equal(kept, [3, 4])


def test_inputs_stay_as_they_were() -> None:
    x = np.array([1, 2, 3], np.float32)
    tw.compile(model_of(LOOP)).run(None, {"n": np.array(9), "x": x})
    np.testing.assert_array_equal(x, [1, 2, 3])


SCAN = """g (float[6,4] x, float[6] w, float[4] h) => (float[4] y, float[4,6] s, float[6,4] r) {
  y, s, r = Scan <num_scan_inputs = 2, scan_input_directions = [1, 0], scan_output_axes = [1, 0],
    scan_output_directions = [0, 1], body = b (float[4] a, float[4] xt, float wt)
    => (float[4] a1, float[4] p, float[4] q) {
      m = Mul(xt, wt)
      a1 = Add(a, m)
      p = Neg(a1)
      q = Identity(xt)
    }> (h, x, w)
}"""


def test_a_scan_goes_along_any_axis_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.frontend.onnx.build.unroll", lambda *_: None)
    rng = np.random.default_rng(1)
    feed = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", (6, 4)), ("w", 6), ("h", 4))}
    y, s, r = agreed(model_of(SCAN), feed)
    states = feed["h"] + np.cumsum(feed["x"][::-1] * feed["w"][:, None], 0)
    np.testing.assert_allclose(y, states[-1], rtol=1e-5)
    np.testing.assert_allclose(s, -states.T, rtol=1e-5)
    np.testing.assert_array_equal(r, feed["x"])


def test_a_scan_past_the_limit_of_unrolling_is_one_node_that_is_saved(tmp_path: Path) -> None:
    text = """g (float[1500,8] x, float[8] h) => (float[8] y, float[1500,8] s) {
      y, s = Scan <num_scan_inputs = 1, body = b (float[8] a, float[8] xt) => (float[8] a1, float[8] r) {
        u = Tanh(a)
        a1 = Add(u, xt)
        r = Identity(a1)
      }> (h, x)
    }"""
    rng = np.random.default_rng(0)
    feed = {"x": rng.standard_normal((1500, 8)).astype(np.float32), "h": np.zeros(8, np.float32)}
    found = agreed(model_of(text), feed)
    compiled = tw.compile(model_of(text))
    assert [k.template for k in compiled.kernels].count("bodies") == 1
    opened = tw.open(compiled.save(tmp_path / "scan.tw"))
    for a, b in zip(opened.run(None, feed), found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_loops_inside_loops_and_branches_share_what_they_read() -> None:
    text = """g (int64 n, int64 k, float[4] x) => (float[4] y) {
      c = Constant<value = bool {1}>()
      y = Loop (n, c, x) <body = outer (int64 i, bool ci, float[4] a) => (bool co, float[4] a1) {
        co = Identity(ci)
        a1 = Loop (k, ci, a) <body = inner (int64 j, bool cj, float[4] d) => (bool cp, float[4] d1) {
          cp = Identity(cj)
          even = Less(j, i)
          d1 = If (even) <
            then_branch = t () => (float[4] p) { p = Add(d, x) },
            else_branch = e () => (float[4] q) { q = Sub(d, x) }>
        }>
      }>
    }"""
    (y,) = agreed(model_of(text), {"n": 6, "k": 4, "x": np.array([1, 2, 3, 4], np.float32)})
    total = 1 + sum(1 if j < i else -1 for i in range(6) for j in range(4))
    np.testing.assert_array_equal(y, total * np.array([1, 2, 3, 4], np.float32))


BRANCHES = """g (bool c, float[2,3] x) => (float[?,?] y) {
  y = If (c) <
    then_branch = t () => (float[2,3] p) { p = Exp(x) },
    else_branch = e () => (float[3,2] q) { q = Transpose(x) }>
  }"""


@pytest.mark.parametrize("condition", [True, False])
def test_branches_of_other_shapes_flow_on(condition: bool) -> None:
    model = model_of(BRANCHES.replace("=> (float[?,?] y)", "=> (float[?] z)").replace("  }>\n", "  }>\n"))
    model.graph.node.extend(
        model_of("g (float[a,b] y) => (float[?] z) { z = ReduceSum<keepdims=0>(y, k) }").graph.node
    )
    model.graph.initializer.append(parse_axis("k", 1))
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    (z,) = agreed(model, {"c": condition, "x": x})
    np.testing.assert_allclose(z, (np.exp(x) if condition else x.T).sum(1), rtol=1e-5)


def parse_axis(name: str, axis: int) -> Any:
    return numpy_helper.from_array(np.array([axis]), name)


def test_only_the_branch_that_is_taken_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """g (bool c, float[4] x) => (float[4] y) {
      y = If (c) <
        then_branch = t () => (float[4] p) { p = Exp(x) },
        else_branch = e () => (float[4] q) { q = Sin(x) }>
      }"""
    asked: list[str] = []
    made = control_flow.body_model

    def counted(node: Any, name: str) -> Any:
        asked.append(name)
        return made(node, name)

    monkeypatch.setattr(control_flow, "body_model", counted)
    compiled, x = tw.compile(model_of(text)), np.array([0, 1, 2, 3], np.float32)
    for _ in range(3):
        np.testing.assert_allclose(
            compiled.run(None, {"c": np.array(False), "x": x})[0], np.sin(x), rtol=1e-6
        )
    assert asked == ["else_branch"]
    np.testing.assert_allclose(compiled.run(None, {"c": np.array(True), "x": x})[0], np.exp(x), rtol=1e-6)


def test_a_branch_that_does_not_fit_the_shapes_says_so_when_it_is_taken() -> None:
    text = """g (bool c, float[2,3] x) => (float[2,3] y) {
      y = If (c) <
        then_branch = t () => (float[2,3] p) { p = Exp(x) },
        else_branch = e () => (float[3] q) { k = Constant<value_ints=[0]>() q = Squeeze(x, k) }>
      }"""
    model = model_of(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    compiled, x = tw.compile(model), np.ones((2, 3), np.float32)
    np.testing.assert_allclose(compiled.run(None, {"c": np.array(True), "x": x})[0], np.exp(x), rtol=1e-6)
    with pytest.raises(InputError, match="Squeeze"):
        compiled.run(None, {"c": np.array(False), "x": x})


def test_states_that_grow_run_node_by_node() -> None:
    text = """g (int64 n, float[1] x) => (float[?] y) {
      c = Constant<value = bool {1}>()
      y = Loop (n, c, x) <body = b (int64 i, bool ci, float[?] a) => (bool co, float[?] a1) {
        co = Identity(ci)
        m = ReduceSum<keepdims=1>(a)
        a1 = Concat<axis=0>(a, m)
      }>
    }"""
    (y,) = agreed(model_of(text), {"n": 12, "x": np.array([1], np.float32)})
    np.testing.assert_array_equal(y, [1, *(2.0**k for k in range(12))])


def test_shapes_that_data_decide_inside_a_body() -> None:
    text = """g (int64 n, float[6] x) => (int64[?] y) {
      c = Constant<value = bool {1}>()
      zero = Constant<value = int64 {0}>()
      s = Identity(zero)
      t, y = Loop (n, c, s) <body = b (int64 i, bool ci, int64 a) => (bool co, int64 a1, int64 r) {
        co = Identity(ci)
        f = Cast<to = 1>(i)
        m = Greater(x, f)
        p = NonZero(m)
        q = Shape(p)
        k = Constant<value = int64 {1}>()
        r = Gather(q, k)
        a1 = Add(a, r)
      }>
    }"""
    x = np.array([0.5, 1.5, 2.5, 3.5, -1, 9], np.float32)
    (counts,) = agreed(model_of(text), {"n": 5, "x": x})
    np.testing.assert_array_equal(counts, [(x > i).sum() for i in range(5)])


def test_onehot_inside_a_loop() -> None:
    text = """g (int64 n, float[4] x) => (float[?,4] y) {
      c = Constant<value = bool {1}>()
      t, y = Loop (n, c, x) <body = b (int64 i, bool ci, float[4] a) => (bool co, float[4] a1, float[4] r) {
        co = Identity(ci)
        d = Constant<value = int64 {4}>()
        v = Constant<value_floats = [0.0, 1.0]>()
        ax = Constant<value_ints = [0]>()
        j = Unsqueeze(i, ax)
        h = OneHot(j, d, v)
        r = Squeeze(h, ax)
        a1 = Add(a, r)
      }>
    }"""
    (y,) = agreed(model_of(text), {"n": 4, "x": np.zeros(4, np.float32)})
    np.testing.assert_array_equal(y, np.eye(4))


def test_an_index_outside_its_axis_in_a_loop_is_an_error() -> None:
    text = """g (int64 n, float[4] x) => (float[?] y) {
      c = Constant<value = bool {1}>()
      t, y = Loop (n, c, x) <body = b (int64 i, bool ci, float[4] a) => (bool co, float[4] a1, float r) {
        co = Identity(ci)
        r = Gather(x, i)
        a1 = Identity(a)
      }>
    }"""
    compiled, x = tw.compile(model_of(text)), np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_array_equal(compiled.run(None, {"n": np.array(4), "x": x})[0], x)
    with pytest.raises(InputError, match="4"):
        compiled.run(None, {"n": np.array(5), "x": x})


@pytest.mark.parametrize("attribute", ["scan_input_directions", "scan_output_directions", "scan_output_axes"])
def test_scans_of_one_name_go_their_own_ways(attribute: str) -> None:
    body = """num_scan_inputs = 1, body = b (float[k] s, float[k] r) => (float[k] so, float[k] o) {
      so = Add(s, r)
      o = Identity(so)
    }"""
    text = f"""g (float[n] x, float[1] s) => (float[?] f, float[?,?] a, float[?,?] b) {{
      p = NonZero(x)
      q = Cast<to = 1>(p)
      t = Transpose(q)
      f, a = Scan <{body}> (s, t)
      h, b = Scan <{attribute} = [1], {body}> (s, t)
    }}"""
    model = model_of(text)
    for node in model.graph.node[-2:]:
        node.name = "scan"
    places = np.array([1, 2, 4, 5], np.float32)
    _, forward, other = agreed(
        model, {"x": np.array([0, 1, 1, 0, 1, 1], np.float32), "s": np.zeros(1, np.float32)}
    )
    wanted = {
        "scan_input_directions": np.cumsum(places[::-1])[:, None],
        "scan_output_directions": np.cumsum(places)[::-1, None],
        "scan_output_axes": np.cumsum(places)[None],
    }
    np.testing.assert_array_equal(forward, np.cumsum(places)[:, None])
    np.testing.assert_array_equal(other, wanted[attribute])


@pytest.mark.parametrize(("step_s", "wanted"), [(1.0, [1] * 20), (0.001, [1, 4, 15])])
def test_one_call_takes_as_many_steps_as_are_quick(
    monkeypatch: pytest.MonkeyPatch, step_s: float, wanted: list[int]
) -> None:
    compiled, taken = tw.compile(model_of(LOOP), threads=1), list[int]()
    run_steps = Executor.run_steps

    def counted(self: Executor, bases: Any, plan: Any, start: int, end: int) -> int:
        taken.append(end - start)
        return run_steps(self, bases, plan, start, end)

    monkeypatch.setattr(Executor, "run_steps", counted)
    monkeypatch.setattr(control_flow, "time", SimpleNamespace(perf_counter=lambda: step_s * sum(taken)))
    compiled.run(None, {"n": np.array(20), "x": np.ones(3, np.float32)})
    assert taken == wanted


def test_a_loop_without_an_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_flow, "MAX_COMPILED_LOOP_STEPS", 5000)
    text = """g (float[2] x) => (float[2] y) {
      y = Loop (, , x) <body = b (int64 i, bool ci, float[2] a) => (bool co, float[2] a1) {
        co = Identity(ci)
        a1 = Add(a, x)
      }>
    }"""
    with pytest.raises(InputError, match="more than 5000 steps"):
        tw.compile(model_of(text)).run(None, {"x": np.ones(2, np.float32)})


def test_weights_of_a_body_are_constants_of_its_code() -> None:
    text = """g (bool c, float[1,32] x) => (float[1,32] y) {
      y = If (c) <
        then_branch = t () => (float[1,32] p) { p = MatMul(x, w) },
        else_branch = e () => (float[1,32] q) { q = MatMul(x, v) }>
      }"""
    rng = np.random.default_rng(0)
    model = model_of(text)
    weights = {n: rng.standard_normal((32, 32)).astype(np.float32) for n in "wv"}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    x = rng.standard_normal((1, 32)).astype(np.float32)
    for condition, name in ((True, "w"), (False, "v")):
        (y,) = agreed(model, {"c": condition, "x": x})
        np.testing.assert_allclose(y, x @ weights[name], rtol=1e-4, atol=1e-5)


def test_equal_runs_give_equal_bits_with_any_number_of_threads() -> None:
    feed = {"n": np.array(50), "x": np.array([0.1, 0.2, 0.3], np.float32)}
    results = [tw.compile(model_of(LOOP), threads=n).run(None, feed) for n in (1, 2)]
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_omitted_results_are_not_given() -> None:
    text = """g (int64 n, float[3] x) => (float[3] a, float[?,3] q) {
      a, , , q = Loop (n, , x, x) <body = b (int64 i, bool ci, float[3] p, float[3] o)
        => (bool co, float[3] p1, float[3] o1, float[3] r, float[3] s) {
        co = Identity(ci)
        p1 = Add(p, x)
        o1 = Mul(o, x)
        r = Neg(p1)
        s = Neg(o1)
      }>
    }"""
    model = model_of(text.replace("a, , , q", "a, u, v, q"))
    model.graph.node[0].output[1] = model.graph.node[0].output[2] = ""
    agreed(model, {"n": 3, "x": np.array([1, 2, 3], np.float32)})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("(bool co, double[2] z) { co = Identity(c) z = Cast<to = 11>(a) }", "state"),
        ("(float[2] z, float[2] y) { z = Exp(a) y = Neg(a) }", "condition"),
        ("(bool co, float[2] z, float[2] y) { co = Identity(c) z = Exp(a) y = Neg(a) }", "results"),
    ],
)
def test_bodies_that_do_not_fit_their_node_are_refused(body: str, said: str) -> None:
    graph = model_of(f"g (int64 i, bool c, float[2] a) => {body}").graph
    x = Value("x", DType.FLOAT32, (2,))
    node = Node(
        "Loop",
        [Value("n", DType.INT64, ()), None, x],
        [Value("y", DType.FLOAT32, (2,))],
        {"body": SubgraphAttribute(graph.SerializeToString())},
        opset=17,
    )
    with pytest.raises(ModelRejected, match=said):
        control_flow.control_flow_code(node, [(), None, (2,)], [], lambda graph: pytest.fail("compiled"))


def test_runs_of_several_threads_do_not_share_buffers() -> None:
    compiled = tw.compile(model_of(LOOP))
    feeds = [{"n": np.array(300), "x": np.full(3, i, np.float32)} for i in range(8)]
    expected = [compiled.run(None, feed) for feed in feeds]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for found, wanted in zip(pool.map(lambda f: compiled.run(None, f), feeds), expected, strict=True):
                for a, b in zip(found, wanted, strict=True):
                    np.testing.assert_array_equal(a, b)


def test_branches_that_read_the_same_weights_hold_them_once() -> None:
    text = """g (bool c, float[64,256] x) => (float[64,256] y) {
      y = If (c) <
        then_branch = t () => (float[64,256] p) { p = MatMul(x, w) },
        else_branch = e () => (float[64,256] q) { r = MatMul(x, w) q = Neg(r) }>
      }"""
    model, rng = model_of(text), np.random.default_rng(0)
    weights = rng.standard_normal((256, 256)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    x = rng.standard_normal((64, 256)).astype(np.float32)
    compiled = tw.compile(model)
    before = len(specialised._CONSTANTS._kept)
    for condition in (True, False):
        compiled.run(None, {"c": np.array(condition), "x": x})
    assert len(specialised._CONSTANTS._kept) == before + 1


def test_a_closed_model_lets_go_of_its_bodies() -> None:
    compiled = tw.compile(model_of(LOOP))
    feed = {"n": np.array(3), "x": np.ones(3, np.float32)}
    compiled.run(None, feed)
    compiled.close()
    with pytest.raises(ModelClosed):
        compiled.run(None, feed)


@pytest.mark.parametrize("count", [0, 1, 2, 90])
def test_what_steps_append_to_a_state_is_joined_at_the_end(count: int) -> None:
    text = """g (int64 n, float[2] x, float[2,1] u) => (float[2] s, float[?] y, float[2,?] z, float[?,2] r) {
      c = Constant<value = bool {1}>()
      s, y, z, r = Loop (n, c, x, x, u) <body = b (int64 i, bool ci, float[2] a, float[?] p, float[2,?] q)
        => (bool co, float[2] a1, float[?] p1, float[2,?] q1, float[2] t) {
        co = Identity(ci)
        a1 = Add(a, x)
        p1 = Concat<axis = 0>(p, a1, x)
        k = Constant<value_ints = [1]>()
        v = Unsqueeze(a1, k)
        q1 = Concat<axis = -1>(q, v, v)
        t = Neg(a1)
      }>
    }"""
    feed = {"n": count, "x": np.array([1, 2], np.float32), "u": np.array([[7], [8]], np.float32)}
    _, y, z, _ = agreed(model_of(text), feed)
    assert y.shape == (2 + 4 * count,)
    assert z.shape == (2, 1 + 2 * count)


def test_a_state_that_is_read_otherwise_is_no_accumulator() -> None:
    text = """g (int64 n, float[2] x) => (float[?] y, float[?] z) {
      c = Constant<value = bool {1}>()
      y, z = Loop (n, c, x) <body = b (int64 i, bool ci, float[?] p) => (bool co, float[?] p1, float t) {
        co = Identity(ci)
        t = ReduceSum<keepdims = 0>(p)
        k = Constant<value_ints = [0]>()
        u = Unsqueeze(t, k)
        p1 = Concat<axis = 0>(p, u)
      }>
    }"""
    agreed(model_of(text), {"n": 5, "x": np.array([1, 2], np.float32)})


def test_results_that_no_kernel_writes_are_stacked() -> None:
    text = """g (int64 n) => (int64[?] s, float[?,2] r) {
      t = Constant<value = bool {1}>()
      s, r = Loop (, t) <body = b (int64 i, bool ci) => (bool co, int64 j, float[2] k) {
        co = Less(i, n)
        j = Identity(i)
        k = Constant<value_floats = [3.0, 4.0]>()
      }>
    }"""
    numbers, rows = agreed(model_of(text), {"n": 70})
    np.testing.assert_array_equal(numbers, np.arange(71))
    np.testing.assert_array_equal(rows, [[3, 4]] * 71)
