"""An ONNX model becomes an artifact that runs on this processor.

Prints:

    input: float32[1, 3, 64, 64] -> logits: float32[1, 1000]
    equal after opening: True
    largest error against float64 below 1e-5: True
"""

from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.accuracy import relative_error
from tilewright.ir.dtype import DType
from tilewright.ir.interpret import run_graph

# Any .onnx file does; this network is built here, so that there is nothing to download.
Path("model.onnx").write_bytes(tw.zoo.build("squeezenet1_1", image=64).SerializeToString())

compiled = tw.compile("model.onnx")
(x,) = compiled.get_inputs()
(y,) = compiled.get_outputs()
print(x, "->", y)

image = np.random.default_rng(0).standard_normal(x.shape).astype(np.float32)
(logits,) = compiled.run(None, {x.name: image})

# The artifact holds the weights, the plan and the machine code; the same model gives the same bytes.
compiled.save("model.tw")
(again,) = tw.open("model.tw").run(None, {x.name: image})
print("equal after opening:", np.array_equal(logits, again))

# Reference semantics in double precision say how exact the result is.
exact = run_graph(tw.load("model.onnx").graph, {x.name: image}, dtype=DType.FLOAT64)[y.name]
print("largest error against float64 below 1e-5:", relative_error(logits, exact) < 1e-5)
