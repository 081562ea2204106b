"""The examples of `examples/serve` answer requests, right and wrong ones."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import threading
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

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


class Doubled:
    """A model of open batch that counts its runs and refuses negative numbers."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.may_run = threading.Event()

    def get_inputs(self) -> list[Any]:
        return [types.SimpleNamespace(name="x", shape=["n", 2], type="tensor(float)")]

    get_outputs = get_inputs

    def run(self, output_names: None, feed: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        assert self.may_run.wait(30)
        self.rows.append(len(feed["x"]))
        if (feed["x"] < 0).any():
            raise ValueError("negative")
        return [2 * feed["x"]]


class TestBatching:
    @pytest.fixture
    def batching(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.syspath_prepend(str(FOLDER))
        return import_module("batching")

    def answers(self, batching: Any, model: Doubled, rows: list[int], wrong: int = -1) -> list[Any]:
        """What each request is given: the first holds the only run until all others wait."""

        async def ask() -> list[Any]:
            batches = batching.Batches(model, 1)
            feeds = [np.full((n, 2), -1 if i == wrong else i, np.float32) for i, n in enumerate(rows)]
            tasks = [asyncio.ensure_future(batches.answer({"x": feed})) for feed in feeds]
            await asyncio.sleep(0)
            model.may_run.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

        return asyncio.run(ask())

    def test_what_waits_runs_together_and_each_gets_its_own(self, batching: Any) -> None:
        model = Doubled()
        found = self.answers(batching, model, [1, 1, 2, 3, 1, 4, 1])
        for number, (rows, (output,)) in enumerate(zip([1, 1, 2, 3, 1, 4, 1], found, strict=True)):
            np.testing.assert_array_equal(output, np.full((rows, 2), 2 * number))
        # Of eight rows at the most: the four rows of the sixth do not fit beside those before it.
        assert sum(model.rows) == 13
        assert max(model.rows) <= batching.MAX_ROWS
        assert len(model.rows) <= 3

    def test_a_wrong_request_costs_no_other_one(self, batching: Any) -> None:
        found = self.answers(batching, Doubled(), [1, 1, 1, 1], wrong=2)
        assert [type(one) for one in found] == [list, list, ValueError, list]

    def test_more_than_may_wait_are_refused(self, batching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batching, "MAX_WAITING", 3)
        found = self.answers(batching, Doubled(), [1] * 8)
        refused = [isinstance(one, batching.TooManyWaiting) for one in found]
        assert 3 <= sum(refused) <= 5
        assert not any(refused[:3])


class TestProtocol:
    """Without a server: what is read of a body, and written as one."""

    @pytest.fixture
    def protocol(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.syspath_prepend(str(FOLDER))
        return import_module("inference_protocol")

    @pytest.mark.parametrize("is_binary", [False, True])
    def test_tensors_come_back_as_they_were_sent(self, protocol: Any, is_binary: bool) -> None:
        arrays = {
            "a": np.arange(6, dtype=np.float32).reshape(2, 3),
            "b": np.array([[True], [False]]),
            "c": np.array(7, np.int64),
        }
        head = json.dumps({"inputs": [], "parameters": {"binary_data_output": is_binary}}).encode()
        body, headers = protocol.write_answer(protocol.read_request(head, None), "m", arrays)
        length = headers.get(protocol.LENGTH)
        answer = json.loads(body if length is None else body[: int(length)])
        assert (length is not None) == is_binary
        text = json.dumps({"inputs": answer["outputs"], "outputs": [{"name": "a"}]}).encode()
        asked = protocol.read_request(
            text + (body[int(length) :] if length else b""), str(len(text)) if length else None
        )
        assert asked.outputs == {"a": False}
        for name, array in arrays.items():
            assert asked.feed[name].dtype == array.dtype
            np.testing.assert_array_equal(asked.feed[name], array, strict=True)

    @pytest.mark.parametrize(
        ("change", "length"),
        [
            ({"datatype": "FP7"}, None),
            ({"datatype": "UINT8", "data": [300, 1]}, None),
            ({"shape": [3]}, None),
            ({"shape": [1 << 80]}, None),
            ({"shape": [-1], "parameters": {"binary_data_size": -4}}, None),
            ({"parameters": {"binary_data_size": 8}}, None),
            ({"parameters": None}, None),
            ({}, "-1"),
            ({}, "1000"),
            ({}, "x"),
        ],
    )
    def test_what_is_no_request_is_one_line(self, protocol: Any, change: Any, length: Any) -> None:
        tensor = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]} | change
        with pytest.raises(protocol.BadRequest, match=r"^no request of the protocol: [^\n]*$"):
            protocol.read_request(json.dumps({"inputs": [tensor]}).encode(), length)

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b"{}",
            b"[" * 100_000,
            b'{"inputs": {"x": 1}}',
            b'{"inputs": [], "outputs": [{}]}',
            b'{"inputs": [], "outputs": "y"}',
            b'{"inputs": [], "parameters": 3}',
            "\ud800".encode(errors="surrogatepass"),
        ],
    )
    def test_other_texts_are_no_requests(self, protocol: Any, body: bytes) -> None:
        with pytest.raises(protocol.BadRequest, match="no request of the protocol"):
            protocol.read_request(body, None)

    def test_an_output_that_there_is_not_is_named(self, protocol: Any) -> None:
        asked = protocol.read_request(b'{"inputs": [], "outputs": [{"name": "z"}]}', None)
        with pytest.raises(protocol.BadRequest, match="no output 'z': there are y"):
            protocol.write_answer(asked, "m", {"y": np.zeros(1)})


