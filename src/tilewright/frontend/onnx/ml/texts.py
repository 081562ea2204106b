"""Texts and maps of a model with operators of ai.onnx.ml, taken to its edges: inside there are numbers.

Every text of the model's attributes and constants gets a number; tensors of texts become tensors of these,
which operators that move elements or compare them handle as any others. A ZipMap at the end becomes the keys
of an output.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tilewright.edges import NO_EDGES, Edges, Keys
from tilewright.errors import ModelRejected, UnsupportedOp
from tilewright.frontend.onnx.ml import DOMAIN
from tilewright.frontend.onnx.protos import node_label
from tilewright.frontend.onnx.versions import OLDEST_OPSET
from tilewright.ir.bodies import body_graphs

# Operators whose results hold elements of these inputs; None stands for all.
_MOVERS: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(
        (
            "Compress",
            "Expand",
            "Flatten",
            "Gather",
            "GatherElements",
            "GatherND",
            "Identity",
            "Reshape",
            "Slice",
        ),
        (0,),
    ),
    **dict.fromkeys(("Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"), (0,)),
    "ArrayFeatureExtractor": (0,),
    "Concat": None,
    "Where": (1, 2),
}
_LABELS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
# Operators that look elements up among keys, of texts or of numbers.
_KEYED = ("CategoryMapper", "LabelEncoder", "OneHotEncoder")
_UNUSED = "_Unused"
NUM_KEYS = "num_keys"
"""The attribute of a ZipMap whose keys were taken to the edge."""


def take_edges(model: ModelProto) -> Edges:
    """Put numbers in the place of the texts of a model that has operators of ai.onnx.ml, and tensors in that
    of maps.

    Raises:
        UnsupportedOp: an operator computes with texts.
        ModelRejected: keys of maps are not given.
    """
    graph = model.graph
    if all(node.domain != DOMAIN for node in graph.node):
        return NO_EDGES
    if all(entry.domain not in ("", "ai.onnx") for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", OLDEST_OPSET))  # for what takes their place
    maps = _take_maps(model)
    work = _Texts(model)
    if not work.holds_texts():
        return Edges(maps=maps)
    work.rewrite()
    texts = work.names
    return Edges(
        tuple(work.numbers),
        tuple(v.name for v in graph.input if v.name in texts),
        tuple(v.name for v in graph.output if v.name in texts),
        maps,
    )


def _take_maps(model: ModelProto) -> dict[str, Keys]:
    """The keys of outputs that ZipMap makes, of which the node itself keeps how many there are."""
    outputs = {value.name: value for value in model.graph.output}
    maps: dict[str, Keys] = {}
    for node in model.graph.node:
        if node.op_type != "ZipMap" or node.domain != DOMAIN:
            continue
        output = outputs.get(node.output[0])
        if output is None:
            continue  # the import says that maps are no values
        keys: Keys = ()
        for attribute in node.attribute:
            if attribute.name == "classlabels_int64s":
                keys = tuple(attribute.ints)
            elif attribute.name == "classlabels_strings" and attribute.strings:
                keys = tuple(map(_decoded, attribute.strings))
        if not keys:
            raise ModelRejected(f"node {node_label(node)} has no keys; export the model again.")
        maps[output.name] = keys
        _to_tensor(output, TensorProto.FLOAT, [None, len(keys)])
        del node.attribute[:]
        node.attribute.append(helper.make_attribute(NUM_KEYS, len(keys)))
    return maps


def _to_tensor(value: ValueInfoProto, kind: int, shape: list[int | None]) -> None:
    value.type.CopyFrom(helper.make_tensor_type_proto(kind, shape))


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


class _Texts:
    """A model of which tensors of texts become tensors of numbers.

    `names` are those of the tensors, `numbers` those of the texts.
    """

    def __init__(self, model: ModelProto) -> None:
        self._graph = model.graph
        self.numbers: dict[str, int] = {}
        self.names: set[str] = {
            v.name for v in self._graph.input if v.type.tensor_type.elem_type == TensorProto.STRING
        }
        self.names |= {t.name for t in self._graph.initializer if t.data_type == TensorProto.STRING}
        for node in self._graph.node:
            self.names |= set(self._made_by(node))

    def holds_texts(self) -> bool:
        """Whether there are any."""
        has_lists = any(a.strings for n in self._graph.node if n.domain == DOMAIN for a in n.attribute)
        return bool(self.names) or has_lists

    def _made_by(self, node: NodeProto) -> Iterable[str]:
        """Results of a node that are texts."""
        given = {a.name: a for a in node.attribute}
        if node.domain in ("", "ai.onnx") and node.op_type == "Constant":
            kinds = {"value_string", "value_strings"} & given.keys()
            is_text = "value" in given and given["value"].t.data_type == TensorProto.STRING
            return node.output if kinds or is_text else ()
        if node.domain == DOMAIN and node.op_type in ("CategoryMapper", "LabelEncoder"):
            values = given.get("values_tensor")
            if "classes_strings" in given or node.op_type == "CategoryMapper":
                is_text = not self._reads(node, (0,))
            else:
                is_text = "values_strings" in given or (
                    values is not None and values.t.data_type == TensorProto.STRING
                )
            return node.output if is_text else ()
        if node.domain == DOMAIN and node.op_type in _LABELS:
            return node.output[:1] if "classlabels_strings" in given else ()
        if node.domain in ("", "ai.onnx", DOMAIN) and node.op_type in _MOVERS:
            return node.output if self._reads(node, _MOVERS[node.op_type]) else ()
        return ()

    def _reads(self, node: NodeProto, positions: tuple[int, ...] | None) -> bool:
        chosen = (
            node.input if positions is None else [node.input[i] for i in positions if i < len(node.input)]
        )
        return any(name in self.names for name in chosen)

    def rewrite(self) -> None:
        """Put numbers in the place of texts.

        Raises:
            UnsupportedOp: a node computes with texts.
        """
        graph = self._graph
        for node in graph.node:
            self._require_numbers(node)
        for tensor in graph.initializer:
            if tensor.name in self.names:
                tensor.CopyFrom(self._encoded(tensor))
        for node in graph.node:
            self._rewrite_node(node)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.name in self.names:
                value.type.tensor_type.elem_type = TensorProto.INT64

    def _require_numbers(self, node: NodeProto) -> None:
        """Raise if a node does something with texts that numbers do not stand for."""
        is_known = node.op_type in _MOVERS or node.op_type in ("Constant", "Equal")
        if node.domain == DOMAIN and node.op_type in _KEYED:
            self._require_keys(node)
            is_known = True
        bodies_read = any(
            name in self.names for body in body_graphs(node) for inner in body.node for name in inner.input
        )
        if bodies_read or (not is_known and self._reads(node, None)):
            raise UnsupportedOp(
                f"node {node_label(node)} computes with texts, which beside operators of {DOMAIN} only those "
                "do that move or compare them; compute it before the model."
            )

    def _require_keys(self, node: NodeProto) -> None:
        """Raise if a node looks texts up among numbers, or numbers among texts."""
        given = {a.name: a for a in node.attribute}
        if node.op_type == "CategoryMapper" or "classes_strings" in given:
            return  # either way
        has_texts = "keys_strings" in given or "cats_strings" in given
        if "keys_tensor" in given:
            has_texts = given["keys_tensor"].t.data_type == TensorProto.STRING
        if has_texts != self._reads(node, (0,)):
            input_, keys = ("numbers", "texts") if has_texts else ("texts", "numbers")
            raise ModelRejected(
                f"node {node_label(node)}: its input holds {input_}, its keys are {keys}; export the model "
                "again."
            )

    def number(self, text: str) -> int:
        """The number of a text."""
        return self.numbers.setdefault(text, len(self.numbers))

    def _all(self, texts: Iterable[bytes]) -> list[int]:
        return [self.number(_decoded(text)) for text in texts]

    def _encoded(self, tensor: TensorProto) -> TensorProto:
        codes = np.array(self._all(tensor.string_data), np.int64)
        if len(codes) != prod(tensor.dims):
            raise ModelRejected(
                f"tensor {tensor.name!r} of shape {list(tensor.dims)} has {len(codes)} texts; export the "
                "model again."
            )
        return numpy_helper.from_array(codes.reshape(tuple(tensor.dims)), tensor.name)

    def _rewrite_node(self, node: NodeProto) -> None:
        if node.domain == DOMAIN and node.op_type in ("CategoryMapper", "LabelEncoder"):
            self._rewrite_mapping(node)
            return
        attributes: list[AttributeProto] = []
        for attribute in node.attribute:
            name = attribute.name
            if node.domain == DOMAIN and attribute.type == AttributeProto.STRINGS:
                if name == "classlabels_strings":
                    name = _LABELS.get(node.op_type, "classlabels_int64s")
                elif name == "cats_strings":
                    name = "cats_int64s"
                elif name == "nodes_modes":
                    attributes.append(attribute)
                    continue
                attributes.append(_ints(name, self._all(attribute.strings)))
            elif node.op_type == "Constant" and name == "value_string":
                code = np.array(self.number(_decoded(attribute.s)), np.int64)
                attributes.append(helper.make_attribute("value", numpy_helper.from_array(code)))
            elif node.op_type == "Constant" and name == "value_strings":
                codes = np.array(self._all(attribute.strings), np.int64)
                attributes.append(helper.make_attribute("value", numpy_helper.from_array(codes)))
            elif attribute.type == AttributeProto.TENSOR and attribute.t.data_type == TensorProto.STRING:
                attributes.append(helper.make_attribute(name, self._encoded(attribute.t)))
            else:
                attributes.append(attribute)
        kept = [AttributeProto.FromString(a.SerializeToString()) for a in attributes]
        del node.attribute[:]
        node.attribute.extend(kept)

    def _rewrite_mapping(self, node: NodeProto) -> None:
        """Keys and values of numbers, in the lists and tensors that the definition looks at."""
        given = {a.name: AttributeProto.FromString(a.SerializeToString()) for a in node.attribute}
        takes_texts, makes_texts = self._reads(node, (0,)), node.output[0] in self.names
        made: dict[str, Any] = {}
        if node.op_type == "CategoryMapper" or "classes_strings" in given:
            words = given.pop("cats_strings" if node.op_type == "CategoryMapper" else "classes_strings", None)
            codes = [] if words is None else self._all(words.strings)
            numbers = given.pop("cats_int64s", None)
            places = list(range(len(codes))) if numbers is None else list(numbers.ints)
            made["keys_int64s"], made["values_int64s"] = (codes, places) if takes_texts else (places, codes)
        for part in ("keys", "values"):
            words = given.pop(f"{part}_strings", None)
            if words is not None:
                made[f"{part}_int64s"] = self._all(words.strings)
        for name in ("keys_tensor", "values_tensor", "default_tensor"):
            if name in given and given[name].t.data_type == TensorProto.STRING:
                given[name] = helper.make_attribute(name, self._encoded(given[name].t))
        default = given.pop("default_string", None)
        if makes_texts:
            text = _UNUSED if default is None else _decoded(default.s)
            given.pop("default_int64", None)
            made["default_int64"] = self.number(text)
        del node.attribute[:]
        node.attribute.extend(given.values())
        for name, value in made.items():
            node.attribute.append(
                helper.make_attribute(name, value) if isinstance(value, int) else _ints(name, value)
            )


def _ints(name: str, values: list[int]) -> AttributeProto:
    return AttributeProto(name=name, type=AttributeProto.INTS, ints=values)
