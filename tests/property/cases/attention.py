"""Cases of attention and rotary embedding."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, case, generator, integers, reals

from tilewright.ir.graph import Attribute
from tilewright.ir.ops.attention import MASKED_ATTENTION
from tilewright.ir.ops.registry import INTERNAL_DOMAIN


@generator("Attention")
def attention(draw: Draw, op_type: str) -> Case:
    batch, key_heads, repeats = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    size, value_size = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    past = draw(st.sampled_from([0, 0, 1, 4]))
    heads = key_heads * repeats
    attributes: dict[str, Attribute] = {}
    q = reals(draw, (batch, heads, rows, size))
    k = reals(draw, (batch, key_heads, columns, size))
    v = reals(draw, (batch, key_heads, columns, value_size))
    inputs: list[Array | None] = [q, k, v]
    if draw(st.booleans()):
        inputs = [a.transpose(0, 2, 1, 3).reshape(batch, a.shape[2], -1) for a in (q, k, v)]
        attributes = {"q_num_heads": heads, "kv_num_heads": key_heads}
    open_rows = True
    mask = draw(st.sampled_from(["none", "bool", "float"]))
    if mask != "none":
        lead = draw(st.sampled_from([(), (1, 1), (batch, 1), (1, heads), (batch, heads)]))
        shape = (*lead, rows, past + columns)
        inputs.append(integers(draw, shape, 0, 1, np.bool_) if mask == "bool" else reals(draw, shape))
        open_rows = mask == "float" or bool(np.asarray(inputs[-1])[..., 0].all())
    if past:
        inputs += [None] * (4 - len(inputs))
        inputs += [reals(draw, (batch, key_heads, past, each)) for each in (size, value_size)]
    ends = not past and draw(st.integers(0, 3)) == 0
    if ends:
        inputs += [None] * (6 - len(inputs)) + [
            integers(draw, (batch,), min(rows, columns), columns, np.int64)
        ]
    if draw(st.booleans()):
        attributes["is_causal"] = 1
    if draw(st.booleans()):
        attributes["scale"] = 0.3
    if draw(st.booleans()):
        attributes["softcap"] = 2.0
    shows_present = past > 0 or draw(st.booleans())
    shows_scores = draw(st.booleans())
    outputs = (True, *2 * (shows_present,), shows_scores)
    if shows_scores:
        attributes["qk_matmul_output_mode"] = draw(st.integers(0, 3))
    # ONNX Runtime forbids keys with the lowest finite number, which mode 2 shows and which gives a query
    # without any key the mean of the values instead of zeros.
    forbids = mask == "bool" or "is_causal" in attributes
    runtime = open_rows and not (forbids and attributes.get("qk_matmul_output_mode") == 2) and not ends
    if past and rows != columns and "is_causal" in attributes:
        runtime = False  # there the last query is that of the last key, here the first that behind the past
    return case(
        op_type,
        inputs,
        attributes,
        opset=24 if ends else 23,
        outputs=outputs,
        rtol=1e-4,
        runtime=runtime,
        by_data=True,
    )


@generator(MASKED_ATTENTION, domain=INTERNAL_DOMAIN)
def masked_attention(draw: Draw, op_type: str) -> Case:
    batch, heads, rows, columns, size = (draw(st.integers(1, 4)) for _ in range(5))
    shapes = ((batch, heads, rows, size), *2 * ((batch, heads, columns, size),))
    inputs: list[Array | None] = [reals(draw, shape) for shape in shapes]
    for _ in range(draw(st.integers(0, 3))):
        lead = draw(st.sampled_from([(), (1, 1), (batch, 1), (1, heads), (batch, heads)]))
        inputs.append(reals(draw, (*lead, draw(st.sampled_from([1, rows])), columns)))
    attributes: dict[str, Attribute] = {"scale": 0.3} if draw(st.booleans()) else {}
    return case(
        op_type, inputs, attributes, opset=1, domain=INTERNAL_DOMAIN, like=0, rtol=1e-4, runtime=False
    )


@generator("RotaryEmbedding")
def rotary_embedding(draw: Draw, op_type: str) -> Case:
    batch, heads, length = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    half = draw(st.integers(1, 3))
    size = 2 * half + draw(st.integers(0, 2))
    attributes: dict[str, Attribute] = {"interleaved": draw(st.integers(0, 1))}
    if size > 2 * half:
        attributes["rotary_embedding_dim"] = 2 * half
    x = reals(draw, (batch, heads, length, size))
    # ONNX Runtime wants the number of heads of a 4-D input too when only a part is turned.
    attributes["num_heads"] = heads
    if draw(st.booleans()):
        x = x.transpose(0, 2, 1, 3).reshape(batch, length, -1)
    if draw(st.booleans()):
        caches = [
            reals(draw, (7, half)),
            reals(draw, (7, half)),
            integers(draw, (batch, length), 0, 6, np.int64),
        ]
    else:
        caches = [reals(draw, (batch, length, half)), reals(draw, (batch, length, half))]
    return case(op_type, [x, *caches], attributes, opset=23)
