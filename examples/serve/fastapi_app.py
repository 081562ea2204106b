"""A compiled model behind FastAPI: arrays in and out as .npz, as many runs at a time as there are cores.

    pip install fastapi uvicorn
    tilewright compile resnet50.onnx --hint throughput
    MODEL=resnet50.tw uvicorn --app-dir examples/serve fastapi_app:app

    curl localhost:8000/
    curl --data-binary @inputs.npz localhost:8000/run --output outputs.npz

Compiled for throughput, each run takes one thread. Requests wait in threads of the server, which hold no core
while they wait: however many come, no more runs go on at a time than there are cores.
"""

from __future__ import annotations

import io
import os
import zipfile
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool

import tilewright as tw

MAX_BODY_BYTES = 64 << 20

app = FastAPI(title="tilewright")
model = tw.open(os.environ["MODEL"])
names = [spec.name for spec in model.get_outputs()]


@app.get("/")
def facts() -> dict[str, Any]:
    """What the model takes and gives."""
    return {
        "inputs": [spec.to_json() for spec in model.get_inputs()],
        "outputs": [spec.to_json() for spec in model.get_outputs()],
        "threads_of_a_run": model.num_threads,
    }


@app.post("/run")
async def run(request: Request) -> Response:
    """Outputs of one run on the arrays of the body."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    return Response(await run_in_threadpool(answer, bytes(body)), media_type="application/octet-stream")


def answer(body: bytes) -> bytes:
    """The arrays of an .npz file to those of another."""
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            feed = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise HTTPException(400, f"the body is no .npz file: {error}") from error
    try:
        outputs = model.run(None, feed)
    except tw.TilewrightError as error:  # one line: which input, and what was expected
        raise HTTPException(422, str(error)) from error
    file = io.BytesIO()
    np.savez(file, **dict(zip(names, outputs, strict=True)))
    return file.getvalue()
