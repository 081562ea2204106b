"""`tilewright trust`: whose artifacts run their machine code here."""

from __future__ import annotations

import typer

from tilewright.cli.flags import add_verb
from tilewright.cli.output import JSON_OPTION, print_document, print_result
from tilewright.results import Result


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    trust = typer.Typer(
        no_args_is_help=True,
        help="Choose whose artifacts may run their machine code here; the code of all others is generated "
        "again. Example: `tilewright trust ls`.",
    )
    for name, command in (("key", key), ("ls", list_keys), ("add", add), ("rm", remove)):
        add_verb(trust, name, command)
    app.add_typer(trust, name="trust", rich_help_panel=panel)


def key(as_json: bool = JSON_OPTION) -> None:
    """Print your public key, with which every artifact that you save is signed.

    Example: `tilewright trust key`.
    """
    from tilewright.api.trust import show_user_key

    _print("trust-key", show_user_key(), as_json)


def list_keys(as_json: bool = JSON_OPTION) -> None:
    """Show the keys that are trusted. Example: `tilewright trust ls`."""
    from tilewright.api.trust import list_trusted

    _print("trust", list_trusted(), as_json)


def add(
    source: str = typer.Argument(metavar="KEY", help="A public key, or an artifact that was signed with it."),
    name: str = typer.Option("", "--name", help="What to call it."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Trust a key: artifacts signed with it may run their machine code here, like any program.

    Example: `tilewright trust add model.tw --name build-server`.
    """
    from tilewright.api.trust import trust_key

    _print("trust-add", trust_key(source, name), as_json)


def remove(
    which: str = typer.Argument(metavar="KEY", help="The key, its first digits, or its name."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Stop trusting a key. Example: `tilewright trust rm build-server`."""
    from tilewright.api.trust import distrust_key

    _print("trust-rm", distrust_key(which), as_json)


def _print(kind: str, result: Result, as_json: bool) -> None:
    if as_json:
        print_document(kind, result)
    else:
        print_result(result)
