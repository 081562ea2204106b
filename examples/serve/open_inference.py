"""A compiled model behind the open inference protocol (version 2, as KServe and Triton have it), batched.

    pip install fastapi uvicorn
    tilewright compile resnet18.onnx --shapes "input:1..8x3x224x224" --hint throughput
    MODEL=resnet18.tw uvicorn --app-dir examples/serve open_inference:app

    curl localhost:8000/v2/models/resnet18

Requests are read by `inference_protocol.py` and batched by `batching.py`, as long as all inputs and outputs
have an open first axis; too many are told 503 at once, and larger bodies 413. Tensors are JSON, or bytes
behind it, which is far less work.
`ray_cluster.py` serves the same on several machines.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from batching import Batches, Model, TooManyWaiting
from fastapi import FastAPI, HTTPException, Request, Response
from inference_protocol import LENGTH, NAMES, BadRequest, read_request, write_answer

import tilewright as tw

MAX_BODY_BYTES = 64 << 20


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
        try:
            asked = read_request(bytes(body), request.headers.get(LENGTH))
            found = dict(zip(outputs, await batches.answer(asked.feed), strict=True))
            text, headers = write_answer(asked, name, found)
        except BadRequest as error:
            raise HTTPException(400, str(error)) from error
        except TooManyWaiting as error:
            raise HTTPException(503, str(error), headers={"Retry-After": "1"}) from error
        except tw.TilewrightError as error:  # one line: which input, and what was expected
            raise HTTPException(422, str(error)) from error
        return Response(text, headers=headers)

    return app


def _edge(spec: Any) -> dict[str, Any]:
    """An input or output as the protocol describes it: an open axis is -1."""
    dtype = np.dtype({"float": "float32", "double": "float64"}.get(kind := spec.type[7:-1], kind))
    shape = [extent if isinstance(extent, int) else -1 for extent in spec.shape]
    return {"name": spec.name, "datatype": NAMES[dtype], "shape": shape}


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
