"""How well costs are learned from a share of the operators, of networks whose family training never saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilewright.arrays import Array
from tilewright.cost.features import MachineFacts
from tilewright.cost.learned.model import Estimates, HeldOut, Learned, LearnedModel, Quantity
from tilewright.cost.learned.training import METHODS, Effort, Method, Pool, fit, train

if TYPE_CHECKING:
    from tilewright.learning.samples import Choice, Sample, Samples


ESTIMATE = "estimate"
"""The name of the target's own model among the methods."""
ROW_HEADS = (
    *("machine", "of", "measured", "method"),
    *("MAPE", "median error", "Kendall tau", "right to fuse or cut"),
)
LEAST_MEASURED_NS = 500.0
"""Time stamps of processors resolve some 10 ns."""
_LEAST_FAMILY = 20


TrueChoice = tuple[int, tuple[int, ...], bool]
"""The numbers of a whole and of its parts, and whether the whole is faster."""


@dataclass(frozen=True, slots=True)
class AccuracyTable:
    """The samples of one machine as arrays: equal operators of a family are one row each.

    Their value is the middle one of all that were seen of them. `choices` are those that matter.
    """

    features: Array
    log_estimates: Array
    log_values: Array
    classes: tuple[str, ...]
    families: tuple[str, ...]
    keys: tuple[bytes, ...]
    choices: tuple[TrueChoice, ...]
    is_resolved: Array

    @classmethod
    def of(
        cls, samples: Samples, machine: MachineFacts, quantity: Quantity, least: float = 0.0
    ) -> AccuracyTable:
        """Kernels alone; views, which take nothing, are left out together with the choices about them.

        What takes less than `least` is nearer to what a clock resolves: it decides nothing and is not tested.
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
        features = np.array([f for _, f, _, _ in kept])
        keys = tuple(np.round(row, 6).tobytes() for row in features)
        families = tuple(sample.family for sample, _, _, _ in kept)
        values = np.array([v for _, _, _, v in kept])
        return cls(
            features,
            np.log2([e for _, _, e, _ in kept]),
            np.log2(_middle_of_equals(values, list(zip(families, keys, strict=True)))),
            tuple(_class_of(sample) for sample, _, _, _ in kept),
            families,
            keys,
            tuple(_true_choices(samples.choices, numbers, values, least)),
            values >= least,
        )


def tables_of(samples: Samples, machine: MachineFacts, *, is_measured: bool) -> dict[Quantity, AccuracyTable]:
    """Times, from those on that a clock resolves if they are measured, and energies where any are known."""
    tables = {"time": AccuracyTable.of(samples, machine, "time", LEAST_MEASURED_NS if is_measured else 0.0)}
    if any(sample.energy_pj for sample in samples.samples):
        tables["energy"] = AccuracyTable.of(samples, machine, "energy")
    return tables  # type: ignore[return-value]  # they are quantities


def _true_choices(
    choices: Sequence[Choice], numbers: Mapping[int, int], values: Array, least: float
) -> Iterator[TrueChoice]:
    for choice in choices:
        if not all(n in numbers for n in (choice.whole, *choice.parts)):
            continue
        whole, parts = numbers[choice.whole], tuple(numbers[p] for p in choice.parts)
        together, apart = values[whole], values[list(parts)].sum()
        if max(together, apart) < least:
            continue
        low, high = choice.low, choice.high
        is_exact = low is None or high is None
        is_faster = fuses(together / apart, together / apart) if is_exact else fuses(low or 0.0, high or 0.0)
        if is_faster is not None:
            yield whole, parts, is_faster


def _middle_of_equals(values: Array, keys: Sequence[Hashable]) -> Array:
    members: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        members.setdefault(key, []).append(number)
    middle = values.copy()
    for numbers in members.values():
        middle[numbers] = np.median(values[numbers])
    return middle


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
class ModelOutcome:
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

    def __add__(self, other: ModelOutcome) -> ModelOutcome:
        """Of both together, as of several seeds."""
        return ModelOutcome(
            self.predicted + other.predicted,
            self.true + other.true,
            self.right + other.right,
            self.num_choices + other.num_choices,
        )

    def row(self, machine: str, quantity: Quantity, share: float, method: str) -> tuple[str, ...]:
        """A row of a table with `ROW_HEADS`, of a method taught by a share of a machine's operators."""
        return (
            *(machine, quantity, f"{100 * share:.0f} %", method),
            *(f"{100 * self.mape:.1f} %", f"{100 * self.median_error:.1f} %", f"{self.kendall_tau:.2f}"),
            f"{100 * self.right_share:.1f} % of {self.num_choices}",
        )

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
    table: AccuracyTable,
    effort: Effort,
    methods: Sequence[Method] = METHODS,
    pretrained: Callable[[str], Callable[[Array], Array]] | None = None,
    untested: Sequence[str] = (),
) -> Mapping[str, ModelOutcome]:
    """Each family predicted by what the others teach; rows that it shares with others teach nothing of it.

    `pretrained` says for a family that is held out what was learned of other machines, without it; those in
    `untested` are not held out.
    """
    outcomes: dict[str, ModelOutcome] = {name: ModelOutcome() for name in (*methods, ESTIMATE)}
    families = np.array(table.families)
    for family in sorted(set(table.families) - set(untested)):
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
            (at[w], tuple(at[p] for p in parts), is_faster)
            for w, parts, is_faster in table.choices
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
            right = num_right(predicted, choices)
            outcomes[name].add(predicted[rows], true[rows], (right, len(choices)))
    return outcomes


