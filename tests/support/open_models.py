"""Models whose shapes are open, as exporters write them: batch, length, image size, a cache that grows, and
shapes that data decide. Tests and benchmarks share them.
"""

# mypy: disable-error-code="assignment"

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

from tilewright import zoo

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]

_HEADER = '<ir_version: 8, opset_import: ["": 17]> '


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model and feeds of several shapes; `family` says what it stands for."""

    name: str
    family: str
    build: Callable[[], ModelProto]
    feeds: Callable[[], Sequence[Feed]]


def opened(model: ModelProto, axes: Mapping[str, Mapping[int, str]]) -> ModelProto:
    """A static model with these axes of its inputs open; the first is the batch, which Reshape copies."""
    graph = model.graph
    for value in graph.input:
        for axis, symbol in axes.get(value.name, {}).items():
            value.type.tensor_type.shape.dim[axis].dim_param = symbol
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for number, node in enumerate(graph.node):
        if node.op_type == "Reshape" and node.input[1] in constants:
            target = numpy_helper.to_array(constants[node.input[1]]).copy()
            target[0] = 0
            name = f"open_shape_{number}"
            graph.initializer.append(numpy_helper.from_array(target, name))
            node.input[1] = name
    return model


class Weights:
    """Seeded arrays by name, collected as a model is written."""

    def __init__(self, name: str) -> None:
        self._rng = np.random.default_rng(zlib.crc32(name.encode()))
        self.arrays: dict[str, Array] = {}

    def normal(self, name: str, *shape: int) -> str:
        """Normal values, scaled by the number that is summed."""
        scale = 1 / np.sqrt(shape[0] if len(shape) > 1 else 10)
        self.arrays[name] = (scale * self._rng.standard_normal(shape)).astype(np.float32)
        return name

    def value(self, name: str, data: Any, dtype: Any = np.int64) -> str:
        """A given value."""
        self.arrays[name] = np.asarray(data, dtype)
        return name

    def model(self, text: str) -> ModelProto:
        """The model of a text, with these arrays as its initializers."""
        proto = parse_model(_HEADER + text)
        proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in self.arrays.items())
        onnx.checker.check_model(proto)
        return proto


def encoder(width: int = 64, heads: int = 4, layers: int = 2) -> ModelProto:
    """A BERT encoder with batch and length open, and a mask; shapes are computed as exporters do."""
    w = Weights("encoder")
    for name, data in (("zero", 0), ("one", 1)):
        w.value(name, data)
    for name, data in (
        ("first", [0]),
        ("second", [1]),
        ("heads", [heads, width // heads]),
        ("width", [width]),
    ):
        w.value(name, data)
    w.value("middle", [1, 2])
    w.value("one_f", 1, np.float32)
    w.value("low", -10000, np.float32)
    w.value("root", np.sqrt(width // heads), np.float32)
    w.value("root2", np.sqrt(2), np.float32)
    w.value("half", 0.5, np.float32)
    lines = [
        f"""shape = Shape(ids) length = Gather(shape, one) places = Range(zero, length, one)
        tokens = Gather({w.normal("words", 1000, width)}, ids)
        positions = Gather({w.normal("table", 512, width)}, places)
        x0 = Add(tokens, positions)
        seen = Cast<to=1>(mask) hidden = Sub(one_f, seen) low_mask = Mul(hidden, low)
        bias = Unsqueeze(low_mask, middle)
        batch_1 = Gather(shape, first) length_1 = Gather(shape, second)
        split = Concat<axis=0>(batch_1, length_1, heads) joined = Concat<axis=0>(batch_1, length_1, width)"""
    ]
    for i in range(layers):
        for part in "qkv":
            lines.append(
                f"""{part}{i}_p = MatMul(x{i}, {w.normal(f"w{part}{i}", width, width)})
                {part}{i}_b = Add({part}{i}_p, {w.normal(f"b{part}{i}", width)})
                {part}{i}_s = Reshape({part}{i}_b, split)
                {part}{i} = Transpose<perm=[{"0, 2, 3, 1" if part == "k" else "0, 2, 1, 3"}]>({part}{i}_s)"""
            )
        lines.append(
            f"""score{i} = MatMul(q{i}, k{i}) scaled{i} = Div(score{i}, root) masked{i} = Add(scaled{i}, bias)
            chance{i} = Softmax<axis=-1>(masked{i}) context{i} = MatMul(chance{i}, v{i})
            rows{i} = Transpose<perm=[0, 2, 1, 3]>(context{i}) flat{i} = Reshape(rows{i}, joined)
            out{i} = MatMul(flat{i}, {w.normal(f"wo{i}", width, width)}) sum{i} = Add(out{i}, x{i})
            norm{i} = LayerNormalization<axis=-1>(
                sum{i}, {w.normal(f"g{i}", width)}, {w.normal(f"e{i}", width)})
            up{i} = MatMul(norm{i}, {w.normal(f"up_w{i}", width, 4 * width)})
            ratio{i} = Div(up{i}, root2) erf{i} = Erf(ratio{i}) more{i} = Add(erf{i}, one_f)
            gate{i} = Mul(up{i}, more{i}) gelu{i} = Mul(gate{i}, half)
            down{i} = MatMul(gelu{i}, {w.normal(f"down_w{i}", 4 * width, width)})
            both{i} = Add(down{i}, norm{i})
            x{i + 1} = LayerNormalization<axis=-1>(
                both{i}, {w.normal(f"h{i}", width)}, {w.normal(f"f{i}", width)})"""
        )
    lines.append(f"states = Identity(x{layers}) pooled = Gather<axis=1>(states, zero)")
    return w.model(
        f"""encoder (int64[batch,length] ids, int64[batch,length] mask)
        => (float[batch,length,{width}] states, float[batch,{width}] pooled) {{ {" ".join(lines)} }}"""
    )


def _encoder_feeds() -> list[Feed]:
    rng = np.random.default_rng(0)
    feeds: list[Feed] = []
    for batch, length in ((1, 7), (2, 16), (3, 33), (1, 64), (4, 5)):
        mask = np.ones((batch, length), np.int64)
        mask[-1, length // 2 :] = 0
        feeds.append({"ids": rng.integers(0, 1000, (batch, length)), "mask": mask})
    return feeds


def decoder(width: int = 64, heads: int = 4) -> ModelProto:
    """One step of a decoder whose keys and values grow by a token; batch and past are open."""
    w, each = Weights("decoder"), width // heads
    w.value("zero", 0)
    w.value("split", [0, 1, heads, each])
    w.value("joined", [0, 1, width])
    w.value("root", np.sqrt(each), np.float32)
    lines = [
        f"""token = Gather({w.normal("words", 500, width)}, ids)
        place = Gather({w.normal("table", 256, width)}, places) x = Add(token, place)"""
    ]
    for part in "qkv":
        lines.append(
            f"""{part}_p = MatMul(x, {w.normal(f"w{part}", width, width)}) {part}_s = Reshape({part}_p, split)
            {part} = Transpose<perm=[0, 2, 1, 3]>({part}_s)"""
        )
    lines.append(
        f"""keys = Concat<axis=2>(past_k, k) values = Concat<axis=2>(past_v, v)
        turned = Transpose<perm=[0, 1, 3, 2]>(keys) score = MatMul(q, turned) scaled = Div(score, root)
        chance = Softmax<axis=-1>(scaled) context = MatMul(chance, values)
        rows = Transpose<perm=[0, 2, 1, 3]>(context) flat = Reshape(rows, joined)
        logits = MatMul(flat, {w.normal("head", width, 500)})"""
    )
    cache = f"float[batch,{heads},past,{each}]"
    grown = f"float[batch,{heads},total,{each}]"
    return w.model(
        f"""decoder (int64[batch,1] ids, int64[batch,1] places, {cache} past_k, {cache} past_v)
        => (float[batch,1,500] logits, {grown} keys, {grown} values) {{ {" ".join(lines)} }}"""
    )


def _decoder_feeds() -> list[Feed]:
    rng = np.random.default_rng(0)
    feeds: list[Feed] = []
    for batch, past in ((1, 1), (1, 2), (1, 3), (2, 40), (3, 17)):
        cache = {
            n: rng.standard_normal((batch, 4, past, 16)).astype(np.float32) for n in ("past_k", "past_v")
        }
        places = np.full((batch, 1), past)
        feeds.append({"ids": rng.integers(0, 500, (batch, 1)), "places": places, **cache})
    return feeds


def tagger(width: int = 32) -> ModelProto:
    """A bidirectional LSTM over a sequence; length and batch are open."""
    w = Weights("tagger")
    w.value("second", [1])
    w.normal("weights", 2, 4 * width, 24)
    w.normal("recurrence", 2, 4 * width, width)
    w.normal("bias", 2, 8 * width)
    w.value("joined", [0, 0, 2 * width])
    w.normal("head", 2 * width, 9)
    return w.model(
        f"""tagger (float[length,batch,24] x) => (float[length,batch,9] tags, float[2,batch,{width}] last) {{
        steps, last = LSTM<hidden_size={width}, direction="bidirectional">(x, weights, recurrence, bias)
        turned = Transpose<perm=[0, 2, 1, 3]>(steps) flat = Reshape(turned, joined) tags = MatMul(flat, head)
        }}"""
    )


def detector() -> ModelProto:
    """Boxes and scores for each place of an image of any size, and those that NonMaxSuppression keeps."""
    w = Weights("detector")
    w.normal("stem", 16, 3, 3, 3)
    w.normal("body", 16, 16, 3, 3)
    w.normal("box_head", 4, 16, 1, 1)
    w.normal("class_head", 3, 16, 1, 1)
    for name, data in (
        ("rows", [0, 4, -1]),
        ("classes", [0, 3, -1]),
        ("most", [20]),
        ("two", 2),
        ("first", [0]),
    ):
        w.value(name, data)
    w.value("overlap", [0.5], np.float32)
    w.value("least", [0.55], np.float32)
    w.value("size", 3, np.float32)
    return w.model(
        """detector (float[1,3,height,width] image)
        => (float[kept,4] found, int64[kept] labels, float[1,3,n] p) {
        a = Conv<strides=[2, 2], pads=[1, 1, 1, 1]>(image, stem) b = Relu(a)
        c = Conv<strides=[2, 2], pads=[1, 1, 1, 1]>(b, body) d = Relu(c)
        raw = Conv(d, box_head) flat = Reshape(raw, rows) boxes_1 = Transpose<perm=[0, 2, 1]>(flat)
        boxes = Mul(boxes_1, size)
        seen = Conv(d, class_head) scores = Reshape(seen, classes) p = Sigmoid(scores)
        chosen = NonMaxSuppression(boxes, p, most, overlap, least)
        place = Gather<axis=1>(chosen, two) one_two = Squeeze(boxes, first) found = Gather(one_two, place)
        one = Constant<value_int = 1>() labels = Gather<axis=1>(chosen, one)
        }"""
    )


def proposals(width: int = 64) -> ModelProto:
    """Two stages: places of a feature map that score above zero, at most 12, go through dense layers."""
    w = Weights("proposals")
    w.normal("stem", width, 3, 3, 3)
    w.normal("judge", width, 1)
    w.normal("dense_1", width, 256)
    w.normal("dense_2", 256, 128)
    for name, data in (("places", [-1, width]), ("all", [-1]), ("most", [12]), ("zeros", [0])):
        w.value(name, data)
    w.value("none", 0, np.float32)
    return w.model(
        """proposals (float[1,3,height,width] image) => (float[k,128] described, float[k] best) {
        a = Conv<strides=[4, 4], pads=[1, 1, 1, 1]>(image, stem) b = Relu(a)
        c = Transpose<perm=[0, 2, 3, 1]>(b) features = Reshape(c, places)
        judged = MatMul(features, judge) scores = Reshape(judged, all)
        good = Greater(scores, none) ones = Cast<to=7>(good) count = ReduceSum<keepdims=1>(ones, zeros)
        k = Min(count, most)
        best, index = TopK(scores, k)
        rows = Gather(features, index) h = MatMul(rows, dense_1) r = Relu(h) described = MatMul(r, dense_2)
        }"""
    )


def _images(name: str, shapes: Sequence[tuple[int, ...]]) -> Callable[[], list[Feed]]:
    def feeds() -> list[Feed]:
        rng = np.random.default_rng(0)
        return [{name: rng.standard_normal(shape).astype(np.float32)} for shape in shapes]

    return feeds


def _network(name: str, family: str, image: int, sizes: Sequence[tuple[int, int]]) -> OpenModel:
    """A network of the zoo with open batch; where `sizes` differ in the image, its height and width, too."""
    is_sized = len({side for _, side in sizes}) > 1
    axes = {0: "batch", 2: "height", 3: "width"} if is_sized else {0: "batch"}
    (given,) = zoo.entry(name).input_shapes
    return OpenModel(
        name,
        family,
        lambda: opened(zoo.build(name, image=image), {given: axes}),
        _images(given, [(batch, 3, side, side) for batch, side in sizes]),
    )


_BATCHES = ((1, 64), (2, 64), (3, 64), (5, 64), (8, 64))
_SIZES = ((1, 64), (1, 96), (2, 64), (1, 128), (3, 80))

OPEN_MODELS = (
    OpenModel("encoder", "BERT, both axes open", encoder, _encoder_feeds),
    OpenModel("decoder", "decoder with a growing cache", decoder, _decoder_feeds),
    OpenModel(
        "tagger",
        "LSTM",
        tagger,
        _images("x", [(length, batch, 24) for length, batch in ((1, 1), (9, 2), (4, 1), (20, 3), (7, 5))]),
    ),
    OpenModel(
        "detector",
        "detection with NonMaxSuppression",
        detector,
        _images("image", [(1, 3, 32, 32), (1, 3, 48, 32), (1, 3, 40, 40), (1, 3, 64, 48), (1, 3, 32, 80)]),
    ),
    OpenModel(
        "proposals",
        "TopK with a computed k",
        proposals,
        _images("image", [(1, 3, 32, 32), (1, 3, 48, 32), (1, 3, 40, 40), (1, 3, 16, 16), (1, 3, 64, 64)]),
    ),
    _network("resnet18", "image size and batch open", 64, _SIZES),
    _network("squeezenet1_1", "image size and batch open", 64, _SIZES),
    _network("mobilenet_v2", "image size and batch open", 64, _SIZES),
    _network("efficientnet_b0", "batch open", 64, _BATCHES),
    _network("densenet121", "batch open", 64, _BATCHES),
    _network("unet", "batch open", 64, _BATCHES),
    _network("yolov4_tiny", "YOLO, batch open", 64, _BATCHES),
)
