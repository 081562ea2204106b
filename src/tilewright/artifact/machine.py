"""The machine that a model was compiled for, as plain values beside its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.errors import MachineError
from tilewright.fields import FieldError

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine


def encode_machine(machine: Machine) -> dict[str, Any]:
    """Every number that is not the default, with its source."""
    from tilewright.hardware.machine_file import machine_document

    return machine_document(machine)


def decode_machine(document: Any) -> Machine:
    """The machine that `encode_machine` described.

    Raises:
        FieldError: it is no description of a machine.
    """
    from tilewright.hardware.machine_file import machine_from

    if not isinstance(document, dict):
        raise FieldError("expected the description of a machine")
    try:
        return machine_from(document, "machine")
    except MachineError as error:
        raise FieldError(str(error)) from error
