"""Described machines that come with the package: one YAML file each, every number with its source."""

from __future__ import annotations

import functools
import os
from importlib import resources
from pathlib import Path

from tilewright.errors import MachineError
from tilewright.hardware.host import host_machine
from tilewright.hardware.machine import Machine
from tilewright.hardware.machine_file import load_machine, parse_machine
from tilewright.text.suggestions import closest, nearest

HOST = "host"
"""This machine, as far as it is known without measuring."""
_HOST_NAMES = (HOST, "cpu")  # the latter is its name as a target, which means the same machine


def preset_names() -> tuple[str, ...]:
    """Names of all presets, sorted."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml")))


def preset_text(name: str) -> str:
    """The YAML text of a preset: something to start from.

    Raises:
        MachineError: there is no preset of that name.
    """
    if name not in preset_names():
        hint = closest(name, preset_names())
        raise MachineError(f"machine {name!r}: no preset and no YAML file; {hint}.")
    return resources.files(__name__).joinpath(f"{name}.yaml").read_text("utf-8")


@functools.cache
def load_preset(name: str) -> Machine:
    """The machine of a preset."""
    return parse_machine(preset_text(name), f"preset {name}")


def find_machine(name: str) -> Machine:
    """A preset by its name, the machine of a YAML file by its path, or this machine, `host` or `cpu`.

    Raises:
        MachineError: neither; or a file that describes no machine.
    """
    if name in _HOST_NAMES:
        return host_machine()
    return load_machine(machine_path(name)) if is_file(name) else load_preset(name)


def machine_path(name: str) -> Path:
    """The path of a machine's file.

    Raises:
        MachineError: there is none; names the files beside it and the presets that may be meant.
    """
    path = Path(name)
    if os.path.lexists(path):
        return path
    beside = sorted(path.parent.glob("*.y*ml")) if path.parent.is_dir() else ()
    files = {other.stem: str(other) for other in beside}
    meant = [files.get(known, known) for known in nearest(path.stem, (*files, *preset_names()))]
    hint = f"did you mean {' or '.join(meant)}? " if meant else ""
    raise MachineError(
        f"{name}: cannot be read: No such file or directory; {hint}`tilewright targets` lists the "
        "machines of the package, and `tilewright targets NAME > mine.yaml` makes a file to start from."
    )


def is_file(name: str) -> bool:
    """Whether a name is the path of a file rather than that of a preset."""
    return name.endswith((".yaml", ".yml")) or "/" in name
