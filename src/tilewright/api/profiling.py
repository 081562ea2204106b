"""`tw.profile`: where the time of a run goes, kernel by kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tilewright.api.artifacts import open_or_compile
from tilewright.api.inputs import feed_of, running_on
from tilewright.api.pages import model_report, page_path
from tilewright.arguments import checked
from tilewright.arrays import Array
from tilewright.benchmark.machine_state import busy_share
from tilewright.benchmark.profile import KernelTime, Profile, profile_program
from tilewright.compiled import CompiledModel
from tilewright.errors import UsageError
from tilewright.files import write_output
from tilewright.hardware.probe import num_threads_default
from tilewright.options import Options
from tilewright.progress import Progress
from tilewright.results import Table, about
from tilewright.specialise.model import OpenCompiledModel
from tilewright.specialise.opened import SavedShapes
from tilewright.text.formatting import counted, format_bytes, format_ms

_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile(Profile):
    """Where the time of a run goes. `busy_share` is that of the cores that other programs used before it."""

    model: str = field(metadata=about(hidden=True))
    model_sha256: str = field(metadata=about(hidden=True))
    busy_share: float | None = field(metadata=about(hidden=True))

    def tables(self, every: bool = False) -> Sequence[Table]:
        """The longest kernels, or `every` one in the order they run; shares of operators."""
        kernels = list(self.kernels)
        if not every:
            kernels = sorted(kernels, key=lambda k: -k.median_ns)[:_ROWS]
        threads = counted(self.limits.num_threads, "thread")
        shown = "" if every else f"; the {len(kernels)} longest of {counted(len(self.kernels), 'kernel')}"
        runs = counted(self.num_runs, "run")
        title = f"{self.model}: {format_ms(self.run_ns / 1e6)} a run, {threads}, {runs}{shown}"
        heads = (
            "kernel",
            "made by",
            "estimate",
            "measured",
            "spread",
            "share",
            "GFLOP/s",
            "moved",
            "of limit",
            "bound by",
        )
        shares = tuple((name, f"{100 * share:.1f} %") for name, share in self.operator_share.items())
        return (
            Table((*heads, "nodes"), tuple(map(_row, kernels)), title, (2, 3, 4, 5, 6, 7, 8), _LESS),
            Table(("operator", "share"), shares, right=(1,)),
        )

    def lines(self) -> Sequence[str]:
        """This machine's limits, the time between kernels, the verdict."""
        limits, tiles = self.limits, ""
        if limits.tile_flop_per_s is not None:
            tiles = f", {limits.tile_flop_per_s / 1e9:.0f} on bfloat16 tiles"
        return (
            f"this machine: {limits.fma_flop_per_s / 1e9:.0f} GFLOP/s in vectors{tiles}; "
            f"{limits.memory_bytes_per_s / 1e9:.0f} GB/s from memory, "
            f"{limits.cache_bytes_per_s / 1e9:.0f} from caches, "
            f"{limits.constant_bytes_per_s / 1e9:.0f} where this model's constants stay",
            f"between kernels: {format_ms(self.between_ns / 1e6)}",
            f"energy of a run: {self.energy}",
            self.verdict,
        )


# Columns that matter least first: spread, bytes moved, GFLOP/s, the estimate, of the limit, made by.
_LESS = (4, 7, 6, 2, 8, 1)


def _row(kernel: KernelTime) -> tuple[str, ...]:
    return (
        kernel.id,
        kernel.template,
        "-" if kernel.estimate_ns is None else format_ms(kernel.estimate_ns / 1e6),
        format_ms(kernel.median_ns / 1e6),
        f"{format_ms(kernel.low_ns / 1e6)} to {format_ms(kernel.high_ns / 1e6)}",
        f"{100 * kernel.share:.1f} %",
        f"{kernel.gflop_per_s:.0f}" if kernel.flop else "-",
        "-" if kernel.bound == "host" else format_bytes(kernel.constant_bytes + kernel.activation_bytes),
        "-" if kernel.bound == "host" else f"{100 * kernel.of_limit:.0f} %",
        kernel.bound,
        ", ".join(kernel.nodes) or "moves a tensor between layouts",
    )


@checked
def profile_model(
    model: CompiledModel | str | Path,
    *,
    feed: Mapping[str, Array] | str | Path | None = None,
    duration_s: float = 2.0,
    threads: int | None = None,
    options: Options | None = None,
    report: str | Path | None = None,
    progress: Progress | None = None,
) -> ModelProfile:
    """Time every kernel in the running model, and compare it with what this machine could do.

    A `feed` are arrays or an .npz file; without one inputs are random, by the seed of the options. A model
    whose shapes are open is measured at those of the feed. A `report` is a page to write: the model's graph,
    kernels beside their limits, threads and memory over time.

    Raises:
        UsageError: a model that is made for another target than cpu, or a duration that makes no sense; or
            shapes stay open.
    """
    options = options or Options()
    if not 0 < duration_s <= 3600:
        raise UsageError(f"duration {duration_s:g}: give seconds, more than 0 and at most 3600.")
    page = None if report is None else page_path(report)
    if isinstance(model, CompiledModel):
        name, compiled = "model", model
    else:
        name, compiled = Path(model).name, open_or_compile(Path(model), options, progress)
    if not compiled.facts.target.is_cpu:
        raise UsageError(f"{name}: is made for {compiled.target}; profile measures the cpu target.")
    arrays = feed_of(feed, compiled.get_inputs(), options.seed)
    if isinstance(compiled, OpenCompiledModel | SavedShapes):
        compiled = compiled.at({name: np.shape(array) for name, array in arrays.items()})
    busy = busy_share()
    with running_on(feed):
        profiled = profile_program(
            compiled.program,
            arrays,
            num_threads=threads or num_threads_default(),
            duration_s=duration_s,
            progress=progress or (lambda *_: None),
        )
    if page is not None:
        write_output(page, model_report(compiled, name, profiled).encode())
    return ModelProfile(
        **{name: getattr(profiled, name) for name in Profile.__dataclass_fields__},
        model=name,
        model_sha256=compiled.model_sha256,
        busy_share=busy,
    )
