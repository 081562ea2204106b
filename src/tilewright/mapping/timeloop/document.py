"""Timeloop's YAML as plain data, and checked access to it: every mistake is one line with file and path."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tilewright.errors import MachineError
from tilewright.hardware.machine_file import PlainLoader, parse_yaml, read_text
from tilewright.text.suggestions import likely

TAG = "!"
"""The key under which a tagged mapping of version 0.4 keeps its tag."""

BYPASS = ("bypass", "datatype", "dataspace")
"""Types of directives that say which tensors a level keeps."""
FAN_OUT = re.compile(r"inter_.+_spatial")
"""Names of levels that Timeloop makes of fan-outs; they keep nothing."""
LEFT_OUT = "Left out, as they keep nothing: "
"""How a machine's description names the memories that it has none of."""

_TEMPLATE = re.compile(r"^[^#\n]*\{\{", re.MULTILINE)
_TAGS = ("Component", "Container", "Hierarchical", "Nothing", "Parallel", "Pipelined")
_MAIN = re.compile(r"^(['\"]?)(architecture|arch|problem|mapping)\1[ \t]*:", re.MULTILINE)
_SECTIONS = frozenset(
    {"architecture", "arch", "problem", "mapping", "constraints", "architecture_constraints", "ERT", "ART"}
    | {"mapspace_constraints", "mapspace", "mapper", "components", "compound_components", "variables"}
    | {"globals", "sparse_optimizations", "sparse-optimizations", "arch_constraints"}
    | {"dumped_by_timeloop_front_end"}
)
_MAX_NUMBER = 2**53
_MAX_SHOWN = 400


class _Loader(PlainLoader):
    """Plain YAML in which Timeloop's tags mark mappings; they make no objects."""


def _tagged(loader: PlainLoader, tag: str, node: yaml.Node) -> dict[Any, Any]:
    if tag not in _TAGS:
        known = ", ".join(f"!{t}" for t in _TAGS)
        raise yaml.constructor.ConstructorError(
            None, None, f"the tag !{tag} is unknown; expected one of {known}", node.start_mark
        )
    if not isinstance(node, yaml.MappingNode):
        raise yaml.constructor.ConstructorError(
            None, None, f"the tag !{tag} marks a mapping of keys to values", node.start_mark
        )
    return {TAG: tag, **loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _tagged)


def sections_of(text: str) -> frozenset[str]:
    """Which of Timeloop's main sections a file has, seen from its lines: it need not be right otherwise.

    >>> sorted(sections_of("problem: {C: 4}\\narch:\\n  storage: []\\n"))
    ['arch', 'problem']
    """
    return frozenset(match[2] for match in _MAIN.finditer(text))


def read_document(path: Path | str) -> dict[str, Any]:
    """The sections of one of Timeloop's YAML files.

    Raises:
        MachineError: the file cannot be read, is no plain YAML, or has none of Timeloop's sections.
    """
    return parse_document(read_text(Path(path)), str(path))


def parse_document(text: str, where: str) -> dict[str, Any]:
    """As `read_document`, of text; `where` names it in errors."""
    template = _TEMPLATE.search(text)
    if template is not None:
        line = text.count("\n", 0, template.end()) + 1
        raise MachineError(
            f"{where}, line {line}: a template, which only Timeloop's front end expands; "
            "take what it writes, parsed-processed-input.yaml."
        )
    document = parse_yaml(text, where, _Loader)
    if not isinstance(document, dict) or not document:
        raise MachineError(f"{where}: expected Timeloop's keys: architecture, problem or mapping.")
    unknown = next((key for key in document if key not in _SECTIONS), None)
    if unknown is not None:
        raise Entry(None, where, str(unknown)).error(f"unknown section{_suggestion(unknown, _SECTIONS)}")
    for key in ("sparse_optimizations", "sparse-optimizations"):
        if document.get(key):
            raise MachineError(f"{where}: {key}: sparse data is not modelled; leave it out for dense data.")
    return document


