"""The process that maps layers for a sweep: `python -m tilewright.mapping.sweep.worker`, by `workers.py`."""

from __future__ import annotations

import json

from tilewright.mapping.sweep.tasks import solve_text
from tilewright.system.worker_process import serve_texts


def answer(task: str) -> str:
    """A task answered; an error as the line it is."""
    try:
        return solve_text(task)
    except Exception as error:
        return json.dumps({"failed": " ".join(f"{type(error).__name__}: {error}".split())})


if __name__ == "__main__":
    serve_texts(lambda: lambda texts: [answer(texts[0].decode()).encode()])
