"""What `tw.simulate` is asked: the fields are the flags of `tilewright simulate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.api.batches import latency_limit_s, wanted_batch
from tilewright.api.machine_request import MachineRequest
from tilewright.api.models import Model
from tilewright.errors import UsageError
from tilewright.frontend.onnx import Source
from tilewright.options import AUTO, Options, parse_choices
from tilewright.planner import WHOLE_PORTFOLIO
from tilewright.planning import Budget
from tilewright.requests import FILES, PLANS, asked
from tilewright.target_ref import TargetRef

DEFAULT_MACHINE = "stcp920"
BEST, SEARCH, GRID, JOINT = "best", "search", "grid", "joint"
_MANY = (BEST, SEARCH, GRID, JOINT)
"""Recipes that compare plans, as long as a budget lasts."""
EFFORTS: Mapping[str, tuple[str | None, Budget | None]] = {
    "quick": (None, Budget(max_evaluations=1)),
    "normal": (None, None),
    "best": (JOINT, Budget.parse("60s")),
}
"""Recipe and budget of each effort."""
DEFAULT_SEARCH = Budget(max_evaluations=170)
"""Plans that are simulated beyond the portfolio's: what the published gains were found with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest(MachineRequest):
    """What `tw.simulate` is asked: see each field's help, which the flags of `tilewright simulate` show.

    `model` is an ONNX file, its bytes, a `ModelProto` or a loaded model. What is written on the command line
    may be given in the other fields, too: `budget="60s"`, `shapes="x:0x3x224x224"`,
    `target="stcp920{overlap=none}"`. Planners that are not named are the target's defaults.
    """

    model: Model | Source
    target: TargetRef | str | Path = asked(
        DEFAULT_MACHINE,
        "A machine: a name from `tilewright targets`, or a YAML file.",
        "--target",
        "-t",
        family="targets",
    )
    dtype: str | None = asked(
        None,
        "Type that floating-point numbers are converted to: float32, float16, bfloat16, int16, int8; "
        "default: types that the machine multiplies stay, others become the widest that it multiplies.",
        "--dtype",
    )
    recipe: str | None = asked(
        None,
        "How to plan: best (of a portfolio; the default), search (improves that plan), grid (every "
        "partitioner with every scheduler), joint (blocks of all these plans, and on from there), "
        "graphturbo, tvm, astitch, variant-1 to variant-4. All but graphturbo and variant-4 may end in "
        "-overlapped.",
        "--recipe",
        panel=PLANS,
    )
    effort: str | None = asked(
        None,
        "In place of a recipe and a budget: quick (the paper's own recipe), normal (best of the "
        "portfolio; the default), best (joint, within 60s).",
        "--effort",
        panel=PLANS,
    )
    only: str | Sequence[str] | None = asked(
        None,
        "With --recipe joint, on machines that launch kernels one by one: search these decisions alone, "
        "of kernels, slices, stages, lanes, merges, sums and tilings; all others stay as --partition and "
        "--schedule say (default: layers one by one). Kernels of a named partition are cut again.",
        "--only",
        panel=PLANS,
        is_expert=True,
    )
    split_sums: bool | None = asked(
        None, Options.help("split_sums"), "--split-sums/--no-split-sums", panel=PLANS
    )
    partition: str | None = asked(
        None,
        "Instead of a recipe: how to group operators.",
        "--partition",
        panel=PLANS,
        family="partition",
        has_options=True,
        is_expert=True,
    )
    schedule: str | None = asked(
        None,
        "Instead of a recipe: how to order the groups.",
        "--schedule",
        panel=PLANS,
        family="schedule",
        has_options=True,
        is_expert=True,
    )
    memory: str | None = asked(
        None,
        "Instead of a recipe: how to place values in memory.",
        "--memory",
        panel=PLANS,
        family="memory",
        has_options=True,
        is_expert=True,
    )
    budget: Budget | str | None = asked(
        None,
        "How many recipes of the portfolio to try, the paper's own first (20trials), or for how long, "
        "layers one by one first (60s). With --recipe search: how many plans beyond the portfolio "
        "(default: 170trials), or the time for both.",
        "--budget",
        panel=PLANS,
    )
    batch: int | str | tuple[int, ...] | None = asked(
        None,
        "Samples for each cluster, along the open first axis of inputs (0 in --shapes); auto: the "
        "power of two with the most samples per second; several numbers (6,12,24): the fastest way to "
        "run each of them. With auto or several numbers, the tables and --check, --trace, --html and "
        "--compare show the best batch.",
        "--batch",
        panel=PLANS,
    )
    max_latency_ms: float | None = asked(
        None,
        "With --batch auto or several numbers: leave out batches and runs that take longer than "
        "this, in milliseconds.",
        "--max-latency",
        panel=PLANS,
    )
    mapper: str | None = asked(
        None,
        "Mapper that tiles layers whose operands do not fit the cores' buffers and are read repeatedly: "
        "exact (the default), cosa, paper.",
        "--mapper",
        panel=PLANS,
        is_expert=True,
    )
    workers: str | None = asked(
        None,
        "With --recipe joint: price blocks of plans in so many processes, or on a Ray cluster: ray, or "
        "ray://HOST:10001. With --sweep: make plans there. The answer is the same.",
        "--workers",
        panel=PLANS,
        metavar="N|ray",
    )
    journal: Path | None = asked(
        None,
        "With --workers or --sweep: append prices of blocks, or plans, to a file of JSON lines; what it "
        "holds is not asked for again.",
        "--journal",
        panel=FILES,
        metavar="FILE",
    )
    compare: bool = asked(False, "Simulate the paper's baselines as well.", "--compare", panel=None)
    check: bool = asked(
        False,
        "Compute the values of the plan buffer by buffer, and compare them with the network's.",
        "--check",
        panel=None,
    )
    mappings: bool = asked(
        False,
        "Hold the plan's sums of products against their mappings alone, level by level.",
        "--mappings",
        panel=PLANS,
        is_expert=True,
    )

    def __post_init__(self) -> None:
        MachineRequest.__post_init__(self)
        options = {"mapper": self.mapper, "dtype": self.dtype}
        target = TargetRef.parse(self.target)
        if given := {name: text for name, text in options.items() if text is not None}:
            target = target.with_options(**given)
        object.__setattr__(self, "target", target)
        if isinstance(self.budget, str):
            object.__setattr__(self, "budget", Budget.parse(self.budget))
        if self.effort is not None:
            self._take_effort(self.effort)
        if self.only is not None:
            if self.recipe != JOINT:
                raise UsageError("--only is for --recipe joint; give that, or leave --only out.")
            only = self.only if isinstance(self.only, str) else ",".join(self.only)
            object.__setattr__(self, "only", parse_choices(only))
        planners = {} if self.only else self.planners
        if planners and self.recipe is not None:
            raise UsageError(
                f"--recipe {self.recipe} says how to cut, order and spill; leave it out, or --partition, "
                "--schedule and --memory."
            )
        if self.budget is not None and (planners or self.recipe not in (None, *_MANY)):
            chosen = {"recipe": self.recipe, **planners}
            names = ", ".join(f"--{key} {name}" for key, name in chosen.items() if name is not None)
            raise UsageError(
                f"--budget is for several plans, and with {names} there is one; leave it out, or take "
                f"--recipe {', '.join(_MANY[:-1])} or {_MANY[-1]} instead."
            )
        latency_limit_s(self.max_latency_ms, wanted_batch(self.batch))
        is_joint = self.recipe == JOINT
        self._check_workers(self.workers, self.journal, "--recipe joint", is_there=is_joint)
        if self.journal is not None and self.workers is None:
            raise UsageError(
                "--journal is for prices that workers give; give --workers, or leave --journal out."
            )

    def _take_effort(self, effort: str) -> None:
        """Recipe and budget become those of an effort."""
        if effort not in EFFORTS:
            raise UsageError(f"--effort {effort!r}: expected {', '.join(EFFORTS)}.")
        given = {"recipe": self.recipe, "budget": self.budget, **self.planners}
        if names := [f"--{name}" for name, value in given.items() if value is not None]:
            raise UsageError(f"--effort says how to plan; leave it out, or {' and '.join(names)}.")
        recipe, budget = EFFORTS[effort]
        object.__setattr__(self, "recipe", recipe)
        object.__setattr__(self, "budget", budget)

    @property
    def planners(self) -> dict[str, str]:
        """The planners that are named."""
        names = {"partition": self.partition, "schedule": self.schedule, "memory": self.memory}
        return {key: name for key, name in names.items() if name is not None}

    @property
    def portfolio(self) -> Budget:
        """For how long recipes are tried. A search has the rest of a time."""
        if not isinstance(self.budget, Budget):
            return WHOLE_PORTFOLIO
        return (
            self.budget
            if self.recipe != SEARCH
            else replace(WHOLE_PORTFOLIO, deadline_s=self.budget.deadline_s)
        )

    def options(self, named: Mapping[str, Options]) -> Options:
        """What is asked of the compiler; `named` are the plans that have a name on the target.

        Raises:
            UsageError: there is no such recipe or planner.
        """
        recipe = self.recipe or BEST
        if recipe in named:
            return replace(named[recipe], split_sums=self.split_sums)
        if recipe not in _MANY:
            raise UsageError(f"recipe {recipe!r}: expected {', '.join((*_MANY, *named))}.")
        # Of what follows the portfolio.
        budget = self.budget or DEFAULT_SEARCH if recipe in (SEARCH, JOINT) else None
        names = dict.fromkeys(("partition", "schedule", "memory"), AUTO) | self.planners
        hint = self.objective
        plan = recipe if recipe in (GRID, JOINT) else "portfolio"
        only = self.only or ()
        options = Options(target=self.target, plan=plan, budget=budget, hint=hint, only=only, **names)  # type: ignore[arg-type]  # parsed before
        return replace(options, split_sums=self.split_sums).resolved()
