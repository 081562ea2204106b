"""What the members of an artifact are called, and the version of what they mean."""

from __future__ import annotations

import re

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


def code_of_member(name: str) -> int | None:
    """Which kind of code a member is of; None if of none.

    >>> code_of_member("code/1/objects/main.o")
    1
    """
    found = re.match(r"code/(\d{1,9})/", name)
    return None if found is None else int(found[1])


def set_of_member(name: str) -> tuple[int, str] | None:
    """Which set of shapes a member is for, and its name there; None if for none.

    >>> set_of_member("shapes/0/graph.txt")
    (0, 'graph.txt')
    """
    found = re.match(r"shapes/(\d{1,9})/", name)
    return None if found is None else (int(found[1]), name[found.end() :])
