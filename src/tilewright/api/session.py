"""A stand-in for onnxruntime's session."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.api.artifacts import open_artifact
from tilewright.api.compilation import compile_model
from tilewright.arguments import checked
from tilewright.compiled_facts import TensorInfo
from tilewright.frontend.onnx import Source


class InferenceSession:
    """For code written against onnxruntime: `InferenceSession(path).run(None, feed)`.

    Takes a model or an artifact. Of `sess_options` only `intra_op_num_threads` is read; `providers` are
    ignored, for there is one.
    """

    @checked
    def __init__(
        self,
        path_or_bytes: Source,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
    ) -> None:
        threads = getattr(sess_options, "intra_op_num_threads", 0) or None
        is_artifact = isinstance(path_or_bytes, str | os.PathLike) and str(path_or_bytes).endswith(".tw")
        self.compiled = (
            open_artifact(Path(os.fspath(path_or_bytes)), threads)  # type: ignore[arg-type]  # checked above
            if is_artifact
            else compile_model(path_or_bytes, threads=threads)
        )

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Outputs in the order of `output_names`, all of them for None."""
        return self.compiled.run(output_names, input_feed)

    def get_inputs(self) -> list[TensorInfo]:
        """Name, shape and type of each input."""
        return self.compiled.get_inputs()

    def get_outputs(self) -> list[TensorInfo]:
        """Name, shape and type of each output."""
        return self.compiled.get_outputs()

    def get_providers(self) -> list[str]:
        """What runs the model."""
        return ["TilewrightExecutionProvider"]
