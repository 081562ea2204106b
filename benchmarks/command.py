"""What command lines of benchmarks share: options that mean the same everywhere, runs in other processes.

Nothing of tilewright is imported here: some benchmarks measure that.
"""

from __future__ import annotations

import argparse
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["SHARED", "SUPPRESS", "Namespace", "Parser", "again"]

SHARED: Mapping[str, Mapping[str, Any]] = {
    "--networks": {"help": "names, by commas, as in resnet18@112"},
    "--output": {"type": Path, "help": "where rows are kept; what is there is not measured again"},
    "--page": {"type": Path, "help": "a page to put the table in, between its markers"},
    "--limit": {"help": "begin nothing more after so many seconds"},
    "--minutes": {"type": float, "help": "begin nothing more after so long"},
}
"""Options that several benchmarks have, and how they are read unless one says otherwise."""


class Parser(argparse.ArgumentParser):
    """The parser of `python -m benchmarks NAME`, which a benchmark's `options` fill."""

    def add_argument(self, *names: str, **said: Any) -> argparse.Action:
        """As argparse's; of a shared option only what differs is said."""
        return super().add_argument(*names, **{**SHARED.get(names[0], {}), **said})


def again(name: str, *arguments: str) -> list[str]:
    """The command that runs a benchmark in a process of its own."""
    return [sys.executable, "-m", "benchmarks", name, *arguments]
