"""Networks whose shapes are open give at every shape what onnxruntime gives."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.exported_open_models import EXPORTED_MODELS, MODULES
from tests.support.open_models import OPEN_MODELS, OpenModel

import tilewright as tw
from tilewright.accuracy import relative_error

WRITTEN_HERE = ("encoder", "decoder", "tagger", "detector", "proposals")


def compare(model: OpenModel) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    proto = model.build()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    compiled = tw.compile(proto, threads=2)
    for feed in model.feeds():
        shapes = {name: array.shape for name, array in feed.items()}
        for found, wanted in zip(compiled.run(None, feed), session.run(None, dict(feed)), strict=True):
            assert found.shape == wanted.shape, shapes
            if wanted.dtype.kind == "f" and wanted.size:
                assert relative_error(found, wanted) < 1e-4, shapes
            else:
                np.testing.assert_array_equal(found, wanted, err_msg=str(shapes))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", WRITTEN_HERE)
def test_models_with_open_shapes_are_right_at_each(name: str) -> None:
    compare(next(model for model in OPEN_MODELS if model.name == name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [model.name for model in OPEN_MODELS if model.name not in WRITTEN_HERE])
def test_networks_with_open_batch_and_size_are_right_at_each(name: str) -> None:
    compare(next(model for model in OPEN_MODELS if model.name == name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [model.name for model in EXPORTED_MODELS])
def test_what_pytorch_exports_with_open_shapes_is_right_at_each(name: str) -> None:
    for module in MODULES:
        pytest.importorskip(module)
    compare(next(model for model in EXPORTED_MODELS if model.name == name))
