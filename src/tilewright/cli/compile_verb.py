"""`tilewright compile`: a model becomes an artifact."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli import common
from tilewright.cli.output import (
    JSON_OPTION,
    QUIET_OPTION,
    format_bytes,
    format_ms,
    note,
    print_json,
    print_table,
    progress,
)


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    app.command("compile", rich_help_panel=panel)(compile_)


def compile_(
    model: Path = common.MODEL,
    output: Path | None = typer.Option(None, "--output", "-o", help="Artifact to write; default MODEL.tw."),
    target: str = common.TARGET,
    shapes: str | None = common.SHAPES,
    threads: int | None = common.THREADS,
    isa: str | None = common.ISA,
    partition: str = common.PARTITION,
    schedule: str = common.SCHEDULE,
    disable_pass: list[str] = common.DISABLE_PASS,
    dump_after: list[str] = typer.Option([], "--dump-after", help="Print the graph after this pass."),
    max_memory: str | None = common.MAX_MEMORY,
    timeout: float | None = common.TIMEOUT,
    seed: int = common.SEED,
    cache: Path | None = common.CACHE,
    no_cache: bool = common.NO_CACHE,
    as_json: bool = JSON_OPTION,
    quiet: bool = QUIET_OPTION,
) -> None:
    """Compile a model into an artifact. Example: `tilewright compile resnet50.onnx`."""
    import tilewright as tw

    options = common.make_options(
        target=target,
        shapes=shapes,
        threads=threads,
        isa=isa,
        partition=partition,
        schedule=schedule,
        disable_pass=disable_pass,
        dump_after=dump_after,
        max_memory=max_memory,
        timeout=timeout,
        seed=seed,
        cache=cache,
        no_cache=no_cache,
    )
    with progress(f"compiling {model.name}", quiet=quiet) as update:
        compiled = tw.compile(model, options=options, progress=update)
        path = compiled.save(output or model.with_suffix(".tw"))
    if dump_after:
        from tilewright.compiler import plan

        dumps = plan(tw.load(model, shapes=dict(options.shapes)).graph, options).passes.dumps
        for name, text in dumps.items():
            typer.echo(f"// after {name}\n{text}", err=as_json)
    on_host = [k for k in compiled.kernels if k.is_host]
    memory = compiled.memory
    if as_json:
        document = {
            **compiled.to_json(),
            "artifact": str(path),
            "artifact_bytes": path.stat().st_size,
            "phase_s": dict(compiled.phase_s),
            "host": common.host_facts(),
        }
        print_json("compile", document)
        return
    rows = [
        ("artifact", f"{path} ({format_bytes(path.stat().st_size)})"),
        ("kernels", f"{len(compiled.kernels)}" + (f", {len(on_host)} on the host" if on_host else "")),
    ]
    if memory is not None:
        rows.append(
            (
                "activations",
                f"{format_bytes(memory.peak_bytes)} (at least {format_bytes(memory.lower_bound_bytes)})",
            )
        )
    rows += [(f"  {phase}", format_ms(1000 * seconds)) for phase, seconds in compiled.phase_s.items()]
    print_table(("", ""), rows)
    for kernel in on_host:
        note(f"on the host: {kernel.id}: {', '.join(kernel.nodes)}")
    for remark in compiled.remarks:
        note(remark)
    note(f"next: tilewright bench {path}, tilewright explain {path}")
