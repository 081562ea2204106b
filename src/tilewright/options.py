"""Everything a user can ask of a compilation, in one frozen record. Command-line flags come from it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from tilewright.arguments import argument
from tilewright.cost.base import Objective
from tilewright.errors import UsageError
from tilewright.planning import UNLIMITED, Budget

Hint = Literal["latency", "throughput", "energy", "edp"]
Accuracy = Literal["strict", "default", "fast"]
Shapes = Mapping[str, tuple[int, ...]]

AUTO = "auto"
EFFORT_EVALUATIONS = {0: 0, 1: 200, 2: 1000, 3: 10000}


def _about(help_text: str, *, key: bool = True) -> dict[str, Any]:
    """Metadata of a field. `key` says whether it can change the artifact and so belongs to its key."""
    return {"help": help_text, "key": key}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """See each field's help, `Options.help(name)`.

    `accuracy`: `strict` computes as the model says: no pass folds one constant into another, products are
    plain dot products in float32, and every product is rounded before it is added to another. `default` may
    compute sums of products in other ways, within 1e-4 of the exact result (Winograd's, pieces of bfloat16);
    `fast` may also use narrower types.

    >>> Options(threads=2).effort
    2
    """

    target: str = field(
        default="cpu", metadata=_about("Where to run: cpu, interpreter, null, or a machine's YAML file.")
    )
    shapes: Shapes = field(
        default_factory=dict, metadata=_about("Shape of each input whose sizes the model leaves open.")
    )
    hint: Hint = field(
        default="latency",
        metadata=_about(
            "What to optimise for: throughput is many runs at a time, edp the product of energy and delay."
        ),
    )
    effort: int = field(default=2, metadata=_about("How hard planners search: 0 to 3."))
    budget: Budget | None = field(
        default=None,
        metadata=_about("Measure kernels for so long, such as 60s or 500trials; default: estimates choose."),
    )
    threads: int | None = field(
        default=None,
        metadata=_about("Threads of a run; default: the cores this process may use, or 1 for throughput."),
    )
    partition: str = field(default=AUTO, metadata=_about("How to cut the graph into kernels."))
    schedule: str = field(default=AUTO, metadata=_about("How to order the kernels."))
    memory: str = field(default=AUTO, metadata=_about("How to place values in memory."))
    disabled_passes: tuple[str, ...] = field(default=(), metadata=_about("Graph passes to leave out."))
    accuracy: Accuracy = field(default="default", metadata=_about("How exactly to compute."))
    seed: int = field(default=0, metadata=_about("Seed of every search."))
    isa: str | None = field(
        default=None, metadata=_about("Instruction set to generate for; default: this processor's.")
    )
    max_memory_bytes: int | None = field(
        default=None, metadata=_about("Refuse to compile if the arena would be larger.")
    )
    dump_after: tuple[str, ...] = field(
        default=(), metadata=_about("Passes after which the graph is printed.", key=False)
    )
    cache_dir: Path | None = field(
        default=None, metadata=_about("Folder of the kernel and tuning cache.", key=False)
    )
    no_cache: bool = field(default=False, metadata=_about("Neither read nor write the cache.", key=False))
    frozen: bool = field(default=False, metadata=_about("A miss in the cache is an error.", key=False))
    timeout_s: float | None = field(
        default=None, metadata=_about("Stop compiling after this time; no artifact is an error.", key=False)
    )

    def __post_init__(self) -> None:
        for name, kind in _kinds().items():  # a text is a path too, and numpy's numbers are numbers
            object.__setattr__(self, name, argument(name.replace("_", "-"), getattr(self, name), kind))
        _check_choice("hint", self.hint, get_args(Hint))
        _check_choice("accuracy", self.accuracy, get_args(Accuracy))
        _check_choice("effort", self.effort, tuple(EFFORT_EVALUATIONS))
        for name in ("target", "partition", "schedule", "memory"):
            if not getattr(self, name):
                raise UsageError(f"{name}: the name is empty.")
        _check_positive("threads", self.threads)
        _check_positive("max-memory", self.max_memory_bytes)
        _check_positive("timeout", self.timeout_s)
        if self.seed < 0:
            raise UsageError(f"seed {self.seed}: give a number that is not negative.")
        if self.no_cache and self.frozen:
            raise UsageError("frozen needs the cache that no-cache turns off; give one of the two.")
        for name, shape in self.shapes.items():
            if any(extent < 0 for extent in shape):
                raise UsageError(f"shapes: input {name!r} has a negative extent in {tuple(shape)}.")

    @property
    def num_threads(self) -> int | None:
        """Threads of one run: as asked, else one where throughput counts, so that many runs go side by side.

        >>> Options(hint="throughput").num_threads, Options(hint="throughput", threads=2).num_threads
        (1, 2)
        """
        return 1 if self.threads is None and self.hint == "throughput" else self.threads

    @property
    def objective(self) -> Objective:
        """What planners minimise.

        >>> Options(hint="throughput").objective
        'latency'
        """
        return "latency" if self.hint == "throughput" else self.hint

    @property
    def search_budget(self) -> Budget:
        """What planners may spend, by effort; `budget` is for measuring."""
        return Budget(EFFORT_EVALUATIONS[self.effort])

    def to_json(self) -> str:
        """Canonical JSON of the fields that can change the artifact: equal requests give equal text."""
        document = {f.name: _jsonable(getattr(self, f.name)) for f in fields(self) if f.metadata["key"]}
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def help(cls, name: str) -> str:
        """Help text of one field.

        >>> Options.help("seed")
        'Seed of every search.'
        """
        return str(next(f.metadata["help"] for f in fields(cls) if f.name == name))


@functools.cache
def _kinds() -> dict[str, Any]:
    hints = get_type_hints(Options)
    # What is one of a few texts is checked below, in the words of its flag.
    return {name: str if get_origin(kind) is Literal else kind for name, kind in hints.items()}


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name} {value!r}: expected one of {', '.join(str(c) for c in choices)}.")


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(f"{name} {value}: give a positive number.")


def _jsonable(value: object) -> object:
    match value:
        case Budget(evaluations, deadline):
            return {"evaluations": None if evaluations == UNLIMITED else evaluations, "deadline_s": deadline}
        case Mapping():
            return {str(k): list(v) for k, v in value.items()}
        case tuple():
            return list(value)
    return value


def parse_hint(text: str) -> Hint:
    """Read an objective.

    Raises:
        UsageError: any other text.
    """
    _check_choice("hint", text, get_args(Hint))
    return cast(Hint, text)


def parse_accuracy(text: str) -> Accuracy:
    """Read an accuracy.

    Raises:
        UsageError: any other text.

    >>> parse_accuracy("strict")
    'strict'
    """
    _check_choice("accuracy", text, get_args(Accuracy))
    return cast(Accuracy, text)


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Read `x:1x3x224x224,mask:1x128`.

    Raises:
        UsageError: any other text, or an input named twice.

    >>> parse_shapes("x:1x3,y:2")
    {'x': (1, 3), 'y': (2,)}
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for part in text.split(","):
        name, colon, extents = part.strip().rpartition(":")
        numbers = extents.split("x")
        if not colon or not name or not all(n.isascii() and n.isdigit() for n in numbers):
            raise UsageError(
                f"shapes {part.strip()!r}: expected INPUT:1x3x224x224, several separated by commas."
            )
        if name in shapes:
            raise UsageError(f"shapes: input {name!r} is given twice.")
        shapes[name] = tuple(int(n) for n in numbers)
    return shapes
