"""Models with open shapes run at the shapes that they are fed, each compiled once."""

# mypy: disable-error-code="arg-type, attr-defined"

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

import tilewright as tw
from tilewright.errors import BudgetExceeded, InputError, ModelClosed, UnsupportedOp, UsageError
from tilewright.frontend.onnx.prepared import PreparedModel
from tilewright.specialise.model import OpenCompiledModel

HEADER = '<ir_version: 8, opset_import: ["": 17]> '
DENSE = HEADER + "g (float[batch,4] x) => (float[batch,3] y) { h = MatMul(x, w) y = Relu(h) }"
# Rows whose sum is not zero, scaled by how many there are: two shapes that data decide, and a value of one.
CHOSEN = (
    HEADER
    + """g (float[N,2] x) => (float[M,2] y, float[N,2] r) {
    r = Relu(x)
    sums = ReduceSum<keepdims=0>(r, last)
    found = NonZero(sums)
    rows = Squeeze(found, first)
    y = Gather(r, rows)
}"""
)
# The largest k elements of a vector, where k is a value that is fed.
LARGEST = (
    HEADER
    + """g (float[N] x, int64[1] k) => (float[K] y, float[K,3] z) {
    top, places = TopK(x, k)
    y = Neg(top)
    column = Unsqueeze(y, last)
    z = MatMul(column, row)
}"""
)


def model(text: str, **arrays: Any) -> onnx.ModelProto:
    proto = parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    return proto


WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) - 5


def dense(**settings: Any) -> OpenCompiledModel:
    compiled = tw.compile(model(DENSE, w=WEIGHTS), no_cache=True, threads=1, **settings)
    assert isinstance(compiled, OpenCompiledModel)
    return compiled


def rows(num_rows: int, num_columns: int = 4) -> np.ndarray[Any, Any]:
    return np.random.default_rng(num_rows).standard_normal((num_rows, num_columns)).astype(np.float32)


def expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.maximum(x @ WEIGHTS, 0)


@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_every_shape_that_is_fed_runs_right(target: str) -> None:
    compiled = dense(target=target)
    for num_rows in (1, 5, 2, 5):
        (found,) = compiled.run(None, {"x": rows(num_rows)})
        np.testing.assert_allclose(found, expected(rows(num_rows)), rtol=1e-5)
    kept = compiled.specialisations.kept
    assert {s.shapes["x"]: s.num_runs for s in kept} == {(1, 4): 1, (2, 4): 1, (5, 4): 2}
    assert compiled.specialisations.num_made == 3


def test_shapes_are_shown_as_onnxruntime_shows_them() -> None:
    compiled = dense()
    assert [(i.name, i.type, i.shape) for i in compiled.get_inputs()] == [
        ("x", "tensor(float)", ("batch", 4))
    ]
    assert [o.shape for o in compiled.get_outputs()] == [("batch", 3)]


def test_bits_are_those_of_the_model_compiled_for_the_shape() -> None:
    static = tw.compile(model(DENSE, w=WEIGHTS), shapes={"x": (7, 4)}, no_cache=True, threads=1)
    (want,), (found,) = static.run(None, {"x": rows(7)}), dense().run(None, {"x": rows(7)})
    assert found.tobytes() == want.tobytes()


def test_the_model_at_given_shapes_is_a_compiled_model(tmp_path: Any) -> None:
    compiled = dense()
    compiled.run(None, {"x": rows(3)})
    at = compiled.at({"x": (3, 4)})
    assert compiled.specialisations.num_made == 1
    (found,) = tw.open(at.save(tmp_path / "m.tw")).run(None, {"x": rows(3)})
    np.testing.assert_allclose(found, expected(rows(3)), rtol=1e-5)


def test_what_needs_shapes_says_which_are_open(tmp_path: Any) -> None:
    compiled = dense()
    for ask in (lambda: compiled.program, lambda: compiled.save(tmp_path / "m.tw"), compiled.explain):
        with pytest.raises(
            UsageError, match=r"leaves dimension 0 \(batch\) open; fix it with --shapes x:\?x4"
        ):
            ask()
    loaded = tw.load(model(DENSE, w=WEIGHTS))
    assert loaded.is_open
    assert loaded.at({"x": (2, 4)}).graph.outputs[0].shape == (2, 3)
    with pytest.raises(UsageError, match="open"):
        _ = loaded.graph


