"""Shares of nonzeros of a request, put into a machine: whatever counts there takes them from it."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.errors import UsageError
from tilewright.hardware.machine import Machine, TensorKind

_EXPECTED = "expected shares above 0 and up to 1, such as weight=0.5,input=0.6"


def with_densities(machine: Machine, given: Mapping[str, float] | str) -> Machine:
    """A machine with other densities, of which those that are not given stay.

    Raises:
        UsageError: a share is none, or of another operand.
    """
    shares = _parsed(given) if isinstance(given, str) else given
    if shares and machine.threads is not None:
        raise UsageError(
            f"density: blocks of threads on {machine.name} are counted with all words; give a machine "
            "without threads."
        )
    for kind, share in shares.items():
        if kind not in ("weight", "input") or not 0 < share <= 1:
            raise UsageError(f"density {kind}={share:g}: {_EXPECTED}.")
    known = {TensorKind(kind): share for kind, share in shares.items()}
    return machine.model_copy(update={"densities": {**machine.densities, **known}})


def _parsed(text: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for part in text.split(","):
        kind, _, value = (piece.strip() for piece in part.partition("="))
        try:
            shares[kind] = float(value)
        except ValueError:
            raise UsageError(f"density {text!r}: {_EXPECTED}.") from None
    return shares
