"""`tilewright quantize`: a float model in quantised form, and what it then errs and takes."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import CompileFlags
from tilewright.cli.output import as_argument, hint, progress, show


def quantize(
    flags: CompileFlags,
    model: Path = typer.Argument(metavar="MODEL", help="An ONNX file in float32."),
    output: Path = typer.Option(
        Path("quantized.onnx"), "--output", "-o", help="The quantised model to write."
    ),
    inputs: Path | None = typer.Option(
        None, "--input", "-i", help="Samples: an .npz file, or a folder of them."
    ),
    method: str = typer.Option(
        "static",
        "--method",
        help="static (bytes between layers), dynamic, or weights (in blocks of few bits).",
    ),
    max_error: float | None = typer.Option(
        None,
        "--max-error",
        help="Keep the most sensitive layers in float until outputs err no more than this: 0.02.",
    ),
    bits: int = typer.Option(8, "--bits", help="Of the weights of --method weights: 4 or 8."),
    block: int = typer.Option(32, "--block", help="Weights of --method weights that share a scale."),
    per_channel: bool = typer.Option(
        True, "--per-channel/--per-tensor", help="A scale for each output channel of weights, or one for all."
    ),
    ranges: str = typer.Option(
        "minmax", "--ranges", help="Ranges of values: minmax, or percentile, which cuts off outliers."
    ),
    keep: list[str] | None = typer.Option(
        None, "--keep", help="A layer that stays float; several --keep add up."
    ),
) -> None:
    """Quantise a model to whole numbers of 8 or 4 bits, and say what it then errs and takes.

    Writes ONNX that other engines run too. Example: `tilewright quantize model.onnx -i samples/ --max-error
    0.02`, `tilewright quantize model.onnx --method weights --bits 4`.
    """
    from tilewright.api.quantization import quantize_model

    with progress(f"quantising {model.name}") as update:
        made = quantize_model(
            model,
            output,
            samples=inputs,
            method=method,
            max_error=max_error,
            bits=bits,
            block=block,
            per_channel=per_channel,
            ranges=ranges,
            keep=keep or (),
            options=flags.options(),
            progress=update,
        )
    if show("quantize", made):
        hint(f"written to {made.output}")
        hint(f"next: tilewright bench {as_argument(model)} {as_argument(output)}")
