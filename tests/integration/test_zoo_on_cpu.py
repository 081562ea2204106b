"""Every network of the zoo on the CPU: no operator on the host, and the error that each accuracy promises.

The oracle is our interpreter in float64, errors are relative to the output's scale. `strict` and `default`
may err four times as much as onnxruntime does on the same input, with a floor of a few roundings where
onnxruntime happens to be nearly exact; `relaxed` may err by 1e-4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.matrix_unit import can_emulate
from tests.support.other_processor import on_processor

from tilewright import zoo
from tilewright.accuracy import relative_error
from tilewright.compiler import plan
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.options import Options
from tilewright.targets.cpu.product.matrix import cycles
from tilewright.targets.cpu.target import CpuTarget
from tilewright.zoo.catalog import NETWORKS

onnxruntime = pytest.importorskip("onnxruntime")

Arrays = dict[str, Any]

# More than ten seconds each, even at their smallest.
LARGE = {
    "bert_base",
    "bert_large",
    "gpt2_decode",
    "gpt2_small",
    "ios_nasnet_a",
    "ios_randwire",
    "unet",
    "vgg16",
    "vit_b_16",
    "yolov4",
    "yolov5x",
    "yolox_x",
}
ERROR_FACTOR = 4.0
ERROR_FLOOR = 8 * float(np.finfo(np.float32).eps)
RELAXED_ERROR = 1e-4


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    """Equal kernels, of several accuracies and networks, are compiled once."""
    return Options(cache_dir=tmp_path_factory.mktemp("cache"), threads=2)


def check(name: str, *, smallest: bool, options: Options, relaxed: bool = False) -> None:
    network = NETWORKS[name]
    image = network.image.smallest if smallest and network.image else None
    sequence = max(network.sequence.smallest, 17) if smallest and network.sequence else None
    model = zoo.build(name, image=image, sequence=sequence)
    feed = zoo.example_inputs(model, 1)
    graph = load_onnx(model)
    expected = run_graph(graph, feed, dtype=DType.FLOAT64)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    theirs = dict(zip([o.name for o in session.get_outputs()], session.run(None, feed), strict=True))
    errors = {o: relative_error(theirs[o], want) for o, want in expected.items()}
    as_float32 = {o: max(ERROR_FACTOR * error, ERROR_FLOOR) for o, error in errors.items()}
    run(graph, feed, expected, as_float32, replace(options, accuracy="strict"))
    run(graph, feed, expected, as_float32, options)
    if relaxed:
        bounds = dict.fromkeys(expected, RELAXED_ERROR)
        run(graph, feed, expected, bounds, replace(options, accuracy="relaxed"))


def run(graph: Graph, feed: Arrays, expected: Arrays, bounds: dict[str, float], options: Options) -> None:
    """Compile and run twice: no operator on the host, errors within bounds, the same bits."""
    code = CpuTarget().generate(plan(graph, options).program)
    assert [h.node.op_type for h in code.lowered.host_operators] == []
    executable = code.load(options.threads)
    got = executable.run(feed)
    for output, want in expected.items():
        assert relative_error(got[output], want) <= bounds[output], (options.accuracy, output)
    again = executable.run(feed)
    assert all(np.array_equal(got[o], again[o]) for o in got)
    executable.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [n for n in zoo.names() if n not in LARGE])
def test_network_at_its_smallest(name: str, options: Options) -> None:
    check(name, smallest=True, options=options)


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_network_at_its_published_size(name: str, options: Options) -> None:
    check(name, smallest=False, options=options, relaxed=True)


@pytest.fixture
def fast_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit so fast that it is taken at every accuracy that allows it."""
    monkeypatch.setattr(cycles, "step_cycles", lambda *_: (0.1, 0.0))


needs_emulation = pytest.mark.skipif(
    not can_emulate(),
    reason="this processor rounds no vectors to bfloat16, as the emulated matrix unit needs",
)


@pytest.mark.sampled(0)
@needs_emulation
@pytest.mark.parametrize("name", ["resnet18", "bert_tiny", "shufflenet_v2_x1_0"])
def test_network_on_the_matrix_unit_at_its_smallest(name: str, options: Options, fast_unit: None) -> None:
    with on_processor("amx"):
        check(name, smallest=True, options=options, relaxed=True)


@pytest.mark.slow
@needs_emulation
@pytest.mark.parametrize("name", zoo.names())
def test_network_on_the_matrix_unit_at_its_published_size(
    name: str, options: Options, fast_unit: None
) -> None:
    with on_processor("amx"):
        check(name, smallest=False, options=options, relaxed=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("schedule", ["greedy", "random"])
@pytest.mark.parametrize("partition", ["none", "random"])
@pytest.mark.parametrize("name", ["shufflenet_v2_x1_0", "bert_tiny", "dlrm_s"])
def test_any_partition_and_schedule_give_the_network(
    name: str, partition: str, schedule: str, options: Options
) -> None:
    asked = replace(options, threads=None, partition=partition, schedule=schedule)
    check(name, smallest=True, options=asked, relaxed=True)
