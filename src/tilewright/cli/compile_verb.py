"""`tilewright compile`: a model becomes an artifact."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tilewright.api.inputs import feed_of, running_on
from tilewright.cli.flags import INPUTS, MODEL, CompileFlags, flag
from tilewright.cli.interrupts import end_kept
from tilewright.cli.output import (
    MANNER,
    as_argument,
    format_bytes,
    format_ms,
    hint,
    print_model_document,
    print_result,
    print_table,
    progress,
    say,
    wants_json,
)
from tilewright.errors import UsageError
from tilewright.text.formatting import counted

if TYPE_CHECKING:
    from tilewright.api import Model
    from tilewright.compiled import CompiledModel
    from tilewright.options import Options
    from tilewright.specialise.model import OpenCompiledModel


def compile_(
    flags: CompileFlags,
    model: Path = MODEL,
    output: Path | None = typer.Option(None, "--output", "-o", help="Artifact to write; default MODEL.tw."),
    report: Path | None = typer.Option(
        None,
        "--report",
        help="Also write an HTML page with the graph, estimated times, and memory over time.",
    ),
    dump_after: list[str] = flag("dump_after"),
    error: bool = typer.Option(
        False, help="Measure the model's error against the reference in float64; the artifact keeps it."
    ),
    inputs: Path | None = INPUTS,
) -> None:
    """Compile a model into an artifact, and say how long each phase took and what came out.

    Kernels are chosen by estimate, or as an earlier `tune` of this model found; with `--budget` they are
    measured. For a model with open sizes, the artifact holds code for all sets of shapes in `--shapes`.

    Example: `tilewright compile resnet50.onnx -o resnet50.tw`.
    """
    import tilewright as tw
    from tilewright.api.compilation import artifact_path
    from tilewright.api.kept import compile_or_reuse
    from tilewright.api.pages import model_report, page_path, shapes_report
    from tilewright.files import write_output
    from tilewright.specialise.model import OpenCompiledModel

    options = flags.options(dump_after=dump_after)
    path = artifact_path(model, output)
    page = None if report is None else page_path(report)
    if inputs is not None and not error:
        raise UsageError(f"{inputs}: inputs are for --error; add it, or leave them out.")
    with progress(f"compiling {model.name}") as update:
        started = time.perf_counter()
        loaded = tw.load(model, shapes=options.shapes)
        if loaded.is_open and (error or dump_after):
            loaded.graph  # noqa: B018  # there is none: says which sizes are open
        load_s = time.perf_counter() - started
        compiled = compile_or_reuse(loaded, options, update)
        if error:
            update("measuring the error against float64")
            measure_error(compiled, loaded, inputs, options.seed)
        update("writing the artifact")
        started = time.perf_counter()
        path = compiled.save(path)
        phase_s = {"load": load_s, **compiled.phase_s, "save": time.perf_counter() - started}
        if page is not None:
            update("writing the report")
            if isinstance(compiled, OpenCompiledModel):
                write_output(page, shapes_report(compiled, model.name).encode())
            else:
                write_output(page, model_report(compiled, model.name).encode())
    if isinstance(compiled, OpenCompiledModel):
        _show_shapes(compiled, path, page, phase_s)
        return
    dumps = _dumps(loaded, options)
    if wants_json():
        from tilewright.cli.facts import WrittenArtifact

        written = WrittenArtifact(path, path.stat().st_size, phase_s, dumps)
        print_model_document("compile", compiled, compiled.summary(), written)
        end_if_interrupted(compiled)
        return
    for name, text in dumps.items():
        say(f"// after {name}\n{text}")
    print_table(("", ""), _rows(compiled, path, phase_s))
    if MANNER.get().verbose:
        print_table(
            ("kernel", "template", "operators", "chunks"),
            [(k.id, k.template, ", ".join(k.nodes), k.num_chunks) for k in compiled.kernels],
            right=(3,),
        )
    for kernel in compiled.kernels:
        if kernel.is_host:
            hint(f"on the host, slowly: {', '.join(kernel.nodes)}")
    for remark in compiled.remarks:
        hint(remark)
    if page is not None:
        hint(f"written to {page}")
    use = "bench" if compiled.facts.target.is_cpu else "run --random"
    typed = as_argument(path)
    hint(f"next: tilewright {use} {typed}, tilewright explain {typed}")
    end_if_interrupted(compiled)


def _show_shapes(
    compiled: OpenCompiledModel, path: Path, page: Path | None, phase_s: Mapping[str, float]
) -> None:
    """Say what an artifact for several sets of shapes has, and what it took."""
    made = compiled.specialisations
    phase_s = {"load": phase_s["load"], "compile": made.seconds, "save": phase_s["save"]}
    if wants_json():
        from tilewright.cli.facts import WrittenArtifact

        written = WrittenArtifact(path, path.stat().st_size, phase_s, {})
        print_model_document("compile-shapes", compiled, made, written)
        return
    print_result(made)
    num_with_code = sum(one.num_kernels > 0 for one in made.kept)
    served = f", which serve {len(made.kept)}" if num_with_code < len(made.kept) else ""
    rows = [
        ("artifact", f"{path} ({format_bytes(path.stat().st_size)}), for {compiled.target}"),
        ("code", f"for {counted(num_with_code, 'set')} of shapes{served}"),
        *((f"time: {phase}", format_ms(1000 * seconds)) for phase, seconds in phase_s.items()),
    ]
    print_table(("", ""), rows)
    if page is not None:
        hint(f"written to {page}")
    typed = as_argument(path)
    hint(f"next: tilewright run {typed} -i FILE.npz, tilewright bench {typed} --shapes SHAPES")


def measure_error(compiled: CompiledModel, loaded: Model, inputs: Path | None, seed: int) -> None:
    """Measure the error on a file's inputs or on random ones."""
    feed = feed_of(inputs, compiled.get_inputs(), seed)
    about = f"random inputs, seed {seed}" if inputs is None else f"the inputs of {inputs.name}"
    with running_on(inputs):
        compiled.measure_error(loaded.graph, feed, about)


