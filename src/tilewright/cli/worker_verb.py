"""`tilewright worker`: measure what another machine sends."""

from __future__ import annotations

import sys

from tilewright.errors import UsageError


def worker() -> None:
    """Measure code that `tilewright tune --runner` sends from another machine; ends with the connection.

    Requests come on standard input, answers go to standard output. Run it for machines that you trust: it
    runs the machine code that it is sent.

    Example: `tilewright worker` on a board, which is asked by `tilewright tune model.onnx --isa aarch64
    --runner 'ssh board tilewright worker'`.
    """
    if sys.stdin.isatty():
        raise UsageError(
            "requests come from another machine, not from a terminal: run tilewright tune there with "
            "--runner 'ssh HOST tilewright worker'."
        )
    from tilewright.targets.cpu.tune.measuring import serve_runner

    serve_runner()