def test_prepared_shapes_are_compiled_before_they_come_and_frozen_ones_only_then() -> None:
    compiled = dense(shapes={"x": ("1..2|4", 4)}, frozen_shapes=True)
    assert [(s.shapes["x"][0], s.is_ahead) for s in compiled.specialisations.kept] == [
        (1, True),
        (2, True),
        (4, True),
    ]
    compiled.run(None, {"x": rows(2)})
    assert compiled.specialisations.num_made == 3


@pytest.mark.parametrize(
    ("target", "of_three", "of_twenty"),
    [("cpu", (8,), (8, 8, 8)), ("interpreter", (2, 2), (8, 8, 2, 2))],  # loops on the cpu end with the rows
)
def test_rows_run_by_the_code_for_others(
    target: str, of_three: tuple[int, ...], of_twenty: tuple[int, ...]
) -> None:
    compiled = dense(shapes={"x": ("2|8", 4)}, frozen_shapes=True, target=target)
    for num_rows, extents in ((1, (2,)), (3, of_three), (7, (8,)), (20, of_twenty), (8, ())):
        (found,) = compiled.run(None, {"x": rows(num_rows)})
        np.testing.assert_allclose(found, expected(rows(num_rows)), rtol=1e-5)
        last = compiled.specialisations.kept[-1]
        assert (last.shapes["x"][0], last.by_code_for) == (num_rows, extents)
    assert compiled.at({"x": (3, 4)}).get_inputs()[0].shape == (3, 4)


def test_a_range_of_rows_is_compiled_for_its_ends_and_some_between() -> None:
    compiled = dense(shapes={"x": ("2..6", 4)})
    ahead = compiled.specialisations.kept
    assert sorted((s.shapes["x"][0], s.by_code_for) for s in ahead) == [
        (2, ()), (3, (4,)), (4, ()), (5, (6,)), (6, ())
    ]  # fmt: skip
    for num_rows in range(2, 7):
        (found,) = compiled.run(None, {"x": rows(num_rows)})
        np.testing.assert_allclose(found, expected(rows(num_rows)), rtol=1e-5)
    elsewhere = dense(shapes={"x": ("2..4", 4)}, target="interpreter")  # work does not end with the rows
    assert [s.by_code_for for s in elsewhere.specialisations.kept] == [(), (), ()]


def test_rows_of_a_run_that_failed_are_not_met_again() -> None:
    text = HEADER + "g (int64[batch] ids) => (float[batch,3] y) { y = Gather(w, ids) }"
    compiled = tw.compile(model(text, w=WEIGHTS), no_cache=True, threads=1, shapes={"ids": ("2|8",)})
    for ids in ([3, 2, 1, 0, 3], [0, 1, 2, 3, 0, 9, 9], [3, 3, 1]):
        if max(ids) < len(WEIGHTS):
            (found,) = compiled.run(None, {"ids": np.array(ids)})
            np.testing.assert_array_equal(found, WEIGHTS[ids])
            continue
        with pytest.raises(InputError, match="outside"):
            compiled.run(None, {"ids": np.array(ids)})
    with pytest.raises(UsageError, match=r"'ids' is float32\[3\], the model takes int64"):
        compiled.run(None, {"ids": np.zeros(3, np.float32)})


def test_where_shapes_are_frozen_no_run_imports_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = dense(shapes={"x": ("2|8", 4)}, frozen_shapes=True)
    monkeypatch.delattr(PreparedModel, "graph")
    for num_rows in (1, 3, 5, 7):
        (found,) = compiled.run(None, {"x": rows(num_rows)})
        np.testing.assert_allclose(found, expected(rows(num_rows)), rtol=1e-5)


