"""The rule table: what to do with an edge, by the classes of its two ends; data that a user may override."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from tilewright.errors import MachineError, UsageError
from tilewright.hardware.machine_file import parse_yaml, read_text
from tilewright.ir.derive import OperatorClass
from tilewright.partition.fusion_records import Verdict
from tilewright.text.suggestions import closest

_DEFAULT = "rules.yaml"
_WEIGHTS = (
    OperatorClass.ALGEBRAIC,
    OperatorClass.BROADCAST,
    OperatorClass.REDUCTION,
    OperatorClass.TWO_PHASE,
    OperatorClass.COMPLEX,
    OperatorClass.INFUSIBLE,
)
"""From the lightest on: operators that are fused count as the heaviest of them."""


def heaviest(classes: Iterable[OperatorClass]) -> OperatorClass:
    """The class of operators that are fused.

    >>> heaviest([OperatorClass.ALGEBRAIC, OperatorClass.COMPLEX]).value
    'complex'
    """
    return max(classes, key=_WEIGHTS.index)


@dataclass(frozen=True, slots=True)
class RuleTable:
    """The verdict for each pair of classes, the producer's first."""

    verdicts: Mapping[tuple[OperatorClass, OperatorClass], Verdict]

    def of(self, producer: OperatorClass, consumer: OperatorClass) -> Verdict:
        """What to do with an edge between operators of these classes."""
        return self.verdicts[producer, consumer]

    @classmethod
    @functools.cache
    def default(cls) -> RuleTable:
        """The table that comes with the package."""
        text = (files(__package__) / _DEFAULT).read_text(encoding="utf-8")
        return cls(_parsed(text, _DEFAULT))

    @classmethod
    def read(cls, path: str | None) -> RuleTable:
        """The table of a user's file, which need say only what differs; None: the package's.

        Raises:
            UsageError: the file cannot be read, or has an unknown key, class or verdict; says where.
        """
        if path is None:
            return cls.default()
        try:
            verdicts = _parsed(read_text(Path(path)), path)
        except MachineError as error:
            raise UsageError(str(error)) from error
        return cls({**cls.default().verdicts, **verdicts})


def _parsed(text: str, where: str) -> dict[tuple[OperatorClass, OperatorClass], Verdict]:
    document = parse_yaml(text, where)
    if not isinstance(document, dict) or not isinstance(document.get("rules"), dict):
        raise UsageError(f"{where}: rules: is missing; write rules: {{complex: {{complex: prohibited}}}}.")
    for key in document:
        if key != "rules":
            raise UsageError(f"{where}: {key}: unknown key; the only one is rules.")
    verdicts: dict[tuple[OperatorClass, OperatorClass], Verdict] = {}
    for producer, row in document["rules"].items():
        row_class = _class_of(producer, f"{where}: rules")
        if not isinstance(row, dict):
            raise UsageError(f"{where}: rules.{producer}: expected verdicts by the class of the reader.")
        for consumer, verdict in row.items():
            key_class = _class_of(consumer, f"{where}: rules.{producer}")
            if str(verdict) not in tuple(Verdict):
                raise UsageError(
                    f"{where}: rules.{producer}.{consumer}: unknown verdict {str(verdict)[:40]!r}; "
                    f"{closest(str(verdict), map(str, Verdict))}."
                )
            verdicts[row_class, key_class] = Verdict(str(verdict))
    return verdicts


def _class_of(name: object, where: str) -> OperatorClass:
    classes = {c.value: c for c in OperatorClass}
    if str(name) not in classes:
        shown = str(name)[:40]
        raise UsageError(f"{where}.{shown}: unknown class {shown!r}; {closest(str(name), classes)}.")
    return classes[str(name)]
