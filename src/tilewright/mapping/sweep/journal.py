"""A file to which every answer of a sweep is appended, as a JSON line: what it has is not searched again."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType

from tilewright.errors import UsageError
from tilewright.fields import FieldError, parsed_json
from tilewright.files import not_writable, regular_file
from tilewright.mapping.sweep.tasks import LayerAnswer, Refusal, answer_of


class Journal:
    """See above. A line that a kill cut short is passed over, and ended before the next one."""

    def __init__(self, path: Path) -> None:
        """Read it, if it is there.

        Raises:
            UsageError: the file is something else, or cannot be written.
        """
        self.path = path
        self.answers: dict[str, LayerAnswer | Refusal] = {}
        try:
            data = _content(path) if path.exists() else b""
            self._read(path, data)
            # Without a buffer: what could not be written must not be tried again where the file is closed.
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"journal {path}: {error.strerror or error}.") from None
        if data and not data.endswith(b"\n"):
            self._write(b"\n")

    def add(self, key: str, layer: str, machine: str, text: str) -> None:
        """Append what a worker said of a task; the names are for people.

        Raises:
            UsageError: the file cannot be written any more, as where the disk is full.
        """
        line = json.dumps({"task": key, "layer": layer, "machine": machine, "answer": json.loads(text)})
        self._write(line.encode() + b"\n")

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise not_writable(f"journal {self.path}", error) from None

    def __enter__(self) -> Journal:
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
                self.answers[str(document["task"])] = answer_of(json.dumps(document["answer"]))
            except (KeyError, TypeError, FieldError, RecursionError):
                raise _not_a_journal(path, number) from None


def _content(path: Path) -> bytes:
    with regular_file(path) as file:
        return file.read()


def _not_a_journal(path: Path, number: int) -> UsageError:
    return UsageError(f"journal {path}: line {number} is no answer of a sweep; name another file.")
