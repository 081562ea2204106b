"""Weights of a loaded model are let go of when it has been compiled, unless the caller has the model.

Those of the program are while its code is loaded, unless somebody asks for it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.models import model

import tilewright as tw
from tilewright.api import compilation
from tilewright.api.models import Model, as_model
from tilewright.compiler import compile_graph
from tilewright.ir.graph import Graph, Value
from tilewright.options import Options
from tilewright.specialise.model import OpenCompiledModel
from tilewright.system.mapped_file import mapped_file_of
from tilewright.targets.base import ReleasingCode
from tilewright.targets.cpu.image.code import CpuCode
from tilewright.targets.cpu.image.image import CpuImage
from tilewright.targets.cpu.image.released_constants import MIN_RELEASED_BYTES, ReleasedConstants

F32 = TensorProto.FLOAT


@pytest.fixture(autouse=True)
def _collects_nothing() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def network() -> bytes:
    """A convolution whose weights a normalisation scales."""
    shapes = {"w": (8, 3, 3, 3), "scale": (8,), "bias": (8,), "mean": (8,), "var": (8,)}
    weights = [numpy_helper.from_array(np.full(s, 2, np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", F32, [1, 3, 8, 8])
    y = helper.make_tensor_value_info("y", F32, [1, 8, 6, 6])
    data: bytes = model(nodes, [x], [y], weights).SerializeToString()
    return data


def weight_of(loaded: Model) -> weakref.ref[np.ndarray]:  # type: ignore[type-arg]  # of any type
    (data,) = [v.data for v in loaded.graph.initializers if v.name == "w"]
    assert data is not None
    return weakref.ref(data)


def test_a_model_that_was_loaded_to_be_compiled_is_gone_then(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []

    def watched(*arguments: object) -> Model:
        loaded = as_model(*arguments)  # type: ignore[arg-type]
        weights.append(weight_of(loaded))
        return loaded

    monkeypatch.setattr(compilation, "as_model", watched)
    compiled = tw.compile(network(), threads=1)
    assert [weight() for weight in weights] == [None]
    x = np.ones((1, 3, 8, 8), np.float32)
    expected = tw.compile(tw.load(network()), threads=1).run(None, {"x": x})
    np.testing.assert_array_equal(compiled.run(None, {"x": x}), expected)


def test_a_model_that_the_caller_has_keeps_its_weights() -> None:
    loaded = tw.load(network())
    weight = weight_of(loaded)
    tw.compile(loaded, threads=1)
    assert weight() is not None
    assert all(value.data is not None for value in loaded.graph.initializers)


def products() -> bytes:
    """Rows of a table through two products, whose weights kernels read in another order."""
    rng = np.random.default_rng(0)
    shapes = {"table": (300, 128), "w": (128, 200), "v": (200, 130)}
    weights = [numpy_helper.from_array(rng.standard_normal(s, np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Gather", ["table", "rows"], ["x"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    rows = helper.make_tensor_value_info("rows", TensorProto.INT64, [20])
    y = helper.make_tensor_value_info("y", F32, [20, 130])
    data: bytes = model(nodes, [rows], [y], weights).SerializeToString()
    return data


FEED = {"rows": np.arange(20, dtype=np.int64)}


def large_constants(graph: Graph) -> list[Value]:
    return [value for value in graph.initializers if value.size_bytes >= MIN_RELEASED_BYTES]


def test_loaded_code_has_the_only_copy_of_the_weights_until_somebody_asks_for_them() -> None:
    loaded = tw.load(products())
    code = compile_graph(loaded.graph, Options(no_cache=True, threads=1)).code
    assert isinstance(code, ReleasingCode)
    for value in loaded.graph.initializers:
        value.data = None
    constants = large_constants(code.program.graph)
    before = {value: np.array(value.data) for value in constants}
    arrays = [weakref.ref(value.data) for value in constants if value.data is not None]
    assert len(arrays) == 3
    expected = code.load(1).run(FEED)["y"]
    executable, restore = code.load_releasing(1)
    assert all(array() is None for array in arrays)
    np.testing.assert_array_equal(executable.run(FEED)["y"], expected)
    executable.close()
    restore()
    restore()
    for value, array in before.items():
        assert value.data is not None
        assert value.data.dtype == array.dtype
        np.testing.assert_array_equal(value.data, array)
        assert not value.data.flags.writeable
    np.testing.assert_array_equal(code.load(1).run(FEED)["y"], expected)


def test_what_the_host_reads_is_kept() -> None:
    code = compile_graph(tw.load(products()).graph, Options(no_cache=True, threads=1)).code
    assert isinstance(code, CpuCode)
    kept, *others = large_constants(code.program.graph)
    constants = ReleasedConstants(code.weights, {kept})
    assert kept.data is not None
    assert [value.data for value in others] == [None] * len(others)
    constants.restore()
    assert all(value.data is not None for value in others)


def test_a_model_that_runs_is_saved_as_one_that_never_did(tmp_path: Path) -> None:
    fresh, used = (tw.compile(products(), threads=1) for _ in range(2))
    (expected,) = used.run(None, FEED)
    paths = [one.save(tmp_path / f"{number}.tw") for number, one in enumerate((fresh, used))]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    np.testing.assert_array_equal(used.run(None, FEED)[0], expected)


def test_whoever_has_the_program_keeps_its_weights() -> None:
    compiled = tw.compile(products(), threads=1)
    constants = large_constants(compiled.program.graph)
    compiled.run(None, FEED)
    assert all(value.data is not None for value in constants)


def test_weights_come_back_from_a_model_that_was_closed() -> None:
    compiled = tw.compile(products(), threads=1)
    compiled.run(None, FEED)
    compiled.close()
    expected = large_constants(tw.compile(products(), threads=1).program.graph)
    for value, other in zip(large_constants(compiled.program.graph), expected, strict=True):
        assert value.data is not None
        np.testing.assert_array_equal(value.data, other.data)


def test_code_that_cannot_be_loaded_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile_graph(tw.load(products()).graph, Options(no_cache=True, threads=1)).code
    assert isinstance(code, CpuCode)

    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(CpuImage, "executable", fails)
    with pytest.raises(MemoryError):
        code.load_releasing(1)
    assert all(value.data is not None for value in large_constants(code.program.graph))


def open_product(tmp_path: Path, *, is_external: bool) -> tuple[Path, Path, np.ndarray]:  # type: ignore[type-arg]
    """The files of a model of open rows, and of its weights, and these."""
    weights = np.random.default_rng(0).standard_normal((600, 512), np.float32)
    x = helper.make_tensor_value_info("x", F32, ["rows", 600])
    y = helper.make_tensor_value_info("y", F32, ["rows", 512])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    path, data = tmp_path / "m.onnx", tmp_path / "m.data"
    made = model([node], [x], [y], [numpy_helper.from_array(weights, "w")])
    onnx.save(made, path, save_as_external_data=is_external, location="m.data")
    return path, data if is_external else path, weights


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_external", [False, True])
def test_weights_of_open_shapes_stay_in_their_file(tmp_path: Path, is_external: bool) -> None:
    path, file, weights = open_product(tmp_path, is_external=is_external)
    compiled = tw.compile(path, threads=1, no_cache=True)
    assert isinstance(compiled, OpenCompiledModel)
    for num_rows in (2, 40):
        x = np.random.default_rng(num_rows).standard_normal((num_rows, 600), np.float32)
        np.testing.assert_allclose(compiled.run(None, {"x": x})[0], x @ weights, rtol=1e-4, atol=1e-4)
    (array,) = compiled._prepared.arrays().values()
    assert mapped_file_of(array.reshape(-1)[7:].T) is not None
    # A model that takes its place is another file; what is written into the file cannot be told from weights.
    file.rename(tmp_path / "moved")
    compiled.at({"x": (3, 600)})
    with (tmp_path / "moved").open("r+b") as opened:
        opened.truncate(2000)
    with pytest.raises(tw.UsageError, match=f"{file.name}: was written to since it was loaded"):
        compiled.at({"x": (5, 600)})


def test_weights_of_given_shapes_are_read(tmp_path: Path) -> None:
    path, _, weights = open_product(tmp_path, is_external=False)
    loaded = tw.load(path, shapes={"x": (4, 600)})
    path.write_bytes(b"")
    (value,) = loaded.graph.initializers
    assert value.data is not None
    np.testing.assert_array_equal(value.data, weights)


def test_a_file_that_was_written_to_ends_no_process(tmp_path: Path) -> None:
    """What has the weights packed runs on; whatever would read them in the file is an error."""
    weights = np.random.default_rng(0).standard_normal((600, 512), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Identity", ["w"], ["v"]),
    ]
    x = helper.make_tensor_value_info("x", F32, ["rows", 600])
    outputs = [helper.make_tensor_value_info(n, F32, s) for n, s in (("y", ["rows", 512]), ("v", [600, 512]))]
    fixed, decided = tmp_path / "fixed.onnx", tmp_path / "decided.onnx"
    onnx.save(model(nodes, [x], outputs, [numpy_helper.from_array(weights, "w")]), fixed)
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"]),
        helper.make_node("Transpose", ["i"], ["t"]),
        helper.make_node("GatherND", ["w", "t"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", F32, ["found"])]
    onnx.save(model(nodes, [x], outputs, [numpy_helper.from_array(weights, "w")]), decided)
    packed, interpreted = (tw.compile(path, threads=1, no_cache=True) for path in (fixed, decided))
    given = np.zeros((2, 600), np.float32)
    given[1, 7] = 1
    assert isinstance(packed, OpenCompiledModel)
    for _ in range(3):
        np.testing.assert_array_equal(packed.run(None, {"x": given})[1], weights)
        assert interpreted.run(None, {"x": given})[0].tolist() == [weights[1, 7]]
    part = packed.at({"x": (2, 600)})
    for path in (fixed, decided):
        with path.open("r+b") as opened:
            opened.truncate(100)
    np.testing.assert_array_equal(packed.run(None, {"x": given})[1], weights)
    for reads in (
        lambda: interpreted.run(None, {"x": given}),
        lambda: packed.save(tmp_path / "all.tw"),
        lambda: part.save(tmp_path / "one.tw"),
        lambda: part.program,
    ):
        with pytest.raises(tw.UsageError, match=r"was written to since it was loaded; load the model again"):
            reads()


def test_graphs_of_an_open_model_are_read_from_its_file_while_that_is_as_it_was(tmp_path: Path) -> None:
    path, _, weights = open_product(tmp_path, is_external=False)
    loaded = tw.load(path).at({"x": (2, 600)})
    compiled = [tw.compile(loaded, threads=1, no_cache=True, target=t) for t in ("cpu", "cpu", "interpreter")]
    x = np.ones((2, 600), np.float32)
    for one in (compiled[0], compiled[2]):
        np.testing.assert_allclose(one.run(None, {"x": x})[0], x @ weights, rtol=1e-4, atol=1e-4)
    with path.open("r+b") as opened:
        opened.truncate(100)
    np.testing.assert_allclose(compiled[0].run(None, {"x": x})[0], x @ weights, rtol=1e-4, atol=1e-4)
    for reads in (
        lambda: compiled[0].save(tmp_path / "m.tw"),
        lambda: compiled[1].run(None, {"x": x}),  # its code is not loaded yet
        lambda: compiled[2].run(None, {"x": x}),
        lambda: tw.compile(loaded, threads=1, no_cache=True),
    ):
        with pytest.raises(tw.UsageError, match="was written to since it was loaded; load the model again"):
            reads()