def _values_of(table: AccuracyTable, rows: Sequence[int], numbers: Sequence[int]) -> Array:
    return np.asarray(table.log_values[[rows[n] for n in numbers]])


def _first_of_each(table: AccuracyTable, rows: Sequence[int] | Array) -> list[int]:
    first: dict[bytes, int] = {}
    for row in rows:
        if table.is_resolved[row]:
            first.setdefault(table.keys[row], int(row))
    return list(first.values())


def learned_model(
    machine: str,
    tables: Mapping[Quantity, AccuracyTable],
    effort: Effort,
    method: Method = "trees",
    *,
    estimates: Estimates = "target",
    energy_source: str = "",
    threads: Sequence[int] = (),
    start: LearnedModel | None = None,
) -> LearnedModel:
    """A model of all samples of a machine, with the error that it has on families that it did not see.

    It begins with what a model of another machine says, if there is one to `start` from; families that this
    one saw are not held out.

    Raises:
        UsageError: scikit-learn is missing.
    """
    quantities: dict[str, Learned] = {}
    for quantity, table in tables.items():
        before = None if start is None else start.quantities.get(quantity)
        outcomes = held_out_by_family(
            table,
            effort,
            (method,),
            None if before is None else lambda family, known=before: known.log_ratio,  # type: ignore[misc]
            () if before is None or start is None else start.trained_on,
        )
        learned, own = outcomes[method], outcomes[ESTIMATE]
        error = None
        if learned.true:
            count = sum(map(len, learned.true))
            error = HeldOut(
                count,
                learned.mape,
                learned.kendall_tau,
                own.mape,
                own.kendall_tau,
                learned.num_choices,
                learned.right_share,
                own.right_share,
            )
        pool = _pool(table, _first_of_each(table, range(len(table.keys))))
        trained = train(pool, effort, (method,), pretrained=None if before is None else before.log_ratio)
        regressors = (*(() if before is None else before.regressors), trained.regressors[method])
        quantities[quantity] = Learned(method, len(trained.measured), pool.size, regressors, error)
    families = {family for table in tables.values() for family in table.families}
    if start is not None:
        families |= set(start.trained_on)
    return LearnedModel(
        machine, quantities, estimates, energy_source, tuple(threads), trained_on=tuple(sorted(families))
    )


def pretrained_without(
    tables: Sequence[AccuracyTable], method: Method = "trees", seed: int = 0
) -> Callable[[str], Callable[[Array], Array]]:
    """What tables of other machines teach, all of their rows, without those of a family."""
    known: dict[str, Callable[[Array], Array]] = {}

    def predictor(family: str) -> Callable[[Array], Array]:
        if family not in known:
            rows = [
                [i for i in _first_of_each(t, range(len(t.keys))) if t.families[i] != family] for t in tables
            ]
            features = np.vstack([t.features[r] for t, r in zip(tables, rows, strict=True)])
            ratios = [t.log_values[r] - t.log_estimates[r] for t, r in zip(tables, rows, strict=True)]
            known[family] = fit(method, features, np.concatenate(ratios), seed=seed).predict
        return known[family]

    return predictor


def _pool(table: AccuracyTable, rows: Sequence[int]) -> Pool:
    counts = Counter(table.keys)
    return Pool(
        table.features[rows],
        table.log_estimates[rows],
        [table.classes[i] for i in rows],
        np.array([counts[table.keys[i]] for i in rows], dtype=float),
        partial(_values_of, table, rows),
    )


def mape(predicted: Array, true: Array) -> float:
    """The mean of relative errors, relative to what is true.

    >>> mape(np.array([1.1, 1.8]), np.array([1.0, 2.0]))
    0.1
    """
    return round(float(np.mean(np.abs(predicted / true - 1))), 12)


def kendall_tau(predicted: Array, true: Array) -> float:
    """Kendall's tau-b: of all pairs that differ, those in the same order less those in the other. O(n^2).

    >>> kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    0.333333333333
    """
    first = np.sign(predicted[:, None] - predicted[None, :])
    second = np.sign(true[:, None] - true[None, :])
    pairs = np.sqrt(np.count_nonzero(first) * np.count_nonzero(second))
    return round(float((first * second).sum() / pairs), 12) if pairs else 0.0


def fuses(low: float, high: float, least: float = 0.05) -> bool | None:
    """Whether a whole is faster than its parts, by quartiles of the ratio of their times.

    None where they differ by `least` or less, or where the quartiles do not agree on which is faster.

    >>> fuses(0.8, 0.9), fuses(1.1, 1.2), fuses(0.8, 1.1), fuses(0.96, 0.98)
    (True, False, None, None)
    """
    middle = (low * high) ** 0.5
    if high < 1 and middle < 1 - least:
        return True
    return False if low > 1 and 1 / middle < 1 - least else None


def num_right(predicted: Array, choices: Sequence[tuple[int, Sequence[int], bool]]) -> int:
    """Of choices between a whole and its parts, which say whether the whole is faster, those predicted so.

    >>> num_right(np.array([1.0, 2.0, 2.0]), [(0, (1, 2), True), (0, (1, 2), False)])
    1
    """
    return sum(
        bool(predicted[whole] < predicted[list(parts)].sum()) == is_faster
        for whole, parts, is_faster in choices
    )
