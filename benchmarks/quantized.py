"""Quantised networks of the zoo beside ONNX Runtime and OpenVINO, interleaved in one process.

Run: `python benchmarks/quantized.py [threads] [network[@size] ...]`. Every contestant gets the same model in
QDQ form (harness/quantize.py, seeded ranges) and the same number of threads; minima and medians of the
rounds. The last columns are the largest differences of the outputs from ours.
"""

from __future__ import annotations

import io
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import openvino

sys.path.insert(0, str(Path(__file__).parent.parent))
from harness.quantize import quantize

import tilewright as tw
from tilewright import zoo

NETWORKS = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v2@112",
    "squeezenet1_1",
    "vgg16",
    "inception_v3",
    "densenet121",
    "bert_tiny",
)
ROUNDS = 25


def contestants(asked: str, threads: int) -> dict[str, Callable[[], Any]]:
    """What runs the network once, by name; a peer that refuses the model is left out."""
    name, _, size = asked.partition("@")
    sizes = {"sequence" if "bert" in name else "image": int(size)} if size else {}
    network = zoo.build(name, **sizes)
    feeds = zoo.example_inputs(network)
    model = quantize(network, feeds)
    compiled = tw.compile(model, threads=threads, no_cache=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    found: dict[str, Callable[[], Any]] = {
        "tilewright": lambda: compiled.run(None, feeds)[0],
        "onnxruntime": lambda: session.run(None, feeds)[0],
    }
    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    try:
        request = core.compile_model(
            core.read_model(io.BytesIO(model.SerializeToString())), "CPU", settings
        ).create_infer_request()
        found["openvino"] = lambda: next(iter(request.infer(feeds).values()))
    except RuntimeError as error:
        print(f"  openvino does not take {asked}: {str(error).strip().splitlines()[-1]}")
    return found


def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    onnxruntime.set_default_logger_severity(3)
    for asked in sys.argv[2:] or NETWORKS:
        found = contestants(asked, threads)
        outputs = {name: np.asarray(run()) for name, run in found.items()}
        samples: dict[str, list[float]] = {name: [] for name in found}
        for _ in range(ROUNDS):
            for name, run in found.items():
                start = time.perf_counter_ns()
                run()
                samples[name].append((time.perf_counter_ns() - start) / 1e6)
        ours = samples["tilewright"]
        line = f"{asked:18} T{threads} {min(ours):8.3f} ms"
        for name in list(found)[1:]:
            low = min(samples[name]) / min(ours)
            middle = statistics.median(samples[name]) / statistics.median(ours)
            error = float(np.abs(outputs[name] - outputs["tilewright"]).max())
            line += f"  {name} {min(samples[name]):8.3f} ms {low:5.2f}x (medians {middle:5.2f}x, {error:.0e})"
        print(line, flush=True)


if __name__ == "__main__":
    main()
