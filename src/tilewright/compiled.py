"""A compiled model: run it, save it, ask it what was done and why."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.arguments import as_array, checked, shown
from tilewright.calls import bound_inputs, checked_places, own_feed
from tilewright.compiled_facts import Body, CompiledFacts, MeasuredError, TensorInfo, edge_info
from tilewright.dlpack import as_torch, from_dlpack, is_on_gpu, is_torch_tensor, torch_stream
from tilewright.errors import ModelClosed, UsageError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.steps import CostInfo, KernelInfo, MemoryInfo, StepInfo, TuningInfo
from tilewright.system.forks import ForkSafeLock
from tilewright.text.formatting import counted

if TYPE_CHECKING:
    import numpy as np

    from tilewright.artifact.write import Content
    from tilewright.explain import Explanation
    from tilewright.partition.base import Partition
    from tilewright.program import Program
    from tilewright.report.compilation import CompilationReport, CompilationSummary
    from tilewright.schedule.base import Schedule
    from tilewright.targets.base import Executable
    from tilewright.targets.stored import StoredCode

SCHEMA_VERSION = 1


class CompiledModel:
    """Runs a model. Any number of threads may call `run` at a time; equal inputs give equal bits.

    `remarks` are lines a user should know, such as why an artifact's code was generated again; `phase_s` is
    the time of each step of the compilation, empty for a model that was opened; `tuning` is how measurements
    chose its kernels, None where estimates did or where it was opened.
    """

    def __init__(
        self,
        facts: CompiledFacts,
        body: Body,
        *,
        remarks: Sequence[str] = (),
        phase_s: Mapping[str, float] | None = None,
        num_threads: int | None = None,
        tuning: TuningInfo | None = None,
    ) -> None:
        self.facts = facts
        self.tuning = tuning
        self.remarks = tuple(remarks)
        self.phase_s = dict(phase_s or {})
        self._body = body
        self._num_threads = num_threads
        self._output_names = tuple(o.name for o in facts.outputs)
        self._edges = facts.edges or None
        self._lock = ForkSafeLock()
        self._program: Program | None = None
        self._executable: Executable | None = None
        self._is_closed = False

    # Running.

    def run(
        self, output_names: Sequence[str] | None, feed: Mapping[str, np.ndarray[Any, Any]]
    ) -> list[np.ndarray[Any, Any]]:
        """Outputs in the order of `output_names`, all of them for None. As onnxruntime's `run`.

        Raises:
            UsageError: an unknown output, or inputs that do not fit the model.
            ModelClosed: it was closed.
            BudgetExceeded: the system does not give the memory that the run needs.

        Inputs are what the feed holds when the run begins, though another thread may change it.
        """
        names = self._output_names if output_names is None else self._checked_names(output_names)
        feed = own_feed(feed)
        edges = self._edges
        if edges is None:
            return self.run_numbers(names, feed)
        numbers, others = edges.encoded(feed)
        found = self.run_numbers(names, numbers)
        return [edges.decoded(name, array, others) for name, array in zip(names, found, strict=True)]

    def run_numbers(
        self, names: Sequence[str], feed: Mapping[str, np.ndarray[Any, Any]]
    ) -> list[np.ndarray[Any, Any]]:
        """`run` of a model with texts or maps at its edges on what it computes with in their place."""
        results = (self._executable or self.load()).run(feed)
        return [results[name] for name in names]

    def run_into(
        self, feed: Mapping[str, np.ndarray[Any, Any]], into: Mapping[str, np.ndarray[Any, Any]]
    ) -> list[np.ndarray[Any, Any]]:
        """All outputs, those named in `into` written to the arrays that it gives: no memory is asked for.

        Raises:
            UsageError: as `run`; or an array that does not fit its output, cannot be written to as it is, or
                shares memory with another; or the model takes or gives texts or maps.
        """
        self._require_tensors()
        given = {name: as_array(name, value) for name, value in own_feed(feed).items()}
        places = checked_places(self.facts.outputs, into, given)
        results = (self._executable or self.load()).run(given, places)
        return [results[name] for name in self._output_names]

    def run_on_device(self, feed: Mapping[str, Any], stream: int | None = None) -> dict[str, Any]:
        """Outputs by name, in new memory of the GPU, for inputs that lie there; nothing is copied.

        Inputs and outputs are arrays of any library that speaks DLPack. On a CUDA `stream` (its handle; 1 is
        the default one) the run comes behind what that holds and may go on when this returns; without one it
        has ended.

        Raises:
            UsageError: a target without memory of its own, or arrays that lie elsewhere or do not fit.
            ModelClosed: it was closed.
            DeviceError: the GPU is full, or reports a fault.
        """
        self._require_tensors()
        run = getattr(self._executable or self.load(), "run_on_device", None)
        if run is None:
            raise UsageError(
                "this model runs on the processor, whose memory run takes: --target cuda has its own."
            )
        found: dict[str, Any] = run(own_feed(feed), stream)
        return found

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The outputs for inputs in the model's order, or by name: one alone, several as a tuple.

        Where an input is a tensor of torch, the outputs are too; neither is copied. Tensors on a GPU stay on
        it, and the run comes behind what torch's current stream holds.

        Raises:
            UsageError: as `run`.
        """
        feed = bound_inputs(self.facts.inputs, arguments, named)
        if any(map(is_on_gpu, feed.values())):
            found = self.run_on_device(feed, torch_stream())
            outputs: Sequence[Any] = [from_dlpack(found[name]) for name in self._output_names]
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        outputs = self.run(None, feed)
        if any(map(is_torch_tensor, feed.values())):
            outputs = [as_torch(array) for array in outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _require_tensors(self) -> None:
        """Raise if an input or an output is no tensor of numbers."""
        for name in self._edges or ():
            raise UsageError(
                f"{name!r} holds texts or maps, which have no place in memory of yours: use run."
            )

    def get_inputs(self) -> list[TensorInfo]:
        """Name, shape and type of each input."""
        return [edge_info(info, self.facts.edges) for info in self.facts.inputs]

    def get_outputs(self) -> list[TensorInfo]:
        """Name, shape and type of each output."""
        return [edge_info(info, self.facts.edges) for info in self.facts.outputs]

    def load(self) -> Executable:
        """Load the code now rather than at the first run; returns what runs.

        Raises:
            ModelClosed: it was closed.
        """
        with self._lock:
            if self._executable is None and not self._is_closed:
                self._executable = self._body.load(self._num_threads)
            executable = self._executable
            if executable is None or self._is_closed:  # closed before, or while it was loaded
                self._executable = None
                raise ModelClosed
            return executable

    @property
    def is_final(self) -> bool:
        """Whether runs are by the compiled code: not before that is there, where `first_answer` is quick."""
        return True

    def finish(self, timeout_s: float | None = None) -> bool:
        """Wait until runs are by the compiled code, at most so long; whether they are.

        Raises:
            UnsupportedOp, BudgetExceeded, UsageError: what compiling failed of.
            ModelClosed: it was closed.
        """
        return True

    def close(self) -> None:
        """Unload the code: at once, or when the runs in progress have ended. Later runs are refused.

        To close once more does nothing. A model that is collected gives its memory back as well.

        Raises:
            UsageError: the calling thread is in the middle of a run, as in a signal handler: the model stays
                open.
        """
        # Without the lock: a signal handler that waited for a load could wait for its own thread. Either the
        # load finds the model closed, or this finds what was loaded.
        while True:
            executable = self._executable
            close = getattr(executable, "close", None)
            if close is not None:
                close()
            self._is_closed = True
            if self._executable is executable:
                self._executable = None
                return

    def __enter__(self) -> CompiledModel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # What it is.

    @property
    def target(self) -> str:
        """Name of the target it was compiled for."""
        return str(self.facts.target)

    @property
    def options(self) -> Options:
        """What was asked of the compilation."""
        return self.facts.options

    @property
    def model_sha256(self) -> str:
        """SHA-256 of the model it was compiled from."""
        return self.facts.model_sha256

    @property
    def program(self) -> Program:
        """The optimised graph, how it is cut and in which order it runs."""
        with self._lock:
            if self._program is None:
                self._program = self._body.program()
            return self._program

    @property
    def partition(self) -> Partition:
        """Which operators share a kernel, and why."""
        return self.program.partition

    @property
    def schedule(self) -> Schedule:
        """In which order and side by side with what they run."""
        return self.program.schedule

    @property
    def memory(self) -> MemoryInfo | None:
        """Planned memory; None where the target plans none."""
        return self.facts.memory

    @property
    def cost(self) -> CostInfo | None:
        """What the plan costs by estimate, and what any costs at least; None of artifacts that do not say."""
        return self.facts.cost

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """What runs, in order."""
        return self.facts.steps

    @property
    def kernels(self) -> tuple[KernelInfo, ...]:
        """Every launch of every step, host operators included."""
        return tuple(kernel for step in self.steps for kernel in step.kernels)

    @property
    def algorithms(self) -> dict[str, int]:
        """How many kernels each template made, most first."""
        counts = Counter(kernel.template for kernel in self.kernels)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @property
    def error(self) -> MeasuredError | None:
        """The error against the reference in float64, if it was measured."""
        return self.facts.error

    @checked
    def measure_error(
        self, reference: Graph, feed: Mapping[str, np.ndarray[Any, Any]], inputs: str
    ) -> MeasuredError:
        """Run once, compare with `reference` in float64, and keep the result: an artifact holds it.

        `reference` is the graph of the model as it was loaded; `inputs` names the feed in reports.
        """
        from tilewright.accuracy import relative_error
        from tilewright.ir.interpret import run_graph

        names = self._output_names
        expected = run_graph(reference, feed, dtype=DType.FLOAT64)
        errors = [
            relative_error(got, expected[n])
            for n, got in zip(names, self.run_numbers(names, feed), strict=True)
        ]
        worst = max(range(len(errors)), key=lambda i: errors[i])
        found = MeasuredError(errors[worst], names[worst], inputs)
        self.facts = replace(self.facts, error=found)
        return found

    @property
    def num_threads(self) -> int:
        """Threads that share the work of a run."""
        return int(getattr(self.load(), "num_threads", 1))

    @checked
    def explain(self, name: str | None = None) -> Explanation:
        """What became of each ONNX node, in which kernel, and why edges were fused or cut.

        `name` picks one ONNX node, one node of the optimised graph, one value or one kernel (`k3`, or its
        symbol).

        Raises:
            UsageError: no such name; the message lists close matches.
        """
        from tilewright.explain import explain_program

        return explain_program(self.program, self._steps_with_notes(), self.facts.origins, name)

    def _steps_with_notes(self) -> tuple[StepInfo, ...]:
        """The steps, with what the device that they ran on has counted of kernels."""
        count = getattr(self._executable, "kernel_notes", dict)
        notes: dict[str, str] = count()
        if not notes:
            return self.steps
        return tuple(
            replace(
                step,
                kernels=tuple(
                    replace(k, notes=(*k.notes, notes[k.id])) if k.id in notes else k for k in step.kernels
                ),
            )
            for step in self.steps
        )

    def report(self) -> CompilationReport:
        """The whole compilation as data; `save` writes HTML or JSON."""
        from tilewright.report.compilation import CompilationReport

        document = self.to_json()
        document.pop("phase_s")  # the only part that differs between equal compilations
        return CompilationReport.of(document, self.facts, self.explain())

    def summary(self) -> CompilationSummary:
        """Everything but the weights and the code."""
        from tilewright.report.compilation import CompilationSummary

        return CompilationSummary(
            options=json.loads(self.options.to_json()),
            inputs=self.facts.inputs,
            outputs=self.facts.outputs,
            num_nodes=len(self.program.graph.nodes),
            num_subgraphs=len(self.partition.subgraphs),
            num_stages=len(self.schedule.stages),
            memory=self.memory,
            cost=self.cost,
            algorithms=self.algorithms,
            error=self.error,
            tuning=self.tuning,
            steps=self.steps,
            phase_s=self.phase_s,
            remarks=self.remarks,
        )

    # Leaving.

    def stored_code(self) -> tuple[StoredCode, ...]:
        """What an artifact keeps of the code, of each kind of machine; nothing where the target makes it
        again from the program."""
        return self._body.stored()

    @checked
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact: whole, or not at all. Equal compilations give equal bytes.

        Raises:
            UsageError: the file cannot be written.
        """
        from tilewright.artifact.write import save_artifact

        return save_artifact(Path(path), self.content())

    def content(self) -> Content:
        """What an artifact keeps."""
        from tilewright.artifact.write import Content

        return Content(self.facts, self.program, self.stored_code())

    def to_json(self) -> dict[str, Any]:
        """Everything but the weights and the code, as plain values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "tool_version": self.facts.tool_version,
            "model_sha256": self.model_sha256,
            "target": self.target,
            **self.summary().to_json(),
        }

    def _checked_names(self, names: Iterable[str]) -> tuple[str, ...]:
        if isinstance(names, bytes | Mapping) or not isinstance(names, Iterable):
            raise UsageError(f"output names are {shown(names)}: give a list of names, or None for all.")
        chosen = (names,) if isinstance(names, str) else tuple(names)
        for name in chosen:
            if not isinstance(name, str) or name not in self._output_names:
                raise UsageError(
                    f"unknown output {shown(name)}: this model gives {', '.join(self._output_names)}."
                )
        return chosen or self._output_names

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.facts.inputs))
        outputs = ", ".join(map(str, self.facts.outputs))
        return f"CompiledModel({self.target}, {counted(len(self.steps), 'step')}, {inputs} -> {outputs})"

    def _repr_html_(self) -> str:
        return self.report().summary_html()
