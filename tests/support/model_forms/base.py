"""What forms are made of, and the table of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import ModelProto
from onnx import helper as h
from onnx import numpy_helper as nh

T = onnx.TensorProto
F = T.FLOAT
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
Feed = dict[str, np.ndarray[Any, Any]]
Form: TypeAlias = "ModelProto | tuple[ModelProto, Feed]"
FORMS: dict[str, tuple[ModelProto, Feed]] = {}


def form(make: Callable[[], Form]) -> Callable[[], Form]:
    made = make()
    FORMS[make.__name__] = made if isinstance(made, tuple) else (made, {"x": X})
    return make


def vi(n: str, shape: Any = (2, 3), t: int = F) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(n, t, shape)


def relu(i: str = "x", o: str = "y", name: str = "") -> onnx.NodeProto:
    return h.make_node("Relu", [i], [o], name=name)


def model(
    nodes: Any,
    ins: Any,
    outs: Any,
    inits: Any = (),
    vinfo: Any = (),
    opsets: Any = (("", 17),),
    functions: Any = (),
    **kw: Any,
) -> ModelProto:
    g = h.make_graph(nodes, kw.pop("graph", "g"), ins, outs, list(inits), value_info=list(vinfo))
    m = h.make_model(g, opset_imports=[h.make_opsetid(d, v) for d, v in opsets], functions=list(functions))
    m.ir_version = kw.pop("ir", 8)
    return m


def c(a: Any, name: str) -> onnx.TensorProto:
    return nh.from_array(np.asarray(a), name)
