"""What may be asked of an artifact: whatever opening it can still serve, and what it was compiled with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path

from tilewright.compiled_facts import CompiledFacts
from tilewright.errors import BudgetExceeded, UsageError
from tilewright.options import Options, shapes_text
from tilewright.target_ref import TargetRef
from tilewright.text.formatting import format_bytes
from tilewright.text.printable import printable

SERVED = frozenset(
    {
        "threads",
        "seed",
        "isa",
        "max_memory_bytes",
        "timeout_s",
        "cache_dir",
        "no_cache",
        "frozen",
        "frozen_shapes",
        "trust",
    }
)
"""Settings that are not compiled in: what runs, by how many threads, and how code is made if it must be."""


def require_options_apply(path: Path, facts: CompiledFacts, options: Options, asked: Collection[str]) -> None:
    """That each setting in `asked` is served, or is what the artifact was compiled with.

    Raises:
        UsageError: naming all that are neither.
        BudgetExceeded: the artifact needs more memory than the options allow.
    """
    refused = [
        f"{_flag(f.metadata['flags'])}{_said(getattr(options, f.name))}{_compiled_with(facts, f.name)}"
        for f in fields(Options)
        if f.name in asked and f.name not in SERVED and not _is_compiled_in(facts, options, f.name)
    ]
    if refused:
        them = "that" if len(refused) == 1 else "those"
        raise UsageError(
            f"{path}: an artifact is compiled already and cannot honour {', '.join(refused)}; leave {them} "
            "out, or compile the model anew."
        )
    limit = options.max_memory_bytes
    if limit is None:
        return
    if facts.memory is None:
        raise UsageError(f"{path}: target {facts.target} plans no memory; leave out --max-memory.")
    require_memory(path, facts.memory.peak_bytes, limit)


def require_memory(path: Path, needed_bytes: int, limit_bytes: int | None) -> None:
    """That an arena is no larger than the limit, if there is one.

    Raises:
        BudgetExceeded: it is larger.
    """
    if limit_bytes is not None and needed_bytes > limit_bytes:
        raise BudgetExceeded(
            f"{path}: a run needs an arena of {format_bytes(needed_bytes)}, more than the "
            f"{format_bytes(limit_bytes)} of --max-memory; allow more, or compile the model with that limit."
        )


def _is_compiled_in(facts: CompiledFacts, options: Options, name: str) -> bool:
    given = getattr(options, name)
    if name == "shapes":
        shapes = {info.name: info.shape for info in facts.inputs}
        return all(shapes.get(key) == tuple(shape) for key, shape in given.items())
    return bool(given == getattr(facts.options, name))


def _compiled_with(facts: CompiledFacts, name: str) -> str:
    if name == "shapes":
        shapes = shapes_text({info.name: info.shape for info in facts.inputs})
        return f" (its inputs are {printable(shapes)})"
    said = _said(getattr(facts.options, name))
    return f" (compiled with{said})" if said else ""


def _flag(names: tuple[str, ...]) -> str:
    """The long name of a flag."""
    return next(name for name in names if name.startswith("--"))


def _said(value: object) -> str:
    """A value as it stands behind its flag, where that is short."""
    match value:
        case str() | int() | float() | TargetRef() if not isinstance(value, bool):
            return f" {printable(str(value))}"
        case Mapping():
            return f" {printable(shapes_text(value))}"
        case tuple():
            return "".join(f" {printable(str(part))}" for part in value)
    return ""
