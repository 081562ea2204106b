"""`tilewright cache`: compiled kernels, and findings of tuning, kept between runs.

Compiled kernels, and what tuning found, kept between runs. Example: `tilewright cache ls`.
"""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import CACHE
from tilewright.cli.output import hint, show, wants_json

_MAX_SHOWN = 5


def list_entries(cache: Path | None = CACHE) -> None:
    """Show what is stored. Example: `tilewright cache ls`."""
    from tilewright.api.cache import contents

    show("cache", contents(cache))


def verify(cache: Path | None = CACHE) -> None:
    """Check owner, mode and digest of all that is stored; exit code 1 if something is wrong.

    Damaged files are removed; files that other users may have written are named, and stay. Example:
    `tilewright cache verify`.
    """
    from tilewright.api.cache import verify

    verification = verify(cache)
    show("cache-verify", verification)
    if not verification.ok:
        raise typer.Exit(1)


def prune(
    max_size: str | None = typer.Option(
        None,
        "--max-size",
        help="Keep the most recently used compilations and kernels, up to this size, such as 100MiB or 0B.",
    ),
    older_than: str | None = typer.Option(
        None, "--older-than", help="Remove findings of tuning that are older than this, such as 30d."
    ),
    unusable: bool = typer.Option(
        False, "--unusable", help="Remove findings of other machines, compilers or versions."
    ),
    imported: bool = typer.Option(
        False, "--imported", help="Remove imported findings that were not measured here."
    ),
    failures: bool = typer.Option(
        False, "--failures", help="Remove which candidates failed, so that they are tried again."
    ),
    model: str = typer.Option(
        "", "--model", help="Remove the plans of a model, by name or start of its key."
    ),
    site: str = typer.Option("", "--site", help="Remove findings on sites whose keys begin so."),
    cache: Path | None = CACHE,
) -> None:
    """Remove kernels or findings: what is named, and nothing else.

    Example: `tilewright cache prune --max-size 100MiB --older-than 30d`.
    """
    from tilewright.api.cache import Pruning, prune
    from tilewright.sizes import parse_age_s, parse_bytes

    is_none_kept = max_size is not None and max_size.strip() in ("0", "0B")
    what = Pruning(
        max_bytes=None if max_size is None else 0 if is_none_kept else parse_bytes(max_size),
        older_than_s=None if older_than is None else parse_age_s(older_than),
        unusable=unusable,
        imported=imported,
        failures=failures,
        model=model,
        site=site,
    )
    show("cache-prune", prune(what, cache))


def forget(cache: Path | None = CACHE) -> None:
    """Forget what tuning measured; kernels stay. Example: `tilewright cache forget`."""
    from tilewright.api.cache import forget

    show("cache-forget", forget(cache))


def export(
    path: Path = typer.Argument(help="File to write."),
    tuning: bool = typer.Option(
        False, "--tuning", help="Write findings of tuning, as lines of JSON, instead of kernels."
    ),
    cache: Path | None = CACHE,
) -> None:
    """Write all kernels to one archive, or all findings of tuning to one file.

    Example: `tilewright cache export kernels.zip`.
    """
    from tilewright.api.cache import export_to

    show("cache-export", export_to(path, cache, tuning=tuning))


def import_(
    path: Path = typer.Argument(help="What `export` wrote; damaged or foreign entries are refused."),
    trust: bool = typer.Option(
        False, "--trust", help="Use findings of a machine like this one without measuring them again."
    ),
    cache: Path | None = CACHE,
) -> None:
    """Add the kernels of an archive, or the findings of a file.

    Example: `tilewright cache import kernels.zip`.
    """
    from tilewright.api.cache import import_from

    imported = import_from(path, cache, trust=trust)
    show("cache-import", imported)
    if not wants_json():
        for name in imported.refused[:_MAX_SHOWN]:
            hint(f"refused: {name!r}")


COMMANDS = {
    "ls": list_entries,
    "verify": verify,
    "prune": prune,
    "forget": forget,
    "export": export,
    "import": import_,
}
