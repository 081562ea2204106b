"""Operators of ai.onnx.ml give what onnxruntime computes."""

# mypy: disable-error-code="arg-type, dict-item"

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
    runtime_outputs,
    tree_attributes,
)

import tilewright as tw
from tilewright.errors import ModelRejected, UnsupportedOp
from tilewright.frontend.onnx import load_onnx, read

Array = np.ndarray[Any, Any]
FLOAT, WHOLE = TensorProto.FLOAT, TensorProto.INT64
X = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
POSTS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")


def real(*shape: int) -> list[float]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).ravel().tolist()


def assert_same(found: list[Any], expected: list[Any], tolerance: float = 2e-5) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, list):
            assert [set(row) for row in ours] == [set(row) for row in theirs]
            keys = list(theirs[0])
            ours, theirs = ([[row[key] for key in keys] for row in rows] for rows in (ours, theirs))
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(ours, theirs)


def check(model: onnx.ModelProto, *inputs: Array, target: str = "interpreter", **asked: Any) -> list[Any]:
    feed = {f"x{i}": array for i, array in enumerate(inputs)}
    found = tw.compile(model, target).run(None, feed)
    assert_same(found, runtime_outputs(model, feed), **asked)
    return found


FEATURES: dict[str, tuple[list[Array], int, dict[str, Any]]] = {
    "Scaler": ([X], FLOAT, {"offset": [1.0, 2.0, 3.0], "scale": [0.5, 1.0, 2.0]}),
    "Scaler of one factor": ([X.astype(np.int64)], FLOAT, {"offset": [1.0], "scale": [0.5]}),
    "Scaler of a row": ([X[0]], FLOAT, {"offset": [1.0], "scale": [0.5]}),
    "Normalizer": ([X], FLOAT, {"norm": "MAX"}),
    "Normalizer by sums": ([X * [[0], [1], [1], [1], [1]]], FLOAT, {"norm": "L1"}),
    "Normalizer by lengths": ([X], FLOAT, {"norm": "L2"}),
    "Imputer": (
        [np.where(X > 0, X, np.nan).astype(np.float32)],
        FLOAT,
        {"imputed_value_floats": [7.0, 8.0, 9.0], "replaced_value_float": float("nan")},
    ),
    "Imputer of whole numbers": (
        [np.arange(6).reshape(2, 3)],
        WHOLE,
        {"imputed_value_int64s": [7], "replaced_value_int64": 4},
    ),
    "Binarizer": ([X], FLOAT, {"threshold": 0.25}),
    "ArrayFeatureExtractor": ([X, np.array([[2, 0]])], FLOAT, {}),
    "ArrayFeatureExtractor of a row": ([X[0], np.array([2, 0, 0])], FLOAT, {}),
    "FeatureVectorizer": ([X, X[:, :2]], FLOAT, {"inputdimensions": [3, 2]}),
    "OneHotEncoder": ([np.array([[1, 5], [2, 9]])], FLOAT, {"cats_int64s": [1, 2, 5]}),
    "OneHotEncoder of known ones": ([np.array([[1, 5]])], FLOAT, {"cats_int64s": [1, 2, 5], "zeros": 0}),
    "OneHotEncoder of texts": (
        [np.array([["a", "é"], ["x", "b"]], object)],
        FLOAT,
        {"cats_strings": ["b", "a", "é"]},
    ),
    "CategoryMapper": (
        [np.array([["a", "x"]], object)],
        WHOLE,
        {"cats_strings": ["b", "a"], "cats_int64s": [7, 8], "default_int64": -3},
    ),
    "CategoryMapper to texts": (
        [np.array([7, 9])],
        TEXT,
        {"cats_strings": ["b", "a"], "cats_int64s": [7, 8], "default_string": "?"},
    ),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features(name: str) -> None:
    inputs, result, attributes = FEATURES[name]
    inputs = [a.astype(np.float32) if a.dtype == np.float64 else a for a in inputs]
    check(node_model(name.partition(" ")[0], inputs, [result], 1, **attributes), *inputs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [3, 40, 300])
@pytest.mark.parametrize("span", [1, 10**9])
def test_labels_are_found_among_few_many_and_scattered_keys(count: int, span: int) -> None:
    keys = (np.random.default_rng(count).permutation(count) * span).tolist()
    x = np.array([[keys[0], keys[-1], -5], [keys[1], 7 * span + 1, 2**62]])
    values = {"values_floats": real(count), "default_float": -3.0}
    check(node_model("LabelEncoder", [x], [FLOAT], 2, keys_int64s=keys, **values), x)
    y = x.astype(np.float32)
    model = node_model(
        "LabelEncoder", [y], [WHOLE], 2, keys_floats=list(map(float, keys)), values_int64s=keys
    )
    check(model, y)


def test_label_encoders_of_all_versions_and_types() -> None:
    words = np.array([["é", "x", "a"]], object)
    check(
        node_model("LabelEncoder", [words], [WHOLE], 1, classes_strings=["a", "é"], default_int64=-7), words
    )
    places = np.array([1, 0, 5])
    check(node_model("LabelEncoder", [places], [TEXT], 1, classes_strings=["a", "é"]), places)
    texts = {"keys_strings": ["a", "é"], "values_strings": ["A", "É"], "default_string": "?"}
    check(node_model("LabelEncoder", [words], [TEXT], 2, **texts), words)
    check(node_model("LabelEncoder", [words], [FLOAT], 2, keys_strings=["a"], values_floats=[0.5]), words)
    check(node_model("LabelEncoder", [places], [TEXT], 2, keys_int64s=[5], values_strings=["five"]), places)
    keys = helper.make_tensor("k", TensorProto.DOUBLE, [2], [1.0, float("nan")])
    values = helper.make_tensor("v", TensorProto.INT16, [2], [5, 6])
    default = helper.make_tensor("d", TensorProto.INT16, [1], [-7])
    x = np.array([1.0, np.nan, 2.0])
    tensors = {"keys_tensor": keys, "values_tensor": values, "default_tensor": default}
    model = node_model("LabelEncoder", [x], [TensorProto.INT16], 4, **tensors)
    assert tw.compile(model, "interpreter").run(None, {"x0": x})[0].tolist() == [5, 6, -7]


@pytest.mark.parametrize("post", POSTS)
def test_linear_models(post: str) -> None:
    one, many = {"coefficients": real(3)}, {"coefficients": real(3, 3), "intercepts": real(3)}
    check(node_model("LinearRegressor", [X], [FLOAT], 1, post_transform=post, **one), X)
    check(node_model("LinearRegressor", [X], [FLOAT], 1, targets=3, post_transform=post, **many), X)
    labels = {"classlabels_ints": [4, 5], "intercepts": [0.1], "post_transform": post}
    check(node_model("LinearClassifier", [X], [WHOLE, FLOAT], 1, **one, **labels), X)
    texts = {"classlabels_strings": ["a", "b", "c"], "post_transform": post}
    check(node_model("LinearClassifier", [X], [TEXT, FLOAT], 1, **many, **texts), X)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vector_machines(kernel: str) -> None:
    kind = {"kernel_type": kernel, "kernel_params": [0.3, 0.5, 3.0]}
    vectors = {"support_vectors": real(4, 3), "coefficients": real(4), "rho": [0.1], "n_supports": 4}
    check(node_model("SVMRegressor", [X], [FLOAT], 1, **kind, **vectors), X)
    check(node_model("SVMRegressor", [X], [FLOAT], 1, one_class=1, **kind, **vectors), X)
    linear = {"coefficients": real(3), "rho": [0.1], "n_supports": 0}
    check(node_model("SVMRegressor", [X], [FLOAT], 1, **kind, **linear), X)
    for count in (2, 3, 4):
        per_class = [2, 1, 2, 1][:count]
        num_vectors, num_pairs = sum(per_class), count * (count - 1) // 2
        machine = {
            "support_vectors": real(num_vectors, 3),
            "coefficients": real(count - 1, num_vectors),
            "rho": real(num_pairs),
            "vectors_per_class": per_class,
            "classlabels_ints": list(range(5, 5 + count)),
        }
        model = node_model("SVMClassifier", [X], [WHOLE, FLOAT], 1, **kind, **machine)
        check(model, X)
        probabilities = {"prob_a": (-np.abs(real(num_pairs))).tolist(), "prob_b": real(num_pairs)}
        model = node_model("SVMClassifier", [X], [WHOLE, FLOAT], 1, **kind, **machine, **probabilities)
        check(model, X, tolerance=1e-4)


# Trees -----------------------------------------------------------------------------------------------


def stump(mode: str, split: float, tracks: int = 0) -> dict[str, Any]:
    """One comparison of the first feature, and its two leaves."""
    return {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [split, 0.0, 0.0],
        "nodes_modes": [mode, "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "nodes_missing_value_tracks_true": [tracks, 0, 0],
    }


TWO_LEAVES = {
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 0],
    "target_weights": [1.0, 2.0],
}
SPECIAL = np.array([[v] for v in (-np.inf, -1.0, -0.0, 0.0, 1e-45, 0.5, 1.0, np.inf, np.nan)], np.float32)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"])
@pytest.mark.parametrize("tracks", [0, 1])
def test_every_comparison_of_numbers_and_of_what_is_none(mode: str, tracks: int) -> None:
    for split in (0.5, 0.0, -0.0, float("inf"), float("-inf"), 1e-45):
        attributes = {**stump(f"BRANCH_{mode}", split, tracks), **TWO_LEAVES, "n_targets": 1}
        check(node_model("TreeEnsembleRegressor", [SPECIAL], [FLOAT], **attributes), SPECIAL)
    doubles = SPECIAL.astype(np.float64)
    attributes = {**stump(f"BRANCH_{mode}", 0.5, tracks), **TWO_LEAVES, "n_targets": 1}
    check(node_model("TreeEnsembleRegressor", [doubles], [FLOAT], **attributes), doubles)
    whole = np.array([[-1], [0], [1]])
    model = node_model("TreeEnsembleRegressor", [whole], [FLOAT], **attributes)
    expected = check(node_model("TreeEnsembleRegressor", [SPECIAL], [FLOAT], **attributes), SPECIAL)
    found = tw.compile(model, "interpreter").run(None, {"x0": whole})[0]
    np.testing.assert_array_equal(found, expected[0][[1, 3, 6]])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_forests_of_several_targets(aggregate: str, target: str) -> None:
    rng = np.random.default_rng(1)
    attributes: dict[str, list[Any]] = {}
    for tree in range(11):
        one: dict[str, Any] = stump("BRANCH_LEQ", float(rng.standard_normal()))
        one["nodes_featureids"] = [int(rng.integers(3)), 0, 0]
        one["nodes_treeids"] = [tree] * 3
        ids = rng.permutation(4)[: 1 + tree % 3].tolist()
        one |= {"target_treeids": [tree] * 2 * len(ids), "target_nodeids": [1] * len(ids) + [2] * len(ids)}
        one |= {"target_ids": ids * 2, "target_weights": rng.standard_normal(2 * len(ids)).tolist()}
        for name, values in one.items():
            attributes.setdefault(name, []).extend(values)
    more = {"n_targets": 4, "aggregate_function": aggregate, "base_values": [0.5, 1.0, -1.0, 0.25]}
    check(node_model("TreeEnsembleRegressor", [X], [FLOAT], **attributes, **more), X, target=target)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ids", [(0,), (1,), (0, 1), (0, 2)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_classifiers_of_one_score_of_two_and_of_three(ids: tuple[int, ...], sign: float) -> None:
    weights = {
        (1, 0): 0.2 * sign,
        (1, 1): 0.3,
        (1, 2): 0.4 * sign,
        (2, 0): 0.7,
        (2, 1): 0.6 * sign,
        (2, 2): 0.1,
    }
    pairs = [(leaf, i) for leaf in (1, 2) for i in ids]
    attributes = {
        **stump("BRANCH_LEQ", 0.0),
        "class_treeids": [0] * len(pairs),
        "class_nodeids": [leaf for leaf, _ in pairs],
        "class_ids": [i for _, i in pairs],
        "class_weights": [weights[pair] for pair in pairs],
        "classlabels_int64s": [0, 1, 2][: 3 if 2 in ids else 2],
    }
    for post in POSTS:
        model = node_model("TreeEnsembleClassifier", [X], [WHOLE, FLOAT], post_transform=post, **attributes)
        check(model, X)
    del attributes["classlabels_int64s"]
    texts = ["a", "é", "c"][: 3 if 2 in ids else 2]
    check(
        node_model("TreeEnsembleClassifier", [X], [TEXT, FLOAT], classlabels_strings=texts, **attributes), X
    )


def ensemble_of_sets(**changes: Any) -> onnx.ModelProto:
    """Two nodes that ask for membership, one below the other, and one that compares."""
    values = [1.0, 2.0, 3.5, float("nan"), -1.0, float("nan")]
    attributes = {
        "n_targets": 2,
        "aggregate_function": 1,
        "membership_values": helper.make_tensor("m", FLOAT, [len(values)], values),
        "nodes_featureids": [0, 0, 1],
        "nodes_splits": helper.make_tensor("s", FLOAT, [3], [0.0, 0.0, 0.5]),
        "nodes_modes": helper.make_tensor("n", TensorProto.UINT8, [3], [6, 6, 0]),
        "nodes_truenodeids": [0, 2, 2],
        "nodes_trueleafs": [1, 0, 1],
        "nodes_falsenodeids": [1, 1, 3],
        "nodes_falseleafs": [0, 1, 1],
        "leaf_targetids": [0, 1, 0, 1],
        "leaf_weights": helper.make_tensor("w", FLOAT, [4], [1.0, 10.0, 100.0, 1000.0]),
        "tree_roots": [0],
    }
    x = np.zeros((5, 2), np.float32)
    return node_model("TreeEnsemble", [x], [FLOAT], 5, **{**attributes, **changes})


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_membership_in_sets(target: str) -> None:
    x = np.array([[1, 0], [3.5, 0], [-1, 0], [-1, 1], [2.5, 0]], np.float32)
    check(ensemble_of_sets(), x, target=target)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes_falsenodeids": [0, 1, 3]}, "leads back"),
        ({"nodes_falsenodeids": [9, 1, 3]}, "names the node 9"),
        ({"nodes_falsenodeids": [-1, 1, 3]}, "names the node -1"),
        ({"nodes_truenodeids": [7, 2, 2]}, "names the leaf 7"),
        ({"nodes_featureids": [2, 0, 1]}, "names the feature 2, but its rows have 2"),
        ({"nodes_featureids": [-1, 0, 1]}, "names the feature -1"),
        ({"nodes_featureids": [2**40, 0, 1]}, "names the feature 1099511627776"),
        ({"tree_roots": [5]}, "names the root 5"),
        ({"leaf_targetids": [0, 1, 0, 2]}, "names the target 2"),
        ({"n_targets": 2**40}, "n_targets is 1099511627776"),
        ({"nodes_trueleafs": [1, 0]}, "nodes_trueleafs has 2 values for 3 nodes"),
        ({"aggregate_function": 9}, "aggregate_function is 9"),
        ({"membership_values": helper.make_tensor("m", FLOAT, [1], [1.0])}, "0 sets for 2 nodes"),
    ],
)
def test_trees_that_are_none_are_refused_in_a_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelRejected, match=message) as refused:
        load_onnx(ensemble_of_sets(**changes))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes_truenodeids": [0, 0, 0]}, "leads back"),
        ({"nodes_truenodeids": [5, 0, 0]}, "names the node 5 of tree 0, which is not there"),
        ({"nodes_nodeids": [0, 1, 1]}, "the node 1 of tree 0 is there twice"),
        ({"nodes_featureids": [3, 0, 0]}, "names the feature 3"),
        ({"nodes_modes": ["BRANCH", "LEAF", "LEAF"]}, "names 'BRANCH'"),
        ({"nodes_values": [0.0]}, "nodes_values has 1 values for 3 nodes"),
        ({"target_ids": [0, 2**31]}, "names the target 2147483648"),
        ({"target_ids": [0, -1]}, "names the target -1"),
        ({"target_nodeids": [1, 8]}, "names the node 8 of tree 0"),
        ({"target_treeids": [0, 1]}, "names the node 2 of tree 1"),
        ({"base_values": [1.0, 2.0]}, "base_values has 2 values"),
    ],
)
def test_listed_trees_that_are_none_are_refused_in_a_line(changes: dict[str, Any], message: str) -> None:
    attributes = {**stump("BRANCH_LEQ", 0.0), **TWO_LEAVES, "n_targets": 1, **changes}
    with pytest.raises(ModelRejected, match=message):
        load_onnx(node_model("TreeEnsembleRegressor", [X], [FLOAT], **attributes))


