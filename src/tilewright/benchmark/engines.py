"""The contestants: tilewright and its peers, each behind the same four facts.

Every peer is told how many threads to use and in what to compute: float32, where nothing else is asked for.
An engine is made and called in a process of its own (`worker`), so that no thread pool disturbs another.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import UsageError
from tilewright.extras import extra_of

Feed = Mapping[str, Array]

Precision = Literal["float32", "bfloat16"]

PEERS = ("onnxruntime", "openvino")
_NARROW_PEERS = frozenset({"openvino"})


def peer_precision(peer: str, accuracy: str) -> Precision:
    """In what a peer is to compute beside code of ours: in bfloat16 beside `fast`, where it can.

    >>> peer_precision("openvino", "fast"), peer_precision("onnxruntime", "fast")
    ('bfloat16', 'float32')
    """
    return "bfloat16" if accuracy == "fast" and peer in _NARROW_PEERS else "float32"


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """A loaded model: `run` gives the outputs in the model's order.

    `others` run it at the same time, each for a stream of its own.
    """

    name: str
    version: str
    run: Callable[[Feed], list[Array]]
    others: tuple[Callable[[Feed], list[Array]], ...] = ()


def is_installed(name: str) -> bool:
    """Whether a peer can be imported; looks, but does not import it."""
    return importlib.util.find_spec(name) is not None


def make_engine(
    name: str,
    model_path: str,
    num_threads: int,
    shapes: Mapping[str, tuple[int, ...]],
    precision: str = "float32",
    num_streams: int = 1,
) -> Engine:
    """Load a model (an ONNX file, or an artifact for tilewright) into one engine.

    `precision` is for peers: an artifact says itself how it computes. `num_streams` runs go on at a time,
    each on `num_threads`.

    Raises:
        UsageError: an unknown engine, or a peer that is not installed.
    """
    makers: dict[str, Callable[[str, int, Mapping[str, tuple[int, ...]]], Engine]] = {
        "tilewright": _tilewright,
        "onnxruntime": _onnxruntime,
        "openvino": partial(_openvino, precision=precision, num_streams=num_streams),
    }
    if name not in makers:
        raise UsageError(f"unknown engine {name!r}: known are {', '.join(makers)}.")
    try:
        engine = makers[name](model_path, num_threads, shapes)
    except ModuleNotFoundError as error:
        if name == "tilewright":
            raise
        raise UsageError(f"{name} is not installed: {extra_of(name).command}.") from error
    # What several threads may call at a time needs no other.
    return engine if engine.others else replace(engine, others=(engine.run,) * (num_streams - 1))


def _tilewright(path: str, num_threads: int, shapes: Mapping[str, tuple[int, ...]]) -> Engine:
    from tilewright.options import Options
    from tilewright.specialise.opened import open_compiled
    from tilewright.version import __version__

    compiled = open_compiled(Path(path), Options(threads=num_threads))
    return Engine("tilewright", __version__, lambda feed: compiled.run(None, feed))


def _onnxruntime(path: str, num_threads: int, shapes: Mapping[str, tuple[int, ...]]) -> Engine:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return Engine("onnxruntime", onnxruntime.__version__, lambda feed: list(session.run(None, dict(feed))))


_HINTS: Mapping[str, str] = {"float32": "f32", "bfloat16": "bf16"}


def _openvino(
    path: str, num_threads: int, shapes: Mapping[str, tuple[int, ...]], precision: str, num_streams: int
) -> Engine:
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    if shapes:
        model.reshape({name: list(shape) for name, shape in shapes.items()})
    compiled = core.compile_model(
        model,
        "CPU",
        {
            # Without this hint OpenVINO computes in bfloat16 where the processor can.
            "INFERENCE_PRECISION_HINT": _HINTS[precision],
            "INFERENCE_NUM_THREADS": num_threads * num_streams,
            "PERFORMANCE_HINT": "LATENCY" if num_streams == 1 else "THROUGHPUT",
            "NUM_STREAMS": num_streams,
            "ENABLE_CPU_PINNING": False,
        },
    )
    outputs = list(compiled.outputs)

    def stream() -> Callable[[Feed], list[Array]]:
        request = compiled.create_infer_request()

        def run(feed: Feed) -> list[Array]:
            results = request.infer(dict(feed))
            return [np.array(results[o]) for o in outputs]

        return run

    others = tuple(stream() for _ in range(num_streams - 1))
    return Engine("openvino", openvino.__version__, stream(), others)
