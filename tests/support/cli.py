"""Runs the command line in this process and keeps what it says."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.cli.main import main
from tilewright.cli.output import MANNER
from tilewright.cli.schemas import parse_report


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended and what it wrote to standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Standard output as the one JSON document that it must be, in its published shape."""
        found = json.loads(self.out)
        parse_report(found)
        return found

    @property
    def complaint(self) -> str:
        """The one line of an error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("tilewright: ")
        assert lines[0] == lines[0].rstrip()
        assert self.out == ""
        return lines[0].removeprefix("tilewright: ")


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """The command line sets signals, logging and its manner, which other tests need as they were."""
    logger = logging.getLogger("tilewright")
    handlers, propagate, level = list(logger.handlers), logger.propagate, logger.level
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    actions = [signal.getsignal(number) for number in numbers]
    manner = MANNER.get()
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)
        MANNER.set(manner)
        for number, action in zip(numbers, actions, strict=True):
            signal.signal(number, action)


def tilewright(*arguments: object) -> Result:
    """Run `tilewright ARGUMENTS...`."""
    out, err = io.StringIO(), io.StringIO()
    with _as_it_was(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(a) for a in arguments])
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    return Result(code, out.getvalue(), err.getvalue())
