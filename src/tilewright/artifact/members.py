"""What the members of an artifact are called, and the version of what they mean."""

from __future__ import annotations

FORMAT_VERSION = 4
"""Raise it when an older release could no longer read what this one writes; older ones stay readable."""

GRAPH = "graph.txt"
PLAN = "plan.json"
WEIGHTS = "weights.safetensors"
MACHINE = "machine.json"
FACTS = "facts.json"
"""In the folder of code of one kind."""
SHAPES = "shapes"
"""In the manifest of an artifact for several sets of shapes: shapes of the inputs, set by set."""


def code_folder(number: int) -> str:
    """Where code of one kind of machines lies, by its position in the manifest.

    >>> code_folder(0)
    'code/0/'
    """
    return f"code/{number}/"


def shapes_folder(number: int) -> str:
    """Where what is for one set of shapes lies.

    >>> shapes_folder(0)
    'shapes/0/'
    """
    return f"shapes/{number}/"
