"""`tilewright`: the verbs, and the one place where errors become one line and an exit code."""

from __future__ import annotations

import ast
import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

import typer
import typer.core

from tilewright.cli import interrupts
from tilewright.cli.flags import add_verb, help_all
from tilewright.cli.interrupts import EXIT_INTERRUPTED
from tilewright.cli.output import MANNER, Manner, listen_to_warnings, note
from tilewright.errors import OutOfMemory, TilewrightError
from tilewright.families import FAMILIES
from tilewright.files import system_advice
from tilewright.system.memory_errors import is_out_of_memory
from tilewright.text.printable import bounded
from tilewright.version import __version__

PROGRAM = "tilewright"

_PANELS: Mapping[str, tuple[str, ...]] = {
    "Start": ("demo", "doctor", "zoo"),
    "Look": ("targets", "planners", "inspect", "check", "explain", "view", "diff", "schema"),
    "Build": ("compile", "tune", "worker", "quantize", "learn", "export", "plan", "map", "cache", "trust"),
    "Run": ("run", "generate", "bench", "profile", "compare", "compare-schedules", "simulate", "reproduce"),
    "Debug": ("bisect", "reduce"),
}
VERBS: Mapping[str, str] = {verb: panel for panel, verbs in _PANELS.items() for verb in verbs}
"""The panel of `tilewright --help` in which each verb stands. Its module is `<verb>_verb`, with _ for -."""


def first_paragraph(verb: str) -> str:
    """How the help of a verb begins, read from its file: to import all would load most of the compiler.

    That of several commands is what their module says behind its first line.
    """
    name = verb.replace("-", "_")
    module = ast.parse(Path(__file__).with_name(f"{name}_verb.py").read_text(encoding="utf-8"))
    functions = {part.name: part for part in module.body if isinstance(part, ast.FunctionDef)}
    own = functions.get(name) or functions.get(f"{name}_")
    paragraphs = (ast.get_docstring(own or module) or "").split("\n\n")
    return " ".join(paragraphs[0 if own else 1].split())


_MARKUP: Literal["markdown"] = "markdown"


class _Commands(Mapping[str, Any]):
    """The command of each verb, made when it is asked for: none needs the modules of the others."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, verb: str) -> Any:
        if verb not in self._made:
            self._made[verb] = _command(verb, VERBS[verb])
        return self._made[verb]

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


def _command(verb: str, panel: str) -> Any:
    """What its module has: several `COMMANDS`, or one of its name, with _ behind if Python has it, too."""
    alone = typer.Typer(rich_markup_mode=_MARKUP)
    name = verb.replace("-", "_")
    module = importlib.import_module(f"tilewright.cli.{name}_verb")
    if hasattr(module, "COMMANDS"):
        group = typer.Typer(no_args_is_help=True, help=first_paragraph(verb))
        for inner, command in module.COMMANDS.items():
            add_verb(group, inner, command)
        alone.add_typer(group, name=verb, rich_help_panel=panel)
    else:
        add_verb(alone, verb, getattr(module, name, None) or getattr(module, f"{name}_"), panel)
    return typer.main.get_group(alone).commands[verb]


class _Verbs(typer.core.TyperGroup):
    """What `tilewright` is to the parser."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast(Any, _Commands())

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, for which none is made."""
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of verbs, for which none is made: some load most of the compiler."""
        made, self.commands = (
            self.commands,
            {
                verb: typer.core.TyperCommand(verb, help=first_paragraph(verb), rich_help_panel=panel)
                for verb, panel in VERBS.items()
            },
        )
        super().format_help(ctx, formatter)
        self.commands = made


app = typer.Typer(
    name=PROGRAM,
    cls=_Verbs,
    help="Compile a neural network for a machine: ONNX in, a schedule that runs out. "
    "Start with `tilewright demo`.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=_MARKUP,
    context_settings={"help_option_names": ["-h", "--help"]},
)

EXIT_INTERNAL = 1
EXIT_USAGE = 2


def _version(value: bool) -> None:
    if value:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
    all_flags: bool = help_all(hidden=True),
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the `tilewright` command; never returns."""
    MANNER.set(Manner(debug=bool(os.environ.get("TILEWRIGHT_DEBUG"))))
    listen_to_warnings()
    _speak_safely()
    try:
        interrupts.unwind()
        code = _run(arguments)
        interrupts.end_at_once()
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    if code == EXIT_INTERRUPTED:  # some parsers give the code instead of the exception
        if not interrupts.is_told():
            note(f"{PROGRAM}: interrupted; no half-written file was left behind.")
        code = interrupts.exit_code()
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    """Run a verb; the exit code."""
    try:
        code = app(
            args=None if arguments is None else list(arguments), prog_name=PROGRAM, standalone_mode=False
        )
    except typer.Abort:
        return EXIT_INTERRUPTED
    except Exception as error:
        return _fail(error)
    return code if isinstance(code, int) else 0


def _speak_safely() -> None:
    """A terminal that cannot show a character gets a question mark rather than a crash."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _fail(error: Exception) -> int:
    """Say in one line what is wrong and what to do; the exit code of that kind of error."""
    if MANNER.get().debug:
        traceback.print_exception(error)
    usage = getattr(error, "format_message", None)  # errors of the command line's parser have it
    if is_out_of_memory(error):
        error = OutOfMemory()
    if isinstance(error, TilewrightError):
        code, text = error.exit_code, str(error)
    elif usage is not None:
        code, text = EXIT_USAGE, _usage_text(error, usage())
    elif isinstance(error, OSError):
        code, text = EXIT_USAGE, _os_text(error)
    else:
        detail = f"{type(error).__name__}: {error}".rstrip(": ")
        code, package = EXIT_INTERNAL, _plugins_behind(error)
        what = f"a plugin of {package} failed" if package is not None else _inner_error()
        text = f"{what} ({detail}). Repeat with --debug and report what it prints."
    if text:
        note(f"{PROGRAM}: {bounded(' '.join(text.split()))}")
    return code


def _plugins_behind(error: Exception) -> str | None:
    """The package whose plugin was at work when an error was raised."""
    frames = traceback.walk_tb(error.__traceback__)
    modules = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames}
    packages = (family.package_of(modules - {"tilewright"}) for family in FAMILIES.values())
    return next((package for package in packages if package is not None), None)


def _inner_error() -> str:
    """What failed, where no plugin was at work: with those that were, as what they gave may be the cause."""
    packages = dict.fromkeys(used for family in FAMILIES.values() for used in family.used_plugins())
    return f"internal error, or of plugins: {', '.join(packages)}" if packages else "internal error"


def _usage_text(error: Exception, message: str) -> str:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        note(message)
        return ""
    where = context.command_path if context is not None else PROGRAM
    return f"{message.rstrip('.?')}{'?' if message.rstrip('.').endswith('?') else '.'} See '{where} --help'."


def _os_text(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    name = f"{os.fspath(error.filename)}: " if error.filename is not None else ""
    advice = system_advice(error) or "Repeat with --debug to see where it happened."
    return f"{name}{reason}. {advice}"


if __name__ == "__main__":
    main()
