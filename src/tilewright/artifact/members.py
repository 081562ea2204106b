"""What the members of an artifact are called."""

from __future__ import annotations

GRAPH = "graph.txt"
PLAN = "plan.json"
WEIGHTS = "weights.safetensors"
MACHINE = "machine.json"
FACTS = "facts.json"
"""In the folder of code of one kind."""


def code_folder(number: int) -> str:
    """Where code of one kind of machines lies, by its position in the manifest.

    >>> code_folder(0)
    'code/0/'
    """
    return f"code/{number}/"
