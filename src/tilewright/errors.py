"""The exception tree: one root, one class for each kind of answer the command line gives.

Every message is one line that says what is wrong, where, what was expected and what to try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from tilewright.text.printable import bounded


class TilewrightError(Exception):
    """Root of every error a user can meet. `exit_code` is what the command line returns for it."""

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        """The message, as long as one can be read; what a name could do to a terminal is shown instead."""
        return bounded(super().__str__())

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """What pickle needs: worker processes raise errors whose `__init__` takes more than a text."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[TilewrightError], args: tuple[object, ...], facts: dict[str, object]) -> object:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class UsageError(TilewrightError):
    """The request itself is wrong: an unknown name, a bad flag value, inputs that do not fit the model."""

    exit_code = 2


class InputError(UsageError):
    """Fed values that the model cannot use: an index outside its axis, a shape it was not compiled for."""


class ModelClosed(UsageError):
    """A run of a model that was closed."""

    def __init__(self, message: str = "this model is closed; compile or open it again.") -> None:
        super().__init__(message)


class NoGeneratedCode(UsageError):
    """This process may not execute memory that it has written."""

    def __init__(self) -> None:
        super().__init__(
            "this process may not run code that it generates: it was started with PR_SET_MDWE, systemd's "
            "MemoryDenyWriteExecute= or a like policy. Allow it (MemoryDenyWriteExecute=no), use --target "
            "interpreter, or link the code ahead of time with 'tilewright export'."
        )


class MachineError(UsageError):
    r"""A machine description that cannot be read or makes no sense; names file and key.

    >>> print(MachineError("chip.yaml: \x1b[31m: unknown key."))
    chip.yaml: \x1b[31m: unknown key.
    """


class ModelRejected(TilewrightError):
    """The model file is malformed, unsafe or inconsistent; nothing of it was used."""

    exit_code = 3


class UnsupportedOp(TilewrightError):
    """The model is valid but uses something this version or this target does not run."""

    exit_code = 3


class InfeasibleMapping(TilewrightError):
    """No mapping exists; names the violated capacity or fan-out and the smallest relaxation."""

    exit_code = 3


class Outclassed(TilewrightError):
    """A plan that provably costs more than one that there is, so that it is not worked out to the end."""

    exit_code = 3


class ArtifactCorrupt(TilewrightError):
    """An artifact whose bytes do not match its manifest, or whose version this release cannot read."""

    exit_code = 3


class NumericMismatch(TilewrightError):
    """Two results that should agree do not."""

    exit_code = 4


class BudgetExceeded(TilewrightError):
    """A limit on time or memory, the user's or the machine's, would be passed: there is no result."""

    exit_code = 5


class OutOfMemory(BudgetExceeded):
    """The system gives this process no more memory, for data or for a library."""

    def __init__(self) -> None:
        super().__init__(
            "not enough memory: raise the limit of this process (ulimit -v, a container's), give smaller "
            "shapes, or use a machine with more."
        )


class PluginFailed(TilewrightError):
    """A package of someone else's gave what it should not; the message names it."""


class InternalError(TilewrightError):
    """A broken invariant of ours; the message says which, so that it can be reported."""


@contextmanager
def error_context(where: str) -> Iterator[None]:
    """Append `(where)` to any TilewrightError that passes: the one place that adds context.

    >>> try:
    ...     with error_context("while importing node 'conv1' of model.onnx"):
    ...         raise ModelRejected("Conv: no weight.")
    ... except ModelRejected as error:
    ...     print(error)
    Conv: no weight. (while importing node 'conv1' of model.onnx)
    """
    try:
        yield
    except TilewrightError as error:
        message = str(error)
        if where not in message:
            error.args = (f"{message} ({where})", *error.args[1:])
        raise
