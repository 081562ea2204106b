"""What is asked about a described machine, by `tw.map` and by `tw.simulate`: what both requests share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from tilewright.arguments import argument
from tilewright.cost.base import Objective
from tilewright.errors import UsageError
from tilewright.options import Options, Shapes, parse_shapes
from tilewright.requests import PLANS, asked, flag_of, types_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRequest:
    """A request about a described machine; its flags come from its fields, those of this class last.

    Values are held against the fields' annotations. Of `WITHOUT_EFFECT`, fields do nothing beside another.
    """

    WITHOUT_EFFECT: ClassVar[Mapping[str, Sequence[str]]] = {}

    objective: Objective = asked("latency", "What to minimise.", "--objective", panel=PLANS)
    shapes: Mapping[str, Sequence[int]] | str | None = asked(None, Options.help("shapes"), "--shapes")

    def __post_init__(self) -> None:
        for name, kind in types_of(type(self)).items():
            object.__setattr__(self, name, argument(name.replace("_", "-"), getattr(self, name), kind))
        self.require_effect(f.name for f in fields(self) if getattr(self, f.name) != f.default)

    @classmethod
    def require_effect(cls, given: Iterable[str]) -> None:
        """Refuse fields, of those that are given, that would be passed over.

        Raises:
            UsageError: two that do not go together; names both.
        """
        names = frozenset(given)
        for main, others in cls.WITHOUT_EFFECT.items():
            for other in others:
                if main in names and other in names:
                    beside = f"{flag_of(cls, other)} has no effect beside {flag_of(cls, main)}"
                    raise UsageError(f"{beside}; leave one of them out.")

    def _check_workers(
        self, workers: str | None, journal: Path | None, place: str, *, is_there: bool
    ) -> None:
        """Refuse workers and their journal where there is nothing for them to do.

        Raises:
            UsageError: that, or workers that are neither processes nor a cluster.
        """
        for flag, value in (("--workers", workers), ("--journal", journal)):
            if value is not None and not is_there:
                raise UsageError(f"{flag} is for {place}; give that, or leave {flag} out.")
        if workers is not None:
            from tilewright.mapping.sweep.crews import check_workers

            check_workers(workers)

    @property
    def fixed_shapes(self) -> Shapes:
        """Shapes of inputs."""
        if isinstance(self.shapes, str):
            return parse_shapes(self.shapes)
        return {name: tuple(shape) for name, shape in (self.shapes or {}).items()}
