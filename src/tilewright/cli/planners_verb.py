"""`tilewright planners`: every planner and pass that a flag can name, with its options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from tilewright.cli.output import note, print_document, print_table, wants_json
from tilewright.errors import UsageError
from tilewright.families import FAMILIES
from tilewright.text.suggestions import closest

if TYPE_CHECKING:
    from tilewright.planning import MemberInfo, MemberOption

_LISTED = {name: family for name, family in FAMILIES.items() if name != "targets"}


def planners(
    name: str | None = typer.Argument(
        None,
        help=f"Only this family ({', '.join(_LISTED)}), or the members of this name, with their options.",
    ),
) -> None:
    """List planners and passes by name; one family or one name with its options, written in braces.

    Example: `tilewright planners graphturbo`, `tilewright compile a.onnx --partition graphturbo{alpha=2}`.
    """
    names = tuple(dict.fromkeys(n for family in _LISTED.values() for n in family.names()))
    if name is not None and name not in _LISTED and name not in names:
        known = (*_LISTED, *names)
        raise UsageError(f"{name!r} is neither a family nor a planner or pass: {closest(name, known)}.")
    members = list(_members(name))
    problems = [line for family in _LISTED.values() for line in family.plugin_problems()]
    problems += [error for _, _, error in members if isinstance(error, str)]
    if wants_json():
        from tilewright.cli.facts import ListedMember, Planners

        listed = (ListedMember.of(family, info) for family, info, _ in members if info is not None)
        print_document("planners", Planners(tuple(listed), tuple(problems)))
        return
    _print(members, with_options=name is not None)
    for problem in problems:
        note(f"warning: {problem}")


def print_options(name: str, options: Sequence[MemberOption]) -> None:
    """The options of a member as a table, if it has any."""
    if options:
        print_table(
            ("option", "values", "default", "what it does"),
            [(o.name, o.type_text, o.default_text, o.about) for o in options],
            title=f"Options of {name}",
        )


def _members(wanted: str | None) -> Iterator[tuple[str, MemberInfo | None, str | None]]:
    """Members by family; a plugin that does not load is the text of its error."""
    for key, family in _LISTED.items():
        for name in family.names():
            if wanted is None or wanted in (key, name):
                try:
                    yield key, family.info(name), None
                except UsageError as error:
                    yield key, None, str(error)


def _print(members: list[tuple[str, MemberInfo | None, str | None]], *, with_options: bool) -> None:
    for key in _LISTED:
        infos = [info for family, info, _ in members if family == key and info is not None]
        if infos:
            rows = [(i.name, ", ".join(map(_short, i.options)), i.about, i.plugin) for i in infos]
            columns = ("name", "options", "what it does", "plugin")
            width = len(columns) if any(i.plugin for i in infos) else len(columns) - 1
            kind = FAMILIES[key].kind
            title = f"{key}: {kind}{'es' if kind.endswith('s') else 's'}"
            print_table(columns[:width], [row[:width] for row in rows], title=title)
        if with_options:
            for info in infos:
                print_options(info.name, info.options)


def _short(option: MemberOption) -> str:
    return f"{option.name}={option.default_text}"
