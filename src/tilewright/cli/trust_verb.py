"""`tilewright trust`: whose artifacts run their machine code here.

Choose whose artifacts may run their machine code here; the code of all others is generated again. Example:
`tilewright trust ls`.
"""

from __future__ import annotations

import typer

from tilewright.cli.output import show


def key() -> None:
    """Print your public key, with which every artifact that you save is signed.

    Example: `tilewright trust key`.
    """
    from tilewright.api.trust import show_user_key

    show("trust-key", show_user_key())


def list_keys() -> None:
    """Show the keys that are trusted. Example: `tilewright trust ls`."""
    from tilewright.api.trust import list_trusted

    show("trust", list_trusted())


def add(
    source: str = typer.Argument(metavar="KEY", help="A public key, or an artifact that was signed with it."),
    name: str = typer.Option("", "--name", help="What to call it."),
) -> None:
    """Trust a key: artifacts signed with it may run their machine code here, like any program.

    Example: `tilewright trust add model.tw --name build-server`.
    """
    from tilewright.api.trust import trust_key

    show("trust-add", trust_key(source, name))


def remove(
    which: str = typer.Argument(metavar="KEY", help="The key, its first digits, or its name."),
) -> None:
    """Stop trusting a key. Example: `tilewright trust rm build-server`."""
    from tilewright.api.trust import distrust_key

    show("trust-rm", distrust_key(which))


COMMANDS = {"key": key, "ls": list_keys, "add": add, "rm": remove}
