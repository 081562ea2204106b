"""Functions of one half number: every rounding is made by instructions, never by a library."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

import tilewright as tw

FUNCTIONS = ("Acos", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Erf", "Sinh", "Tan")


@pytest.mark.parametrize("count", [1, 3])
def test_functions_in_double_round_to_half(count: int) -> None:
    nodes = " ".join(f"{name.lower()} = {name}(x)" for name in FUNCTIONS)
    results = ", ".join(f"float16[{count}] {name.lower()}" for name in FUNCTIONS)
    text = f'<ir_version: 8, opset_import: ["": 22]> g (float16[{count}] x) => ({results}) {{ {nodes} }}'
    x = np.linspace(0.25, 0.75, count).astype(np.float16)
    found = tw.compile(parse_model(text), no_cache=True).run(None, {"x": x})
    expected = tw.compile(parse_model(text), target="interpreter").run(None, {"x": x})
    for name, one, other in zip(FUNCTIONS, found, expected, strict=True):
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=1e-3, err_msg=name)
