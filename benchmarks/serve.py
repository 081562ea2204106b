"""The serving example beside the same server over onnxruntime: requests a second, latency of 64 clients.

    python -m benchmarks serve --networks resnet18@224,mobilenet_v2@224 --clients 64 --seconds 10

Both engines stand behind `examples/serve/open_inference.py`, each in a process; onnxruntime as runs of one
thread side by side and as one run of all threads. One more process is all clients: each asks again once it
has its answer, with an image as bytes. Rounds of the servers take turns. Clients and server share the cores,
so rates are below what a server alone reaches. Needs fastapi, uvicorn and onnxruntime.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

import tilewright as tw
from benchmarks.command import SUPPRESS, Namespace, Parser, again
from benchmarks.results import append_row, provenance, with_table
from tilewright import zoo

EXAMPLE = Path(__file__).parents[1] / "examples" / "serve"
ENGINES = ("tilewright", "onnxruntime, a thread each", "onnxruntime, all threads")
MAX_ROWS = 8


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--networks", default="resnet18@224,mobilenet_v2@224")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output")
    parser.add_argument("--page")
    parser.add_argument("--server", nargs=2, help=SUPPRESS)


def main(arguments: Namespace) -> None:
    """Measure each network, and print a line for each engine."""
    if arguments.server:
        serve(arguments.server[0], Path(arguments.server[1]), arguments.threads)
        return
    missing = [name for name in ("fastapi", "uvicorn", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise SystemExit(f"serve: {', '.join(missing)} cannot be imported: pip install {' '.join(missing)}")
    rows = []
    for network in arguments.networks.split(","):
        name, _, image = network.partition("@")
        model = open_batch(name, int(image or 224))
        rows.append({**provenance(), "network": network, **measured(model, arguments)})
        if arguments.output:
            append_row(arguments.output, rows[-1])
    print(text := table(rows))
    if arguments.page:
        arguments.page.write_text(with_table(arguments.page.read_text(), text, "serve"))


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each network and engine, and where they were measured."""
    lines = [
        f"| {row['network']} | {engine} | {found['requests_per_s']:.1f} | {found['p50_ms']:.0f} "
        f"| {found['p99_ms']:.0f} | {found['failed']} |"
        for row in rows
        for engine, found in row["engines"].items()
    ]
    where = rows[0]["measured"]
    conditions = f"{where['machine']}, {rows[0]['threads']} threads; medians of rounds in turns; commit "
    return "\n".join(
        [
            "| network | engine | requests a second | median ms | 99th percentile ms | refused |",
            "|---|---|---|---|---|---|",
            *lines,
            "",
            f"{conditions}{where['commit']}.",
            "",
        ]
    )


def open_batch(name: str, image: int) -> ModelProto:
    """A network of the zoo whose batch is open."""
    model = zoo.build(name, image=image)
    for edge in (*model.graph.input, *model.graph.output):
        edge.type.tensor_type.shape.dim[0].dim_param = "n"
    del model.graph.value_info[:]
    return model


def measured(model: ModelProto, arguments: Namespace) -> dict[str, Any]:
    """Rates and latencies of each engine, of rounds in turns."""
    (spec,) = model.graph.input
    shape = [1, *(dim.dim_value for dim in spec.type.tensor_type.shape.dim[1:])]
    rounds: dict[str, list[list[float]]] = {engine: [] for engine in ENGINES}
    failed = dict.fromkeys(ENGINES, 0)
    with tempfile.TemporaryDirectory() as text, contextlib.ExitStack() as stack:
        folder = Path(text)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        sizes = "|".join(str(rows) for rows in range(1, MAX_ROWS + 1))
        shapes = f"{spec.name}:{sizes}x{'x'.join(map(str, shape[1:]))}"
        tw.compile(model, shapes=shapes, hint="throughput", threads=1).save(folder / "model.tw")
        ports = {
            engine: stack.enter_context(running(engine, folder, arguments.threads)) for engine in ENGINES
        }
        body = request(spec.name, np.random.default_rng(0).standard_normal(shape).astype(np.float32))
        for number in range(arguments.rounds + 1):
            for engine in ENGINES:
                seconds = arguments.seconds if number else arguments.seconds / 4
                latencies, errors = asyncio.run(ask(ports[engine], body, arguments.clients, seconds))
                if number:  # the first round warms up
                    rounds[engine].append(latencies)
                    failed[engine] += errors
    return {
        "clients": arguments.clients,
        "threads": arguments.threads,
        "engines": {
            engine: {
                "requests_per_s": statistics.median(len(found) / arguments.seconds for found in some),
                "p50_ms": statistics.median(percentile_ms(found, 50) for found in some),
                "p99_ms": statistics.median(percentile_ms(found, 99) for found in some),
                "failed": failed[engine],
            }
            for engine, some in rounds.items()
        },
    }


def percentile_ms(latencies_s: list[float], percent: float) -> float:
    """A percentile in milliseconds; none without an answer."""
    return 1e3 * float(np.percentile(latencies_s, percent)) if latencies_s else math.nan


def request(name: str, image: np.ndarray[Any, Any]) -> bytes:
    """A request with its tensor as bytes, as it goes over the connection."""
    tensor = {"name": name, "datatype": "FP32", "shape": image.shape}
    head = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": image.nbytes}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    body = head + image.tobytes()
    lines = (
        "POST /v2/models/model/infer HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {len(body)}",
        f"Inference-Header-Content-Length: {len(head)}",
    )
    return "\r\n".join([*lines, "", ""]).encode() + body


async def ask(port: int, message: bytes, num_clients: int, seconds: float) -> tuple[list[float], int]:
    """The latency of each answered request, in seconds, and how many were refused."""
    end = time.perf_counter() + seconds
    latencies: list[float] = []
    errors = 0

    async def client() -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (start := time.perf_counter()) < end:
            writer.write(message)
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            if head.startswith(b"HTTP/1.1 200"):
                latencies.append(time.perf_counter() - start)
            else:
                errors += 1
        writer.close()

    await asyncio.gather(*(client() for _ in range(num_clients)))
    return latencies, errors


@contextlib.contextmanager
def running(engine: str, folder: Path, num_threads: int) -> Iterator[int]:
    """The port of a server over one engine."""
    command = again("serve", "--server", engine, str(folder), "--threads", str(num_threads))
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield int(server.stdout.readline())
    finally:
        server.terminate()
        server.wait()


def serve(engine: str, folder: Path, num_threads: int) -> None:
    """Serve the model of a folder with one engine, on a free port, which is printed."""
    sys.path.insert(0, str(EXAMPLE))
    import uvicorn
    from open_inference import make_app

    num_runs = 1 if engine == "onnxruntime, all threads" else num_threads
    if engine == "tilewright":
        app = make_app(tw.open(folder / "model.tw"), "model", num_runs)
    else:
        import onnxruntime

        session = onnxruntime.SessionOptions()
        session.intra_op_num_threads = num_threads // num_runs
        providers = ["CPUExecutionProvider"]
        app = make_app(
            onnxruntime.InferenceSession(folder / "model.onnx", session, providers=providers),
            "model",
            num_runs,
        )
    config = uvicorn.Config(app, log_level="error", access_log=False, port=0)
    socket = config.bind_socket()
    print(socket.getsockname()[1], flush=True)
    uvicorn.Server(config).run(sockets=[socket])
