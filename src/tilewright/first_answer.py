"""A model that answers by the reference at once and by compiled code as soon as there is some.

What `first_answer="quick"` asks for. The first run is by numpy, operator after operator. When it has ended,
the model is compiled on a thread beside; runs that begin after that are by the compiled code, and have the
bits that a model has which was compiled before its first run.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tilewright.arguments import NOWHERE
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import Body, CompiledFacts
from tilewright.errors import InternalError, ModelClosed
from tilewright.hardware.probe import resolve_threads
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.progress import Progress
from tilewright.system.forks import ForkSafeLock
from tilewright.system.numpy_threads import one_thread
from tilewright.targets.runs import written_into

if TYPE_CHECKING:
    from tilewright.arrays import Array
    from tilewright.artifact.write import Content
    from tilewright.program import Program
    from tilewright.report.compilation import CompilationSummary
    from tilewright.steps import CostInfo, MemoryInfo, StepInfo
    from tilewright.targets.base import Executable
    from tilewright.targets.stored import StoredCode


logger = logging.getLogger(__name__)

EXIT_WAIT_S = 10.0
"""How long the end of the interpreter waits for compilations to stop."""


class QuickCompiledModel(CompiledModel):
    """Runs by the reference until it is compiled. See `CompiledModel`.

    What is known of the compiled code alone - program, steps, memory, artifact - is waited for. A compilation
    that fails leaves the model as it is, with a warning, and `finish` raises what it failed of.
    """

    def __init__(
        self, facts: CompiledFacts, graph: Graph, compile_whole: Callable[[Progress], CompiledModel]
    ) -> None:
        def refuse(*_: object) -> Any:
            raise InternalError(f"{graph.name} is not compiled yet.")

        super().__init__(facts, Body(refuse, refuse, refuse), num_threads=facts.options.num_threads)
        itself = weakref.ref(self)

        def finished(compiled: CompiledModel) -> None:
            model = itself()
            if model is None or model._is_closed:
                compiled.close()
                return
            model._become(compiled)

        self._beside = _Beside(compile_whole, finished)
        self._quick = _QuickExecutable(graph, self._beside, resolve_threads(facts.options.num_threads))
        self._executable = self._quick
        self._has_become = False
        weakref.finalize(self, self._beside.cancel).atexit = False

    @property
    def is_final(self) -> bool:
        """Whether runs are by the compiled code."""
        return self._has_become

    def finish(self, timeout_s: float | None = None) -> bool:
        """Wait until runs are by the compiled code, at most so long; whether they are.

        Raises:
            UnsupportedOp, BudgetExceeded, UsageError: what compiling failed of.
            ModelClosed: it was closed.
        """
        if not self._has_become:
            if self._is_closed:
                raise ModelClosed
            self._beside.wait(timeout_s)
        return self._has_become

    def close(self) -> None:
        """Stop compiling, and unload the code. See `CompiledModel.close`."""
        self._beside.cancel()
        super().close()

    def _become(self, compiled: CompiledModel) -> None:
        """Take the place of what was compiled, its code loaded."""
        executable = compiled.load()
        with self._lock:
            self.facts, self._body = compiled.facts, compiled._body
            self.remarks, self.phase_s, self.tuning = compiled.remarks, compiled.phase_s, compiled.tuning
            self._has_become = True
        self._quick.give_way(executable)
        if self._is_closed:  # while the code was loaded
            self._quick.close()

    @property
    def program(self) -> Program:
        """The optimised graph, how it is cut and in which order it runs."""
        self.finish()
        return super().program

    @property
    def memory(self) -> MemoryInfo | None:
        """Planned memory; None where the target plans none."""
        self.finish()
        return super().memory

    @property
    def cost(self) -> CostInfo | None:
        """What the plan costs by estimate, and what any costs at least."""
        self.finish()
        return super().cost

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """What runs, in order."""
        self.finish()
        return super().steps

    def stored_code(self) -> tuple[StoredCode, ...]:
        """What an artifact keeps of the code."""
        self.finish()
        return super().stored_code()

    def content(self) -> Content:
        """What an artifact keeps."""
        self.finish()
        return super().content()

    def summary(self) -> CompilationSummary:
        """Everything but the weights and the code."""
        self.finish()
        return super().summary()

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, found)) for found in (self.facts.inputs, self.facts.outputs))
        return super().__repr__() if self._has_become else f"QuickCompiledModel({inputs} -> {outputs})"


class _QuickExecutable:
    """Runs a graph by the reference until compiled code takes its place, between two runs."""

    def __init__(self, graph: Graph, beside: _Beside, num_threads: int) -> None:
        self.num_threads = num_threads
        self._graph: Graph | None = graph
        self._beside = beside
        self._compiled: Executable | None = None

    def run(self, feed: Mapping[str, Array], into: Mapping[str, Array] = NOWHERE) -> dict[str, Array]:
        """Outputs by name, as `Executable.run`."""
        graph = self._graph  # read once: another thread may change both
        if graph is None:
            if self._compiled is None:
                raise ModelClosed
            return self._compiled.run(feed, into)
        graph.require_unchanged()
        with one_thread():
            outputs = written_into(run_graph(graph, feed), into)
        self._beside.begin()  # not before the first answer, which it would hold up
        return outputs

    def give_way(self, compiled: Executable) -> None:
        """Run by this from now on; the graph is needed no more."""
        self._compiled = compiled
        self._graph = None

    def close(self) -> None:
        """Unload the compiled code; later runs are refused."""
        self._graph = None
        if self._compiled is not None:
            self._compiled.close()


class _Cancelled(Exception):  # nothing is wrong
    """Raised inside a compilation whose result is not wanted any more."""


class _Beside:
    """A compilation on a thread of its own, begun once, again in a forked child, which has no such thread."""

    def __init__(
        self, work: Callable[[Progress], CompiledModel], finished: Callable[[CompiledModel], None]
    ) -> None:
        self._work: Callable[[Progress], CompiledModel] | None = work
        self._finished = finished
        self._lock = ForkSafeLock()
        self._thread: threading.Thread | None = None
        self._process = 0
        self._is_cancelled = False
        self._error: Exception | None = None

    def begin(self) -> None:
        """Start it, if it was not started or cancelled."""
        if self._process == os.getpid():
            return
        with self._lock:
            if self._process == os.getpid() or self._work is None or self._is_cancelled:
                return
            thread = threading.Thread(target=self._run, name="tilewright-compile", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system, or an interpreter that ends, starts none: at the next run
                return
            self._thread, self._process = thread, os.getpid()
            _all.add(self)

    def wait(self, timeout_s: float | None) -> None:
        """Until it has ended, or so long.

        Raises:
            Exception: what it failed of.
        """
        self.begin()
        thread = self._thread
        if thread is not None and self._process == os.getpid():
            thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        if self._is_cancelled:
            raise ModelClosed

    def cancel(self) -> None:
        """Let it end at its next report."""
        self._is_cancelled = True

    def join(self, timeout_s: float) -> None:
        """Until its thread has ended, or so long."""
        if self._thread is not None and self._process == os.getpid():
            self._thread.join(max(0.0, timeout_s))

    def _run(self) -> None:
        work = self._work
        if work is None:
            return
        try:
            with _one_at_a_time:
                self._report("start", 0, 1)
                compiled = work(self._report)
            self._finished(compiled)
        except _Cancelled:
            return
        except Exception as error:
            self._error = error
            logger.warning("answers stay those of the reference, compiling failed: %s", error)
        finally:
            self._work = None  # which holds the graph

    def _report(self, what: str, done: int, total: int) -> None:
        if self._is_cancelled:
            raise _Cancelled


_one_at_a_time = ForkSafeLock()
_all: weakref.WeakSet[_Beside] = weakref.WeakSet()


def _end_all() -> None:
    """At exit: no thread is inside the compiler when its library is unloaded."""
    deadline_s = time.monotonic() + EXIT_WAIT_S
    begun = list(_all)
    for beside in begun:
        beside.cancel()
    for beside in begun:
        beside.join(deadline_s - time.monotonic())


atexit.register(_end_all)
