"""The process that maps layers for a sweep: `python -m tilewright.mapping.sweep.worker`, by `workers.py`."""

from __future__ import annotations

from tilewright.mapping.sweep.answered import answer_with
from tilewright.mapping.sweep.tasks import solve_text
from tilewright.system.worker_process import serve_texts


def answer(task: str) -> str:
    """A task answered; an error as the line it is."""
    return answer_with(solve_text, task)


if __name__ == "__main__":
    serve_texts(lambda: lambda texts: [answer(texts[0].decode()).encode()])
