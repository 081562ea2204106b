"""Texts and maps at the edges of classical models, and what of them is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.classical_models import (
    DOMAIN,
    TEXT,
    model_of,
    node_model,
)
from tests.unit.frontend.onnx.test_ml import FLOAT, WHOLE, Array, X, assert_same, check, real

import tilewright as tw
from tilewright.errors import InputError, ModelRejected, UnsupportedOp, UsageError
from tilewright.frontend.onnx import load_onnx


def categories_model() -> onnx.ModelProto:
    """Two columns of texts, put together, moved, encoded; and the first of them as it came."""
    nodes = [
        helper.make_node("Concat", ["x0", "x1"], ["both"], axis=1),
        helper.make_node("OneHotEncoder", ["both"], ["hot"], domain=DOMAIN, cats_strings=["a", "b", "é"]),
        helper.make_node("Flatten", ["hot"], ["flat"]),
        helper.make_node("LinearRegressor", ["flat"], ["y0"], domain=DOMAIN, coefficients=real(6)),
        helper.make_node("Identity", ["x0"], ["y1"]),
        helper.make_node("Equal", ["x0", "x1"], ["y2"]),
    ]
    inputs = [helper.make_tensor_value_info(n, TEXT, ["n", 1]) for n in ("x0", "x1")]
    kinds = {"y0": FLOAT, "y1": TEXT, "y2": TensorProto.BOOL}
    outputs = [helper.make_tensor_value_info(n, kind, None) for n, kind in kinds.items()]
    model = model_of(nodes, inputs, outputs, 1)
    model.opset_import[0].version = 19  # the first that compares texts
    return model


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_texts_that_no_key_has_stay_apart(target: str) -> None:
    first = np.array([["a"], ["new"], ["other"], ["é"]], object)
    second = np.array([["b"], ["new"], ["newer"], ["a"]], object)
    found = check(categories_model(), first, second, target=target)
    assert found[2].ravel().tolist() == [False, True, False, False]
    assert found[1].ravel().tolist() == first.ravel().tolist()


def test_texts_go_through_artifacts(tmp_path: Any) -> None:
    words = np.array([["b"], ["x"]], object)
    compiled = tw.compile(categories_model(), shapes={"x0": (2, 1), "x1": (2, 1)})
    opened = tw.open(compiled.save(tmp_path / "model.tw"))
    feed = {"x0": words, "x1": words}
    assert_same(opened.run(None, feed), compiled.run(None, feed))
    assert opened.get_inputs()[0].type == "tensor(string)"


def test_exported_code_holds_no_texts(tmp_path: Any) -> None:
    with pytest.raises(UnsupportedOp, match="'x0' holds texts, which exported code does not"):
        tw.export(categories_model(), tmp_path, shapes={"x0": (2, 1), "x1": (2, 1)})


def test_numbers_in_place_of_texts_are_refused_in_a_line() -> None:
    compiled = tw.compile(categories_model(), "interpreter")
    words = np.array([["b"]], object)
    with pytest.raises(UsageError, match="input 'x1' holds texts: give an array of str, not of int"):
        compiled.run(None, {"x0": words, "x1": np.array([[1]])})
    with pytest.raises(UsageError, match=r"use run\."):
        compiled.run_into({"x0": words, "x1": words}, {})


def test_operators_that_compute_with_texts_are_refused_in_a_line() -> None:
    nodes = [
        helper.make_node("StringNormalizer", ["x0"], ["low"], case_change_action="LOWER"),
        helper.make_node(
            "LabelEncoder", ["low"], ["y0"], domain=DOMAIN, keys_strings=["a"], values_int64s=[1]
        ),
    ]
    inputs = [helper.make_tensor_value_info("x0", TEXT, [3])]
    model = model_of(nodes, inputs, [helper.make_tensor_value_info("y0", WHOLE, [3])], 2)
    with pytest.raises(UnsupportedOp, match="StringNormalizer 'low' computes with texts"):
        load_onnx(model)


def test_a_category_that_must_be_known_is_an_error_of_the_input() -> None:
    x = np.array([[1], [3]])
    model = node_model("OneHotEncoder", [x], [FLOAT], 1, cats_int64s=[1, 2], zeros=0)
    for target in ("interpreter", "cpu"):
        with pytest.raises(InputError, match=r"outside|out of bounds"):
            tw.compile(model, target).run(None, {"x0": x})


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_what_is_no_number_is_no_category(target: str) -> None:
    x = np.array([[np.nan, 0.9, -0.5, np.inf, -1]], np.float32)
    (found,) = check(node_model("OneHotEncoder", [x], [FLOAT], 1, cats_int64s=[-1, 0, 1]), x, target=target)
    assert found.sum() == 3


def test_many_categories_that_must_be_known_need_no_square_table() -> None:
    x = np.array([[1], [70_000]])
    model = node_model("OneHotEncoder", [x], [FLOAT], 1, cats_int64s=list(range(70_001)), zeros=0)
    (found,) = tw.compile(model, "interpreter").run(None, {"x0": x})
    np.testing.assert_array_equal(np.argmax(found, axis=-1), x)
    assert found.sum() == 2


def test_tables_out_of_proportion_to_a_model_are_refused_before_they_are_made() -> None:
    count = 20_000
    vectors: dict[str, Any] = {"support_vectors": [1.0] * 3 * count, "coefficients": [1.0], "rho": [1.0]}
    classes: dict[str, Any] = {"classlabels_ints": list(range(count)), "vectors_per_class": [1] * count}
    with pytest.raises(ModelRejected, match="it has 1 coefficients for 20000 classes"):
        load_onnx(node_model("SVMClassifier", [X], [WHOLE, FLOAT], 1, **vectors, **classes))
    count, num_pairs = 600, 600 * 599 // 2
    vectors = {"support_vectors": [1.0] * 3 * count, "coefficients": [1.0] * count * (count - 1)}
    classes = {"classlabels_ints": list(range(count)), "vectors_per_class": [1] * count}
    with pytest.raises(UnsupportedOp, match="179700 pairs of classes are too many for 600 vectors"):
        load_onnx(
            node_model("SVMClassifier", [X], [WHOLE, FLOAT], 1, rho=[0.0] * num_pairs, **vectors, **classes)
        )
    count = 127
    ids = np.arange(2 * count + 1)
    is_inner = ids < count
    tree: dict[str, Any] = {
        "nodes_treeids": np.zeros_like(ids),
        "nodes_nodeids": ids,
        "nodes_featureids": np.zeros_like(ids),
        "nodes_truenodeids": np.where(is_inner, 2 * ids + 1, 0),
        "nodes_falsenodeids": np.where(is_inner, 2 * ids + 2, 0),
    }
    tree = {name: values.tolist() for name, values in tree.items()}
    tree |= {
        "nodes_values": [0.0] * len(ids),
        "nodes_modes": ["BRANCH_LEQ"] * count + ["LEAF"] * (count + 1),
        "n_targets": 1 << 20,
        "target_treeids": [0, 0],
        "target_nodeids": [count, count],
        "target_ids": [0, (1 << 20) - 1],
        "target_weights": [1.0, 2.0],
    }
    with pytest.raises(UnsupportedOp, match="weights of 128 leaves for 1048576 targets each are too many"):
        load_onnx(node_model("TreeEnsembleRegressor", [X], [FLOAT], **tree))


TEXTS, WHOLES = np.array([["a", "b"]], object), np.array([[0, 1]])
WRONG_TEXTS: dict[str, tuple[Array, dict[str, Any], str]] = {
    "Scaler": (TEXTS, {"offset": [0.0], "scale": [1.0]}, "Scaler 'node' computes with texts"),
    "Normalizer": (TEXTS, {}, "Normalizer 'node' computes with texts"),
    "LinearRegressor": (TEXTS, {"coefficients": [1.0, 2.0]}, "LinearRegressor 'node' computes with texts"),
    "OneHotEncoder": (TEXTS, {"cats_int64s": [0, 1]}, "its input holds texts, its keys are numbers"),
    "OneHotEncoder of numbers": (WHOLES, {"cats_strings": ["a"]}, "its input holds numbers, its keys are"),
    "LabelEncoder": (TEXTS, {"keys_int64s": [0], "values_floats": [1.0]}, "its keys are numbers"),
    "LabelEncoder of too many": (
        TEXTS,
        {
            "keys_tensor": TensorProto(name="keys", data_type=TEXT, string_data=[b"a", b"b"]),
            "values_floats": [1.0, 2.0],
        },
        r"tensor 'keys' of shape \[\] has 2 texts",
    ),
}


@pytest.mark.parametrize("name", WRONG_TEXTS)
def test_texts_in_the_place_of_numbers_are_refused_in_a_line(name: str) -> None:
    x, attributes, message = WRONG_TEXTS[name]
    version = 4 if name.startswith("Label") else 1
    with pytest.raises((ModelRejected, UnsupportedOp), match=message) as refused:
        load_onnx(node_model(name.partition(" ")[0], [x], [FLOAT], version, **attributes))
    assert "\n" not in str(refused.value)


def test_maps_inside_a_model_are_refused_in_a_line() -> None:
    nodes = [
        helper.make_node("ZipMap", ["x0"], ["m"], domain=DOMAIN, classlabels_int64s=[0, 1, 2]),
        helper.make_node("DictVectorizer", ["m"], ["y0"], domain=DOMAIN, int64_vocabulary=[0, 1]),
    ]
    inputs = [helper.make_tensor_value_info("x0", FLOAT, [2, 3])]
    zipped = helper.make_node("ZipMap", ["x0"], ["y0"], domain=DOMAIN, classlabels_int64s=[0, 1])
    output = helper.make_value_info(
        "y0",
        helper.make_sequence_type_proto(
            helper.make_map_type_proto(WHOLE, helper.make_tensor_type_proto(FLOAT, None))
        ),
    )
    with pytest.raises(ModelRejected, match="it has 2 keys for 3 values"):
        load_onnx(model_of([zipped], inputs, [output], 1))
    with pytest.raises(UnsupportedOp, match="maps are taken and given by whole models alone"):
        load_onnx(model_of(nodes, inputs, [helper.make_tensor_value_info("y0", FLOAT, None)], 1))