# What the server's libraries deprecate of each other is not this example's.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestOpenInference:
    @pytest.fixture
    def client(self, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        pytest.importorskip("fastapi", reason="fastapi is not installed")
        pytest.importorskip("httpx", reason="httpx, which the client of the test needs, is not installed")
        client_of = import_module("fastapi.testclient").TestClient
        monkeypatch.setenv("MODEL", str(artifact))
        monkeypatch.syspath_prepend(str(FOLDER))
        with client_of(import_module("open_inference").from_environment()) as client:
            yield client

    def test_requests_in_json_and_in_bytes_are_answered_alike(self, client: Any) -> None:
        feed = feed_for(small_net())
        (image,) = feed.values()
        expected = tw.compile(small_net(), hint="throughput").run(None, feed)
        assert client.get("/v2/health/ready").status_code == 200
        assert client.get("/v2/models/model").json()["inputs"] == [
            {"name": "image", "datatype": "FP32", "shape": [1, 3, 12, 12]}
        ]
        tensor = {"name": "image", "datatype": "FP32", "shape": image.shape}
        asked = {"id": "7", "inputs": [{**tensor, "data": image.ravel().tolist()}]}
        told = client.post("/v2/models/model/infer", json=asked).json()
        assert told["id"] == "7"
        for output, array in zip(told["outputs"], expected, strict=True):
            np.testing.assert_array_equal(
                np.array(output["data"], array.dtype).reshape(output["shape"]), array
            )
        head = {
            "inputs": [{**tensor, "parameters": {"binary_data_size": image.nbytes}}],
            "outputs": [{"name": "r1", "parameters": {"binary_data": True}}],
        }
        text = json.dumps(head).encode()
        length = {"Inference-Header-Content-Length": str(len(text))}
        answer = client.post("/v2/models/model/infer", content=text + image.tobytes(), headers=length)
        end = int(answer.headers["Inference-Header-Content-Length"])
        assert json.loads(answer.content[:end])["outputs"][0]["shape"] == [1, 24, 12, 12]
        assert answer.content[end:] == expected[1].tobytes()

    def test_wrong_requests_are_told_what_is_wrong(self, client: Any) -> None:
        asked = {"inputs": [{"name": "other", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}]}
        answer = client.post("/v2/models/model/infer", json=asked)
        assert answer.status_code == 422
        assert "input 'image' is missing" in answer.text
        asked["inputs"][0]["datatype"] = "FP7"
        for body in (b"no request", b"[]", b"{}", json.dumps(asked).encode()):
            assert client.post("/v2/models/model/infer", content=body).status_code == 400
        assert client.get("/v2/models/other").status_code == 404
        assert client.get("/v2/models/model/infer").status_code == 405

    def test_too_much_is_refused_at_once(self, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """A body beyond the limit, and a request beyond those that may wait."""
        monkeypatch.setattr(import_module("open_inference"), "MAX_BODY_BYTES", 1000)
        answer = client.post("/v2/models/model/infer", content=(b"[" * 400 for _ in range(9)))
        assert (answer.status_code, answer.text) == (413, '{"detail":"the body is larger than 1000 bytes"}')
        monkeypatch.setattr(import_module("open_inference"), "MAX_BODY_BYTES", 1 << 20)
        monkeypatch.setattr(import_module("batching"), "MAX_WAITING", 0)
        (image,) = feed_for(small_net()).values()
        tensor = {"name": "image", "datatype": "FP32", "shape": image.shape, "data": image.ravel().tolist()}
        answer = client.post("/v2/models/model/infer", json={"inputs": [tensor]})
        assert answer.status_code == 503
        assert answer.headers["Retry-After"] == "1"


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
