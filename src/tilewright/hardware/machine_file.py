"""Machine descriptions as YAML files: read safely, every mistake one line with file and key."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from tilewright.errors import MachineError
from tilewright.hardware.machine import Level, Machine, Network, Overheads, Share, Threads, Unit

MAX_FILE_BYTES = 1 << 20
_MAX_DEPTH = 20
_PARTS: tuple[type[BaseModel], ...] = (Machine, Level, Share, Unit, Network, Overheads, Threads)


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
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise MachineError(f"{path}: cannot be read: {error.strerror or error}.") from error
    if len(data) > MAX_FILE_BYTES:
        raise MachineError(f"{path}: larger than {MAX_FILE_BYTES} bytes; a machine description is not.")
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
        raise MachineError(
            f"{where}: expected keys such as name, levels and units, found {_kind_of(document)}."
        )
    sources: dict[str, str] = {}
    plain = _without_sources(document, "", sources, where)
    assert isinstance(plain, dict)
    given = plain.get("sources", {})
    if isinstance(given, dict):
        plain["sources"] = {**given, **sources}
    try:
        return Machine.model_validate(plain)
    except ValidationError as error:
        raise MachineError(_one_line(error, where)) from error


def machine_text(machine: Machine) -> str:
    """A machine as YAML text that `parse_machine` reads back as the same machine."""
    document = machine.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    document.setdefault("units", [])
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)


class PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases (which can grow without bound) and without repeated keys."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A node, unless it stands for another one."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call] # the stubs leave it out
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A dict, unless a key is given twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


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
        raise MachineError(f"{where}{line}: {error.problem or error.context}.") from error
    except (yaml.YAMLError, ValueError, TypeError) as error:
        # ValueError and TypeError: dates and keys that YAML knows but that make no Python value.
        raise MachineError(f"{where}: not readable as YAML: {' '.join(str(error).split())}.") from error
    except RecursionError as error:
        raise MachineError(f"{where}: nested too deeply.") from error


def _without_sources(tree: object, path: str, sources: dict[str, str], where: str, depth: int = 0) -> object:
    """The tree with each `{value, source}` replaced by its value, and its source noted under its path."""
    if depth > _MAX_DEPTH:
        raise MachineError(f"{where}: nested too deeply at {path}.")
    match tree:
        case {"value": value, "source": str(source), **rest} if not rest:
            sources[path] = source
            return value
        case dict():
            if path and isinstance(tree.get("source"), str):
                sources[path] = tree["source"]
                tree = {key: value for key, value in tree.items() if key != "source"}
            for key in tree:
                if not isinstance(key, str):
                    raise MachineError(f"{where}: {path or 'the top'}: the key {key!r} is not text.")
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


def _one_line(error: ValidationError, where: str) -> str:
    problems = error.errors(include_url=False)
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    location = first["loc"]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    return f"{where}: {f'{path}: ' if path else ''}{_explain(first['type'], first, location)}.{more}"


def _explain(kind: str, problem: Mapping[str, Any], location: Sequence[int | str]) -> str:
    match kind:
        case "extra_forbidden":
            return f"unknown key{_suggestion(str(location[-1]))}"
        case "missing":
            return "this key is required"
        case "value_error":
            return str(problem["ctx"]["error"]).rstrip(".")
        case "less_than_equal":
            return f"is too large: {problem['input']!r}; at most {problem['ctx']['le']:.4g} is taken"
    shown = repr(problem["input"])
    text = str(problem["msg"])
    got = f", not {shown}" if len(shown) <= 40 else ""
    return f"{text[0].lower()}{text[1:]}{got}"


def _suggestion(key: str) -> str:
    """What an unknown key may have meant: often the same without its unit."""
    known = list(dict.fromkeys(_known_keys()))
    if key in known:
        owners = " or ".join(part.__name__.lower() for part in _PARTS if key in part.model_fields)
        return f" here; it belongs to a {owners}"
    with_unit = [k for k in known if k.startswith(f"{key}_")]
    if with_unit:
        return f"; its unit is missing, write {' or '.join(with_unit)}"
    close = difflib.get_close_matches(key, known, n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}" if close else ""


def _known_keys() -> Iterator[str]:
    for part in _PARTS:
        yield from part.model_fields


def _kind_of(document: object) -> str:
    match document:
        case None:
            return "nothing"
        case list():
            return "a list"
    return "a single value"
