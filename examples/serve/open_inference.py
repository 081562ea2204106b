"""A compiled model behind the open inference protocol (version 2, as KServe and Triton have it), batched.

    pip install fastapi uvicorn
    tilewright compile resnet18.onnx --shapes "input:1..8x3x224x224" --hint throughput
    MODEL=resnet18.tw uvicorn --app-dir examples/serve open_inference:app

    curl localhost:8000/v2/models/resnet18

Requests are batched (`batching.py`), as long as all inputs and outputs have an open first axis; too many are
told 503 at once, and larger bodies 413. Tensors are JSON, or bytes behind it, which is far less work.
`ray_cluster.py` serves the same on several machines.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from batching import Arrays, Batches, Model, TooManyWaiting
from fastapi import FastAPI, HTTPException, Request, Response

import tilewright as tw

MAX_BODY_BYTES = 64 << 20

TYPES = {
    "BOOL": np.dtype(bool),
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
}
NAMES = {dtype: name for name, dtype in TYPES.items()}


def make_app(model: Model, name: str, num_runs: int) -> FastAPI:
    """The protocol for one model, of which `num_runs` runs go on at a time."""
    batches = Batches(model, num_runs)
    app = FastAPI(title=f"{name}, served by tilewright {tw.__version__}")
    outputs = [spec.name for spec in model.get_outputs()]

    @app.get("/v2")
    def server() -> dict[str, Any]:
        return {"name": "tilewright", "version": tw.__version__, "extensions": ["binary_tensor_data"]}

    @app.get("/v2/health/live")
    @app.get("/v2/health/ready")
    @app.get(f"/v2/models/{name}/ready")
    def ready() -> None:
        """The model is open before the server listens."""

    @app.get(f"/v2/models/{name}")
    def facts() -> dict[str, Any]:
        inputs, results = (
            [_edge(spec) for spec in some] for some in (model.get_inputs(), model.get_outputs())
        )
        return {"name": name, "platform": "tilewright", "inputs": inputs, "outputs": results}

    @app.post(f"/v2/models/{name}/infer")
    async def infer(request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        length = request.headers.get("Inference-Header-Content-Length", str(len(body)))
        try:
            head, feed = read_request(bytes(body), int(length))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HTTPException(400, f"no request of the protocol: {error!r}") from error
        try:
            found = await batches.answer(feed)
        except TooManyWaiting as error:
            raise HTTPException(503, str(error), headers={"Retry-After": "1"}) from error
        except tw.TilewrightError as error:  # one line: which input, and what was expected
            raise HTTPException(422, str(error)) from error
        return write_answer(head, name, dict(zip(outputs, found, strict=True)))

    return app


def _edge(spec: Any) -> dict[str, Any]:
    """An input or output as the protocol describes it: an open axis is -1."""
    dtype = np.dtype({"float": "float32", "double": "float64"}.get(kind := spec.type[7:-1], kind))
    shape = [extent if isinstance(extent, int) else -1 for extent in spec.shape]
    return {"name": spec.name, "datatype": NAMES[dtype], "shape": shape}


def read_request(body: bytes, length: int) -> tuple[dict[str, Any], Arrays]:
    """The JSON at the head of a request, and its tensors, which are in it or behind it."""
    head = json.loads(body[:length])
    feed, at = {}, length
    for tensor in head["inputs"]:
        dtype, shape = TYPES[tensor["datatype"]], [int(extent) for extent in tensor["shape"]]
        size = tensor.get("parameters", {}).get("binary_data_size")
        if size is None:
            feed[tensor["name"]] = np.array(tensor["data"], dtype).reshape(shape)
            continue
        if size != math.prod(shape) * dtype.itemsize or at + size > len(body):
            raise ValueError(f"{tensor['name']}: {size} bytes are not a tensor of shape {shape}")
        feed[tensor["name"]] = np.frombuffer(body, dtype, math.prod(shape), at).reshape(shape)
        at += size
    return head, feed


def write_answer(head: dict[str, Any], name: str, found: Arrays) -> Response:
    """The outputs that a request asks for, all where it names none, as JSON or as bytes behind it."""
    all_binary = head.get("parameters", {}).get("binary_data_output", False)
    asked = head.get("outputs") or [{"name": name} for name in found]
    tensors, parts = [], []
    for output in asked:
        if output["name"] not in found:
            raise HTTPException(400, f"no output {output['name']!r}: there are {', '.join(found)}")
        array = np.ascontiguousarray(found[output["name"]])
        tensor = {"name": output["name"], "datatype": NAMES[array.dtype], "shape": array.shape}
        if output.get("parameters", {}).get("binary_data", all_binary):
            tensor["parameters"] = {"binary_data_size": array.nbytes}
            parts.append(array.tobytes())
        else:
            tensor["data"] = array.ravel().tolist()
        tensors.append(tensor)
    text = json.dumps({"model_name": name, "id": head.get("id", ""), "outputs": tensors}).encode()
    if not parts:
        return Response(text, media_type="application/json")
    headers = {"Inference-Header-Content-Length": str(len(text))}
    return Response(b"".join([text, *parts]), media_type="application/octet-stream", headers=headers)


def from_environment() -> FastAPI:
    """The artifact that MODEL names, under its file's name, with as many runs as fit the cores."""
    path = Path(os.environ["MODEL"])
    model = tw.open(path)
    return make_app(model, path.stem, max(1, (os.cpu_count() or 1) // model.num_threads))


def __getattr__(name: str) -> Any:
    """The app when a server asks for it, so that importing this file opens nothing."""
    if name == "app":
        return from_environment()
    raise AttributeError(name)
