"""Every network of the zoo: valid, runnable, alive, and the same in every process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from tests.unit.zoo.zoo_measure import shapes

from tilewright import zoo
from tilewright.zoo.catalog import NETWORKS

_LARGE = {
    "bert_base",
    "bert_large",
    "gpt2_decode",
    "gpt2_small",
    "ios_nasnet_a",
    "ios_randwire",
    "mlp_mixer_b16",
    "unet",
    "vgg16",
    "vit_b_16",
    "yolov4",
    "yolov5x",
    "yolox_x",
}
_EVERY_NAME = [pytest.param(name, marks=pytest.mark.slow) if name in _LARGE else name for name in zoo.names()]
_ONE_PER_FAMILY = (
    "bert_tiny",
    "conformer_s",
    "dlrm_s",
    "efficientnet_b0",
    "gru_tagger",
    "ios_squeezenet",
    "mobilenet_v2",
    "mobilevit_s",
    "regnet_x_400mf",
    "resnet18",
    "squeezenet1_1",
    "swin_t",
    "yolov4_tiny",
    "yolox_nano",
)


def build_smallest(name: str, *, batch: int = 1) -> onnx.ModelProto:
    """The network at its smallest size, with some tokens to attend to."""
    network = NETWORKS[name]
    image = None if network.image is None else network.image.smallest
    sequence = None if network.sequence is None else max(network.sequence.smallest, 5)
    return zoo.build(name, batch=batch, image=image, sequence=sequence)


def run(model: onnx.ModelProto, seed: int) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, zoo.example_inputs(model, seed))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", _EVERY_NAME)
def test_network_is_valid_and_answers_differ_between_inputs(name: str) -> None:
    model = build_smallest(name, batch=2)
    onnx.checker.check_model(model.SerializeToString(), full_check=True)
    for output, first, second in zip(model.graph.output, run(model, 0), run(model, 1), strict=True):
        declared = tuple(dim.dim_value for dim in output.type.tensor_type.shape.dim)
        assert first.shape == declared
        assert np.isfinite(first).all()
        assert np.isfinite(second).all()
        spread = float(first.std())
        assert 1e-3 < spread < 1e3, f"{output.name}: standard deviation {spread}"
        assert np.abs(first).max() < 2e3
        # At least 1 % apart across inputs, and across the two images or sentences of a batch.
        assert np.linalg.norm(first - second) > 0.01 * np.linalg.norm(first)
        assert np.linalg.norm(first[0] - first[1]) > 0.01 * np.linalg.norm(first[0])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", _EVERY_NAME)
def test_declared_shapes_are_those_that_onnx_infers(name: str) -> None:
    model = build_smallest(name)
    declared = shapes(model)
    produced = {output for node in model.graph.node for output in node.output}
    assert produced <= declared.keys()
    del model.graph.value_info[:]
    inferred = shapes(onnx.shape_inference.infer_shapes(model, strict_mode=True))
    assert {value: inferred[value] for value in produced} == {value: declared[value] for value in produced}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", _EVERY_NAME)
def test_nodes_are_standard_and_named_once(name: str) -> None:
    model = build_smallest(name)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    assert model.ir_version >= 8
    names = [node.name for node in model.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
    used = {value for node in model.graph.node for value in node.input}
    outputs = {output.name for output in model.graph.output}
    assert {initializer.name for initializer in model.graph.initializer} <= used
    assert {value for node in model.graph.node for value in node.output} <= used | outputs | _unused(model)


def _unused(model: onnx.ModelProto) -> set[str]:
    """Parts of a Split: taking one half of the channels leaves the other."""
    return {value for node in model.graph.node if node.op_type == "Split" for value in node.output}


def digest(name: str) -> str:
    return hashlib.sha256(build_smallest(name).SerializeToString(deterministic=True)).hexdigest()


@pytest.mark.sampled(0)
def test_another_process_builds_the_same_bytes_and_needs_no_torch() -> None:
    here = {name: digest(name) for name in _ONE_PER_FAMILY}
    script = (
        "import sys; from tests.unit.zoo.test_zoo_networks import digest\n"
        f"for name in {_ONE_PER_FAMILY!r}: print(name, digest(name))\n"
        "assert not {'torch', 'torchvision'} & sys.modules.keys()\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert dict(line.split() for line in done.stdout.splitlines()) == here


def _initializers(model: onnx.ModelProto) -> dict[str, bytes]:
    return {initializer.name: initializer.raw_data for initializer in model.graph.initializer}


def test_seed_changes_every_weight_and_size_changes_none() -> None:
    small = _initializers(zoo.build("squeezenet1_1", image=32))
    assert _initializers(zoo.build("squeezenet1_1", image=64, batch=3)) == small
    other = _initializers(zoo.build("squeezenet1_1", image=32, seed=1))
    assert other.keys() == small.keys()
    assert all(other[name] != small[name] for name in small)
