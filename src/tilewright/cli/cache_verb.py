"""`tilewright cache`: compiled kernels, and findings of tuning, kept between runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tilewright.cli.flags import add_verb
from tilewright.cli.output import JSON_OPTION, format_bytes, hint, print_json, print_table, say
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.targets.cpu.cache import ObjectCache
    from tilewright.tuning import TuningDatabase

_MAX_SHOWN = 20
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


def _open(folder: Path | None) -> ObjectCache:
    from tilewright.private_files import default_cache_directory
    from tilewright.targets.cpu.cache import ObjectCache

    directory = folder or default_cache_directory()
    if directory is None:
        raise UsageError("there is no cache: no home directory; give one with --cache.")
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder}: no such cache folder; check the path.")
    return ObjectCache(directory)


def _store(folder: Path | None) -> ObjectCache:
    """The cache, which need not exist yet."""
    from tilewright.targets.cpu.cache import ObjectCache

    return _open(None) if folder is None else ObjectCache(folder)


def _tuning(store: ObjectCache) -> TuningDatabase:
    from tilewright.tuning import TuningDatabase

    return TuningDatabase.in_folder(store.directory)


def list_entries(cache: Path | None = _CACHE, as_json: bool = JSON_OPTION) -> None:
    """Show what is stored. Example: `tilewright cache ls`."""
    store = _open(cache)
    entries = store.entries()
    total = sum(e.size_bytes for e in entries)
    tuning = _tuning(store).summary()
    if as_json:
        rows = [{"key": e.key, "size_bytes": e.size_bytes} for e in entries]
        document = {"directory": store.directory, "total_bytes": total, "entries": rows}
        print_json("cache", {**document, "tuning": dataclasses.asdict(tuning)})
        return
    print_table(("key", "size"), [(e.key[:16], format_bytes(e.size_bytes)) for e in entries[:20]], right=(1,))
    more = f" ({len(entries) - 20} more not shown)" if len(entries) > 20 else ""
    say(f"{store.directory}: {len(entries)} entries, {format_bytes(total)}{more}")
    say(f"tuning: {tuning.num_plans} models, {tuning.num_trials} measurements of kernels")


def verify(cache: Path | None = _CACHE, as_json: bool = JSON_OPTION) -> None:
    """Check owner, mode and digest of all that is stored; exit code 1 if something is wrong.

    What is damaged is removed; what others may have written is named, and stays.
    Example: `tilewright cache verify`.
    """
    from tilewright.private_files import hazards_of, verified_records

    store = _open(cache)
    assert store.directory is not None
    hazards = hazards_of(store.directory)
    found = verified_records(store.directory)
    damaged, stale = list(found.damaged), list(found.stale)
    num_findings = _tuning(store).verify()
    if as_json:
        document = {"num_whole": found.num_whole, "damaged": damaged, "stale": stale}
        unsafe = [{"path": h.path, "reason": h.reason, "advice": h.advice} for h in hazards]
        print_json("cache-verify", {**document, "num_damaged_findings": num_findings, "unsafe": unsafe})
    else:
        say(f"{found.num_whole} whole, {len(damaged)} damaged and removed")
        if stale:
            say(f"{len(stale)} of another key or version removed")
        if num_findings:
            say(f"tuning: {num_findings} damaged findings removed")
        for hazard in hazards[:_MAX_SHOWN]:
            say(f"not used, as others may have written it: {hazard}")
        if len(hazards) > _MAX_SHOWN:
            say(f"and {len(hazards) - _MAX_SHOWN} more")
    if damaged or num_findings or hazards:
        raise typer.Exit(1)


def prune(
    max_size: str = typer.Option("0B", "--max-size", help="Keep the most recently used up to this size."),
    cache: Path | None = _CACHE,
    as_json: bool = JSON_OPTION,
) -> None:
    """Remove entries, least recently used first. Example: `tilewright cache prune --max-size 100MiB`."""
    from tilewright.sizes import parse_bytes

    limit = 0 if max_size.strip() in ("0", "0B") else parse_bytes(max_size)
    freed = _open(cache).prune(limit)
    if as_json:
        print_json("cache-prune", {"removed_bytes": freed})
    else:
        say(f"{format_bytes(freed)} removed")


def forget(cache: Path | None = _CACHE, as_json: bool = JSON_OPTION) -> None:
    """Forget what tuning measured; kernels stay. Example: `tilewright cache forget`."""
    count = _tuning(_open(cache)).clear()
    if as_json:
        print_json("cache-forget", {"num_removed": count})
    else:
        say(f"{count} findings of tuning removed")


def export(
    path: Path = typer.Argument(help="Archive to write."),
    cache: Path | None = _CACHE,
    as_json: bool = JSON_OPTION,
) -> None:
    """Write all entries to one archive. Example: `tilewright cache export kernels.zip`."""
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; give a file name.")
    count = _open(cache).export_to(path)
    if as_json:
        print_json("cache-export", {"path": path, "num_entries": count})
    else:
        say(f"{path}: {count} entries")


def import_(
    path: Path = typer.Argument(help="Archive to read; damaged or foreign members are refused."),
    cache: Path | None = _CACHE,
    as_json: bool = JSON_OPTION,
) -> None:
    """Add the entries of an archive. Example: `tilewright cache import kernels.zip`."""
    if not path.is_file():
        raise UsageError(f"{path}: no such archive; check the path.")
    found = _store(cache).import_from(path)
    if as_json:
        print_json("cache-import", {"num_imported": found.num_imported, "refused": list(found.refused)})
    else:
        say(f"{found.num_imported} imported, {len(found.refused)} refused")
        for name in found.refused[:5]:
            hint(f"refused: {name!r}: not a whole entry")
