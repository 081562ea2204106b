"""`docs/cli.md` from the command line itself: `python -m tests.docs.write_cli > docs/cli.md`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from tilewright.cli.flags import COMPILE_FLAGS, MANNER_FLAGS
from tilewright.cli.main import PROGRAM, app

_HEAD = """# The command line

`tilewright VERB --help`, or `-h`, shows the same text; `--help-all` adds flags for experts. This page is
written by `python -m tests.docs.write_cli` and checked by `tests/docs`.

Results go to standard output; progress, notes and errors go to standard error. An error is one line. With
`--json`, standard output is exactly one JSON document; `tilewright schema VERB` prints its schema.
`NO_COLOR` is respected; there are neither colours nor progress bars where the output is not a terminal.

| exit code | meaning |
|---:|---|
| 0 | done |
| 1 | an internal error, or `doctor` or `cache verify` found something wrong |
| 2 | a wrong request: a flag, name, file or input that makes no sense |
| 3 | a model, artifact or target that is refused or not supported |
| 4 | numbers that should agree do not |
| 5 | a limit (`--max-memory`, `--timeout`, `--fail-if-slower`) was exceeded |
| 130 | interrupted (143: by SIGTERM, 129: by SIGHUP); no half-written file is left behind |
"""
_OF_ALL = "Flags of every verb"
_OF_COMPILING = "Flags of verbs that compile"


def document() -> str:
    """The whole page as Markdown."""
    root: Any = typer.main.get_command(app)
    shared = _Shared.of(root)
    return "\n".join([_HEAD, *shared.sections(), *_verbs(root, shared), ""])


@dataclass(frozen=True, slots=True)
class _Shared:
    """Flags that many verbs have, which the page describes once."""

    of_all: Sequence[Any]
    of_compiling: Sequence[Any]

    @classmethod
    def of(cls, root: Any) -> _Shared:
        """As the verb `run` has them, which compiles."""
        options = root.commands["run"].params
        manner = [option for option in options if option.name in (*MANNER_FLAGS, "help_all")]
        return cls(manner, [option for option in options if option.name in COMPILE_FLAGS])

    def sections(self) -> Iterator[str]:
        """A section for each of the two."""
        yield f"## {_OF_ALL}\n"
        yield from _table([(_flags(option), _about(option)) for option in self.of_all])
        yield f"## {_OF_COMPILING}\n"
        yield "An artifact is compiled already: a flag that it cannot honour is an error.\n"
        yield from _options(self.of_compiling, "--help-all")

    def split(self, options: Sequence[Any]) -> tuple[list[Any], bool]:
        """A verb's own flags, and whether it also has all those of compiling."""
        compiles = {option.name for option in self.of_compiling} <= {option.name for option in options}
        shared = (*self.of_all, *(self.of_compiling if compiles else ()))
        described = {option.name: _about(option) for option in shared}
        return [option for option in options if described.get(option.name) != _about(option)], compiles


def _verbs(root: Any, shared: _Shared) -> Iterator[str]:
    for name, command in root.commands.items():
        yield from _verb(f"{PROGRAM} {name}", command, "##", shared)
        for inner, action in getattr(command, "commands", {}).items():
            yield from _verb(f"{PROGRAM} {name} {inner}", action, "###", shared)


def _verb(path: str, command: Any, level: str, shared: _Shared) -> Iterator[str]:
    """One section: what it does, how it is written, its parameters."""
    params = [p for p in command.params if p.name != "help"]
    arguments = [p for p in params if p.param_type_name == "argument"]
    options = [p for p in params if p.param_type_name == "option"]
    yield f"{level} `{path}`\n"
    yield f"{' '.join((command.help or '').split())}\n"
    if not hasattr(command, "commands"):
        words = [path, *(_argument(a) for a in arguments), *(["[OPTIONS]"] if options else [])]
        yield f"```\n{' '.join(words)}\n```\n"
    if hasattr(command, "commands"):
        return
    own, compiles = shared.split(options)
    yield from _options(own, f"{path} --help-all", [(f"`{_argument(a)}`", _about(a)) for a in arguments])
    if compiles:
        yield f"Also the [{_OF_COMPILING[0].lower()}{_OF_COMPILING[1:]}](#{_anchor(_OF_COMPILING)}).\n"


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _options(options: Sequence[Any], more: str, arguments: Sequence[tuple[str, str]] = ()) -> Iterator[str]:
    """A table of arguments and flags, and one of the flags that only `more` shows."""
    everyday = [option for option in options if not option.hidden]
    yield from _table([*arguments, *((_flags(o), _about(o)) for o in everyday)])
    experts = [(_flags(option), _about(option)) for option in options if option.hidden]
    if experts:
        yield f"For experts (`{more}`):\n"
        yield from _table(experts)


def _table(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield "| | |\n|---|---|"
        yield "\n".join(f"| {flags} | {about} |" for flags, about in rows) + "\n"


def _argument(argument: Any) -> str:
    """As the usage line of `--help` has it."""
    name = argument.metavar or str(argument.name).upper()
    name = f"{name}..." if argument.nargs == -1 and "..." not in name else name
    return name if argument.required or "[" in name else f"[{name}]"


def _flags(option: Any) -> str:
    names = ", ".join(f"`{o}`" for o in (*option.opts, *option.secondary_opts))
    value = (option.metavar or max(option.opts, key=len).strip("-").upper()).replace("|", r"\|")
    return names if option.is_flag else f"{names} {value}"


def _about(param: Any) -> str:
    default = param.default
    shown = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    text = " ".join((getattr(param, "help", None) or "").split()).replace("|", r"\|")
    # The verb's text may say its default in words already.
    said = re.search(r"\bdefault\b", text) is not None
    return f"{text} Default: {default}." if shown and not said else text


if __name__ == "__main__":
    print(document(), end="")