def test_where_both_axes_differ_rows_of_padded_sequences_run() -> None:
    text = HEADER + (
        "g (float[batch,length,4] x) => (float[batch,length,4] y) { p = Softmax<axis=1>(x) y = Mul(p, x) }"
    )
    compiled = tw.compile(model(text), shapes="x:2|4x8|16x4", frozen_shapes=True, no_cache=True, threads=1)
    assert isinstance(compiled, OpenCompiledModel)
    rng = np.random.default_rng(0)
    for batch, length in ((3, 11), (7, 5), (1, 15), (4, 8), (5, 16), (4, 9)):
        x = rng.standard_normal((batch, length, 4)).astype(np.float32)
        (found,) = compiled.run(None, {"x": x})
        weights = np.exp(x - x.max(1, keepdims=True))
        np.testing.assert_allclose(found, weights / weights.sum(1, keepdims=True) * x, rtol=1e-4, atol=1e-6)
    made = {s.shapes["x"][:2]: s for s in compiled.specialisations.kept}
    assert {key for key, s in made.items() if s.num_kernels} == {(2, 8), (2, 16), (4, 8), (4, 16)}
    assert made[3, 11].by_code_for == (16,)
    with pytest.raises(UsageError, match="shapes are frozen, and x:3x17x4 is not prepared"):
        compiled.run(None, {"x": np.zeros((3, 17, 4), np.float32)})


def test_frozen_shapes_are_an_error_where_no_other_code_is_proven_to_serve() -> None:
    text = HEADER + "g (float[batch,4] x) => (float[1,4] y) { y = ReduceMean<axes=[0]>(x) }"
    compiled = tw.compile(
        model(text), shapes={"x": ("2|4", 4)}, frozen_shapes=True, no_cache=True, target="interpreter"
    )
    compiled.run(None, {"x": rows(4)})
    with pytest.raises(UsageError, match=r"shapes are frozen, and x:3x4 is not prepared"):
        compiled.run(None, {"x": rows(3)})


def test_frozen_shapes_without_prepared_ones_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no shapes are prepared, for x:\?x4 leaves some open"):
        dense(frozen_shapes=True)


def test_no_more_than_the_limit_are_kept() -> None:
    compiled = dense(max_shapes=2, target="interpreter")
    for num_rows in (1, 2, 3):
        compiled.run(None, {"x": rows(num_rows)})
    found = compiled.specialisations
    assert [s.shapes["x"][0] for s in found.kept] == [2, 3]
    assert (found.num_made, found.num_dropped, found.limit) == (3, 1, 2)


def test_time_is_limited_for_all_shapes_together() -> None:
    compiled = dense(timeout_s=1000.0)
    compiled.run(None, {"x": rows(1)})
    compiled._store.seconds = 1001.0
    compiled.run(None, {"x": rows(1)})
    with pytest.raises(BudgetExceeded, match="took the 1000 s that all may take"):
        compiled.run(None, {"x": rows(2)})


def test_a_closed_model_runs_at_no_shape() -> None:
    compiled = dense()
    compiled.run(None, {"x": rows(1)})
    compiled.close()
    for num_rows in (1, 2):
        with pytest.raises(ModelClosed):
            compiled.run(None, {"x": rows(num_rows)})


def test_a_model_closed_while_a_shape_is_compiled_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = dense()
    compiled.run(None, {"x": rows(1)})
    make = compiled._compile_part

    def closing(*arguments: Any) -> Any:
        made = make(*arguments)
        closer = threading.Thread(target=compiled.close)
        closer.start()
        closer.join()
        return made

    monkeypatch.setattr(compiled, "_compile_part", closing)
    for num_rows in (2, 2, 1, 3):
        with pytest.raises(ModelClosed):
            compiled.run(None, {"x": rows(num_rows)})


def test_threads_of_an_opened_model_are_those_of_its_code(tmp_path: Path) -> None:
    compiled = dense()
    for num_rows in (1, 2):
        compiled.run(None, {"x": rows(num_rows)})
    assert tw.open(compiled.save(tmp_path / "m.tw")).num_threads == 1


