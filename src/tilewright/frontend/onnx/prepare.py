"""One operator-set version and no local functions: what the importer may take for granted."""

from __future__ import annotations

from onnx import ModelProto

from tilewright.errors import ModelRejected, UnsupportedOp
from tilewright.frontend.onnx import native
from tilewright.frontend.onnx.protos import model_nodes, one_line
from tilewright.frontend.onnx.versions import OLDEST_OPSET

_SCAN_WITHOUT_BATCH = 9


def opset_versions(model: ModelProto) -> dict[str, int]:
    """Version of each imported domain; ai.onnx goes by the empty name."""
    return {("" if e.domain == "ai.onnx" else e.domain): e.version for e in model.opset_import}


def is_prepared(model: ModelProto) -> bool:
    """Whether `prepare_model` leaves a model as it is."""
    return not model.functions and opset_versions(model).get("", OLDEST_OPSET) >= OLDEST_OPSET


def prepare_model(model: ModelProto) -> ModelProto:
    """Inline local functions and lift old operator sets to `OLDEST_OPSET`.

    Raises:
        UnsupportedOp: the model is too old to be converted.
    """
    if model.functions:
        try:
            (data,) = native.call("inline_functions", model.SerializeToString())
            model = ModelProto.FromString(data)
        except native.NativeError as error:
            raise ModelRejected(f"its local functions cannot be inlined: {one_line(error)}") from error
    version = opset_versions(model).get("", OLDEST_OPSET)
    if version < _SCAN_WITHOUT_BATCH and any(node.op_type == "Scan" for node in model_nodes(model)):
        raise UnsupportedOp(
            f"Scan of opset {version} has a batch axis that later ones dropped; "
            f"export the model for opset {OLDEST_OPSET} or newer."
        )
    if version < OLDEST_OPSET:
        try:
            (data,) = native.call("convert_version", model.SerializeToString(), b"%d" % OLDEST_OPSET)
            model = ModelProto.FromString(data)
        except native.NativeError as error:
            raise UnsupportedOp(
                f"opset {version} is older than {OLDEST_OPSET} and cannot be converted "
                f"({one_line(error, 120)}); export the model for opset {OLDEST_OPSET} or newer."
            ) from error
    return model
