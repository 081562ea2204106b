"""`tilewright zoo`: networks to try things on, built here, no download.

Networks of the literature, built as ONNX with seeded weights. Example: `tilewright zoo build resnet50`.
"""

from __future__ import annotations

import re
from pathlib import Path

import typer

from tilewright.cli.output import (
    as_argument,
    format_bytes,
    hint,
    print_document,
    print_table,
    say,
    wants_json,
)
from tilewright.errors import UsageError
from tilewright.text.formatting import counted, format_shapes

_IMAGE_SIZE = re.compile(r"(\d{1,6})(?:x(\d{1,6}))?", re.ASCII)


def list_networks() -> None:
    """List the networks. Example: `tilewright zoo list`."""
    from tilewright import zoo

    entries = [zoo.entry(name) for name in zoo.names()]
    if wants_json():
        print_document("zoo", zoo.Networks(tuple(entries)))
        return
    print_table(
        ("name", "family", "inputs", "what it is"),
        [(e.name, e.family, format_shapes(e.input_shapes.values()), e.description) for e in entries],
    )


def build(
    name: str = typer.Argument(help="A name from `tilewright zoo list`."),
    output: Path | None = typer.Option(None, "--output", "-o", help="File to write; default NAME.onnx."),
    batch: int = typer.Option(1, help="Images or sequences per run."),
    image: str | None = typer.Option(
        None, help="Image size in pixels for networks that take images: 640, or width x height as 640x512."
    ),
    sequence: int | None = typer.Option(None, help="Sequence length, for networks that take text or sound."),
    seed: int = typer.Option(0, help="Seed of the weights."),
) -> None:
    """Write a network as an ONNX file. Example: `tilewright zoo build resnet50 -o resnet50.onnx`."""
    from tilewright import zoo
    from tilewright.files import write_atomically

    size = None if image is None else _image_size(image)
    model = zoo.build(name, batch=batch, image=size, sequence=sequence, seed=seed)
    path = output or Path(f"{name}.onnx")
    data = model.SerializeToString(deterministic=True)
    write_atomically(path, data)
    if wants_json():
        print_document("zoo-build", zoo.BuiltNetwork(name, path, len(data), len(model.graph.node)))
    else:
        say(f"{path}: {counted(len(model.graph.node), 'node')}, {format_bytes(len(data))}")
        typed = as_argument(path)
        hint(f"next: tilewright compile {typed}")


def _image_size(text: str) -> int | tuple[int, int]:
    """The side of a square image, or width and height."""
    match = _IMAGE_SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"--image {text[:40]!r}: expected pixels as 640, or width x height as 640x512.")
    return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))


COMMANDS = {"list": list_networks, "build": build}
