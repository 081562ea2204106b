"""`tilewright export`: a model for a C program, on this machine or another."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from tilewright.cli.flags import MODEL, SHAPES, add_verb, flag, parsed_shapes
from tilewright.cli.output import JSON_OPTION, format_bytes, hint, print_model_document, print_table, progress
from tilewright.errors import UsageError
from tilewright.files import is_artifact

FORMATS = ("object",)


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "export", export, panel)


def export(
    model: Path = MODEL,
    to: str = typer.Option("object", "--to", help="What to write: object (object file, C header, weights)."),
    isa: str = typer.Option(
        "host", "--isa", help="Instruction set: host, avx2, avx512, aarch64; none has to be this machine's."
    ),
    output: Path = typer.Option(Path(), "--output", "-o", help="Folder to write into; default: this one."),
    name: str | None = typer.Option(
        None, "--name", help="Of the files and the C function; default: MODEL's."
    ),
    force: bool = typer.Option(
        False, "--force", help="Replace files that export did not write, or that were edited since."
    ),
    shapes: str | None = SHAPES,
    accuracy: str = flag("accuracy"),
    as_json: bool = JSON_OPTION,
) -> None:
    """Write a model or an artifact as an object file that a C program links, with header and weights.

    The code uses one thread, allocates nothing, and needs neither Python nor this package.

    Example: `tilewright export model.onnx --isa aarch64 -o firmware`.
    """
    import tilewright as tw
    from tilewright.options import Options

    if to not in FORMATS:
        raise UsageError(f"--to {to}: unknown format; expected {', '.join(FORMATS)}.")
    fixed = parsed_shapes(shapes)
    options = Options(accuracy=accuracy, shapes=fixed)  # type: ignore[arg-type]  # it checks
    with progress(f"exporting {model.name}") as update:
        if not is_artifact(model):
            loaded = tw.load(model, shapes=fixed)
            digest = loaded.sha256
            made = tw.export(loaded, output, isa, name=name, force=force, options=options, progress=update)
        elif fixed or accuracy != "default":
            raise UsageError(
                f"{model}: an artifact's shapes and accuracy are fixed; export the model instead."
            )
        else:
            compiled = tw.open(model)
            digest = compiled.model_sha256
            made = tw.export(compiled, output, isa, name=name or model.stem, force=force, progress=update)
    if as_json:
        print_model_document("export", digest, "cpu", made)
        return
    rows = [
        ("code", f"{made.object_path}, {made.num_kernels} kernels for {made.isa}"),
        ("header", str(made.header_path)),
        ("weights", f"{made.weights_path}, {format_bytes(made.weights_bytes)}"),
        ("example", str(made.example_path)),
        ("memory at run time", f"{format_bytes(made.workspace_bytes)} that the caller gives"),
    ]
    print_table(("", ""), rows)
    sources = shlex.join((str(made.example_path), str(made.object_path)))
    hint(f"next: cc -O2 {sources} -o {made.name} -lm")
