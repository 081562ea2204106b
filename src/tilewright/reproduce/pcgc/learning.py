"""How well costs are learned from a share of the operators, of networks whose family training never saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.cost.features import MachineFacts
from tilewright.cost.learned.metrics import kendall_tau, mape, right_decisions
from tilewright.cost.learned.model import Estimates, HeldOut, Learned, LearnedModel, Quantity
from tilewright.cost.learned.training import METHODS, Effort, Method, Pool, train

if TYPE_CHECKING:
    from tilewright.reproduce.pcgc.samples import Sample, Samples

Array = np.ndarray[Any, Any]
ESTIMATE = "estimate"
"""The name of the target's own model among the methods."""
_LEAST_FAMILY = 20


@dataclass(frozen=True, slots=True)
class Table:
    """The samples of one machine as arrays: equal operators of a family are one row each."""

    features: Array
    log_estimates: Array
    log_values: Array
    classes: tuple[str, ...]
    families: tuple[str, ...]
    keys: tuple[bytes, ...]
    choices: tuple[tuple[int, tuple[int, ...]], ...]
    is_resolved: Array

    @classmethod
    def of(cls, samples: Samples, machine: MachineFacts, quantity: Quantity, least: float = 0.0) -> Table:
        """Kernels alone; views, which take nothing, are left out together with the choices about them.

        What takes less than `least` counts in choices only: it is nearer to what a clock resolves.
        """
        numbers: dict[int, int] = {}
        kept: list[tuple[Sample, Array, float, float]] = []
        for number, sample in enumerate(samples.samples):
            estimate, value = (
                (sample.estimate_ns, sample.time_ns)
                if quantity == "time"
                else (sample.estimate_pj or 0.0, sample.energy_pj or 0.0)
            )
            if estimate > 0 and value > 0:
                numbers[number] = len(kept)
                kept.append((sample, sample.features(machine), estimate, value))
        choices = tuple(
            (numbers[c.whole], tuple(numbers[p] for p in c.parts))
            for c in samples.choices
            if all(n in numbers for n in (c.whole, *c.parts))
        )
        features = np.array([f for _, f, _, _ in kept])
        return cls(
            features,
            np.log2([e for _, _, e, _ in kept]),
            np.log2([v for _, _, _, v in kept]),
            tuple(_class_of(sample) for sample, _, _, _ in kept),
            tuple(sample.family for sample, _, _, _ in kept),
            tuple(np.round(row, 6).tobytes() for row in features),
            choices,
            np.array([v >= least for _, _, _, v in kept]),
        )


def _class_of(sample: Sample) -> str:
    """The heaviest operation class of a kernel, and whether several operators are in it."""
    facts = sample.facts
    heaviest = next(
        (
            name
            for name in ("complex", "two_phase", "reduction", "broadcast", "algebraic")
            if getattr(facts, f"num_{name}")
        ),
        "infusible",
    )
    return f"{heaviest}{'+' if facts.num_nodes > 1 else ''}"


@dataclass(slots=True)
class Outcome:
    """Predictions of held-out operators by one method, beside what is true, and decisions (right, all)."""

    predicted: list[Array] = field(default_factory=list)
    true: list[Array] = field(default_factory=list)
    right: int = 0
    num_choices: int = 0

    def add(self, predicted: Array, true: Array, decisions: tuple[int, int]) -> None:
        """Those of another family."""
        self.predicted.append(predicted)
        self.true.append(true)
        self.right += decisions[0]
        self.num_choices += decisions[1]

    @property
    def mape(self) -> float:
        """Mean relative error over all held-out operators."""
        return mape(np.concatenate(self.predicted), np.concatenate(self.true))

    @property
    def median_error(self) -> float:
        """Half of them are closer."""
        return float(np.median(np.abs(np.concatenate(self.predicted) / np.concatenate(self.true) - 1)))

    @property
    def kendall_tau(self) -> float:
        """Of all held-out operators together."""
        return kendall_tau(np.concatenate(self.predicted), np.concatenate(self.true))

    @property
    def right_share(self) -> float:
        """Of the choices that matter those that come out right."""
        return self.right / self.num_choices if self.num_choices else 1.0