def test_a_model_closed_while_its_code_is_opened_stays_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled = dense()
    for num_rows in (1, 2):
        compiled.run(None, {"x": rows(num_rows)})
    saved = tw.open(compiled.save(tmp_path / "m.tw"))
    read = saved._read  # type: ignore[attr-defined]

    def closing(number: int) -> Any:
        closer = threading.Thread(target=saved.close)
        closer.start()
        closer.join()
        return read(number)

    monkeypatch.setattr(saved, "_read", closing)
    for num_rows in (1, 1, 2):
        with pytest.raises(ModelClosed):
            saved.run(None, {"x": rows(num_rows)})


def test_threads_may_bring_any_shapes() -> None:
    compiled, wrong = dense(), []

    def work(first: int) -> None:
        for num_rows in (first, 1 + first % 3, first):
            (found,) = compiled.run(None, {"x": rows(num_rows)})
            if not np.allclose(found, expected(rows(num_rows)), rtol=1e-5):
                wrong.append(num_rows)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert compiled.specialisations.num_made == 3


def test_large_constants_are_held_once_for_all_shapes() -> None:
    wide = np.random.default_rng(0).standard_normal((512, 256)).astype(np.float32)
    text = HEADER + "g (float[batch,512] x) => (float[batch,256] y) { y = MatMul(x, w) }"
    compiled = tw.compile(model(text, w=wide), no_cache=True, threads=1)
    counts = (1, 3, 64, 128)  # of which each would have panels of another width
    for num_rows in counts:
        (found,) = compiled.run(None, {"x": rows(num_rows, 512)})
        np.testing.assert_allclose(found, rows(num_rows, 512) @ wide, rtol=1e-4, atol=1e-4)
    models = [compiled.at({"x": (n, 512)}) for n in counts]
    (held,) = {frozenset(piece.address for piece in one.load()._weights.held) for one in models}
    assert held
    (constants,) = {frozenset(id(v.data) for v in one.program.graph.initializers) for one in models}
    assert len(constants) == 1


def test_constants_lie_beside_each_other() -> None:
    """In one piece of memory, which large ones have in huge pages."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((256, 256)).astype(np.float32) for name in "uvw"}
    text = (
        HEADER
        + """g (float[batch,256] x) => (float[batch,256] y) {
        a = MatMul(x, u) b = Relu(a) c = MatMul(b, v) d = Relu(c) y = MatMul(d, w)
    }"""
    )
    compiled = tw.compile(model(text, **arrays), no_cache=True, threads=1)
    compiled.run(None, {"x": rows(32, 256)})
    held = compiled.at({"x": (32, 256)}).load()._weights.held
    assert len(held) == 3
    assert len({id(piece.slab) for piece in held}) == 1
    addresses = sorted(piece.address for piece in held)
    between = {after - before for before, after in pairwise(addresses)}
    # Of one size, each behind the one before: how many bytes a weight takes is up to the instruction set.
    assert len(between) == 1
    assert between.pop() <= 2 * arrays["u"].nbytes


def test_later_runs_at_the_same_shapes_ask_nobody_what_these_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where data decide shapes behind them; inputs of another type are looked at."""
    arrays = {"last": np.array([1]), "first": np.array([0])}
    compiled = tw.compile(model(CHOSEN, **arrays), no_cache=True, threads=1)
    assert isinstance(compiled, OpenCompiledModel)
    first = compiled.run(None, {"x": rows(6, 2)})

    def not_again(*_: Any) -> None:
        raise AssertionError

    with monkeypatch.context() as patched:
        patched.setattr(compiled._binding, "key", not_again)
        for found, expected in zip(compiled.run(None, {"x": rows(6, 2)}), first, strict=True):
            np.testing.assert_array_equal(found, expected)
    with pytest.raises(UsageError, match="is float64"):
        compiled.run(None, {"x": rows(6, 2).astype(np.float64)})
    assert compiled.specialisations.kept[0].num_runs == 2


@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_shapes_that_data_decide_run(target: str) -> None:
    arrays = {"last": np.array([1]), "first": np.array([0])}
    compiled = tw.compile(model(CHOSEN, **arrays), target=target, no_cache=True, threads=1)
    for x in (rows(6, 2), rows(6, 2) + 9, -abs(rows(6, 2)), rows(1, 2)):
        y, r = compiled.run(None, {"x": x})
        want = np.maximum(x, 0)
        np.testing.assert_array_equal(r, want)
        np.testing.assert_array_equal(y, want[want.sum(1) != 0])


