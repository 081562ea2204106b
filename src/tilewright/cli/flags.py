"""Flags that mean the same in every verb, and how a verb gets them.

A verb that takes `flags: CompileFlags` has a flag on the command line for each field of `Options`, one that
takes `flags: Flags[MapRequest]` for those of that request; every verb has `-q`, `-v` and `--debug`. A flag
that is declared hidden is one for experts: `--help-all` shows it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Generic, Literal, TypeVar

import typer

from tilewright.cli.output import MANNER, Manner, listen_to_warnings
from tilewright.errors import UsageError
from tilewright.families import FAMILIES
from tilewright.options import Options, parse_shapes
from tilewright.requests import typed_as, types_of
from tilewright.target_ref import TargetRef

R = TypeVar("R")

# Set by the shell's script while it asks for completions. Otherwise no flag needs them.
_IS_COMPLETING = "_TILEWRIGHT_COMPLETE" in os.environ
_FIELDS: Mapping[str, Field[Any]] = {f.name: f for f in fields(Options)}
_TYPES = types_of(Options)
_AS_THE_FIELD = object()


def flag(name: str, *, default: Any = _AS_THE_FIELD, about: str = "", is_expert: bool | None = None) -> Any:
    """The flag of a field of `Options`, as the default of a verb's parameter.

    A verb for which it means somewhat else says what it is `about`; its names and what completes it are the
    same everywhere.
    """
    return _option(_FIELDS[name], _TYPES[name], default=default, about=about, is_expert=is_expert)


def _option(
    field: Field[Any],
    kind: Any,
    *,
    default: Any = _AS_THE_FIELD,
    about: str = "",
    is_expert: bool | None = None,
) -> Any:
    facts = field.metadata
    return typer.Option(
        _default(field) if default is _AS_THE_FIELD else default,
        *facts["flags"],
        help=about or _help(field, kind),
        metavar=facts["metavar"],
        rich_help_panel=facts["panel"],
        autocompletion=_completion(field, kind) if _IS_COMPLETING else None,
        hidden=facts["is_expert"] if is_expert is None else is_expert,
    )


def _default(field: Field[Any]) -> Any:
    """What the parser gives where the flag is not; none stands for the default of the record."""
    default = field.default
    if isinstance(default, TargetRef):
        return str(default)
    if field.metadata["parse"] is not None or default is MISSING:
        return None
    return list(default) if isinstance(default, tuple) else default


def _type(field: Field[Any], kind: Any) -> Any:
    """What the parser reads; texts with a parser of their own are read by the record."""
    return typed_as(kind) if field.metadata["parse"] is None else str | None


def _help(field: Field[Any], kind: Any) -> str:
    """The field's help, with the names that it may hold where they are few."""
    facts, choices = field.metadata, _choices(field, kind)
    if not choices or facts["family"] == "targets" or _type(field, kind) not in (str, str | None):
        return str(facts["help"])
    more = "; see `tilewright planners`" if facts["has_options"] else ""
    return f"{facts['help'].rstrip('.')}: {', '.join(choices)}{more}."


def _choices(field: Field[Any], kind: Any) -> tuple[str, ...]:
    """Names that a field may hold, without those of plugins."""
    facts = field.metadata
    if typing.get_origin(kind) is Literal:
        return typing.get_args(kind)
    family = FAMILIES.get(facts["family"])
    return (*facts["also"], *(family.built_in_names() if family is not None else ()))


def _completion(field: Field[Any], kind: Any) -> Callable[[str], list[str]]:
    """Names that begin as typed, those of plugins too; no member is loaded for it."""

    def complete(incomplete: str) -> list[str]:
        family = FAMILIES.get(field.metadata["family"])
        names = dict.fromkeys((*_choices(field, kind), *(family.names() if family is not None else ())))
        if field.metadata["family"] == "targets":
            names.update(dict.fromkeys((*_machines(), *_machine_files(incomplete))))
        if field.name == "isa":
            names.update(dict.fromkeys(_instruction_sets()))
        return [choice for choice in names if choice.startswith(incomplete)]

    return complete


