"""A stand-in for onnxruntime's session."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tilewright.api.kept import compile_or_reuse
from tilewright.api.models import Shapes, as_model
from tilewright.api.values import IOBinding, OrtValue
from tilewright.arguments import checked
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import ModelMetadata, TensorInfo
from tilewright.errors import TilewrightError
from tilewright.frontend.onnx import Source
from tilewright.hardware.probe import num_threads_default
from tilewright.options import FirstAnswer, Options, parse_open_shapes
from tilewright.specialise.opened import open_compiled
from tilewright.system.forks import ForkSafeLock

logger = logging.getLogger(__name__)


class InferenceSession:
    """For code written against onnxruntime: `InferenceSession(path).run(None, feed)`.

    Takes a model or an artifact. A model whose shapes are open is compiled for those that `shapes` list now,
    and for others when a run brings them, unless they are frozen; of an artifact they name one set. With
    `first_answer="quick"` first runs are by the reference while code is compiled beside. Of
    `sess_options` only `intra_op_num_threads` is read; `providers` are ignored, for there is one. Inputs may
    be arrays of any library that shares its memory, as by DLPack.
    """

    @checked
    def __init__(
        self,
        path_or_bytes: Source,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        shapes: Shapes | str | None = None,
        frozen_shapes: bool = False,
        first_answer: FirstAnswer = "compiled",
    ) -> None:
        threads = getattr(sess_options, "intra_op_num_threads", 0) or None
        listed = parse_open_shapes(shapes) if isinstance(shapes, str) else shapes or {}
        asked = {name: tuple(shape) for name, shape in listed.items()}
        options = Options(
            threads=threads, shapes=asked, frozen_shapes=frozen_shapes, first_answer=first_answer
        )
        is_artifact = isinstance(path_or_bytes, str | os.PathLike) and str(path_or_bytes).endswith(".tw")
        self.compiled = (
            open_compiled(Path(os.fspath(path_or_bytes)), options)  # type: ignore[arg-type]  # checked above
            if is_artifact
            else compile_or_reuse(as_model(path_or_bytes, options.shapes), options)
        )
        self._queue = _RunQueue(self.compiled)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Outputs in the order of `output_names`, all of them for None."""
        return self.compiled.run(output_names, input_feed)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], object],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Run on another thread, which calls `callback(outputs, user_data, error)` at the end.

        `error` is empty where the run succeeded, and `outputs` where it did not. As many runs go on at a time
        as there are cores for their threads; later ones wait. The interpreter ends when all have ended.
        """

        def run_and_tell() -> None:
            try:
                outputs, error = self.run(output_names, input_feed), ""
            except TilewrightError as reason:
                outputs, error = [], str(reason)
            try:
                callback(outputs, user_data, error)
            except Exception:  # whatever a caller's function raises: no run waits for it here
                logger.exception("the callback of run_async failed")

        self._queue.submit(run_and_tell)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[OrtValue]:
        """As `run`, with values in and out."""
        binding = self.io_binding()
        for name, value in input_dict_ort_values.items():
            binding.bind_ortvalue_input(name, value)
        for name in output_names or [spec.name for spec in self.get_outputs()]:
            binding.bind_output(name)
        binding.run()
        return binding.get_outputs()

    def io_binding(self) -> IOBinding:
        """What binds arrays to inputs and outputs, so that runs ask for no memory."""
        return IOBinding(self.compiled)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run on what is bound."""
        iobinding.run()

    def get_inputs(self) -> list[TensorInfo]:
        """Name, shape and type of each input."""
        return self.compiled.get_inputs()

    def get_outputs(self) -> list[TensorInfo]:
        """Name, shape and type of each output."""
        return self.compiled.get_outputs()

    def get_overridable_initializers(self) -> list[TensorInfo]:
        """None: constants are compiled into the code."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """What the model's file says of itself; artifacts keep it."""
        return self.compiled.facts.metadata

    def get_providers(self) -> list[str]:
        """What runs the model."""
        return ["TilewrightExecutionProvider"]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """What each provider was told."""
        return {name: {"threads": str(self.compiled.num_threads)} for name in self.get_providers()}


class _RunQueue:
    """Threads for runs that no caller waits for, made when the first of them comes."""

    def __init__(self, compiled: CompiledModel) -> None:
        self._compiled = compiled
        self._lock = ForkSafeLock()
        self._threads: ThreadPoolExecutor | None = None
        self._process = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Do it when a thread is free."""
        with self._lock:
            if self._threads is None or self._process != os.getpid():  # a fork has none of the threads
                self._process = os.getpid()
                num_runs = max(1, num_threads_default() // self._compiled.num_threads)
                self._threads = ThreadPoolExecutor(num_runs, "tilewright-run")
            self._threads.submit(work)
