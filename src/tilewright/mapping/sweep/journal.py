"""A file to which every answer of a sweep is appended, as a JSON line: what it has is not searched again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from tilewright.errors import UsageError
from tilewright.fields import FieldError, parsed_json
from tilewright.files import not_writable, regular_file

T = TypeVar("T")


class Journal(Generic[T]):
    """See above. A line that a kill cut short is passed over, and ended before the next one.

    `read` makes of an answer's JSON what it says; of a text that is no answer it raises a `FieldError`.
    """

    def __init__(self, path: Path, read: Callable[[str], T]) -> None:
        """Read it, if it is there.

        Raises:
            UsageError: the file is something else, or cannot be written.
        """
        self.path, self._answer_of = path, read
        self.answers: dict[str, T] = {}
        try:
            data = _content(path) if path.exists() else b""
            self._read(path, data)
            # Without a buffer: what could not be written must not be tried again where the file is closed.
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"journal {path}: {error.strerror or error}.") from None
        if data and not data.endswith(b"\n"):
            self._write(b"\n")

    def add(self, key: str, text: str, **names: str) -> None:
        """Append what a worker said of a task; the names are for people.

        Raises:
            UsageError: the file cannot be written any more, as where the disk is full.
        """
        line = json.dumps({"task": key, **names, "answer": json.loads(text)})
        self._write(line.encode() + b"\n")

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise not_writable(f"journal {self.path}", error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _read(self, path: Path, data: bytes) -> None:
        for number, line in enumerate(data.splitlines(), 1):
            try:
                document = parsed_json(line)
            except (ValueError, RecursionError):
                if number > 1 or b'{"task": ' in line[:9] or b'{"task": '.startswith(line):
                    continue  # cut short
                raise _not_a_journal(path, number) from None
            try:
                self.answers[str(document["task"])] = self._answer_of(json.dumps(document["answer"]))
            except (KeyError, TypeError, FieldError, RecursionError):
                raise _not_a_journal(path, number) from None


def _content(path: Path) -> bytes:
    with regular_file(path) as file:
        return file.read()


def _not_a_journal(path: Path, number: int) -> UsageError:
    return UsageError(f"journal {path}: line {number} is no answer of a sweep; name another file.")
