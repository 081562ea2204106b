"""Two ways to compile one model, measured in turns: ratios with their uncertainty instead of single times.

Prints (the figures differ from machine to machine):

    with passes: ... ms
    without passes or fusion: ... ms, ... times as long (... to ...)
    verdict: ...
"""

import tilewright as tw
from tilewright.passes import PIPELINE

proto = tw.zoo.build("squeezenet1_1", image=64)
model = tw.load(proto)
fused = tw.compile(model)
plain = tw.compile(model, partition="none", disabled_passes=PIPELINE)

# Each runs in a process of its own, in short bursts by turns, so that what else the machine does hits both.
# An ONNX file and the names "onnxruntime" or "openvino" do as well as compiled models.
result = tw.bench(fused, plain, feed=tw.zoo.example_inputs(proto), duration="0.5s")

first, second = result.contestants
ratio = result.ratio(second.label)
print(f"with passes: {first.timing.median_ms:.2f} ms")
print(
    f"without passes or fusion: {second.timing.median_ms:.2f} ms, "
    f"{ratio.median:.2f} times as long ({ratio.low:.2f} to {ratio.high:.2f})"
)
print("verdict:", ratio.verdict)

# What else the machine did meanwhile belongs to the result.
for warning in result.machine.warnings():
    print("note:", warning)
