"""A compiled model in Triton's Python backend: put `model.tw` beside this file.

    tilewright compile resnet50.onnx --hint throughput -o REPOSITORY/resnet50/1/model.tw
    tritonserver --model-repository REPOSITORY

Inputs are read where Triton put them, and errors of a request are its own: the others of a batch go on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

import tilewright as tw
from tilewright.ir.dtype import DType

ARTIFACT = Path(__file__).parent / "model.tw"
OTHER_NAMES = {DType.FLOAT16: "FP16", DType.FLOAT32: "FP32", DType.FLOAT64: "FP64", DType.BFLOAT16: "BF16"}


def described(spec: Any) -> dict[str, Any]:
    """An input or output in Triton's words."""
    type_name = f"TYPE_{OTHER_NAMES.get(spec.dtype, spec.dtype.name)}"
    return {"name": spec.name, "data_type": type_name, "dims": list(spec.shape)}


class TritonPythonModel:
    """What Triton makes of this file, once for each instance."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Inputs and outputs, as the artifact says."""
        with tw.open(ARTIFACT) as model:
            for spec in model.get_inputs():
                config.add_input(described(spec))
            for spec in model.get_outputs():
                config.add_output(described(spec))
        config.set_max_batch_size(0)
        return config

    def initialize(self, args: dict[str, str]) -> None:
        """Open the artifact, and load its code before the first request."""
        self.model = tw.open(ARTIFACT)
        self.model.load()

    def execute(self, requests: list[Any]) -> list[Any]:
        """A response for each request."""
        return [self._answer(request) for request in requests]

    def finalize(self) -> None:
        """Give the memory back."""
        self.model.close()

    def _answer(self, request: Any) -> Any:
        feed = {
            spec.name: pb_utils.get_input_tensor_by_name(request, spec.name).as_numpy()
            for spec in self.model.get_inputs()
        }
        try:
            outputs = self.model.run(None, feed)
        except tw.TilewrightError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        named = zip(self.model.get_outputs(), outputs, strict=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor(spec.name, array) for spec, array in named])
