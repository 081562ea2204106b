"""Answers by the reference until the model is compiled."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.api import static_compilation
from tilewright.compiled import CompiledModel
from tilewright.errors import BudgetExceeded, ModelClosed, UsageError
from tilewright.first_answer import QuickCompiledModel

pytestmark = pytest.mark.sampled(7)

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((8, 8)).astype(np.float32)


def model(rows: int | str = 3) -> onnx.ModelProto:
    """A product and a softmax, of so many rows."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Softmax", ["product"], ["y"], axis=-1),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 8])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 8])
    graph = helper.make_graph(nodes, "g", [given], [made], [numpy_helper.from_array(WEIGHT, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feed(rows: int = 3) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)}


class Gate:
    """Holds compilations until it is opened, and counts them."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Event()
        self.num_compiled = 0
        self.error: Exception | None = None

    def wrap(self, compile_static: Any) -> Any:
        def compile_later(*arguments: Any, **named: Any) -> Any:
            self.entered.set()
            assert self.opened.wait(60)
            if self.error is not None:
                raise self.error
            self.num_compiled += 1
            return compile_static(*arguments, **named)

        return compile_later


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found = Gate()
    monkeypatch.setattr(static_compilation, "compile_static", found.wrap(static_compilation.compile_static))
    yield found
    found.opened.set()


def test_it_answers_before_it_is_compiled_and_then_with_the_bits_of_compiled_code(gate: Gate) -> None:
    quick = tw.compile(model(), first_answer="quick")
    assert isinstance(quick, QuickCompiledModel)
    assert not gate.entered.is_set()  # the first answer does not share the processor
    (first,) = quick.run(None, feed())
    (second,) = quick.run(None, feed())
    assert not quick.is_final
    assert not quick.finish(timeout_s=0.0)
    gate.opened.set()
    assert quick.finish()
    assert quick.is_final
    (final,) = quick.run(None, feed())
    whole = tw.compile(model())
    np.testing.assert_array_equal(final, whole.run(None, feed())[0])
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, final, rtol=1e-5, atol=1e-6)
    assert whole.is_final
    assert quick.to_json()["steps"] == whole.to_json()["steps"]


def test_default_is_to_compile_first(gate: Gate) -> None:
    gate.opened.set()
    assert tw.compile(model()).is_final
    assert gate.num_compiled == 1


def test_what_is_known_of_compiled_code_is_waited_for(tmp_path: Path) -> None:
    quick = tw.compile(model(), first_answer="quick")
    assert quick.kernels
    assert quick.is_final
    path = tw.compile(model(), first_answer="quick").save(tmp_path / "quick.tw")
    assert path.read_bytes() == tw.compile(model()).save(tmp_path / "whole.tw").read_bytes()


def test_open_models_answer_at_new_shapes_at_once(gate: Gate) -> None:
    quick = tw.compile(model("n"), first_answer="quick")
    answers = {rows: quick.run(None, feed(rows))[0] for rows in (1, 3)}
    assert not quick.is_final
    gate.opened.set()
    assert quick.finish()
    whole = tw.compile(model("n"))
    for rows, first in answers.items():
        (final,) = quick.run(None, feed(rows))
        np.testing.assert_allclose(first, final, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(final, whole.run(None, feed(rows))[0])
    assert quick.is_final
    assert gate.num_compiled == 4


def test_a_compilation_that_fails_leaves_answers_and_says_why(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.error = BudgetExceeded("too slow")
    gate.opened.set()
    quick = tw.compile(model(), first_answer="quick")
    (first,) = quick.run(None, feed())
    with pytest.raises(BudgetExceeded, match="too slow"):
        quick.finish()
    np.testing.assert_array_equal(quick.run(None, feed())[0], first)
    with pytest.raises(BudgetExceeded):
        _ = quick.kernels
    assert "too slow" in caplog.text


def test_code_that_does_not_load_is_a_compilation_that_failed(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: CompiledModel) -> Any:
        raise BudgetExceeded("no memory for code")

    quick = tw.compile(model(), first_answer="quick")
    (first,) = quick.run(None, feed())
    monkeypatch.setattr(CompiledModel, "load", refuse)
    gate.opened.set()
    with pytest.raises(BudgetExceeded, match="no memory for code"):
        quick.finish()
    assert not quick.is_final
    monkeypatch.undo()
    np.testing.assert_array_equal(quick.run(None, feed())[0], first)


def test_code_that_is_loaded_while_it_is_closed_is_unloaded(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = tw.compile(model(), first_answer="quick")
    quick.run(None, feed())
    load, loaded, done = CompiledModel.load, [], threading.Event()

    def close_meanwhile(compiled: CompiledModel) -> Any:
        loaded.append(load(compiled))
        quick.close()
        done.set()
        return loaded[0]

    monkeypatch.setattr(CompiledModel, "load", close_meanwhile)
    gate.opened.set()
    assert done.wait(60)
    quick._beside.join(60)
    with pytest.raises(ModelClosed):
        loaded[0].run(feed())


def test_closed_while_it_is_compiled_it_stays_closed(gate: Gate) -> None:
    quick = tw.compile(model(), first_answer="quick")
    quick.run(None, feed())
    assert gate.entered.wait(60)
    quick.close()
    gate.opened.set()
    for _ in range(2):
        with pytest.raises(ModelClosed):
            quick.run(None, feed())
        with pytest.raises(ModelClosed):
            quick.finish()
    assert not quick.is_final
    quick.close()


def test_runs_on_other_threads_go_on_while_code_takes_the_place(gate: Gate) -> None:
    quick = tw.compile(model(), first_answer="quick")
    (first,) = quick.run(None, feed())
    ends, failures = threading.Event(), []

    def run_on() -> None:
        while not ends.is_set():
            (found,) = quick.run(None, feed())
            if not np.allclose(found, first, rtol=1e-5, atol=1e-6):
                failures.append(found)

    threads = [threading.Thread(target=run_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    gate.opened.set()
    assert quick.finish()
    quick.run(None, feed())
    ends.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_wrong_feed_is_refused_as_by_compiled_code() -> None:
    quick = tw.compile(model(), first_answer="quick")
    for wrong in ({}, {"x": np.zeros((2, 8), np.float32)}, {"x": np.zeros((3, 8), np.int64)}, {"z": WEIGHT}):
        with pytest.raises(UsageError):
            quick.run(None, wrong)


def test_outputs_are_written_where_they_are_asked_for() -> None:
    quick = tw.compile(model(), first_answer="quick")
    place = np.empty((3, 8), np.float32)
    (found,) = quick.run_into(feed(), {"y": place})
    assert found is place
    np.testing.assert_allclose(place.sum(axis=1), 1.0, rtol=1e-5)


def test_sessions_take_it(gate: Gate) -> None:
    session = tw.InferenceSession(model().SerializeToString(), first_answer="quick")
    (first,) = session.run(None, feed())
    assert not session.compiled.is_final
    gate.opened.set()
    assert session.compiled.finish()
    np.testing.assert_allclose(first, session.run(None, feed())[0], rtol=1e-5, atol=1e-6)


def test_products_of_the_reference_are_on_one_thread_and_of_others_as_before() -> None:
    from tilewright.system import numpy_threads

    functions = numpy_threads._functions()
    if functions is None:
        pytest.skip("numpy has another library")
    get, _ = functions
    before = get()
    with numpy_threads.one_thread(), numpy_threads.one_thread():
        assert get() == 1
    assert get() == before


def test_another_word_is_refused() -> None:
    with pytest.raises(UsageError, match="first-answer"):
        tw.compile(model(), first_answer="soon")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_compiles_for_itself() -> None:
    code = (
        "import os, sys, onnx, numpy as np, tilewright as tw\n"
        "proto = onnx.load_model_from_string(sys.stdin.buffer.read())\n"
        "quick = tw.compile(proto, first_answer='quick')\n"
        "feed = {'x': np.ones((3, 8), np.float32)}\n"
        "quick.run(None, feed)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    quick.run(None, feed)\n"
        "    os._exit(0 if quick.finish() and quick.kernels else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        input=model().SerializeToString(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


def test_the_first_answer_imports_no_compiler() -> None:
    code = (
        "import sys, onnx, numpy as np, tilewright as tw\n"
        "proto = onnx.load_model_from_string(sys.stdin.buffer.read())\n"
        "from tilewright.first_answer import _Beside\n"
        "_Beside.begin = lambda self: None\n"
        "quick = tw.compile(proto, first_answer='quick')\n"
        "quick.run(None, {'x': np.ones((3, 8), np.float32)})\n"
        "unwanted = ('llvmlite', 'pydantic', 'tilewright.compiler', 'tilewright.targets.cpu')\n"
        "print([name for name in unwanted if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=model().SerializeToString(), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "[]"


def test_the_interpreter_ends_while_a_model_is_compiled() -> None:
    code = (
        "import sys, onnx, numpy as np, tilewright as tw\n"
        "proto = onnx.load_model_from_string(sys.stdin.buffer.read())\n"
        "quick = tw.compile(proto, first_answer='quick')\n"
        "print(quick.run(None, {'x': np.ones((3, 8), np.float32)})[0].shape)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=model().SerializeToString(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout.decode().strip(), done.stderr) == (0, "(3, 8)", b"")
