"""`tilewright compile`: a model becomes an artifact."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tilewright.cli import common
from tilewright.cli.flags import MODEL, CompileFlags, add_verb
from tilewright.cli.output import (
    JSON_OPTION,
    MANNER,
    format_bytes,
    format_ms,
    hint,
    print_json,
    print_table,
    progress,
    say,
)
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.api import Model
    from tilewright.compiled import CompiledModel
    from tilewright.options import Options


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "compile", compile_, panel)


def compile_(
    flags: CompileFlags,
    model: Path = MODEL,
    output: Path | None = typer.Option(None, "--output", "-o", help="Artifact to write; default MODEL.tw."),
    dump_after: list[str] = typer.Option(
        [], "--dump-after", help="Print the graph after this pass; repeatable."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Compile a model into an artifact, and say how long each phase took and what came out.

    Example: `tilewright compile resnet50.onnx -o resnet50.tw`.
    """
    import tilewright as tw

    options = flags.options(dump_after=tuple(dump_after))
    if common.is_artifact(model):
        raise UsageError(f"{model}: is compiled already; give the ONNX file.")
    path = output or model.with_suffix(".tw")
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; give a file name with -o.")
    if output is not None and not path.parent.is_dir():
        raise UsageError(f"{path}: its folder {str(path.parent)!r} does not exist; create it, or change -o.")
    with progress(f"compiling {model.name}") as update:
        started = time.perf_counter()
        loaded = tw.load(model, shapes=options.shapes)
        load_s = time.perf_counter() - started
        compiled = tw.compile(loaded, options=options, progress=update)
        update("writing the artifact")
        started = time.perf_counter()
        path = compiled.save(path)
        phase_s = {"load": load_s, **compiled.phase_s, "save": time.perf_counter() - started}
    dumps = _dumps(loaded, options)
    if as_json:
        _print_json(compiled, path, phase_s, dumps)
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
    hint(f"next: tilewright bench {path}, tilewright explain {path}")


def _dumps(model: Model, options: Options) -> Mapping[str, str]:
    if not options.dump_after:
        return {}
    from tilewright.passes import run_passes

    graph = model.graph.clone()
    return run_passes(graph, disabled=options.disabled_passes, dump_after=options.dump_after).dumps


def _print_json(
    compiled: CompiledModel, path: Path, phase_s: Mapping[str, float], dumps: Mapping[str, str]
) -> None:
    about = compiled.to_json()
    for key in ("schema_version", "tool_version", "model_sha256", "target"):
        about.pop(key)
    document = {
        **common.model_facts(compiled.model_sha256, compiled.target),
        **about,
        "phase_s": dict(phase_s),
        "artifact": str(path),
        "artifact_bytes": path.stat().st_size,
        "dumps": dict(dumps),
    }
    print_json("compile", document)


def _rows(compiled: CompiledModel, path: Path, phase_s: Mapping[str, float]) -> list[tuple[str, str]]:
    on_host = sum(k.is_host for k in compiled.kernels)
    rows = [
        ("artifact", f"{path} ({format_bytes(path.stat().st_size)}), for {compiled.target}"),
        ("operators", f"{len(compiled.program.graph.nodes)} after the passes"),
        ("kernels", f"{len(compiled.kernels)}" + (f", {on_host} of them on the host" if on_host else "")),
    ]
    memory = compiled.memory
    if memory is not None:
        slack = memory.peak_bytes / memory.lower_bound_bytes if memory.lower_bound_bytes else 1.0
        planned = f"{format_bytes(memory.peak_bytes)} planned, {slack:.2f} x the least possible"
        rows.append(("activations", planned))
        rows.append(("constants", format_bytes(memory.constant_bytes)))
    rows += [(f"time: {phase}", format_ms(1000 * seconds)) for phase, seconds in phase_s.items()]
    return rows


def memory_json(compiled: CompiledModel) -> dict[str, object] | None:
    """Planned memory as plain values, without the list of buffers."""
    if compiled.memory is None:
        return None
    document = dataclasses.asdict(compiled.memory)
    del document["buffers"]
    return document