@dataclass(frozen=True, slots=True)
class Entry:
    """A place in a document: its value, the file and the path for errors."""

    value: object
    where: str
    path: str = ""

    def error(self, text: str) -> MachineError:
        """An error about this place, of a length that can be read whatever the file holds."""
        path = f"{_clipped(self.path)}: " if self.path else ""
        return MachineError(f"{self.where}: {path}{_clipped(text)}.")

    def _child(self, key: str | int, value: object) -> Entry:
        if isinstance(key, int):
            return Entry(value, self.where, f"{self.path}[{key}]")
        return Entry(value, self.where, f"{self.path}.{key}" if self.path else key)

    def entries(self) -> dict[str, Entry]:
        """The parts of a mapping by key; hyphens and underscores in keys are the same."""
        written = self.entries_as_written()
        found = {key.replace("-", "_"): part for key, part in written.items()}
        if len(found) != len(written):
            raise self.error("a key is given twice, with a hyphen and with an underscore")
        return found

    def entries_as_written(self) -> dict[str, Entry]:
        """The parts of a mapping whose keys are names."""
        if not isinstance(self.value, dict):
            raise self.error(f"expected keys and values, found {_kind_of(self.value)}")
        for key in self.value:
            if not isinstance(key, str):
                raise self.error(f"the key {key!r} is not text")
        return {key: self._child(key, value) for key, value in self.value.items()}

    def known_keys(self, known: Collection[str], what: str) -> dict[str, Entry]:
        """The parts of a mapping that may have no other keys than these."""
        found = self.entries()
        for key, part in found.items():
            if key not in known:
                raise part.error(f"unknown key of {what}{_suggestion(key, known)}")
        return found

    def items(self) -> Iterator[Entry]:
        """The parts of a list; nothing for an empty value."""
        if self.value is None:
            return
        if not isinstance(self.value, list):
            raise self.error(f"expected a list, found {_kind_of(self.value)}")
        for number, value in enumerate(self.value):
            yield self._child(number, value)

    def text(self) -> str:
        """Text; a number as it is written."""
        if isinstance(self.value, bool) or not isinstance(self.value, str | int):
            raise self.error(f"expected a name, found {_kind_of(self.value)}")
        return str(self.value)

    def names(self) -> tuple[str, ...]:
        """A list of names, or text that separates them by blanks or commas."""
        if isinstance(self.value, str):
            return tuple(self.value.replace(",", " ").split())
        return tuple(item.text() for item in self.items())

    def count(self, at_least: int = 1, at_most: int = _MAX_NUMBER) -> int:
        """A whole number."""
        value = self.value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"expected a whole number, found {value!r}")
        if not at_least <= value <= at_most:
            raise self.error(f"{value} is not between {at_least} and {at_most}")
        return value

    def number(self) -> float:
        """A finite number that is not negative."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.error(f"expected a number, found {self.value!r}")
        if not 0 <= self.value < float("inf"):
            raise self.error(f"expected a finite number of at least 0, found {self.value}")
        return float(self.value)

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self.error(f"expected true or false, found {self.value!r}")
        return self.value


def target_name(part: Entry, outermost_first: Sequence[str]) -> str:
    """The memory that a directive is for: its name, or its number from the innermost one."""
    if isinstance(part.value, int):
        number = part.count(0)
        if number >= len(outermost_first):
            raise part.error(f"there is no memory {number}; there are {len(outermost_first)}")
        return outermost_first[-1 - number]
    return part.text()


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _suggestion(key: object, known: Collection[str]) -> str:
    meant = likely(str(key), sorted(known))
    return f"; {meant}" if meant else ""


def _kind_of(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case list():
            return "a list"
        case dict():
            return "keys and values"
    return repr(value) if len(repr(value)) <= 40 else "a long value"
