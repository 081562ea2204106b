"""`tilewright`: the verbs, and the one place where errors become one line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import typer

from tilewright import __version__
from tilewright.errors import TilewrightError

app = typer.Typer(
    name="tilewright",
    help="Compile a neural network for a machine: ONNX in, a schedule that runs out.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

# Module and one-line help of each verb; a module is imported only when its verb (or its help) is asked for.
VERBS: dict[str, str] = {
    "demo": "Start",
    "doctor": "Start",
    "zoo": "Start",
    "targets": "Look",
    "inspect": "Look",
    "check": "Look",
    "explain": "Look",
    "schema": "Look",
    "compile": "Build",
    "cache": "Build",
    "run": "Run",
    "bench": "Run",
    "compare": "Run",
}

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def _version(value: bool) -> None:
    if value:
        typer.echo(f"tilewright {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks.", envvar="TILEWRIGHT_DEBUG"),
) -> None:
    if debug:
        os.environ["TILEWRIGHT_DEBUG"] = "1"


for _verb, _panel in VERBS.items():
    importlib.import_module(f"tilewright.cli.{_verb}_verb").register(app, _panel)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `tilewright` command; never returns."""
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except TilewrightError as error:
        _fail(error, error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("tilewright: interrupted; nothing half-written was left behind.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe went away: not our mistake, and nothing to say to anybody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        name = f" {error.filename!r}" if error.filename else ""
        _fail(error, EXIT_USAGE, f"cannot use{name}: {error.strerror or error}.")
    except Exception as error:
        explain = getattr(error, "format_message", None)  # what the parser raises for wrong flags
        if explain is not None:
            _fail(error, EXIT_USAGE, f"{explain()} Try --help.")
        _fail(error, 1, f"internal error ({type(error).__name__}: {error}); run with --debug and report it.")


def _fail(error: BaseException, code: int, message: str | None = None) -> None:
    if os.environ.get("TILEWRIGHT_DEBUG"):
        raise error
    text = " ".join((message or str(error)).split()) or type(error).__name__
    typer.echo(f"tilewright: {text}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