def held_out_by_family(
    table: Table,
    effort: Effort,
    methods: Sequence[Method] = METHODS,
    pretrained: Callable[[str], Callable[[Array], Array]] | None = None,
) -> Mapping[str, Outcome]:
    """Each family predicted by what the others teach; rows that it shares with others teach nothing of it.

    `pretrained` says for a family that is held out what was learned of other machines, without it.
    """
    outcomes: dict[str, Outcome] = {name: Outcome() for name in (*methods, ESTIMATE)}
    families = np.array(table.families)
    for family in sorted(set(table.families)):
        inside = families == family
        shared = {table.keys[i] for i in np.flatnonzero(inside)}
        outside = {table.keys[i] for i in np.flatnonzero(~inside)}
        tested = np.array(
            [i for i in _first_of_each(table, np.flatnonzero(inside)) if table.keys[i] not in outside]
        )
        if len(tested) < _LEAST_FAMILY:
            continue
        pool_rows = [i for i in _first_of_each(table, np.flatnonzero(~inside)) if table.keys[i] not in shared]
        pool = _pool(table, pool_rows)
        before = None if pretrained is None else pretrained(family)
        trained = train(pool, effort, methods, pretrained=before)
        whole = np.flatnonzero(inside)
        base = np.zeros(len(whole)) if before is None else before(table.features[whole])
        at = {int(n): k for k, n in enumerate(whole)}
        choices = [
            (at[w], tuple(at[p] for p in parts))
            for w, parts in table.choices
            if w in at and table.keys[w] not in outside
        ]
        true = np.exp2(table.log_values[whole])
        rows = [at[int(i)] for i in tested]
        logs: dict[str, Array] = {
            name: base + r.predict(table.features[whole]) for name, r in trained.regressors.items()
        }
        logs[ESTIMATE] = np.zeros(len(whole))
        for name, ratios in logs.items():
            predicted = np.exp2(table.log_estimates[whole] + ratios)
            outcomes[name].add(predicted[rows], true[rows], right_decisions(predicted, true, choices))
    return outcomes


def _values_of(table: Table, rows: Sequence[int], numbers: Sequence[int]) -> Array:
    return np.asarray(table.log_values[[rows[n] for n in numbers]])


def _first_of_each(table: Table, rows: Sequence[int] | Array) -> list[int]:
    first: dict[bytes, int] = {}
    for row in rows:
        if table.is_resolved[row]:
            first.setdefault(table.keys[row], int(row))
    return list(first.values())


def learned_model(
    machine: str,
    tables: Mapping[Quantity, Table],
    effort: Effort,
    method: Method = "trees",
    *,
    estimates: Estimates = "target",
    energy_source: str = "",
) -> LearnedModel:
    """A model of all samples of a machine, with the error that it has on families that it did not see.

    Raises:
        UsageError: scikit-learn is missing.
    """
    quantities: dict[str, Learned] = {}
    for quantity, table in tables.items():
        outcomes = held_out_by_family(table, effort, (method,))
        learned, own = outcomes[method], outcomes[ESTIMATE]
        error = None
        if learned.true:
            count = sum(map(len, learned.true))
            error = HeldOut(count, learned.mape, learned.kendall_tau, own.mape, own.kendall_tau)
        pool = _pool(table, _first_of_each(table, range(len(table.keys))))
        trained = train(pool, effort, (method,))
        regressors = (trained.regressors[method],)
        quantities[quantity] = Learned(method, len(trained.measured), pool.size, regressors, error)
    families = {family for table in tables.values() for family in table.families}
    return LearnedModel(machine, quantities, estimates, energy_source, trained_on=tuple(sorted(families)))


def _pool(table: Table, rows: Sequence[int]) -> Pool:
    counts = Counter(table.keys)
    return Pool(
        table.features[rows],
        table.log_estimates[rows],
        [table.classes[i] for i in rows],
        np.array([counts[table.keys[i]] for i in rows], dtype=float),
        partial(_values_of, table, rows),
    )