def test_our_own_operators_are_of_definitions_alone() -> None:
    node = helper.make_node("TreeSums", ["x0"] * 8, ["y0"], domain="tilewright")
    value = helper.make_tensor_value_info("x0", FLOAT, [2, 2])
    model = model_of([node], [value], [helper.make_tensor_value_info("y0", FLOAT, [2, 1])])
    model.opset_import.append(helper.make_opsetid("tilewright", 1))
    with pytest.raises(UnsupportedOp, match="is of domain 'tilewright'"):
        load_onnx(model)


def test_a_large_ensemble_is_weights_not_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MAX_STRUCTURE_BYTES", 1 << 20)
    num_trees, depth = 20, 12
    count = 2**depth - 1
    inner = 2 ** (depth - 1) - 1
    number = np.arange(count)
    attributes = {
        "nodes_treeids": np.repeat(np.arange(num_trees), count).tolist(),
        "nodes_nodeids": np.tile(number, num_trees).tolist(),
        "nodes_featureids": np.tile(number % 3, num_trees).tolist(),
        "nodes_values": np.tile(np.linspace(-1, 1, count), num_trees).tolist(),
        "nodes_modes": (["BRANCH_LEQ"] * inner + ["LEAF"] * (count - inner)) * num_trees,
        "nodes_truenodeids": np.tile(np.where(number < inner, 2 * number + 1, 0), num_trees).tolist(),
        "nodes_falsenodeids": np.tile(np.where(number < inner, 2 * number + 2, 0), num_trees).tolist(),
        "target_treeids": np.repeat(np.arange(num_trees), count - inner).tolist(),
        "target_nodeids": np.tile(number[inner:], num_trees).tolist(),
        "target_ids": [0] * (count - inner) * num_trees,
        "target_weights": np.tile(np.linspace(0, 1, count - inner), num_trees).tolist(),
        "n_targets": 1,
    }
    model = node_model("TreeEnsembleRegressor", [X], [FLOAT], **attributes)
    assert model.ByteSize() > 2 << 20
    check(model, X)


