"""Tasks answered in this process, by workers or on Ray, as answers come: those that a journal has first."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from tilewright.errors import InternalError
from tilewright.fields import FieldError
from tilewright.mapping.sweep.crews import crew_of
from tilewright.mapping.sweep.journal import Journal
from tilewright.mapping.sweep.workers import answers, answers_here

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Who answers tasks; none of it changes the answers.

    `workers` is a number of processes, or the address of a Ray cluster; None works in this process. What
    `journal` has is not asked again, and what is found is appended.
    """

    workers: str | None = None
    journal: Path | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is sent, and what the journal calls it, for people."""

    text: str
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """Tasks of one kind: the `module` of processes that answer them within so long, and what `read` makes of
    an answer. `solve` answers one here; without it nothing is answered where there are no workers.

    `loses_failed`: a task of which a worker says that it failed, or nothing that can be read, is left out.
    """

    module: str
    limit_s: float
    read: Callable[[str], T]
    solve: Callable[[str], str] | None = None
    loses_failed: bool = False


def answered(tasks: Mapping[str, Task], kind: Kind[T], settings: TaskSettings) -> Generator[tuple[str, T]]:
    """Keys of tasks with what they come to. Closed, it ends the workers.

    Raises:
        NoWorker: none can be had.
        InternalError: a task failed, and its kind loses none.
        UsageError: the journal is none, or cannot be written any more.
    """
    with contextlib.ExitStack() as stack:
        journal = None
        if settings.journal is not None:
            journal = stack.enter_context(Journal(settings.journal, kind.read))
        known = {} if journal is None else {k: a for k, a in journal.answers.items() if k in tasks}
        yield from known.items()
        left = {key: task.text for key, task in tasks.items() if key not in known}
        if not left or (settings.workers is None and kind.solve is None):
            return
        if settings.workers is None:
            assert kind.solve is not None, "asked above"
            come = answers_here(left, kind.solve)
        else:
            crew = crew_of(settings.workers, kind.limit_s, kind.module)
            stack.callback(crew.close)
            come = stack.enter_context(contextlib.closing(answers(left, crew)))
        for key, text in come:
            failed = _failed(text)
            if failed is not None and not kind.loses_failed:
                what = ", ".join(f"{name} {text}" for name, text in tasks[key].names.items())
                raise InternalError(f"{what}: {failed}")
            try:
                answer = kind.read(text)
            except (FieldError, ValueError):
                if not kind.loses_failed:
                    raise
                continue
            if journal is not None:
                journal.add(key, text, **tasks[key].names)
            yield key, answer


def _failed(text: str) -> str | None:
    """Why a worker could not answer, if it says so."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        return None
    return document["failed"] if isinstance(document, dict) and "failed" in document else None


def answer_with(solve: Callable[[str], str], task: str) -> str:
    """A task answered by a process; an error as the line it is."""
    try:
        return solve(task)
    except Exception as error:
        return json.dumps({"failed": " ".join(f"{type(error).__name__}: {error}".split())})
