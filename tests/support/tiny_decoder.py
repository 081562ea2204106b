"""A small GPT as ONNX: with or without a cache that grows, a mask and positions, in batches."""

# mypy: disable-error-code="assignment"

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

LAYERS, WIDTH, HEADS, TOKENS, PLACES = 2, 32, 4, 50, 128


def tiny_decoder(
    *, has_cache: bool = True, has_mask: bool = True, last_alone: bool = False, as_torch: bool = False
) -> ModelProto:
    """`input_ids` (batch, length), and perhaps `attention_mask`, `position_ids` and a past of each layer, to
    `logits`; the weights are the same in every form. `as_torch`: every cache has open extents of its own, and
    the mask is gathered, as PyTorch's exporter writes it."""
    rng = np.random.default_rng(0)
    nodes, constants = [], {}

    def weight(name: str, *shape: int, scale: float = 0.3) -> str:
        constants[name] = (scale * rng.standard_normal(shape)).astype(np.float32)
        return name

    def whole(name: str, *numbers: int) -> str:
        constants[name] = np.asarray(numbers, np.int64)
        return name

    def make(op_type: str, inputs: list[str], name: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    (
        whole("zero", 0),
        whole("one", 1),
        whole("two", 2),
        whole("three", 3),
        whole("split", 0, 0, HEADS, WIDTH // HEADS),
    )
    whole("flat", 0, 0, WIDTH)
    constants["start"], constants["step"] = np.asarray(0, np.int64), np.asarray(1, np.int64)
    constants["never"], constants["root"] = np.float32(-1e9), np.float32(np.sqrt(WIDTH / HEADS))
    constants["none"] = np.float32(0)
    length = make("Gather", [make("Shape", ["input_ids"], "ids_shape"), "one"], "length")
    past = "zero"
    if has_cache:
        past = make("Gather", [make("Shape", ["past_key_values.0.key"], "past_shape"), "two"], "past")
    total = make("Add", [length, past], "total")
    last = make("Squeeze", [total, "zero"], "total_scalar")
    keys_at = make("Range", ["start", last, "step"], "keys_at")
    here = make("Range", [make("Squeeze", [past, "zero"], "past_scalar"), last, "step"], "here")
    placed = "position_ids" if has_mask else here
    x = make("Gather", [weight("embedding", TOKENS, WIDTH), "input_ids"], "embedded")
    x = make("Add", [x, make("Gather", [weight("places", PLACES, WIDTH), placed], "placed")], "x0")
    seen = make("LessOrEqual", [keys_at, make("Unsqueeze", [here, "one"], "rows")], "causal")
    if has_mask:
        counts = make("Cast", ["attention_mask"], "counts", to=TensorProto.BOOL)
        whole("middle", 1, 2)
        if as_torch:
            shape = make("Shape", [counts], "counts_shape")
            batch, width = make("Gather", [shape, "zero"], "batch"), make("Gather", [shape, "one"], "width")
            wide = make("Concat", [batch, whole("single", 1, 1), width, "one"], "wide", axis=0)
            rows = make(
                "Range", ["start", make("Squeeze", [batch, "zero"], "num_rows"), "step"], "row_numbers"
            )
            sides = (
                make("Unsqueeze", [rows, whole("behind", 1, 2, 3, 4)], "row_index"),
                make("Unsqueeze", [keys_at, whole("around", 0, 1, 2, 4)], "key_index"),
            )
            places = [make("Expand", [side, wide], f"{side}_wide") for side in sides]
            index = make("Concat", places, "index", axis=-1)
            wide_counts = make("GatherND", [counts, index], "wide_counts")
        else:
            wide_counts = make("Unsqueeze", [counts, "middle"], "wide_counts")
        seen = make("And", [seen, wide_counts], "seen")
    make("Where", [seen, "none", "never"], "bias")
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])]
    if has_mask:
        inputs.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]))
        inputs.append(helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch", "length"]))
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "rows", TOKENS])]
    for layer in range(LAYERS):
        name = f"layer{layer}"
        normed = make(
            "LayerNormalization",
            [x, weight(f"{name}_scale", WIDTH), weight(f"{name}_shift", WIDTH)],
            f"{name}_n",
        )
        heads = {}
        for side in ("query", "key", "value"):
            product = make("MatMul", [normed, weight(f"{name}_{side}_w", WIDTH, WIDTH)], f"{name}_{side}_p")
            parts = make("Reshape", [product, "split"], f"{name}_{side}_r")
            heads[side] = make("Transpose", [parts], f"{name}_{side}", perm=[0, 2, 1, 3])
            if has_cache and side != "query":
                given = f"past_key_values.{layer}.{side}"
                past_name = f"{given}.past" if as_torch else "past"
                shape = ["batch", HEADS, past_name, WIDTH // HEADS]
                inputs.append(helper.make_tensor_value_info(given, TensorProto.FLOAT, shape))
                heads[side] = make("Concat", [given, heads[side]], f"present.{layer}.{side}", axis=2)
                after = ["batch", HEADS, "total", WIDTH // HEADS]
                outputs.append(helper.make_tensor_value_info(heads[side], TensorProto.FLOAT, after))
        turned = make("Transpose", [heads["key"]], f"{name}_turned", perm=[0, 1, 3, 2])
        scores = make(
            "Div", [make("MatMul", [heads["query"], turned], f"{name}_dots"), "root"], f"{name}_scores"
        )
        shares = make("Softmax", [make("Add", [scores, "bias"], f"{name}_masked")], f"{name}_shares", axis=-1)
        mixed = make(
            "Transpose",
            [make("MatMul", [shares, heads["value"]], f"{name}_mix")],
            f"{name}_back",
            perm=[0, 2, 1, 3],
        )
        joined = make("Reshape", [mixed, "flat"], f"{name}_joined")
        out = make("MatMul", [joined, weight(f"{name}_out_w", WIDTH, WIDTH)], f"{name}_out")
        x = make("Add", [x, out], f"{name}_sum")
    if last_alone:
        whole("end", -1), whole("far", 1 << 40)
        x = make("Slice", [x, "end", "far", "one"], "tail")
    make("MatMul", [x, weight("head", WIDTH, TOKENS)], "logits")
    graph = helper.make_graph(
        nodes,
        "tiny",
        inputs,
        outputs,
        [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model
