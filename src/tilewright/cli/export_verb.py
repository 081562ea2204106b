"""`tilewright export`: a model for a C program, on this machine or another."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tilewright.cli.flags import MODEL, SHAPES, flag, parsed_shapes
from tilewright.cli.output import (
    format_bytes,
    hint,
    print_model_document,
    print_table,
    progress,
    show,
    wants_json,
)
from tilewright.errors import UsageError
from tilewright.files import is_artifact
from tilewright.text.formatting import counted

if TYPE_CHECKING:
    from tilewright.options import Options

FORMATS = ("object", "stages", "ort-partition")


def export(
    model: Path = MODEL,
    to: str = typer.Option(
        "object",
        "--to",
        help="What to write: object (object file, C header, weights), stages (a schedule as JSON), or "
        "ort-partition (the same for onnxruntime).",
    ),
    isa: str | None = flag(
        "isa", about="Instruction set to generate code for, also another machine's; default: this machine's."
    ),
    output: Path = typer.Option(
        Path(), "--output", "-o", help="Folder to write into; default: the current one."
    ),
    name: str | None = typer.Option(
        None, "--name", help="Name of the files and of the C function; default: MODEL's."
    ),
    force: bool = typer.Option(
        False, "--force", help="Replace files that export did not write, or that were edited since."
    ),
    shapes: str | None = SHAPES,
    accuracy: str = flag("accuracy"),
    target: str = flag("target"),
    schedule: str = flag("schedule"),
    partition: str = flag("partition"),
) -> None:
    """Write a model or an artifact as an object file that a C program links, with header and weights.

    The code uses one thread, allocates nothing, and needs neither Python nor this package. With --to stages
    or ort-partition, the stages of a schedule are written instead, as MODEL.stages.json or
    MODEL.ort-partition.json.

    Example: `tilewright export model.onnx --isa aarch64 -o firmware`.
    """
    import tilewright as tw
    from tilewright.options import Options

    if to not in FORMATS:
        raise UsageError(f"--to {to}: unknown format; expected {', '.join(FORMATS)}.")
    fixed = parsed_shapes(shapes)
    planned = {"target": target, "schedule": schedule, "partition": partition}
    if to != "object":
        if isa is not None:
            raise UsageError(f"--isa {isa}: stages hold no code; leave it out.")
        options = Options(accuracy=accuracy, shapes=fixed, **planned)  # type: ignore[arg-type]  # it checks
        path = output / f"{name or model.stem}.{to}.json"
        _export_stages(model, to, path, options, force=force)
        return
    for what, value in planned.items():
        if value != str(getattr(Options(), what)):
            raise UsageError(
                f"--{what} {value}: an object file leaves no such choice; give it with --to stages."
            )
    options = Options(accuracy=accuracy, shapes=fixed)  # type: ignore[arg-type]  # it checks
    with progress(f"exporting {model.name}") as update:
        if not is_artifact(model):
            loaded = tw.load(model, shapes=fixed)
            digest = loaded.sha256
            made = tw.export(
                loaded, output, isa or "host", name=name, force=force, options=options, progress=update
            )
        elif fixed or accuracy != "default":
            raise UsageError(
                f"{model}: an artifact's shapes and accuracy are fixed; export the model instead."
            )
        else:
            compiled = tw.open(model)
            digest = compiled.model_sha256
            made = tw.export(
                compiled, output, isa or "host", name=name or model.stem, force=force, progress=update
            )
    if wants_json():
        print_model_document("export", (digest, "cpu"), made)
        return
    rows = [
        ("code", f"{made.object_path}, {counted(made.num_kernels, 'kernel')} for {made.isa}"),
        ("header", str(made.header_path)),
        ("weights", f"{made.weights_path}, {format_bytes(made.weights_bytes)}"),
        ("example", str(made.example_path)),
        *(("tuned", line) for line in made.tuned[:2]),
        ("memory at run time", f"{format_bytes(made.workspace_bytes)} that the caller gives"),
    ]
    print_table(("", ""), rows)
    sources = shlex.join((str(made.example_path), str(made.object_path)))
    hint(f"next: cc -O2 {sources} -o {made.name} -lm")


def _export_stages(model: Path, to: str, path: Path, options: Options, *, force: bool) -> None:
    import tilewright as tw
    from tilewright.api import export_stages

    if is_artifact(model):
        raise UsageError(f"{model}: an artifact is planned already; export the model instead.")
    if path.exists() and not force:
        raise UsageError(f"{path}: is there already; --force replaces it.")
    with progress(f"scheduling {model.name}") as update:
        loaded = tw.load(model, shapes=options.fixed_shapes)
        made = export_stages(loaded, path, to, options=options, progress=update)  # type: ignore[arg-type]
    show("export-stages", made, of=(loaded.sha256, str(options.target)))