def test_what_follows_a_shape_that_data_decide_is_compiled_where_that_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tilewright.specialise.parts.MAX_INTERPRETED_FLOP", 0)
    row = np.array([[1, 2, 3]], np.float32)
    compiled = tw.compile(model(LARGEST, row=row, last=np.array([1])), no_cache=True, threads=1)
    x = rows(1, 9)[0]
    for k in (3, 5, 3):
        y, z = compiled.run(None, {"x": x, "k": np.array([k])})
        np.testing.assert_array_equal(y, -np.sort(x)[::-1][:k])
        np.testing.assert_allclose(z, y[:, None] @ row)
    later = [s for s in compiled.specialisations.kept if s.follows_data]
    assert {s.shapes["top"][0]: (s.num_runs, s.num_kernels > 0) for s in later} == {
        3: (2, True),
        5: (1, True),
    }


def test_a_model_whose_shapes_data_decide_has_no_one_graph() -> None:
    arrays = {"last": np.array([1]), "first": np.array([0])}
    compiled = tw.compile(model(CHOSEN, **arrays), no_cache=True)
    with pytest.raises(
        UnsupportedOp, match="NonZero 'found': the shape of its result 'found' depends on data"
    ):
        compiled.at({"x": (2, 2)})


def test_a_session_takes_any_shape(tmp_path: Any) -> None:
    path = tmp_path / "open.onnx"
    onnx.save(model(DENSE, w=WEIGHTS), path)
    session = tw.InferenceSession(str(path))
    for num_rows in (2, 3):
        (found,) = session.run(None, {"x": rows(num_rows)})
        np.testing.assert_allclose(found, expected(rows(num_rows)), rtol=1e-5)


def test_shapes_of_inputs_may_be_fixed_where_data_decide_others() -> None:
    arrays = {"last": np.array([1]), "first": np.array([0])}
    loaded = tw.load(model(CHOSEN, **arrays))
    compiled = tw.compile(loaded, shapes={"x": (4, 2)}, no_cache=True, threads=1)
    assert [s.shapes for s in compiled.specialisations.kept if s.is_ahead] == [{"x": (4, 2)}]
    y, _ = compiled.run(None, {"x": abs(rows(4, 2))})
    np.testing.assert_array_equal(y, abs(rows(4, 2)))
    with pytest.raises(UsageError, match=r"is float32\[5, 2\], the model takes float32\[4, 2\]"):
        compiled.run(None, {"x": rows(5, 2)})


def test_little_work_behind_data_goes_node_by_node_from_the_second_run_on() -> None:
    arrays = {"last": np.array([1]), "first": np.array([0])}
    compiled = tw.compile(model(CHOSEN, **arrays), no_cache=True, target="interpreter")
    assert isinstance(compiled, OpenCompiledModel)
    rng = np.random.default_rng(0)
    for num_rows, num_parts in ((6, 1), (6, 1), (6, 1), (7, 2), (7, 2)):
        x = rng.integers(-1, 2, (num_rows, 2)).astype(np.float32)
        y, r = compiled.run(None, {"x": x})
        np.testing.assert_array_equal(r, np.maximum(x, 0))
        np.testing.assert_array_equal(y, r[r.sum(1) > 0])
        later = [s for s in compiled.specialisations.kept if s.follows_data]
        assert len(later) == num_parts  # of the first run at each shape of the inputs


def test_branches_behind_data_are_taken_by_what_arrives() -> None:
    text = (
        HEADER
        + """g (float[N] x, bool big) => (float[M] y) {
        found = NonZero(x)
        places = Squeeze(found, first)
        kept = Gather(x, places)
        y = If (big) <
            then_branch = t () => (float[M] a) { a = Mul(kept, kept) },
            else_branch = e () => (float[M] b) { b = Neg(kept) }
        >
    }"""
    )
    compiled = tw.compile(model(text, first=np.array([0])), no_cache=True, target="interpreter")
    for number in range(1, 5):
        x = np.arange(5, dtype=np.float32) * (np.arange(5) < number + 1)
        for big in (True, False):
            (found,) = compiled.run(None, {"x": x, "big": np.array(big)})
            kept = x[x != 0]
            np.testing.assert_array_equal(found, kept * kept if big else -kept)


