"""Machine descriptions as YAML files: read safely, every mistake one line with file and key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import ValidationError

from tilewright.errors import MachineError
from tilewright.files import read_at_most
from tilewright.hardware.components import with_library
from tilewright.hardware.diagnostic import diagnostic
from tilewright.hardware.machine import Machine

MAX_FILE_BYTES = 1 << 20
MAX_VALUES = 30_000
"""Values of a file, keys and lists included: what takes less than a second to read."""
MAX_DEPTH = 60
MAX_DIGITS = 400
"""Of a number: the largest of them has 309."""
MAX_TEXT = 100_000
"""Characters of one value."""
_MAX_DEPTH = 20
_MAX_SHOWN_KEY = 60
_YAML_TAG = "tag:yaml.org,2002:"
_NUMBERS = (f"{_YAML_TAG}int", f"{_YAML_TAG}float")
_CONSTRUCTED = (*_NUMBERS, f"{_YAML_TAG}timestamp", f"{_YAML_TAG}bool")
_ODD_TAGS = frozenset(f"{_YAML_TAG}{kind}" for kind in ("set", "omap", "pairs", "binary"))
_NOT_DECIMAL = re.compile(r"[-+]?0\d+|.*:.*")
_HINTS = (
    ("found character '\\t'", "indent with spaces, not with tabs"),
    ("but found another document", "write one machine for each file"),
    ("mapping values are not allowed", "put text with a colon in quotes, or start a new line"),
)
"""What helps against some of the YAML reader's diagnostics; against the others, a look at the line."""


def load_machine(path: Path | str) -> Machine:
    """The machine that a YAML file describes.

    Raises:
        MachineError: the file cannot be read, is no plain YAML, or describes no machine.
    """
    return parse_machine(read_text(Path(path)), str(path))


