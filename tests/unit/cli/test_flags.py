"""Flags are spelled alike in every verb, and each reaches the option it is named after."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import typer

from tilewright.cli.flags import CompileFlags, checked_threads
from tilewright.cli.main import VERBS, app
from tilewright.errors import UsageError
from tilewright.options import Options

ROOT: Any = typer.main.get_command(app)
EVERYWHERE = {"--quiet", "--verbose", "--debug"}
COMPILING = ("compile", "run", "bench", "compare", "explain")


def leaves() -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, command in ROOT.commands.items():
        inner = getattr(command, "commands", None)
        found += [(name, command)] if inner is None else [(f"{name} {n}", c) for n, c in inner.items()]
    return found


LEAVES = leaves()


def flags_of(command: Any) -> set[str]:
    return {o for p in command.params if p.param_type_name == "option" for o in (*p.opts, *p.secondary_opts)}


def defaults(**changes: Any) -> CompileFlags:
    values = {f.name: f.default.default for f in dataclasses.fields(CompileFlags)}
    return CompileFlags(**{**values, **changes})


def test_every_verb_is_there() -> None:
    assert set(ROOT.commands) == set(VERBS)


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[n for n, _ in LEAVES])
def test_every_verb_has_an_example_json_and_the_flags_of_manner(name: str, command: Any) -> None:
    assert f"`tilewright {name}" in command.help, "its help shows an example"
    assert flags_of(command) >= EVERYWHERE | {"--json"}


@pytest.mark.parametrize("verb", COMPILING)
def test_verbs_that_compile_take_every_flag_of_a_compilation(verb: str) -> None:
    wanted = {"--" + f.name.replace("_", "-") for f in dataclasses.fields(CompileFlags)}
    assert flags_of(ROOT.commands[verb]) >= wanted


def test_one_spelling_means_one_thing() -> None:
    """A flag of one name has the same short form, and takes as many values, wherever it stands."""
    seen: dict[str, tuple[object, ...]] = {}
    for name, command in LEAVES:
        for option in command.params:
            if option.param_type_name != "option":
                continue
            about = (tuple(option.opts), tuple(option.secondary_opts), option.is_flag, option.multiple)
            assert seen.setdefault(option.opts[0], about) == about, f"{name} {option.opts}"


def test_flags_reach_their_options() -> None:
    flags = defaults(
        target="interpreter",
        shapes="x:1x3",
        threads=3,
        isa="avx2",
        partition="none",
        schedule="greedy",
        disable_pass=["fold-pad"],
        max_memory="2KiB",
        timeout=4.5,
        seed=6,
        frozen=True,
    )
    assert flags.options(dump_after=("dead-code",)) == Options(
        target="interpreter",
        shapes={"x": (1, 3)},
        threads=3,
        isa="avx2",
        partition="none",
        schedule="greedy",
        disabled_passes=("fold-pad",),
        dump_after=("dead-code",),
        max_memory_bytes=2048,
        timeout_s=4.5,
        seed=6,
        frozen=True,
    )


def test_no_flags_are_the_default_options() -> None:
    assert defaults().options() == Options()


@pytest.mark.parametrize(
    "changes",
    [
        {"target": "gpu"},
        {"partition": "best"},
        {"schedule": "best"},
        {"disable_pass": ["fold-padd"]},
        {"isa": "sse9"},
        {"max_memory": ""},
        {"shapes": ""},
        {"threads": 0},
    ],
    ids=str,
)
def test_a_name_or_value_that_means_nothing_is_refused_before_any_work(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        defaults(**changes).options()


def test_threads_default_to_what_this_process_may_use() -> None:
    from tilewright.hardware.probe import num_threads_default

    assert checked_threads(None) == num_threads_default()
    assert checked_threads(1) == 1
    with pytest.raises(UsageError, match="positive"):
        checked_threads(0)
