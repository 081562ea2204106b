"""The examples of `examples/serve` answer requests, right and wrong ones."""

from __future__ import annotations

import importlib.util
import io
import sys
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.support.models import feed_for, small_net

import tilewright as tw

FOLDER = Path(__file__).parents[2] / "examples" / "serve"


def module_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"serve_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    return tw.compile(small_net(), hint="throughput").save(folder / "model.tw")


class TestFastApi:
    @pytest.fixture
    def client(self, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        pytest.importorskip("fastapi", reason="fastapi is not installed")
        pytest.importorskip("httpx", reason="httpx, which the client of the test needs, is not installed")
        client_of = import_module("fastapi.testclient").TestClient
        monkeypatch.setenv("MODEL", str(artifact))
        with client_of(module_of(FOLDER / "fastapi_app.py").app) as client:
            yield client

    def test_a_request_is_answered_with_the_outputs(self, client: Any) -> None:
        feed = feed_for(small_net())
        assert client.get("/").json()["threads_of_a_run"] == 1
        body = io.BytesIO()
        np.savez(body, **cast(Any, feed))
        answer = client.post("/run", content=body.getvalue())
        assert answer.status_code == 200
        found = np.load(io.BytesIO(answer.content))
        (logits, r1) = tw.compile(small_net(), hint="throughput").run(None, feed)
        np.testing.assert_array_equal(found["logits"], logits)
        np.testing.assert_array_equal(found["r1"], r1)

    def test_wrong_requests_are_told_what_is_wrong(self, client: Any) -> None:
        body = io.BytesIO()
        np.savez(body, other=np.zeros(3))
        answer = client.post("/run", content=body.getvalue())
        assert answer.status_code == 422
        assert "input 'image' is missing" in answer.text
        assert client.post("/run", content=b"no archive").status_code == 400


class FakeTensor:
    """The tensors of Triton's Python backend, as its documentation describes them."""

    def __init__(self, name: str, array: np.ndarray[Any, Any]) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray[Any, Any]:
        return self._array


class FakeResponse:
    def __init__(self, output_tensors: Any = (), error: Any = None) -> None:
        self.outputs, self.error = list(output_tensors), error


class FakeConfig:
    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.add_input, self.add_output = self.inputs.append, self.outputs.append

    def set_max_batch_size(self, size: int) -> None:
        self.max_batch_size = size


@pytest.fixture
def triton(artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example beside an artifact, with a stand-in for what Triton's server offers to it."""
    utils = types.ModuleType("triton_python_backend_utils")
    utils.Tensor, utils.InferenceResponse, utils.TritonError = FakeTensor, FakeResponse, str  # type: ignore[attr-defined]
    utils.get_input_tensor_by_name = lambda request, name: FakeTensor(name, request[name])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    (tmp_path / "model.py").write_text((FOLDER / "triton" / "1" / "model.py").read_text())
    (tmp_path / "model.tw").write_bytes(artifact.read_bytes())
    return module_of(tmp_path / "model.py")


def test_tritons_requests_are_answered_each_for_itself(triton: Any) -> None:
    config = triton.TritonPythonModel.auto_complete_config(FakeConfig())
    assert config.inputs == [{"name": "image", "data_type": "TYPE_FP32", "dims": [1, 3, 12, 12]}]
    assert [output["name"] for output in config.outputs] == ["logits", "r1"]
    feed = feed_for(small_net())
    model = triton.TritonPythonModel()
    model.initialize({})
    good, bad = model.execute([feed, {"image": np.zeros(3, np.float32)}])
    expected = tw.compile(small_net(), hint="throughput").run(None, feed)
    assert [tensor.name() for tensor in good.outputs] == ["logits", "r1"]
    for tensor, array in zip(good.outputs, expected, strict=True):
        np.testing.assert_array_equal(tensor.as_numpy(), array)
    assert "input 'image' is float32[3]" in bad.error
    model.finalize()
    assert "closed" in model.execute([feed])[0].error