# scikit-learn ----------------------------------------------------------------------------------------


def trained(kind: str, count: int) -> tuple[Any, Array, Array]:
    ensemble = pytest.importorskip("sklearn.ensemble")
    rng = np.random.default_rng(3)
    x = rng.standard_normal((120, 5)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(int) + (x[:, 2] > 1)
    made = getattr(ensemble, kind)(n_estimators=count, max_depth=5, random_state=0)
    return made.fit(x, y if kind.endswith("Classifier") else x[:, 0] * x[:, 1]), x, y


def test_a_random_forest_behind_a_scaler_with_labels_that_are_texts() -> None:
    forest, x, _ = trained("RandomForestClassifier", 9)
    attributes = tree_attributes(
        [e.tree_ for e in forest.estimators_], prefix="class", scale=1 / 9, shares=True
    )
    nodes = [
        helper.make_node("Scaler", ["x0"], ["s"], domain=DOMAIN, offset=[0.0], scale=[1.0]),
        helper.make_node(
            "TreeEnsembleClassifier",
            ["s"],
            ["y0", "p"],
            domain=DOMAIN,
            classlabels_strings=["one", "two", "thrée"],
            **attributes,
        ),
        helper.make_node("ZipMap", ["p"], ["y1"], domain=DOMAIN, classlabels_strings=["one", "two", "thrée"]),
    ]
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TEXT, helper.make_tensor_type_proto(FLOAT, None))
    )
    outputs = [helper.make_tensor_value_info("y0", TEXT, ["n"]), helper.make_value_info("y1", maps)]
    model = model_of(nodes, [helper.make_tensor_value_info("x0", FLOAT, ["n", 5])], outputs)
    compiled = tw.compile(model, "interpreter")
    for rows in (1, 7):
        found = compiled.run(None, {"x0": x[:rows]})
        assert_same(found, runtime_outputs(model, {"x0": x[:rows]}))
    probabilities = [list(row.values()) for row in found[1]]
    np.testing.assert_allclose(probabilities, forest.predict_proba(x[:7]), atol=1e-6)
    assert [info.type for info in compiled.get_outputs()] == [
        "tensor(string)",
        "seq(map(string,tensor(float)))",
    ]


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_gradient_boosting_starts_from_a_base_value(target: str) -> None:
    boosted, x, _ = trained("GradientBoostingRegressor", 20)
    trees = [e.tree_ for e in boosted.estimators_.ravel()]
    attributes = tree_attributes(trees, scale=boosted.learning_rate)
    attributes["base_values"] = [float(boosted.init_.constant_.item())]
    model = node_model("TreeEnsembleRegressor", [x], [FLOAT], **attributes, n_targets=1)
    (found,) = check(model, x, target=target)
    np.testing.assert_allclose(found[:, 0], boosted.predict(x), atol=1e-5)


# Texts and maps --------------------------------------------------------------------------------------
