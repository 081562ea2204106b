"""Finished parts of a reproduction in a file of JSON lines: one that was cut short goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from tilewright.errors import UsageError
from tilewright.files import append_line, appended_lines, read_at_most
from tilewright.version import __version__

T = TypeVar("T")

_MAX_BYTES = 1 << 28


@dataclass(slots=True)
class Kept:
    """Parts by their keys; without a path nothing is kept."""

    path: Path | None = None
    _values: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None:
            return
        try:
            data = read_at_most(self.path, _MAX_BYTES) if self.path.exists() else b""
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read: {error.strerror}.") from error
        for number, line in enumerate(appended_lines(data, b'{"version"'), start=1):
            self._read(number, line)

    def value(self, key: str, kind: type[T]) -> T | None:
        """A part that was finished; None: it was not.

        Raises:
            UsageError: what is kept of it is something else.
        """
        if key not in self._values:
            return None
        try:
            return TypeAdapter(kind).validate_python(self._values[key])
        except ValidationError as error:
            raise UsageError(
                f"{self.path}: {key!r} is not what this program keeps of it; remove the file."
            ) from error

    def keep(self, key: str, value: object) -> None:
        """Add a finished part, at once on the disk.

        Raises:
            UsageError: the file cannot be written.
        """
        if self.path is None:
            return
        document = TypeAdapter(type(value)).dump_python(value, mode="json")
        line = json.dumps({"version": __version__, "key": key, "value": document})
        try:
            append_line(self.path, line.encode())
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written: {error.strerror}.") from error

    def made(self, key: str, kind: type[T], make: Callable[[], T]) -> T:
        """A part that was finished, or is made now and kept."""
        known = self.value(key, kind)
        if known is None:
            known = make()
            self.keep(key, known)
        return known

    def _read(self, number: int, line: bytes) -> None:
        where = f"{self.path}: line {number}"
        try:
            document = json.loads(line)
            version, key = document["version"], str(document["key"])
            self._values[key] = document["value"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(f"{where}: no finished part of a reproduction; name another file.") from error
        if version != __version__:
            shown = str(version)[:20]
            raise UsageError(f"{where}: made by version {shown}, this is {__version__}; remove the file.")
