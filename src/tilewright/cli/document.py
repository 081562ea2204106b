"""`docs/cli.md` from the command line itself: `python -m tilewright.cli.document > docs/cli.md`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from tilewright.cli.main import PROGRAM, app

_HEAD = """# The command line

Written by `python -m tilewright.cli.document`; kept true by `tests/docs`. The same words come from
`tilewright VERB --help`, or `-h`, which leaves out flags that few need: `--help-all` shows them, too.

Results go to standard output, progress, notes and errors to standard error; an error is one line. With
`--json` standard output is exactly one JSON document, whose shape `tilewright schema VERB` prints. `NO_COLOR`
is respected, and there are neither colours nor progress bars where the output is not a terminal.

| exit code | meaning |
|---:|---|
| 0 | done |
| 1 | an internal error, or `doctor` or `cache verify` found something wrong |
| 2 | a request that makes no sense: a wrong flag, name, file or input |
| 3 | a model, artifact or target that is refused or not supported |
| 4 | numbers that should agree do not |
| 5 | a limit (`--max-memory`, `--timeout`, `--fail-if-slower`) would be passed |
| 130 | interrupted (143: by SIGTERM, 129: by SIGHUP); nothing half-written is left behind |
"""


def document() -> str:
    """The whole page as Markdown."""
    root: Any = typer.main.get_command(app)
    return "\n".join([_HEAD, *_verbs(root), ""])


def _verbs(root: Any) -> Iterator[str]:
    for name, command in root.commands.items():
        yield from _verb(f"{PROGRAM} {name}", command, "##")
        for inner, action in getattr(command, "commands", {}).items():
            yield from _verb(f"{PROGRAM} {name} {inner}", action, "###")


def _verb(path: str, command: Any, level: str) -> Iterator[str]:
    """One section: what it does, how it is written, its parameters."""
    params = [p for p in command.params if p.name != "help" and (p.name != "help_all" or not p.hidden)]
    arguments = [p for p in params if p.param_type_name == "argument"]
    options = [p for p in params if p.param_type_name == "option"]
    yield f"{level} `{path}`\n"
    yield f"{' '.join((command.help or '').split())}\n"
    if not hasattr(command, "commands"):
        words = [path, *(_argument(a) for a in arguments), *(["[OPTIONS]"] if options else [])]
        yield f"```\n{' '.join(words)}\n```\n"
    everyday = [option for option in options if not option.hidden]
    rows = [(f"`{_argument(a)}`", _about(a)) for a in arguments] + [(_flags(o), _about(o)) for o in everyday]
    yield from _table(rows)
    experts = [(_flags(option), _about(option)) for option in options if option.hidden]
    if experts:
        yield f"For experts (`{path} --help-all`):\n"
        yield from _table(experts)


def _table(rows: list[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield "| | |\n|---|---|"
        yield "\n".join(f"| {flags} | {about} |" for flags, about in rows) + "\n"


def _argument(argument: Any) -> str:
    name = str(argument.name).upper()
    name = f"{name}..." if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


def _flags(option: Any) -> str:
    names = ", ".join(f"`{o}`" for o in (*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names} {option.opts[0].strip('-').upper()}"


def _about(param: Any) -> str:
    default = param.default
    shown = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    text = " ".join((getattr(param, "help", None) or "").split()).replace("|", r"\|")
    # The verb's text may say its default in words already.
    said = re.search(r"\bdefault\b", text) is not None
    return f"{text} Default: {default}." if shown and not said else text


if __name__ == "__main__":
    print(document(), end="")
