"""Everything a user can ask of a compilation, in one frozen record. Command-line flags come from it.

The command line's help reads the fields alone: what checks their values loads with the first record.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from tilewright.errors import UsageError
from tilewright.extents import SCALAR, Axis, axes_text, canonical_axis, fixed_shape
from tilewright.families import FAMILIES
from tilewright.planning.budget import UNLIMITED, Budget
from tilewright.records import dataclass
from tilewright.requests import PLANS, asked, types_of
from tilewright.target_ref import CPU, TargetRef

if TYPE_CHECKING:
    from tilewright.cost.base import Objective

Hint = Literal["latency", "throughput", "energy", "edp"]
FirstAnswer = Literal["compiled", "quick"]
Plan = Literal["portfolio", "grid", "joint"]
Choice = Literal["kernels", "slices", "stages", "lanes", "merges", "sums", "tilings"]
Accuracy = Literal["strict", "default", "relaxed", "fast"]
Shapes = Mapping[str, tuple[int, ...]]
OpenShapes = Mapping[str, tuple[Axis, ...]]

AUTO = "auto"
_MAX_SHOWN_SETS = 5
EFFORT_EVALUATIONS = {0: 0, 1: 200, 2: 1000, 3: 10000}


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Read `x:1x3x224x224,mask:1x128`.

    Raises:
        UsageError: any other text, or an input named twice.

    >>> parse_shapes("x:1x3,y:2")
    {'x': (1, 3), 'y': (2,)}
    """
    return fixed_shapes(parse_open_shapes(text))


def parse_open_shapes(text: str) -> dict[str, tuple[Axis, ...]]:
    """Read `x:1..8x128|256|512,mask:1x?`.

    Raises:
        UsageError: any other text, or an input named twice.

    >>> parse_open_shapes("x:1..8x3,y:?,rate:scalar")
    {'x': ('1..8', 3), 'y': ('?',), 'rate': ()}
    """
    shapes: dict[str, tuple[Axis, ...]] = {}
    for part in text.split(","):
        name, colon, extents = part.strip().rpartition(":")
        axes = _axes(extents)
        if not colon or not name or axes is None:
            raise UsageError(
                f"shapes {part.strip()!r}: expected INPUT:1x3x224x224, several separated by commas; an axis "
                "is a number, or, where a verb prepares several, 1..8, 128|256 or ?; without axes it is "
                "INPUT:scalar."
            )
        if name in shapes:
            raise UsageError(f"shapes: input {name!r} is given twice.")
        shapes[name] = axes
    return shapes


def _axes(text: str) -> tuple[Axis, ...] | None:
    if text == SCALAR:
        return ()
    try:
        return tuple(canonical_axis(axis) for axis in text.split("x"))
    except UsageError:
        return None


def fixed_shapes(shapes: OpenShapes) -> dict[str, tuple[int, ...]]:
    """Shapes of which each axis is a number.

    Raises:
        UsageError: one is not.
    """
    fixed: dict[str, tuple[int, ...]] = {}
    for name, axes in shapes.items():
        numbers = fixed_shape(axes)
        if numbers is None:
            raise UsageError(
                f"shapes {name}:{axes_text(axes)}: this needs a number for each axis; several are "
                "for `run`, `compile` and `tw.compile`."
            )
        fixed[name] = numbers
    return fixed


def shapes_text(shapes: OpenShapes) -> str:
    """Shapes as `parse_open_shapes` reads them.

    >>> shapes_text({"x": (1, 3), "y": (2,), "rate": ()})
    'x:1x3,y:2,rate:scalar'
    """
    return ",".join(f"{name}:{axes_text(shape)}" for name, shape in shapes.items())


def sets_text(sets: Sequence[OpenShapes]) -> str:
    """Several sets of shapes, the first few where there are many.

    >>> sets_text([{"x": (1, 3)}, {"x": (2, 3)}])
    'x:1x3; x:2x3'
    """
    shown = "; ".join(shapes_text(shapes) for shapes in sets[:_MAX_SHOWN_SETS])
    more = len(sets) - _MAX_SHOWN_SETS
    return f"{shown} and {more} more" if more > 0 else shown


def _parse_bytes(text: str) -> int:
    from tilewright.sizes import parse_bytes

    return parse_bytes(text)


