"""Flags that mean the same in every verb, and how a verb gets them.

A verb that takes `flags: CompileFlags` has one flag on the command line for each field of it; every verb has
`-q`, `-v` and `--debug`.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilewright.cli.output import MANNER, Manner, listen_to_warnings
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.options import Options

MODEL = typer.Argument(metavar="MODEL", help="An ONNX file, or an artifact that `tilewright compile` wrote.")
SHAPES = typer.Option(None, "--shapes", help="Sizes the model leaves open: x:1x3x224x224,mask:1x128.")
THREADS = typer.Option(None, "--threads", help="Worker threads; default: the cores this process may use.")
SEED = typer.Option(0, "--seed", help="Seed of searches and of random inputs.")
CACHE = typer.Option(None, "--cache", help="Folder of the kernel cache; default: yours.")
INPUTS = typer.Option(None, "--input", "-i", help="Inputs: an .npz file with one array for each input.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFlags:
    """What can be asked of a compilation. Each field's default is its flag."""

    target: str = typer.Option("cpu", "--target", "-t", help="Where to run: see `tilewright targets`.")
    shapes: str | None = SHAPES
    threads: int | None = THREADS
    hint: str = typer.Option(
        "latency",
        "--hint",
        help="What to optimise for: latency, throughput (many runs at a time), energy.",
    )
    accuracy: str = typer.Option(
        "default", "--accuracy", help="How exactly to compute: strict, default, fast."
    )
    effort: int = typer.Option(
        2, "-O", "--effort", help="How hard planners search, as for the smallest arena: 0 to 3."
    )
    budget: str | None = typer.Option(
        None,
        "--budget",
        help="Choose kernels by measuring for so long: 30s, 500trials; default: by estimate.",
    )
    isa: str | None = typer.Option(None, "--isa", help="Instruction set: avx512 or avx2; default: yours.")
    partition: str = typer.Option(
        "auto", "--partition", help="How to cut the graph: auto, layerwise, none, random."
    )
    schedule: str = typer.Option(
        "auto", "--schedule", help="How to order kernels: auto, sequential, greedy, random."
    )
    disable_pass: list[str] = typer.Option([], "--disable-pass", help="Leave out a graph pass; repeatable.")
    max_memory: str | None = typer.Option(
        None, "--max-memory", help="Refuse a larger arena for activations: 512MiB."
    )
    timeout: float | None = typer.Option(None, "--timeout", help="Stop compiling after so many seconds.")
    seed: int = SEED
    cache: Path | None = CACHE
    no_cache: bool = typer.Option(False, "--no-cache", help="Neither read nor write the kernel cache.")
    frozen: bool = typer.Option(False, "--frozen", help="A kernel missing from the cache is an error.")

    def options(self, *, dump_after: tuple[str, ...] = ()) -> Options:
        """The options that the flags ask for.

        Raises:
            UsageError: a name that is unknown, or a value that makes no sense.
        """
        from tilewright.options import Options, parse_accuracy, parse_hint, parse_shapes
        from tilewright.partition import PARTITIONERS
        from tilewright.passes import PASSES
        from tilewright.planning import Budget
        from tilewright.schedule import SCHEDULERS
        from tilewright.sizes import parse_bytes
        from tilewright.targets import TARGETS

        # An unknown name is an error here, before the model is read.
        TARGETS.get(self.target)
        for name in (*self.disable_pass, *dump_after):
            PASSES.get(name)
        if self.partition != "auto":
            PARTITIONERS.get(self.partition)
        if self.schedule != "auto":
            SCHEDULERS.get(self.schedule)
        if self.isa is not None:
            _check_isa(self.isa)
        return Options(
            target=self.target,
            shapes=parse_shapes(self.shapes) if self.shapes is not None else {},
            hint=parse_hint(self.hint),
            accuracy=parse_accuracy(self.accuracy),
            effort=self.effort,
            budget=None if self.budget is None else Budget.parse(self.budget),
            threads=self.threads,
            isa=self.isa,
            partition=self.partition,
            schedule=self.schedule,
            disabled_passes=tuple(self.disable_pass),
            dump_after=dump_after,
            max_memory_bytes=parse_bytes(self.max_memory) if self.max_memory is not None else None,
            timeout_s=self.timeout,
            seed=self.seed,
            cache_dir=self.cache,
            no_cache=self.no_cache,
            frozen=self.frozen,
        )


def _check_isa(name: str) -> None:
    from tilewright.targets.cpu.isa import isa_by_name

    isa_by_name(name)


def parsed_shapes(text: str | None) -> dict[str, tuple[int, ...]]:
    """The value of `--shapes`; nothing without it."""
    from tilewright.options import parse_shapes

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
    app.command(name, rich_help_panel=panel)(_with_flags(verb))


_MANNER_FLAGS = {
    "quiet": typer.Option(False, "--quiet", "-q", help="Results and errors only."),
    "verbose": typer.Option(False, "--verbose", "-v", help="Say what is being done."),
    "debug": typer.Option(False, "--debug", help="Show the traceback of an error."),
}


def _with_flags(verb: Callable[..., None]) -> Callable[..., None]:
    """`verb` with a parameter for each flag, in place of `flags: CompileFlags`."""
    hints = typing.get_type_hints(verb)
    parameters: list[inspect.Parameter] = []
    names = tuple(f.name for f in fields(CompileFlags))
    has_flags = hints.get("flags") is CompileFlags
    for parameter in inspect.signature(verb).parameters.values():
        if parameter.name != "flags":
            parameters.append(_keyword(parameter.name, hints[parameter.name], parameter.default))
    if has_flags:
        types = typing.get_type_hints(CompileFlags)
        parameters += [_keyword(f.name, types[f.name], f.default) for f in fields(CompileFlags)]
    parameters += [_keyword(name, bool, flag) for name, flag in _MANNER_FLAGS.items()]

    @functools.wraps(verb)
    def call(**values: Any) -> None:
        asked = {name: values.pop(name) for name in _MANNER_FLAGS}
        MANNER.set(Manner(asked["quiet"], asked["verbose"], asked["debug"] or MANNER.get().debug))
        listen_to_warnings()
        if has_flags:
            values["flags"] = CompileFlags(**{name: values.pop(name) for name in names})
        verb(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions have one
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