def read_text(path: Path) -> str:
    """The text of a description's file.

    Raises:
        MachineError: the file cannot be read, is too large, or is no UTF-8 text.
    """
    try:
        data = read_at_most(path, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if isinstance(error, ValueError):
            raise MachineError(f"{str(path)!r}: cannot be read: {error}.") from error
        raise MachineError(f"{path}: cannot be read: {error.strerror or error}.") from error
    if len(data) > MAX_FILE_BYTES:
        raise MachineError(f"{path}: larger than MAX_FILE_BYTES = {MAX_FILE_BYTES}; no description is.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MachineError(f"{path}: not UTF-8 text (byte {error.start}).") from error


def parse_machine(text: str, where: str = "machine description") -> Machine:
    """The machine that YAML text describes; `where` names it in errors.

    Any number may be written as `{value: 27e9, source: "data sheet, page 3"}`.

    Raises:
        MachineError: the text is no plain YAML, or describes no machine.
    """
    document = parse_yaml(text, where)
    if not isinstance(document, dict):
        raise MachineError(f"{where}: found {_kind_of(document)}; write keys such as name, levels and units.")
    sources: dict[str, str] = {}
    plain = _without_sources(document, "", sources, where)
    assert isinstance(plain, dict)
    given = plain.get("sources", {})
    if isinstance(given, dict):
        plain["sources"] = {**given, **sources}
    return machine_from(plain, where)


def machine_from(document: dict[str, Any], where: str) -> Machine:
    """The machine that plain data describes, numbers without their sources; `where` names it in errors.

    Raises:
        MachineError: the data describes no machine.
    """
    try:
        return with_library(Machine.model_validate(document))
    except ValidationError as error:
        raise MachineError(f"{where}: {diagnostic(error)}") from error


def machine_document(machine: Machine) -> dict[str, Any]:
    """A machine as plain data that `machine_from` reads back as the same machine."""
    document = machine.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    document.setdefault("units", [])
    return document


def machine_text(machine: Machine) -> str:
    """A machine as YAML text that `parse_machine` reads back as the same machine."""
    document = machine_document(machine)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)


class PlainLoader(yaml.SafeLoader):
    """Safe YAML without what surprises: aliases (which can grow without bound), repeated keys, numbers to
    base 8 or 60, and more of anything than a description has."""

    _num_values = 0
    _path: tuple[str, ...] = ()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A node, unless it stands for another one or is more than is taken."""
        event = self.peek_event()  # type: ignore[no-untyped-call] # the stubs leave it out
        outer, self._path = self._path, (*self._path, *_part_of_path(index))
        self._num_values += 1
        if isinstance(event, yaml.AliasEvent):
            raise self._refused(event, f"aliases are not allowed (*{event.anchor}); write the value out")
        if self._num_values > MAX_VALUES:
            raise self._refused(event, f"more than MAX_VALUES = {MAX_VALUES} values; keep fewer")
        if len(self._path) > MAX_DEPTH:
            raise self._refused(
                event, f"nested too deeply, more than MAX_DEPTH = {MAX_DEPTH}; close brackets"
            )
        tag = getattr(event, "tag", None)
        if tag is not None and not self._takes(tag):
            shown = _shown(tag.replace(_YAML_TAG, "!!"))
            raise self._refused(event, f"tag {shown}; write plain values without tags (!...)")
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode):
            self._check_scalar(node)
        self._path = outer
        return node

    def scan_tag_directive_value(self, start_mark: yaml.Mark) -> NoReturn:
        """Short for tags that may be long, each time that it is used: nothing that a description needs."""
        problem = "a %TAG directive; write plain values without tags (!...)"
        raise yaml.scanner.ScannerError(None, None, problem, start_mark)

    def _takes(self, tag: str) -> bool:
        """Whether a node may have this tag. One that none may have is refused before the rest is read."""
        prefixes = filter(None, self.yaml_multi_constructors)
        return tag not in _ODD_TAGS and (tag in self.yaml_constructors or tag.startswith(tuple(prefixes)))

    def _check_scalar(self, node: yaml.ScalarNode) -> None:
        value = str(node.value)
        if node.tag in _NUMBERS and len(value) > MAX_DIGITS:
            problem = f"a number of {len(value)} digits; at most MAX_DIGITS = {MAX_DIGITS} are taken"
        elif node.tag in _NUMBERS and _NOT_DECIMAL.fullmatch(value):
            problem = f"{value} is a number to base 8 or 60 in YAML; write it plainly, or as text in quotes"
        elif len(value) > MAX_TEXT:
            problem = f"text of {len(value)} characters; at most MAX_TEXT = {MAX_TEXT} are taken"
        elif node.tag in _CONSTRUCTED:
            try:  # YAML knows dates without a day of the calendar, and tags may lie
                self.yaml_constructors[node.tag](self, node)
                return
            except (ValueError, KeyError, AttributeError, OverflowError) as error:
                said = f"{_shown(value)} is not what YAML takes it for ({node.tag.rpartition(':')[2]}"
                problem = f"{said}: {' '.join(str(error).split())}); put text in quotes"
        else:
            return
        raise self._refused(node, problem)

    def _refused(self, place: yaml.Node | yaml.Event, problem: str) -> yaml.MarkedYAMLError:
        at = ".".join(self._path[:_MAX_DEPTH]).replace(".[", "[") + "..." * (len(self._path) > _MAX_DEPTH)
        text = f"{at}: {problem}" if at else problem
        return yaml.composer.ComposerError(None, None, text, place.start_mark)  # type: ignore[arg-type]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A dict, unless a key is given twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                problem = "a key is a list or a map; write a word"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice; keep one of them", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _shown(value: str) -> str:
    return value if len(value) <= _MAX_SHOWN_KEY else f"{value[:_MAX_SHOWN_KEY]}..."


def _part_of_path(index: object) -> tuple[str, ...]:
    """What the place of a node in its parent adds to its path: an index, or a key that was read."""
    if isinstance(index, int):
        return (f"[{index}]",)
    return (str(index.value)[:_MAX_SHOWN_KEY],) if isinstance(index, yaml.ScalarNode) else ()


def parse_yaml(text: str, where: str, loader: type[PlainLoader] = PlainLoader) -> object:
    """The plain data that YAML text holds; `where` names it in errors.

    Raises:
        MachineError: the text is no plain YAML.
    """
    try:
        # SafeLoader underneath: no tag can make an object.
        return yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise MachineError(f"{where}{line}: {_helpful(error.problem or error.context or '')}.") from error
    except (yaml.YAMLError, ValueError, TypeError) as error:
        # ValueError and TypeError: dates and keys that YAML knows but that make no Python value.
        said = " ".join(str(error).split())
        raise MachineError(f"{where}: not readable as YAML: {said}; write plain text and numbers.") from error
    except RecursionError as error:  # called from deep inside something else
        raise MachineError(f"{where}: nested too deeply; close brackets, and write plain lists.") from error


def _helpful(problem: str) -> str:
    """What YAML says is wrong, and what to do."""
    if ";" in problem:
        return problem
    hint = next((hint for said, hint in _HINTS if said in problem), "check indentation, brackets and quotes")
    return f"{problem}; {hint}"


def _without_sources(tree: object, path: str, sources: dict[str, str], where: str, depth: int = 0) -> object:
    """The tree with each `{value, source}` replaced by its value, and its source noted under its path."""
    if depth > _MAX_DEPTH:
        raise MachineError(f"{where}: {path}: nested too deeply; no part of a machine is.")
    match tree:
        case {"value": value, "source": str(source), **rest} if not rest:
            sources[path] = source
            return value
        case {"source": source} if not isinstance(source, str):
            raise MachineError(f"{where}: {_join(path, 'source')}: is no text; say where the number is from.")
        case None if path:
            raise MachineError(f"{where}: {path}: is empty; give it a value, or leave the key out.")
        case dict():
            if path and isinstance(tree.get("source"), str):
                sources[path] = tree["source"]
                tree = {key: value for key, value in tree.items() if key != "source"}
            for key in tree:
                if not isinstance(key, str):
                    at = path or "the top"
                    raise MachineError(f"{where}: {at}: the key {key!r} is not text; put it in quotes.")
            return {
                k: _without_sources(v, _join(path, k), sources, where, depth + 1) for k, v in tree.items()
            }
        case list():
            return [
                _without_sources(v, f"{path}[{i}]", sources, where, depth + 1) for i, v in enumerate(tree)
            ]
    return tree


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _kind_of(document: object) -> str:
    match document:
        case None:
            return "nothing"
        case list():
            return "a list"
    return "a single value"