def end_if_interrupted(compiled: CompiledModel) -> None:
    """An interrupt ends the search, not the compilation; the exit code says it."""
    ended_tuning = compiled.tuning is not None and compiled.tuning.is_interrupted
    if ended_tuning or compiled.program.schedule.provenance.is_interrupted:
        end_kept("what was measured is kept: tilewright tune goes on from there")


def _dumps(model: Model, options: Options) -> Mapping[str, str]:
    if not options.dump_after:
        return {}
    from tilewright.passes import run_passes
    from tilewright.targets import find_target

    graph = model.graph.clone()
    report = run_passes(
        graph,
        disabled=options.disabled_passes,
        extra=options.passes,
        dump_after=options.dump_after,
        accuracy=options.accuracy,
        runs_steps=find_target(options.target).runs_steps,
    )
    return report.dumps


def _rows(compiled: CompiledModel, path: Path, phase_s: Mapping[str, float]) -> list[tuple[str, str]]:
    from tilewright.api.inspection import level_rows
    from tilewright.report.compilation import ChosenAlgorithms, cost_rows

    on_host = sum(k.is_host for k in compiled.kernels)
    rows = [
        ("artifact", f"{path} ({format_bytes(path.stat().st_size)}), for {compiled.target}"),
        ("operators", f"{len(compiled.program.graph.nodes)} after the passes"),
        ("kernels", f"{len(compiled.kernels)}" + (f", {on_host} of them on the host" if on_host else "")),
    ]
    accuracy = compiled.options.accuracy
    chosen = ChosenAlgorithms(compiled.algorithms, compiled.error, accuracy)
    rows.append(("algorithms", f"{chosen}, at accuracy {accuracy}"))
    if compiled.tuning is not None:
        rows.append(("measured", compiled.tuning.outcome))
    if compiled.error is not None:
        rows.append(("largest error", str(compiled.error)))
    if compiled.cost is not None:
        rows += cost_rows(compiled.cost)
    memory = compiled.memory
    if memory is not None and len(memory.levels) > 1:
        rows += level_rows(memory.levels)
    elif memory is not None:
        slack = memory.peak_bytes / memory.lower_bound_bytes if memory.lower_bound_bytes else 1.0
        planned = f"{format_bytes(memory.peak_bytes)} planned, {slack:.2f} x the least possible"
        rows.append(("activations", planned))
        rows.append(("constants", format_bytes(memory.constant_bytes)))
    rows += [
        (f"time: {phase}", format_ms(1000 * seconds))
        for phase, seconds in phase_s.items()
        if phase != "tune" or compiled.tuning is not None
    ]
    return rows
