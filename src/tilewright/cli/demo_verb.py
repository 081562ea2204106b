"""`tilewright demo`: the whole way on one network, in a few seconds."""

from __future__ import annotations

import typer

from tilewright.cli.flags import SEED, THREADS, checked_threads
from tilewright.cli.output import progress, say, show
from tilewright.errors import NumericMismatch

DEMO_NETWORK = "mobilenet_v2"
ALLOWED_ERROR = 1e-4


def demo(
    network: str = typer.Argument(DEMO_NETWORK, help="A network of `tilewright zoo list`."),
    duration: float = typer.Option(4.0, "--duration", help="Seconds to measure."),
    image: int | None = typer.Option(None, help="Image size in pixels, for networks that take images."),
    threads: int | None = THREADS,
    seed: int = SEED,
) -> None:
    """Build a network, compile it for this processor, check it, time it. Needs no file and no download.

    Example: `tilewright demo`.
    """
    from tilewright.api.demo import demonstrate

    with progress("") as update:
        found = demonstrate(
            network,
            duration_s=duration,
            image=image,
            threads=checked_threads(threads),
            seed=seed,
            progress=update,
        )
    if show("demo", found, of=(found.model_sha256, "cpu")):
        say(_NEXT)
    if found.max_error > ALLOWED_ERROR:
        raise NumericMismatch(
            f"{network}: the result is off by {found.max_error:.1e} of its largest value (allowed "
            f"{ALLOWED_ERROR:.0e}). Report it with what `tilewright doctor --json` prints."
        )


_NEXT = """
Try next, with your own model or that of `tilewright zoo build resnet50`:
  tilewright compile resnet50.onnx                  write an artifact
  tilewright run resnet50.tw --random               run it once
  tilewright bench resnet50.onnx --vs onnxruntime   compare latencies
  tilewright explain resnet50.tw                    what each kernel computes
  tilewright doctor                                 this machine"""
