"""`tw.learn`: a cost model from kernels that are measured here or simulated, as a file for planners."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from tilewright.api.models import Model, as_model
from tilewright.arguments import checked
from tilewright.cost.features import identity_of
from tilewright.cost.learned.model import HeldOut, LearnedModel, Quantity
from tilewright.cost.learned.training import METHODS, Effort, Method, require_trainer
from tilewright.errors import UsageError
from tilewright.files import require_other_file, write_output
from tilewright.frontend.onnx import Source
from tilewright.learning.collect import Collection, SampledNetwork, machine_of
from tilewright.learning.samples import SampleFile
from tilewright.learning.table import learned_model, tables_of
from tilewright.planning import UNLIMITED, Budget
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.results import Result, Table
from tilewright.target_ref import CPU, TargetRef
from tilewright.targets import find_target
from tilewright.text.formatting import counted

DEFAULT_BUDGET = Budget(UNLIMITED, 300.0)
_FEWEST_KERNELS = 20


@dataclass(frozen=True, slots=True)
class LearnedQuantity:
    """What was learned of times or energies, and how wrong it is of models that training did not see.

    `held_out` is null where there are too few models or kernels to hold any out.
    """

    quantity: Quantity
    num_kernels: int
    num_measured: int
    held_out: HeldOut | None


@dataclass(frozen=True, slots=True)
class LearnResult(Result):
    """A learned cost model: where it was written, of which machine, and how wrong it is.

    `num_unmeasured` parts of the work were left for another time because the budget was used up.
    """

    machine: str
    target: str
    output: Path
    method: str
    num_models: int
    quantities: tuple[LearnedQuantity, ...]
    num_unmeasured: int
    skipped: tuple[str, ...]

    def tables(self) -> Sequence[Table]:
        """A row for what was learned, and one for the target's own estimates beside it."""
        rows: list[tuple[str, ...]] = []
        for learned in self.quantities:
            held = learned.held_out
            if held is None:
                rows.append((learned.quantity, self.method, "unknown: too few models", "", ""))
                continue
            rows.append(
                (
                    learned.quantity,
                    self.method,
                    *_figures(held.mape, held.kendall_tau, held.right_share, held),
                )
            )
            estimate = held.estimate_mape, held.estimate_kendall_tau, held.estimate_right_share
            rows.append((learned.quantity, "the target's estimate", *_figures(*estimate, held)))
        return (Table(("of", "by", "mean error", "Kendall tau", "right to fuse or cut"), tuple(rows)),)

    def lines(self) -> Sequence[str]:
        """What was learned from, and how to use it."""
        said = [
            f"{q.quantity}: from {q.num_measured} of {counted(q.num_kernels, 'kernel')} of "
            f"{counted(self.num_models, 'model')}"
            for q in self.quantities
        ]
        said += [f"skipped: {reason}" for reason in self.skipped]
        if self.num_unmeasured:
            said.append(
                f"not measured yet: {counted(self.num_unmeasured, 'part')}; run it again with --samples FILE"
            )
        said.append(f'use it: tilewright compile MODEL --partition "pcgc{{cost={self.output}}}"')
        return said


@checked
def learn_costs(
    models: Sequence[Model | Source],
    target: str | TargetRef = CPU,
    *,
    output: Path,
    samples: Path | None = None,
    share: float = 1.0,
    method: str = "trees",
    start: Path | None = None,
    budget: Budget = DEFAULT_BUDGET,
    threads: int | None = None,
    progress: Progress | None = None,
) -> LearnResult:
    """Learn how far a target's estimates are off, from the kernels of models, and write that as a file.

    On `cpu` kernels are measured, for as long as `budget` says; on a described machine they are simulated.
    `samples` is a file that keeps them: what is in it is not measured again. `share` of them teaches, chosen
    as PCGC's Algorithm 1 does. `start` is a model of another machine to begin with. The model's own error is
    of models that it did not see, each held out in its turn.

    Raises:
        UsageError: scikit-learn is missing, a target where nothing is measured or simulated, files that
            do not fit or cannot be written, too few kernels.
    """
    if method not in get_args(Method):
        raise UsageError(f"method {method!r}: expected one of {', '.join(METHODS)}.")
    effort = Effort(share=share)
    require_trainer()
    target = TargetRef.parse(target)
    machine, facts = machine_of(target)
    before = None if start is None else LearnedModel.read(start)
    for path, flag in ((output, "--output"), (samples, "--samples")):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{path}: its folder does not exist; create it, or give another {flag}.")
    require_other_file(output, *models)
    loaded = [as_model(model, {}) for model in models]
    name = identity_of(machine)
    file = None if samples is None else SampleFile(samples, name)
    collection = Collection(target, threads, file, budget.deadline_s)
    collection.collect([SampledNetwork(m.name, m.name, m.sha256, m.graph) for m in loaded], progress)
    num_kernels = len(collection.samples.samples)
    if num_kernels < _FEWEST_KERNELS:
        raise UsageError(
            f"{counted(num_kernels, 'kernel')} on target {target}: too few to learn from, which takes "
            f"{_FEWEST_KERNELS}; give more models, or a longer --budget."
        )
    is_measured = find_target(target).is_measurable
    tables = tables_of(collection.samples, facts, is_measured=is_measured)
    if progress is not None:
        progress("training", 0, 1)
    model = learned_model(
        name,
        tables,
        effort,
        method,  # type: ignore[arg-type]  # it is one of them
        estimates="target" if is_measured else "roofline",
        energy_source="" if "energy" not in tables else f"model:{machine.name}",
        threads=sorted({s.num_threads for s in collection.samples.samples}) if is_measured else (),
        start=before,
    )
    write_output(output, model.text().encode())
    return LearnResult(
        name,
        str(target),
        output,
        method,
        len(loaded),
        tuple(
            LearnedQuantity(name, q.num_operators, q.num_measured, q.held_out)  # type: ignore[arg-type]  # as above
            for name, q in model.quantities.items()
        ),
        collection.num_unmeasured,
        tuple(dict.fromkeys(collection.skipped)),
    )


def _figures(mape: float, kendall_tau: float, right_share: float, held: HeldOut) -> tuple[str, ...]:
    right = f"{right_share:.0%} of {held.num_choices}" if held.num_choices else "no choices"
    return f"{mape:.1%}", f"{kendall_tau:.2f}", right
