"""`tilewright cache`: compiled kernels, and findings of tuning, kept between runs."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import add_verb
from tilewright.cli.output import JSON_OPTION, hint, print_document, print_result, say
from tilewright.results import Result

_MAX_SHOWN = 5
_CACHE = typer.Option(None, "--cache", help="The cache's folder; default: yours.")


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    cache = typer.Typer(
        no_args_is_help=True,
        help="Compiled kernels, and what tuning found, kept between runs. Example: `tilewright cache ls`.",
    )
    for name, command in (
        ("ls", list_entries),
        ("verify", verify),
        ("prune", prune),
        ("forget", forget),
        ("export", export),
        ("import", import_),
    ):
        add_verb(cache, name, command)
    app.add_typer(cache, name="cache", rich_help_panel=panel)


def list_entries(cache: Path | None = _CACHE, as_json: bool = JSON_OPTION) -> None:
    """Show what is stored. Example: `tilewright cache ls`."""
    from tilewright.api.cache import contents

    _print("cache", contents(cache), as_json)


def verify(cache: Path | None = _CACHE, as_json: bool = JSON_OPTION) -> None:
    """Check owner, mode and digest of all that is stored; exit code 1 if something is wrong.

    What is damaged is removed; what others may have written is named, and stays.
    Example: `tilewright cache verify`.
    """
    from tilewright.api.cache import verify

    found = verify(cache)
    _print("cache-verify", found, as_json)
    if not found.ok:
        raise typer.Exit(1)


def prune(
    max_size: str = typer.Option("0B", "--max-size", help="Keep the most recently used up to this size."),
    cache: Path | None = _CACHE,
    as_json: bool = JSON_OPTION,
) -> None:
    """Remove entries, least recently used first. Example: `tilewright cache prune --max-size 100MiB`."""
    from tilewright.api.cache import prune
    from tilewright.sizes import parse_bytes

    limit = 0 if max_size.strip() in ("0", "0B") else parse_bytes(max_size)
    _print("cache-prune", prune(limit, cache), as_json)


def forget(cache: Path | None = _CACHE, as_json: bool = JSON_OPTION) -> None:
    """Forget what tuning measured; kernels stay. Example: `tilewright cache forget`."""
    from tilewright.api.cache import forget

    _print("cache-forget", forget(cache), as_json)


def export(
    path: Path = typer.Argument(help="Archive to write."),
    cache: Path | None = _CACHE,
    as_json: bool = JSON_OPTION,
) -> None:
    """Write all entries to one archive. Example: `tilewright cache export kernels.zip`."""
    from tilewright.api.cache import export_to

    _print("cache-export", export_to(path, cache), as_json)


def import_(
    path: Path = typer.Argument(help="Archive to read; damaged or foreign members are refused."),
    cache: Path | None = _CACHE,
    as_json: bool = JSON_OPTION,
) -> None:
    """Add the entries of an archive. Example: `tilewright cache import kernels.zip`."""
    from tilewright.api.cache import import_from

    found = import_from(path, cache)
    if as_json:
        print_document("cache-import", found)
        return
    say(f"{found.num_imported} imported, {len(found.refused)} refused")
    for name in found.refused[:_MAX_SHOWN]:
        hint(f"refused: {name!r}: not a whole entry")


def _print(kind: str, found: Result, as_json: bool) -> None:
    if as_json:
        print_document(kind, found)
    else:
        print_result(found)
