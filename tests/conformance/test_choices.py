"""Text attributes with a closed set of values: another value is refused when the model is read."""

from __future__ import annotations

from functools import cache

import pytest
from onnx import ModelProto, defs
from tests.hostile.operand_mutations import seeds

import tilewright as tw
from tilewright.errors import ModelRejected

# Any text is a value of these.
_OPEN = frozenset({"equation", "value_string", "value_strings", "pool_strings"})


@cache
def _models() -> dict[tuple[str, str], ModelProto]:
    """A valid model of one node for each operator and text attribute that it has."""
    found: dict[tuple[str, str], ModelProto] = {}
    for seed in seeds():
        (node,), (opset,) = seed.model.graph.node, seed.model.opset_import
        schema = defs.get_schema(node.op_type, opset.version, node.domain)
        for name, attribute in schema.attributes.items():
            is_text = attribute.type in (defs.OpSchema.AttrType.STRING, defs.OpSchema.AttrType.STRINGS)
            if is_text and name not in _OPEN:
                found.setdefault((node.op_type, name), seed.model)
    return found


def _with_text(model: ModelProto, name: str, text: str) -> ModelProto:
    changed = ModelProto()
    changed.CopyFrom(model)
    (node,) = changed.graph.node
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    schema = defs.get_schema(node.op_type, changed.opset_import[0].version)
    attribute = node.attribute.add(name=name, type=schema.attributes[name].type.value)
    if schema.attributes[name].type == defs.OpSchema.AttrType.STRINGS:
        attribute.strings.append(text.encode())
    else:
        attribute.s = text.encode()
    return changed


def test_every_operator_with_such_an_attribute_is_tried() -> None:
    tried = {op_type for op_type, _ in _models()}
    assert {"Pad", "Resize", "GridSample", "RoiAlign", "DepthToSpace", "Gelu", "ScatterND", "Cast"} <= tried
    assert {"BitShift", "LSTM", "GRU", "RNN", "QLinearConv", "LpPool", "TensorScatter"} <= tried


@pytest.mark.parametrize("text", ["", "no such value"])
def test_another_value_is_refused_in_one_line(text: str) -> None:
    """All in one test: cases would need the node suite, which takes seconds to build, at collection."""
    for (op_type, name), model in _models().items():
        with pytest.raises(ModelRejected) as caught:
            tw.load(_with_text(model, name, text))
        assert "\n" not in str(caught.value), op_type