def _machines() -> tuple[str, ...]:
    from tilewright.hardware.presets import HOST, preset_names

    return (HOST, *preset_names())


def _machine_files(incomplete: str) -> list[str]:
    """YAML files, and folders in which some may be, whose paths begin as typed."""
    folder, _ = os.path.split(incomplete)
    try:
        entries = sorted(os.scandir(folder or "."), key=lambda entry: entry.name)
    except OSError:
        return []
    found = []
    for entry in entries:
        if entry.name.endswith((".yaml", ".yml")):
            found.append(os.path.join(folder, entry.name))
        elif entry.is_dir() and not entry.name.startswith("."):
            found.append(os.path.join(folder, entry.name, ""))
    return found


def _instruction_sets() -> tuple[str, ...]:
    from tilewright.hardware.instruction_sets import instruction_set_names

    return instruction_set_names()


MODEL = typer.Argument(metavar="MODEL", help="An ONNX file, or an artifact that `tilewright compile` wrote.")
INPUTS = typer.Option(None, "--input", "-i", help="Inputs: an .npz file with one array for each input.")
RTOL = typer.Option(1e-4, "--rtol", help="Allowed difference, relative to the tensor's largest value.")
ATOL = typer.Option(1e-6, "--atol", help="Allowed difference, absolute.")
SHAPES, THREADS, SEED, CACHE = map(flag, ("shapes", "threads", "seed", "cache_dir"))


def _flags_of(record: type[Any]) -> dict[str, tuple[Any, Any]]:
    """For each field of a request that has flags: what the parser reads, and its option; those last that
    requests share."""
    own = record.__annotations__
    ordered = sorted(fields(record), key=lambda f: f.name not in own)
    kinds = _TYPES if record is Options else types_of(record)
    shown = [(f, kinds[f.name]) for f in ordered if f.metadata.get("flags")]
    return {f.name: (_type(f, kind), _option(f, kind)) for f, kind in shown}


COMPILE_FLAGS = {name: flags for name, flags in _flags_of(Options).items() if name != "dump_after"}


@dataclass(frozen=True, slots=True)
class Flags(Generic[R]):
    """What is asked by the flags of a request: a value for each field, none where it was left out.

    `asked` are the fields whose flags were given, be it with the default.
    """

    record: type[R]
    values: Mapping[str, Any]
    asked: frozenset[str] = frozenset()

    def request(self, **others: Any) -> R:
        """The request, with `others` for fields that have no flag."""
        given = {name: value for name, value in self.values.items() if value is not None and value != []}
        return self.record(**given, **others)


@dataclass(frozen=True, slots=True)
class CompileFlags(Flags[Options]):
    """What is asked of a compilation by the flags of `Options`."""

    def options(self, *, dump_after: Sequence[str] = ()) -> Options:
        """The options that the flags ask for, every name known.

        Raises:
            UsageError: a name that is unknown, or a value that makes no sense.
        """
        from tilewright.targets import find_target

        options = self.request(dump_after=tuple(dump_after)).resolved()
        find_target(options.target)
        for name in options.isas:
            _check_isa(name)
        return options


def _check_isa(name: str) -> None:
    from tilewright.hardware.instruction_sets import HOST, canonical_isa

    if name != HOST:
        canonical_isa(name)


def parsed_shapes(text: str | None) -> dict[str, tuple[int, ...]]:
    """The value of `--shapes`; nothing without it."""
    return {} if text is None else parse_shapes(text)


def checked_threads(threads: int | None) -> int:
    """The value of `--threads`, or as many as this process may use.

    Raises:
        UsageError: not a positive number.
    """
    from tilewright.hardware.probe import num_threads_default

    if threads is not None and threads < 1:
        raise UsageError(f"threads {threads}: give a positive number.")
    return threads or num_threads_default()