def parse_choices(text: str) -> tuple[Choice, ...]:
    """Read `stages,merges`: decisions of a joint plan, in the order of the list of all.

    Raises:
        UsageError: there is no such decision.

    >>> parse_choices("merges, stages")
    ('stages', 'merges')
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        _check_choice("only", name, get_args(Choice))
    return tuple(choice for choice in get_args(Choice) if choice in names)


_LIMITS = "Limits and the cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """See each field's help, `Options.help(name)`.

    What is written on the command line may be given here, too: `budget="60s"`, `shapes="x:1x3"`,
    `max_memory_bytes="1GiB"`, `partition="graphturbo{alpha=1.25}"`.

    `accuracy`: `strict` computes as the model says: no pass folds one constant into another, products are
    plain dot products in float32, and every product is rounded before it is added to another. `default` errs
    as float32 does, but may compute sums of products in other ways (Winograd's, six products of bfloat16
    pieces), and a schedule may merge convolutions whose kernels it pads with zeros, which spreads what is not
    finite. `relaxed` stays within 1e-4 of the exact result: three products of pieces, weights of 24 bits.
    `fast` may also use one product of bfloat16.

    >>> Options(threads=2).effort
    2
    """

    target: TargetRef = asked(
        CPU,
        "Where to run: see `tilewright targets`.",
        "--target",
        "-t",
        parse=TargetRef.parse,
        family="targets",
    )
    shapes: OpenShapes = asked(
        None,
        "Sizes the model leaves open: x:1x3x224x224,mask:1x128. `run` and `compile` take several: "
        "x:1..8x128|256.",
        "--shapes",
        parse=parse_open_shapes,
        make=dict,
    )
    threads: int | None = asked(
        None,
        "Worker threads; default: the physical cores this process may use, or 1 with --hint throughput.",
        "--threads",
    )
    hint: Hint = asked(
        "latency",
        "What to optimise for (throughput: many runs at a time; edp: energy times delay).",
        "--hint",
    )
    accuracy: Accuracy = asked("default", "How exactly to compute.", "--accuracy")
    isa: str | None = asked(
        None,
        "Instruction set to generate code for, one that `tilewright targets cpu` lists; default: this "
        "machine's. An artifact can hold code for several: avx512,avx2,aarch64; of a GPU sm_80,sm_90.",
        "--isa",
    )
    effort: int = asked(2, "How hard planners search: 0 to 3.", "-O", "--effort", panel=PLANS)
    budget: Budget | None = asked(
        None,
        "Choose kernels by measuring them for this long: 30s, 500trials; default: by estimate, or "
        "60s of `tune`.",
        "--budget",
        panel=PLANS,
        parse=Budget.parse,
    )
    partition: str = asked(
        AUTO,
        "How to group operators into kernels.",
        "--partition",
        panel=PLANS,
        family="partition",
        also=(AUTO,),
        has_options=True,
    )
    schedule: str = asked(
        AUTO,
        "How to order the groups.",
        "--schedule",
        panel=PLANS,
        family="schedule",
        also=(AUTO,),
        has_options=True,
        is_expert=True,
    )
    memory: str = asked(
        AUTO,
        "How to place values in memory.",
        "--memory",
        panel=PLANS,
        family="memory",
        also=(AUTO,),
        has_options=True,
        is_expert=True,
    )
    plan: Plan = asked(
        "portfolio",
        "Which plans to take the best of: portfolio, those that the target finds worth trying; grid, "
        "every partitioner with every scheduler; joint, blocks of all these and on from there.",
        "--plan",
        panel=PLANS,
        is_expert=True,
    )
    only: tuple[Choice, ...] = asked(
        (),
        "With --plan joint, on machines that launch kernels one by one: search these decisions alone, "
        "of kernels, slices, stages, lanes, merges, sums and tilings; all others stay as --partition and "
        "--schedule say (default: layers one by one). Kernels of a named partition are cut again.",
        "--only",
        panel=PLANS,
        parse=parse_choices,
        is_expert=True,
    )
    split_sums: bool | None = asked(
        None,
        "On machines that launch kernels one by one: cut sums of products into parts side by side where "
        "their layers get cheaper, before anything is planned, or never; default: portfolio, grid and "
        "joint plans try both, named planners leave sums whole.",
        "--split-sums/--no-split-sums",
        panel=PLANS,
        is_expert=True,
    )
    passes: tuple[str, ...] = asked(
        (),
        "Run this graph pass after the standard ones; repeatable. See `tilewright planners passes`.",
        "--pass",
        panel=PLANS,
        family="passes",
        has_options=True,
        is_expert=True,
    )
    disabled_passes: tuple[str, ...] = asked(
        (),
        "Leave out a graph pass; repeatable.",
        "--disable-pass",
        panel=PLANS,
        family="passes",
        is_expert=True,
    )
    seed: int = asked(0, "Seed of searches and of random inputs.", "--seed", panel=PLANS)
    verify: bool = asked(
        False,
        "Also check plans that are only compared; the answer itself is always checked.",
        "--verify",
        panel=PLANS,
        key=False,
    )
    max_memory_bytes: int | None = asked(
        None,
        "Refuse a model whose activations need more memory than this: 512MiB.",
        "--max-memory",
        panel=_LIMITS,
        parse=_parse_bytes,
    )
    max_shapes: int = asked(
        64,
        "For a model with open sizes: how many sets of shapes to keep code for.",
        "--max-shapes",
        panel=_LIMITS,
        key=False,
        is_expert=True,
    )
    frozen_shapes: bool = asked(
        False,
        "Make shapes that were not prepared an error, so that no run waits for a compilation.",
        "--frozen-shapes",
        panel=_LIMITS,
        key=False,
    )
    first_answer: FirstAnswer = asked(
        "compiled",
        "What answers first; quick is the reference, which rounds otherwise, while code is compiled.",
        "--first-answer",
        panel=_LIMITS,
        key=False,
    )
    timeout_s: float | None = asked(
        None, "Stop compiling after this many seconds.", "--timeout", panel=_LIMITS, key=False
    )
    cache_dir: Path | None = asked(
        None, "Folder of the kernel cache; default: the user's.", "--cache", panel=_LIMITS, key=False
    )
    no_cache: bool = asked(
        False,
        "Compile all kernels anew, and keep nothing between runs.",
        "--no-cache",
        panel=_LIMITS,
        key=False,
    )
    frozen: bool = asked(
        False,
        "Make a kernel that is missing from the cache an error.",
        "--frozen",
        panel=_LIMITS,
        key=False,
        is_expert=True,
    )
    trust: bool = asked(
        False,
        "Use the machine code of an artifact whatever key signed it; see `tilewright trust`.",
        "--trust",
        panel=_LIMITS,
        key=False,
    )
    dump_after: tuple[str, ...] = asked(
        (),
        "Print the graph after this pass; repeatable.",
        "--dump-after",
        panel=PLANS,
        key=False,
        family="passes",
        is_expert=True,
    )

    def __post_init__(self) -> None:
        from tilewright.arguments import argument
        from tilewright.planning.spec import Spec

        for f in fields(self):
            value = getattr(self, f.name)
            if f.metadata["parse"] is not None and isinstance(value, str):
                value = f.metadata["parse"](value)
            # A text is a path too, and numpy's numbers are numbers.
            value = argument(f.name.replace("_", "-"), value, _checked_types()[f.name])
            if f.metadata["has_options"]:
                value = _each(value, lambda text: str(Spec.parse(text)))
            object.__setattr__(self, f.name, value)
        _check_choice("hint", self.hint, get_args(Hint))
        _check_choice("accuracy", self.accuracy, get_args(Accuracy))
        _check_choice("first-answer", self.first_answer, get_args(FirstAnswer))
        _check_choice("plan", self.plan, get_args(Plan))
        _check_choice("effort", self.effort, tuple(EFFORT_EVALUATIONS))
        if self.only and self.plan != "joint":
            raise UsageError("only is for plan joint; ask for that, or leave only out.")
        if self.split_sums is False and "sums" in self.only:
            raise UsageError("only names sums, which no-split-sums leaves whole; leave one of the two out.")
        if self.split_sums and self.plan == "joint":
            raise UsageError("split-sums: plan joint decides about sums itself; leave split-sums out.")
        if self.split_sums and self.accuracy == "strict":
            raise UsageError(
                "split-sums: accuracy strict adds products in the model's order; leave split-sums out."
            )
        if self.isa:
            from tilewright.hardware.instruction_sets import ALIASES

            object.__setattr__(self, "isa", ",".join(ALIASES.get(name, name) for name in self.isas))
        _check_positive("threads", self.threads)
        _check_positive("max-memory", self.max_memory_bytes)
        _check_positive("timeout", self.timeout_s)
        _check_positive("max-shapes", self.max_shapes)
        if self.seed < 0:
            raise UsageError(f"seed {self.seed}: give a number that is not negative.")
        if self.no_cache and self.frozen:
            raise UsageError("--frozen needs the cache that --no-cache turns off; give one of the two.")
        for name, shape in self.shapes.items():
            if any(isinstance(axis, int) and axis < 0 for axis in shape):
                raise UsageError(f"shapes: input {name!r} has a negative extent in {tuple(shape)}.")
        shapes = {name: tuple(map(canonical_axis, shape)) for name, shape in self.shapes.items()}
        object.__setattr__(self, "shapes", shapes)

    @property
    def asked(self) -> frozenset[str]:
        """Names of the fields that hold something else than their default.

        >>> sorted(Options(threads=2, seed=0).asked)
        ['threads']
        """
        default = Options()
        return frozenset(f.name for f in fields(self) if getattr(self, f.name) != getattr(default, f.name))

    @property
    def isas(self) -> tuple[str, ...]:
        """Instruction sets to generate for, by name; none stands for all that the machine has.

        >>> Options(isa="avx512, avx2").isas
        ('avx512', 'avx2')
        """
        return tuple(name.strip() for name in (self.isa or "").split(",") if name.strip())

    @property
    def num_threads(self) -> int | None:
        """Threads of one run: as asked, else one where throughput counts, so that many runs go side by side.

        >>> Options(hint="throughput").num_threads, Options(hint="throughput", threads=2).num_threads
        (1, 2)
        """
        return 1 if self.threads is None and self.hint == "throughput" else self.threads

    @property
    def fixed_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes, where each axis is a number.

        Raises:
            UsageError: one is not.
        """
        return fixed_shapes(self.shapes)

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

    def resolved(self) -> Options:
        """The same request, each of its names known, the options of planners and passes in canonical form.

        Raises:
            UsageError: an unknown planner or pass, or an option that it does not take.
        """
        named = (f for f in fields(self) if f.metadata["family"])
        changed = {
            f.name: _each(getattr(self, f.name), functools.partial(_known, f.metadata))
            for f in named
            if f.name != "target"  # which may be a machine's file, too
        }
        return replace(self, **changed)

    def to_json(self) -> str:
        """Canonical JSON of the fields that can change the artifact: equal requests give equal text."""
        document = {f.name: _jsonable(getattr(self, f.name)) for f in fields(self) if f.metadata["key"]}
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def help(cls, name: str) -> str:
        """Help text of one field.

        >>> Options.help("seed")
        'Seed of searches and of random inputs.'
        """
        return str(next(f.metadata["help"] for f in fields(cls) if f.name == name))


def options_of(settings: Mapping[str, Any]) -> Options:
    """Options of some of their fields.

    Raises:
        UsageError: an unknown setting; the message says what it may mean.
    """
    from tilewright.arguments import require_fields

    require_fields(Options, settings)
    return Options(**settings)


@functools.cache
def _checked_types() -> dict[str, Any]:
    # What is one of a few texts is checked by its choices, in the words of its flag.
    kinds = {name: str if get_origin(kind) is Literal else kind for name, kind in types_of(Options).items()}
    return {**kinds, "target": str | TargetRef}


def _known(about: Mapping[str, Any], text: str) -> str:
    """The canonical text of a member that a field may name."""
    family = FAMILIES[about["family"]]
    if text in about["also"]:
        return text
    if about["has_options"]:
        return family.canonical(text)
    if "{" in text:
        raise UsageError(f"{text}: give the name of the {family.kind} alone, without options.")
    family.get(text)
    return text


def _each(value: Any, change: Callable[[str], str]) -> Any:
    """A text changed, or each of several texts."""
    return change(value) if isinstance(value, str) else tuple(map(change, value))


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
        case TargetRef():
            return str(value)
    return value
