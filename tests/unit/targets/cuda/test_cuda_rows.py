"""Nests that share loops in one kernel: softmax and normalisations on the emulated GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.cuda import compiled, error, needs_fibers, templates
from tests.support.models import model

pytestmark = needs_fibers
RNG = np.random.default_rng(5)


def single(operator: str, shape: list[int], constants: dict[str, Any], **attributes: Any) -> Any:
    weights = [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in constants.items()]
    node = helper.make_node(operator, ["x", *constants], ["y"], operator.lower(), **attributes)
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    return model([node], tensors[:1], tensors[1:], weights)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("proto", "shape"),
    [
        (single("Softmax", [6, 40], {}, axis=1), [6, 40]),
        (single("Softmax", [4, 1000], {}, axis=1), [4, 1000]),
        (single("Softmax", [3, 5, 7], {}, axis=1), [3, 5, 7]),
        (single("LogSoftmax", [2, 3, 70], {}), [2, 3, 70]),
        (single("LayerNormalization", [3, 4, 65], {"w": RNG.random(65), "b": RNG.random(65)}), [3, 4, 65]),
        (single("InstanceNormalization", [2, 3, 9, 5], {"w": [1, 2, 3], "b": [3, 2, 1]}), [2, 3, 9, 5]),
    ],
    ids=["warp", "block", "strided", "log", "layer", "instance"],
)
def test_rows_are_one_kernel_and_right(proto: Any, shape: list[int]) -> None:
    found = compiled(proto)
    assert templates(found) == ["rows"]
    feed = {"x": (10 * RNG.standard_normal(shape)).astype(np.float32)}
    assert error(proto, feed, found.run(None, feed)) < 2e-6


def test_few_long_rows_are_kernels_of_their_own() -> None:
    found = compiled(single("Softmax", [2, 40000], {}, axis=1))
    assert "rows" not in templates(found)