def add_verb(app: typer.Typer, name: str, verb: Callable[..., None], panel: str | None = None) -> None:
    """Add a verb with its flags."""
    app.command(name, rich_help_panel=panel)(_with_flags(verb, gives_json=name != "worker"))


_MANNER = "What to say"
_CONTEXT = "parser_context"
MANNER_FLAGS = {
    "json": typer.Option(False, "--json", help="Print one JSON document instead of tables."),
    "quiet": typer.Option(False, "--quiet", "-q", help="Results and errors only.", rich_help_panel=_MANNER),
    "verbose": typer.Option(
        False, "--verbose", "-v", help="Say what is being done.", rich_help_panel=_MANNER
    ),
    "debug": typer.Option(False, "--debug", help="Show the traceback of an error.", rich_help_panel=_MANNER),
}


def _help_all(context: typer.Context, is_asked: bool) -> None:
    if is_asked:
        parameters: list[Any] = context.command.params
        for parameter in parameters:
            parameter.hidden = False
        typer.echo(context.get_help())
        raise typer.Exit


def help_all(*, hidden: bool) -> Any:
    """The flag that shows help with all flags; itself `hidden` where there are no others to show."""
    return typer.Option(
        False,
        "--help-all",
        help="Show this message with the flags for experts, and exit.",
        is_eager=True,
        callback=_help_all,
        rich_help_panel=_MANNER,
        hidden=hidden,
    )


def _with_flags(verb: Callable[..., None], *, gives_json: bool) -> Callable[..., None]:
    """`verb` with a parameter for each flag, in place of `flags`: `CompileFlags`, or those of a request."""
    hints = typing.get_type_hints(verb)
    parameters: list[inspect.Parameter] = []
    kind = hints.get("flags")
    has_flags = kind is not None
    record = next(iter(typing.get_args(kind)), Options)
    made = COMPILE_FLAGS if record is Options else _flags_of(record)
    for parameter in inspect.signature(verb).parameters.values():
        if parameter.name != "flags":
            parameters.append(_keyword(parameter.name, hints[parameter.name], parameter.default))
    if gives_json:
        parameters.append(_keyword("json", bool, MANNER_FLAGS["json"]))
    if has_flags:
        found = [_keyword(name, *flag) for name, flag in made.items()]
        parameters = [*parameters, *found] if record is Options else [*found, *parameters]
    parameters += [_keyword(name, bool, flag) for name, flag in MANNER_FLAGS.items() if name != "json"]
    has_experts = any(getattr(parameter.default, "hidden", False) for parameter in parameters)
    parameters.append(_keyword("help_all", bool, help_all(hidden=not has_experts)))
    if _IS_COMPLETING:  # which passes over what is hidden
        for parameter in parameters:
            if hasattr(parameter.default, "hidden"):
                parameter.default.hidden = False
    if has_flags:
        parameters.append(_keyword(_CONTEXT, typer.Context, inspect.Parameter.empty))

    @functools.wraps(verb)
    def call(**values: Any) -> None:
        del values["help_all"]
        manner = {name: values.pop(name) for name in MANNER_FLAGS if name in values}
        MANNER.set(Manner(**manner | {"debug": manner["debug"] or MANNER.get().debug}))
        listen_to_warnings()
        if not has_flags:
            verb(**values)
            return
        context = values.pop(_CONTEXT)
        asked = frozenset(name for name in made if _is_given(context, name))
        given = {name: values.pop(name) for name in made}
        flags = (CompileFlags if record is Options else Flags)(record, given, asked)
        with _keeping_nothing() if given.get("no_cache") else contextlib.nullcontext():
            verb(flags=flags, **values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions have one
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _keeping_nothing() -> contextlib.AbstractContextManager[None]:
    from tilewright.private_files import keeping_nothing

    return keeping_nothing()


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter's value is from the command line, or from its environment variable."""
    source = context.get_parameter_source(name)
    return source is not None and not source.name.startswith("DEFAULT")


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
