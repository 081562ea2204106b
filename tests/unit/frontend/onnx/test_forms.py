"""Forms of models beside what onnxruntime and OpenVINO make of them: what both run alike runs here, too."""

from __future__ import annotations

import io
import logging
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import compose, helper
from tests.support.model_forms import FORMS, X, model, relu, vi

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.frontend.onnx import normalise

Arrays = list[np.ndarray[Any, Any]]

OPENVINO_REFUSES = frozenset(
    (
        "axis_equals_rank_concat", "body_nodes_unsorted", "body_with_inputs_of_if",
        "double_scalar_where_float", "function_attribute_default", "function_attribute_missing",
        "function_attribute_of_double_default", "function_attribute_passed", "function_calls_itself",
        "function_domain_not_imported", "function_extra_attribute", "function_extra_output_unused",
        "function_missing_optional_input", "function_nodes_unsorted", "function_opset_missing",
        "function_other_opset", "function_plain", "function_twice", "identity_reshape_minus_one_twice",
        "initializer_data_too_long", "initializer_data_too_short", "initializer_negative_dim",
        "initializer_unused_of_unknown_type", "input_dim_minus_two", "input_dim_zero_meaning_open",
        "input_unused", "input_without_shape", "input_without_type", "int_scalar_where_float",
        "ir_version_missing", "node_attribute_float_where_int", "node_attribute_out_of_range",
        "node_attribute_scalar_where_list", "node_attribute_without_type",
        "node_missing_required_attribute", "node_reads_nothing_known",
        "nodes_unsorted_in_function_and_empty_name_in_variadic", "operator_domain_spelled_ai_onnx",
        "operator_unknown", "opset_import_of_ml_domain_missing", "opset_missing", "opset_version_zero",
        "optional_outputs_trailing_empty", "output_of_nothing", "output_without_name", "outputs_too_many",
        "outputs_too_many_empty", "scalar_repeats_of_tile", "scalar_starts_of_slice",
        "sparse_initializer", "sparse_initializer_two_index_columns",
    )
)  # fmt: skip
"""Forms that OpenVINO does not run; it runs all others, which a test shows where it is installed."""

_ONE_NAME = "a name given to two dims says that they are one, as ONNX has it, and shapes rely on it"
_TWO_OPSETS = "which version counts differs: onnxruntime takes the last, OpenVINO the newest"
_DECLARED = "a shape that data decide is compiled for as it is declared, and checked in every run"
REFUSED_HERE = {
    "dim_param_same_name_twice_differs": _ONE_NAME,
    "opset_twice_differs": _TWO_OPSETS,
    "opset_twice_differs_older_first": _TWO_OPSETS,
    "opset_11_then_17": _TWO_OPSETS,
    "opset_17_then_11": _TWO_OPSETS,
    "opset_11_then_17_names": _TWO_OPSETS,
    "opset_17_then_11_names": _TWO_OPSETS,
    "declared_shape_of_data_dependent_result": _DECLARED,
    "declared_shape_of_reshape_by_data": _DECLARED,
    "body_output_rank_contradicts": _DECLARED,
}
"""What both runtimes run and we refuse, with the reason."""


def onnxruntime_runs(name: str) -> Arrays | None:
    proto, feed = FORMS[name]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        found: Arrays = session.run(None, feed)
    except Exception:
        return None
    return found


def we_run(name: str) -> Arrays | None:
    proto, feed = FORMS[name]
    try:
        return list(tw.compile(proto, target="interpreter").run(None, feed))
    except TilewrightError:
        return None


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", FORMS)
def test_forms_that_runtimes_run_run_here(name: str) -> None:
    expected, found = onnxruntime_runs(name), we_run(name)
    if name in REFUSED_HERE:
        assert expected is not None
        assert name not in OPENVINO_REFUSES
        assert found is None
    elif expected is not None and name not in OPENVINO_REFUSES:
        assert found is not None
    if expected is not None and found is not None:
        assert len(expected) == len(found)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FORMS)
def test_openvino_refuses_what_the_table_says(name: str) -> None:
    openvino = pytest.importorskip("openvino")
    proto, feed = FORMS[name]
    try:
        core = openvino.Core()
        core.compile_model(core.read_model(io.BytesIO(proto.SerializeToString())), "CPU")(feed)
    except Exception:
        assert name in OPENVINO_REFUSES
    else:
        assert name not in OPENVINO_REFUSES


def test_a_declared_shape_that_is_wrong_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    proto = model([relu()], [vi("x", ("N", 3))], [vi("y", (5, 7))])
    compiled = tw.compile(proto, target="interpreter")
    for rows in (2, 4):
        (y,) = compiled.run(None, {"x": np.ones((rows, 3), np.float32)})
        assert y.shape == (rows, 3)
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert said == [
        "'y' is declared with shape [5, 7], but its node gives [2, 3]: the declared shape is not used"
    ]


def test_merged_models_name_their_operator_set_twice() -> None:
    first = model([relu("x", "t")], [vi("x")], [vi("t")])
    second = model([relu("u", "y")], [vi("u")], [vi("y")])
    merged = compose.merge_models(first, second, io_map=[("t", "u")])
    merged.opset_import.append(helper.make_opsetid("", 17))
    (y,) = tw.compile(merged, target="interpreter").run(None, {"x": X})
    np.testing.assert_array_equal(y, np.maximum(X, 0))


@pytest.mark.parametrize("dims", [(-1, -1), ("?", "?"), ("None", "None"), ("-1", "-1")])
def test_dims_without_a_name_are_each_their_own(dims: tuple[int | str, ...]) -> None:
    compiled = tw.compile(model([relu()], [vi("x", dims)], [vi("y", dims)]), target="interpreter")
    for shape in ((2, 3), (4, 4), (1, 7)):
        (y,) = compiled.run(None, {"x": np.ones(shape, np.float32)})
        assert y.shape == shape


def test_an_output_that_is_listed_often_gets_as_many_names() -> None:
    given = helper.make_graph([relu()], "g", [vi("x")], [vi("y") for _ in range(50)] + [vi("y_3")])
    given.node.append(helper.make_node("Neg", ["x"], ["y_3"]))
    normalise._copy_repeated_outputs(given)
    names = [value.name for value in given.output]
    assert len(set(names)) == 51
    assert names[:5] == ["y", "y_1", "y_2", "y_4", "y_5"]


def test_names_for_outputs_that_repeat_are_each_looked_at_once() -> None:
    class Counted(set[str]):
        num_asked = 0

        def __contains__(self, name: object) -> bool:
            self.num_asked += 1
            return super().__contains__(name)

    taken = Counted({"y_1", "y_2"})
    names = normalise._free_names("y", taken)
    assert [next(names) for _ in range(100)][-1] == "y_102"
    assert taken.num_asked == 102