def test_a_branch_that_shapes_decide_is_taken_where_data_decide_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its operators run one by one, those that follow them beside what follows the branch."""
    text = HEADER + (
        """g (float[N] x) => (float[M,3] y) {
        found = NonZero(x) places = Squeeze(found, first) kept = Gather(x, places)
        size = Shape(kept) count = ReduceProd<keepdims=0>(size) is_empty = Equal(count, none)
        chosen = If(is_empty) <
            then_branch = empty () => (float[M1] a) { a = Identity(kept) },
            else_branch = positive () => (float[M2] kept_twice) {
                floor = Relu(kept) above = NonZero(floor) rows = Squeeze(above, first)
                kept_twice = Gather(kept, rows)
            }
        >
        column = Unsqueeze(chosen, last) y = MatMul(column, row)
        }"""
    )
    row = np.array([[1, 2, 3]], np.float32)
    arrays = {"first": np.array([0]), "last": np.array([1]), "none": np.array(0), "row": row}
    compiled = tw.compile(model(text, **arrays), no_cache=True, threads=1)
    monkeypatch.setattr("tilewright.specialise.model.Tail.of", lambda *_: None)
    monkeypatch.delattr("tilewright.ir.interpret.run_control_flow")
    for x in ([3, 0, -1, 2], [0, 0], [-1, -2, 0], [1]):
        given = np.array(x, np.float32)
        (result,) = compiled.run(None, {"x": given})
        np.testing.assert_array_equal(result, given[given > 0][:, None] * row)


def test_shapes_that_data_decide_push_out_none_of_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.specialise.parts.MAX_INTERPRETED_FLOP", -1)  # all of it is much work
    arrays = {"last": np.array([1]), "first": np.array([0])}
    compiled = tw.compile(model(CHOSEN, **arrays), no_cache=True, target="interpreter", max_shapes=2)
    for num_kept in range(5):
        x = np.zeros((5, 2), np.float32)
        x[:num_kept] = 1
        y, _ = compiled.run(None, {"x": x})
        assert y.shape == (num_kept, 2)
    own, *later = compiled.specialisations.kept
    assert (own.shapes, own.num_runs, len(later)) == ({"x": (5, 2)}, 5, 2)


@pytest.mark.parametrize(
    ("k", "message"), [(10, "TopK 'top': its K cannot be"), (-1, "TopK 'top': its K cannot be")]
)
def test_data_that_no_shape_comes_of_are_refused(k: int, message: str) -> None:
    row = np.array([[1, 2, 3]], np.float32)
    arrays = {"row": row, "last": np.array([1])}
    compiled = tw.compile(model(LARGEST, **arrays), no_cache=True, target="interpreter")
    with pytest.raises(InputError, match=message):
        compiled.run(None, {"x": rows(1, 9)[0], "k": np.array([k])})


def test_results_that_data_make_too_large_are_refused() -> None:
    text = HEADER + "g (float[1] x, int64[2] s) => (float[A,B] y) { y = Expand(x, s) }"
    compiled = tw.compile(model(text), no_cache=True, target="interpreter")
    (y,) = compiled.run(None, {"x": np.ones(1, np.float32), "s": np.array([2, 3])})
    assert y.shape == (2, 3)
    with pytest.raises(
        InputError, match="Expand 'y': its shape makes a result of 1,099,511,627,776 elements"
    ):
        compiled.run(None, {"x": np.ones(1, np.float32), "s": np.array([1 << 20, 1 << 20])})


@pytest.mark.parametrize("num_rows", [4, 3, 9])
def test_outputs_are_written_where_one_asks(num_rows: int) -> None:
    # Of nine rows, and of three, there is no code: those of four are used, and the outputs are copied.
    with dense(shapes="x:4|8x4") as compiled:
        place, feed = np.empty((num_rows, 3), np.float32), {"x": rows(num_rows)}
        (found,) = compiled.run_into(feed, {"y": place})
        assert found is place
        np.testing.assert_array_equal(place, compiled.run(None, feed)[0])
        np.testing.assert_array_equal(place, compiled(feed["x"]))
        with pytest.raises(UsageError, match=r"the array for output 'y' is float32\[1, 3\]"):
            compiled.run_into(feed, {"y": np.empty((1, 3), np.float32)})


def test_a_session_binds_open_shapes() -> None:
    session = tw.InferenceSession(model(DENSE, w=WEIGHTS))
    binding = session.io_binding()
    place = np.empty((2, 3), np.float32)
    with pytest.raises(UsageError, match="its shape is open in the model"):
        binding.bind_output("y", buffer_ptr=place.ctypes.data)
    for number in (2, 5):
        binding.clear_binding_outputs()
        binding.bind_cpu_input("x", rows(number))
        binding.bind_output("y")
        binding.run()
        (found,) = binding.copy_outputs_to_cpu()
        np.testing.assert_allclose(found, np.maximum(rows(number) @ WEIGHTS, 0), rtol=1e-5, atol=1e-5)


def test_a_session_takes_shapes(tmp_path: Path) -> None:
    session = tw.InferenceSession(model(DENSE, w=WEIGHTS), shapes="x:2|4x4", frozen_shapes=True)
    compiled = session.compiled
    assert isinstance(compiled, OpenCompiledModel)
    assert compiled.specialisations.num_made == 2
    (wanted,) = session.run(None, {"x": rows(4)})
    compiled.save(tmp_path / "m.tw")
    opened = tw.InferenceSession(tmp_path / "m.tw", shapes={"x": (4, 4)})
    assert opened.get_inputs()[0].shape == (4, 4)
    np.testing.assert_array_equal(opened.run(None, {"x": rows(4)})[0], wanted)


def test_what_was_compiled_for_a_set_of_shapes_is_kept_for_later_processes(tmp_path: Path) -> None:
    from tilewright.api.kept import compile_or_reuse

    options = tw.Options(threads=1, cache_dir=tmp_path)
    results = []
    for _ in range(2):
        with compile_or_reuse(tw.load(model(DENSE, w=WEIGHTS)), options) as compiled:
            assert isinstance(compiled, OpenCompiledModel)
            results.append(compiled.run(None, {"x": rows(5)})[0])
            reused = "reuse" in compiled.at({"x": (5, 4)}).phase_s
        assert reused == (len(results) == 2)
    np.testing.assert_array_equal(*results)


def test_padding_and_resizing_by_data_are_bounded() -> None:
    padded = tw.compile(model(HEADER + "g (float[N] x, int64[2] p) => (float[M] y) { y = Pad(x, p) }"))
    x = np.ones(3, np.float32)
    np.testing.assert_array_equal(padded.run(None, {"x": x, "p": np.array([1, 2])})[0], [0, 1, 1, 1, 0, 0])
    with pytest.raises(InputError, match="make a result of 1,000,000,000,003 elements"):
        padded.run(None, {"x": x, "p": np.array([0, 10**12])})
    text = HEADER + "g (float[1,1,N,N] x, int64[4] s) => (float[a,b,c,d] y) { y = Resize(x, , , s) }"
    resized = tw.compile(model(text))
    image = np.ones((1, 1, 2, 2), np.float32)
    assert resized.run(None, {"x": image, "s": np.array([1, 1, 3, 5])})[0].shape == (1, 1, 3, 5)
    with pytest.raises(InputError, match="elements, more than the"):
        resized.run(None, {"x": image, "s": np.array([1, 1, 10**6, 10**6])})


def test_kept_code_whose_rows_lie_along_another_axis_serves_these_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    text = HEADER + "g (float[N,M,4] x) => (float[N,M,3] y) { y = MatMul(x, w) }"
    rng = np.random.default_rng(0)
    for shapes, shape in (("x:2|6x6x4", (5, 6, 4)), ("x:6x2|6x4", (6, 5, 4))):  # both axes hold rows
        session = tw.InferenceSession(model(text, w=WEIGHTS), shapes=shapes, frozen_shapes=True)
        x = rng.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ WEIGHTS, rtol=1e-4, atol=1e-4)
