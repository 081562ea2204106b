"""`tw.bench`: a compiled model beside others, in one call."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.arguments import checked
from tilewright.benchmark.engines import PEERS
from tilewright.benchmark.session import Comparison, Entrant, Plan, Progress, compare_engines
from tilewright.compiled import CompiledModel
from tilewright.errors import UsageError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.planning import Budget

Array = np.ndarray[Any, Any]


@checked
def bench(
    model: CompiledModel | str | Path,
    *others: CompiledModel | str | Path,
    feed: Mapping[str, Array],
    duration: float | str = 5.0,
    threads: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Comparison:
    """Measure compiled models, models and peers in turns; the first is compared with each of the others.

    `others` are compiled models, files (an ONNX model or an artifact), or `onnxruntime` and `openvino`,
    which need the first to be an ONNX file. `duration` is in seconds, or a text such as `5s`. The accuracy
    of each is against the first model in float64.

    Raises:
        UsageError: a peer without an ONNX file, or settings that make no sense.
    """
    from tilewright.api import compile_model, load, open_artifact
    from tilewright.hardware.probe import num_threads_default

    seconds = Budget.parse(duration).deadline_s if isinstance(duration, str) else duration
    if seconds is None:
        raise UsageError(f"duration {duration!r}: give a time such as 5s.")
    plan = Plan(num_threads=threads or num_threads_default(), duration_s=seconds)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-bench-")))
        entrants: list[Entrant] = []
        reference: Graph | None = None
        for number, one in enumerate((model, *others)):
            if isinstance(one, str) and one in PEERS:
                if not isinstance(model, str | Path):
                    raise UsageError(f"{one}: needs an ONNX file as the first model.")
                entrants.append(Entrant(one, one, Path(model)))
                continue
            graph = None
            if not isinstance(one, str | Path):
                compiled, label = one, f"{number}: {one.target}"
            elif str(one).endswith(".tw"):
                compiled, label = open_artifact(one), f"{number}: {Path(one).name}"
            else:
                loaded = load(one)
                graph = loaded.graph  # as it is in the file: what passes changed is measured too
                compiled, label = compile_model(loaded), f"{number}: {Path(one).name}"
            reference = reference or graph or compiled.program.graph
            entrants.append(Entrant(label, "tilewright", compiled.save(folder / f"{number}.tw")))
        assert reference is not None
        expected = expected_outputs(reference, feed, [o.name for o in reference.outputs])
        return compare_engines(entrants, feed, plan, model=str(model), expected=expected, progress=progress)


def expected_outputs(graph: Graph, feed: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
    """Outputs of a graph in float64, in the order of `names`."""
    results = run_graph(graph, feed, dtype=DType.FLOAT64)
    return [results[name] for name in names]
