"""Flags are spelled alike in every verb, and each reaches the option it is named after."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.support.cli import tilewright

from tilewright.cli import flags
from tilewright.cli.flags import CompileFlags, checked_threads
from tilewright.cli.main import VERBS, app
from tilewright.embed import isa_for_export
from tilewright.errors import UsageError
from tilewright.families import FAMILIES
from tilewright.hardware.instruction_sets import instruction_set_by_name
from tilewright.hardware.presets import find_machine
from tilewright.options import Options
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target

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


PARAMETERS = {parameter.name: parameter for parameter in ROOT.commands["compile"].params}
COMPILE_FLAGS = [f for f in dataclasses.fields(Options) if f.name != "dump_after"]


def defaults(**changes: Any) -> CompileFlags:
    """What the parser gives where nothing but `changes` is asked for."""
    return CompileFlags(Options, {**{f.name: PARAMETERS[f.name].default for f in COMPILE_FLAGS}, **changes})


def test_every_verb_is_there() -> None:
    assert set(ROOT.commands) == set(VERBS)


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[n for n, _ in LEAVES])
def test_every_verb_has_an_example_json_and_the_flags_of_manner(name: str, command: Any) -> None:
    assert f"`tilewright {name}" in command.help, "its help shows an example"
    assert flags_of(command) >= EVERYWHERE | ({"--json"} if name != "worker" else set())


def test_arguments_of_any_number_have_their_dots_once() -> None:
    usages = [piece for _, c in LEAVES for piece in c.collect_usage_pieces(c.context_class(c))]
    many = [piece for piece in usages if "..." in piece]
    assert "[LAYER]..." in many
    assert all(piece.count("...") == 1 for piece in many), many


@pytest.mark.parametrize("verb", COMPILING)
def test_verbs_that_compile_take_every_flag_of_a_compilation(verb: str) -> None:
    wanted = {flag for f in COMPILE_FLAGS for flags in f.metadata["flags"] for flag in flags.split("/")[:1]}
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
        target=TargetRef.parse("interpreter"),
        shapes="x:1x3",
        threads=3,
        isa="avx2",
        partition="none",
        schedule="greedy",
        passes=["canonicalise{exact-reciprocals=true}"],
        disabled_passes=["fold-pad"],
        max_memory_bytes="2KiB",
        timeout_s=4.5,
        seed=6,
        frozen=True,
    )
    assert flags.options(dump_after=("dead-code",)) == Options(
        target=TargetRef.parse("interpreter"),
        shapes={"x": (1, 3)},
        threads=3,
        isa="avx2",
        partition="none",
        schedule="greedy",
        passes=("canonicalise{exact_reciprocals=true}",),
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
        {"disabled_passes": ["fold-padd"]},
        {"passes": ["fold-pad{x=1}"]},
        {"memory": "best"},
        {"isa": "sse9"},
        {"max_memory_bytes": ""},
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


def test_every_field_of_the_options_is_a_flag_with_its_help() -> None:
    for field in dataclasses.fields(Options):
        parameter = PARAMETERS[field.name]
        flags = [flag for either in field.metadata["flags"] for flag in either.split("/")]
        assert [*parameter.opts, *parameter.secondary_opts] == flags
        assert parameter.help.startswith(field.metadata["help"].rstrip("."))


@pytest.mark.parametrize("name", ["partition", "schedule", "memory"])
def test_a_flag_that_names_a_planner_lists_all_of_them(name: str) -> None:
    listed = re.split(r"[:,;] ", PARAMETERS[name].help)
    assert {"auto", *FAMILIES[name].built_in_names()} <= set(listed)


EXPERTS = {"--schedule", "--memory", "--pass", "--disable-pass", "--frozen", "--dump-after"}


def test_help_leaves_flags_for_experts_to_help_all() -> None:
    short, whole = (tilewright("compile", flag) for flag in ("-h", "--help-all"))
    assert (short.code, whole.code) == (0, 0)
    for flag in EXPERTS:
        assert f"{flag} " not in short.out
        assert f"{flag} " in whole.out
    assert short.out == tilewright("compile", "--help").out
    for panel in ("Model and machine", "How to plan", "Limits and the cache", "What to say"):
        assert panel in short.out


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[n for n, _ in LEAVES])
def test_help_names_help_all_where_a_flag_is_for_experts(name: str, command: Any) -> None:
    options = {p.name: p for p in command.params if p.param_type_name == "option"}
    everything = options.pop("help_all")
    assert everything.hidden != any(option.hidden for option in options.values()), name


def test_this_machine_has_two_names_that_mean_the_same() -> None:
    assert Options(target=TargetRef.parse("host")) == Options(target=TargetRef.parse("cpu"))
    assert find_target(TargetRef.parse("host{barriers=strict}")) == find_target(
        TargetRef.parse("cpu{barriers=strict}")
    )
    assert find_machine("cpu") is find_machine("host")


def test_an_instruction_set_goes_by_the_same_names_in_every_verb() -> None:
    assert Options(isa="aarch64") == Options(isa="neon")
    assert isa_for_export("arm64").name == instruction_set_by_name("arm64").name == "neon"
    for name, command in LEAVES:
        for option in command.params:
            assert option.opts[0] != "--isa" or option.default is None, name


def test_targets_complete_to_machines_and_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "folder").mkdir()
    complete = flags._completion(flags._FIELDS["target"], TargetRef)
    assert {"cpu", "host", "eyeriss", "mine.yaml", "folder/"} <= set(complete(""))
    assert complete("st") == ["stcp920", "stcp920-paper"]
    assert "aarch64" in flags._completion(flags._FIELDS["isa"], str)("aa")


@pytest.mark.parametrize("flags_given", [("--target", "v100"), ("--check",), ("--shapes", "x=1")])
def test_a_graph_of_the_contest_takes_no_flags_of_networks(
    flags_given: tuple[str, ...], tmp_path: Path
) -> None:
    result = tilewright("simulate", tmp_path / "graph.json", *flags_given)
    assert result.code == UsageError.exit_code
    assert f"{flags_given[0]} has no effect on a graph of the contest" in result.err
