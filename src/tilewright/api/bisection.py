"""`tw.bisect`: the first kernel whose result differs from the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.api.artifacts import open_artifact
from tilewright.api.comparison import differences_table
from tilewright.api.compilation import compilation_request, compile_model
from tilewright.api.inputs import feed_of, running_on
from tilewright.api.models import Model
from tilewright.arguments import checked
from tilewright.arrays import Array
from tilewright.compiled import CompiledModel
from tilewright.files import is_artifact
from tilewright.frontend.onnx import Source
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.options import Options
from tilewright.progress import Progress
from tilewright.report.comparison import (
    TensorDifference,
    Tolerance,
    compare_alone,
    compare_layers,
    first_difference,
)
from tilewright.results import Result, Table, about, in_json
from tilewright.text.formatting import counted


@dataclass(frozen=True, slots=True)
class DifferingKernel:
    """The kernels of a subgraph, one as a rule, whose result differs."""

    kernels: tuple[str, ...]
    templates: tuple[str, ...]
    nodes: tuple[str, ...]
    result: TensorDifference = field(metadata=about("What it hands on, in the running model."))
    alone: tuple[TensorDifference, ...] = field(
        metadata=about("Its results where it is compiled and run alone, on the reference's operands.")
    )

    @in_json
    def is_wrong_alone(self) -> bool:
        """Whether it differs on exact operands, too; else earlier errors, or its neighbours, have a part."""
        return first_difference(self.alone) is not None

    def __str__(self) -> str:
        names = ", ".join(f"{k} {t}" for k, t in zip(self.kernels, self.templates, strict=True))
        return f"{names or 'no kernel'} ({', '.join(self.nodes)})"


@dataclass(frozen=True, slots=True)
class BisectResult(Result):
    """Where a compiled model begins to differ from the reference, which computes in float64."""

    model: str
    rtol: float
    atol: float
    outputs: tuple[TensorDifference, ...]
    num_kernels: int
    num_looks: int = field(metadata=about("How often the model ran with results handed out."))
    kernel: DifferingKernel | None = field(metadata=about("The first that differs; null where none does."))
    passes_differ: bool = field(
        metadata=about("Whether the graph differs already as the passes left it, before any kernel.")
    )
    model_sha256: str = field(metadata=about(hidden=True))
    target: str = field(metadata=about(hidden=True))

    @in_json
    def ok(self) -> bool:
        """Whether nothing differs by more than allowed."""
        return self.kernel is None and first_difference(self.outputs) is None

    @property
    def verdict(self) -> str:
        """What differs first, in a line."""
        if self.ok:
            return (
                f"nothing differs, neither outputs nor the results of {counted(self.num_kernels, 'kernel')}"
            )
        if self.kernel is None and self.passes_differ:
            return "the passes changed what is computed, no kernel did: leave out passes (--disable-pass)"
        if self.kernel is None:
            return "outputs differ, but no kernel does once its result can be seen: memory is shared wrongly"
        first = self.kernel.result
        how = "alone, too" if self.kernel.is_wrong_alone else "not on exact operands: errors of others add up"
        return (
            f"first to differ: {self.kernel}, in {first.name!r} by {first.max_difference:.3g} "
            f"(allowed {first.allowed:.3g}); {how}"
        )

    def tables(self) -> Sequence[Table]:
        """The outputs; of the first kernel what it hands on, and what it makes of exact operands."""
        tables = [differences_table(self.outputs, f"{self.model} and the reference")]
        if self.kernel is not None:
            tables.append(differences_table((self.kernel.result,), f"{self.kernel}, in the model"))
            tables.append(differences_table(self.kernel.alone, f"{self.kernel}, alone on exact operands"))
        return tables

    def lines(self) -> Sequence[str]:
        """The verdict."""
        return (self.verdict,)


@checked
def bisect_model(
    model: CompiledModel | Model | Source,
    *,
    feed: Mapping[str, Array] | str | Path | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-6,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> BisectResult:
    """Find the first kernel whose result differs from the interpreter's in float64.

    The model runs once with all results between kernels handed out. Where that hides the difference, as
    handing out changes where results lie, it runs with those of one subgraph at a time, each time halving
    what is left. The kernel that is first is then compiled and run alone, on exact operands. `feed` are
    arrays or an .npz file; without one inputs are random, by the seed of the options. The rest is as for
    `compile`.

    Raises:
        UsageError: a target without kernels, inputs that do not fit, or an unknown setting.
    """
    update = progress or (lambda *_: None)
    tolerance = Tolerance(rtol, atol)
    loaded: Model | None = None
    if isinstance(model, CompiledModel):
        compiled, name = model, "the model"
    elif isinstance(model, str | Path) and is_artifact(Path(model)):
        compiled, name = open_artifact(model, options=options, **settings), str(model)
    else:
        loaded, options = compilation_request(model, None, None, options, settings)
        compiled, name = compile_model(loaded, options=options, progress=progress), loaded.name
    arrays = feed_of(feed, compiled.get_inputs(), compiled.options.seed)
    update("running the reference", 0, 0)
    with running_on(feed):
        source = compiled.program.graph if loaded is None else loaded.graph
        expected = _outputs(source, compiled, arrays)
        got = compiled.run(None, arrays)
    outputs = _differences(compiled, got, expected, tolerance)
    update("comparing what passes between kernels", 0, 0)
    search = _Search(compiled, arrays, tolerance)
    first = search.first(is_hidden=first_difference(outputs) is not None)
    passes_differ = False
    if first is None and loaded is not None and first_difference(outputs) is not None:
        optimised = _outputs(compiled.program.graph, compiled, arrays)
        passes_differ = first_difference(_differences(compiled, optimised, expected, tolerance)) is not None
    return BisectResult(
        model=name,
        rtol=rtol,
        atol=atol,
        outputs=outputs,
        num_kernels=len(compiled.kernels),
        num_looks=search.num_looks,
        kernel=None if first is None else search.kernel_of(first),
        passes_differ=passes_differ,
        model_sha256=compiled.model_sha256,
        target=compiled.target,
    )


def _outputs(graph: Graph, compiled: CompiledModel, feed: Mapping[str, Array]) -> list[Array]:
    results = run_graph(graph, feed, dtype=DType.FLOAT64)
    return [results[output.name] for output in compiled.get_outputs()]


def _differences(
    compiled: CompiledModel, got: Sequence[Array], expected: Sequence[Array], tolerance: Tolerance
) -> tuple[TensorDifference, ...]:
    names = [output.name for output in compiled.get_outputs()]
    return tuple(
        TensorDifference.of(n, x, y, tolerance) for n, x, y in zip(names, got, expected, strict=True)
    )


class _Search:
    """Looks between the kernels of a model: at all of them, or at a few."""

    def __init__(self, compiled: CompiledModel, feed: Mapping[str, Array], tolerance: Tolerance) -> None:
        self.compiled, self.feed, self.tolerance = compiled, feed, tolerance
        self.num_looks = 0
        order = compiled.schedule.instances()
        self._order = list(dict.fromkeys(instance.subgraph_id for instance in order))
        self._maker = {
            value.name: subgraph.id for subgraph in compiled.partition.subgraphs for value in subgraph.outputs
        }

    def first(self, *, is_hidden: bool) -> TensorDifference | None:
        """The first result that differs; `is_hidden`: outputs do, so that one of them has to be the cause."""
        found = self._difference(None)
        if found is not None or not is_hidden:
            return found
        low, high = 0, len(self._order)
        while low < high:
            middle = (low + high) // 2
            differs = self._difference(self._order[middle])
            if differs is None:
                low = middle + 1
            else:
                found, high = differs, middle
        return found

    def kernel_of(self, first: TensorDifference) -> DifferingKernel:
        """The kernels that make a result, run once more on their own."""
        number = self._maker[first.name]
        nodes = tuple(node.name for node in self.compiled.partition.subgraphs[number].nodes)
        kernels = [k for k in self.compiled.kernels if set(k.nodes) & set(nodes)]
        return DifferingKernel(
            tuple(k.id for k in kernels),
            tuple(k.template for k in kernels),
            nodes,
            first,
            compare_alone(self.compiled.program, self.compiled.facts, number, self.feed, self.tolerance),
        )

    def _difference(self, subgraph_id: int | None) -> TensorDifference | None:
        """The first difference in what one subgraph makes, or any: its results are handed out for that."""
        self.num_looks += 1
        only = None if subgraph_id is None else (subgraph_id,)
        look = compare_layers(
            self.compiled.program, self.compiled.facts, self.feed, self.tolerance, only=only
        )
        wanted = self._maker if only is None else {n for n, i in self._maker.items() if i in only}
        return first_difference([t for t in look.tensors if t.name in wanted])
