"""How a cost model is learned: measure a few operators, choose the next ones by what was learned, and stop.

PCGC's Algorithm 1 as resolved: a random seed, stratified by operation class; rounds in which half of what is
measured is what matters most and half what is least certain; then the rest gets labels where two regressors
convince each other (COREG), until the share that was asked for is measured or the error is small enough.
Held-out operators are neither measured for training nor given labels. Trees, boosting and lines need
scikit-learn, the extra `[learn]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from types import ModuleType
from typing import Any, Literal, get_args

import numpy as np

from tilewright.arrays import Array
from tilewright.cost.learned.coreg import Taught, coreg
from tilewright.cost.learned.regressor import Linear, Neighbours, Regressor, Tree, Trees
from tilewright.errors import UsageError
from tilewright.extras import extra_of

Method = Literal["coreg", "trees", "boosting", "linear"]
METHODS: tuple[Method, ...] = get_args(Method)

_NUM_TREES = 100
_NUM_BOOSTED = 150
_LEAST_SEED = 8
# Beyond what was seen nothing is known: predictions stay this close to it, in powers of two.
_MARGIN = 0.5


@dataclass(frozen=True, slots=True)
class Pool:
    """Operators that may be measured: features, the target's own estimates, classes, how often each occurs.

    `measure` answers with the logarithms to base 2 of what operators take, by their numbers.
    """

    features: Array
    log_estimates: Array
    classes: Sequence[str]
    occurrences: Array
    measure: Callable[[Sequence[int]], Array]

    @property
    def size(self) -> int:
        """How many operators there are."""
        return len(self.features)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: a share of all operators at most, of that a share at first, the rest in rounds.

    It ends before that where the mean relative error of held-out operators is below `stop_error`.
    """

    share: float = 0.1
    seed_share: float = 0.5
    num_rounds: int = 4
    stop_error: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UsageError(f"share {self.share:g} of operators to measure: give more than 0 and at most 1.")


@dataclass(frozen=True, slots=True)
class Trained:
    """A regressor for each method, which operators were measured, how many got labels without that."""

    regressors: Mapping[Method, Regressor]
    measured: tuple[int, ...]
    num_pseudo_labelled: int


def train(
    pool: Pool,
    effort: Effort,
    methods: Sequence[Method] = METHODS,
    *,
    pretrained: Callable[[Array], Array] | None = None,
    held_out_error: Callable[[Callable[[Array], Array]], float] | None = None,
) -> Trained:
    """Algorithm 1. `pretrained` predicts by what was learned of other machines; regressors say what is left.

    `held_out_error` says how wrong predictions (logarithms of ratios) are of operators outside the pool.

    Raises:
        UsageError: scikit-learn is missing.
    """
    rng = np.random.default_rng(effort.seed)
    most = min(pool.size, max(_LEAST_SEED, ceil(effort.share * pool.size)))
    is_active = effort.num_rounds > 0 and effort.share < 1
    first = min(most, max(_LEAST_SEED, ceil(most * effort.seed_share))) if is_active else most
    measured = stratified(pool.classes, first, rng)
    known = np.full(pool.size, np.nan)
    base = np.zeros(pool.size) if pretrained is None else pretrained(pool.features)

    def label(numbers: Sequence[int]) -> None:
        known[list(numbers)] = pool.measure(numbers) - pool.log_estimates[list(numbers)] - base[list(numbers)]

    label(measured)
    for round_number in range(effort.num_rounds if is_active else 0):
        forest = fit("trees", pool.features[measured], known[measured], seed=effort.seed)
        if (
            held_out_error is not None
            and effort.stop_error is not None
            and held_out_error(_with(pretrained, forest)) < effort.stop_error
        ):
            break
        count = (most - len(measured)) // (effort.num_rounds - round_number)
        chosen = _next(pool, measured, forest, base, count, rng)
        label(chosen)
        measured = [*measured, *chosen]
    rest = np.setdiff1d(np.arange(pool.size), measured, assume_unique=True)
    regressors: dict[Method, Regressor] = {}
    num_taught = 0
    for method in methods:
        if method == "coreg":
            regressors[method], num_taught = _coreg(
                pool.features[measured], known[measured], pool.features[rest], effort.seed
            )
        else:
            regressors[method] = fit(method, pool.features[measured], known[measured], seed=effort.seed)
    return Trained(regressors, tuple(int(n) for n in measured), num_taught)


def stratified(classes: Sequence[str], count: int, rng: np.random.Generator) -> list[int]:
    """Numbers of so many members, of each class its share, at least one of each while there are enough."""
    members: dict[str, list[int]] = {}
    for number in rng.permutation(len(classes)):
        members.setdefault(classes[number], []).append(int(number))
    # Each class takes turns by how much of its share it has, the rarest first.
    taken: list[int] = []
    queues = sorted(members.values(), key=len)
    positions = [0] * len(queues)
    while len(taken) < min(count, len(classes)):
        shares = [
            (p / len(q) if p else -1.0, i)
            for i, (q, p) in enumerate(zip(queues, positions, strict=True))
            if p < len(q)
        ]
        _, i = min(shares)
        taken.append(queues[i][positions[i]])
        positions[i] += 1
    return taken


def fit(method: Method, features: Array, values: Array, *, seed: int = 0) -> Regressor:
    """A regressor of one method on measured points alone.

    Raises:
        UsageError: scikit-learn is missing.
    """
    centre, scale = _scaling(features)
    points = (features - centre) * scale
    if method == "coreg":
        return _coreg(features, values, features[:0], seed)[0]
    sklearn = _sklearn()
    linear = trees = None
    if method == "linear":
        ridge = sklearn.linear_model.RidgeCV(alphas=np.logspace(-1, 4, 11)).fit(points, values)
        linear = Linear(_floats(ridge.coef_), float(ridge.intercept_))
    elif method == "trees":
        forest = sklearn.ensemble.ExtraTreesRegressor(
            _NUM_TREES, max_features=0.5, min_samples_leaf=1, random_state=seed
        ).fit(points, values)
        trees = Trees(tuple(_tree(t) for t in forest.estimators_), 1 / _NUM_TREES)
    else:
        boosted = sklearn.ensemble.GradientBoostingRegressor(
            loss="huber", n_estimators=_NUM_BOOSTED, max_depth=4, subsample=0.7, learning_rate=0.07,
            max_features=0.5, random_state=seed,
        ).fit(points, values)  # fmt: skip
        first = float(boosted.init_.predict(points[:1])[0])
        trees = Trees(tuple(_tree(t) for t in boosted.estimators_[:, 0]), boosted.learning_rate, first)
    return Regressor(_floats(centre), _floats(scale), *_range(values), linear=linear, trees=trees)


def _coreg(features: Array, values: Array, unlabelled: Array, seed: int) -> tuple[Regressor, int]:
    """Neighbours count by the features that trees find to matter."""
    centre, scale = _scaling(features)
    forest = _sklearn().ensemble.ExtraTreesRegressor(_NUM_TREES, random_state=seed).fit(features, values)
    scale = scale * np.sqrt(forest.feature_importances_ / forest.feature_importances_.max())
    taught: Taught = coreg((features - centre) * scale, values, (unlabelled - centre) * scale, seed=seed)
    neighbours = tuple(
        Neighbours(tuple(map(_floats, points)), _floats(labels), power, count)
        for points, labels, power, count in taught.members
    )
    regressor = Regressor(_floats(centre), _floats(scale), *_range(values), neighbours=neighbours)
    return regressor, taught.num_pseudo_labelled


def _next(
    pool: Pool, measured: Sequence[int], forest: Regressor, base: Array, count: int, rng: np.random.Generator
) -> list[int]:
    """Half by benefit, the time that rides on a prediction, half by how much trees differ on it."""
    rest = np.setdiff1d(np.arange(pool.size), measured, assume_unique=True)
    points = (pool.features[rest] - np.array(forest.centre)) * np.array(forest.scale)
    assert forest.trees is not None
    votes = np.array([tree.predict(points) for tree in forest.trees.trees])
    spread = votes.std(axis=0)
    ratios = votes.mean(axis=0) + base[rest]
    benefit = pool.occurrences[rest] * np.exp2(pool.log_estimates[rest]) * np.abs(np.exp2(ratios) - 1)
    chosen: list[int] = []
    for weights, share in ((np.sqrt(benefit), count // 2), (spread**2, count - count // 2)):
        weights = np.where(np.isin(rest, chosen, assume_unique=True), 0.0, weights + 1e-12)
        picked = rng.choice(
            len(rest), size=min(share, len(rest) - len(chosen)), replace=False, p=weights / weights.sum()
        )
        chosen += [int(n) for n in rest[picked]]
    return chosen


def _with(pretrained: Callable[[Array], Array] | None, regressor: Regressor) -> Callable[[Array], Array]:
    def predict(features: Array) -> Array:
        first = 0.0 if pretrained is None else pretrained(features)
        return np.asarray(first + regressor.predict(features))

    return predict


def _scaling(features: Array) -> tuple[Array, Array]:
    deviation = features.std(axis=0)
    return features.mean(axis=0), np.where(deviation > 1e-9, 1 / np.maximum(deviation, 1e-9), 0.0)


def _range(values: Array) -> tuple[float, float]:
    return float(values.min()) - _MARGIN, float(values.max()) + _MARGIN


def _tree(fitted: Any) -> Tree:
    tree = fitted.tree_
    is_leaf = tree.children_left < 0
    return Tree(
        tuple(int(f) for f in np.where(is_leaf, 0, tree.feature)),
        _floats(np.where(is_leaf, 0.0, tree.threshold)),
        tuple(int(n) for n in np.where(is_leaf, 0, tree.children_left)),
        tuple(int(n) for n in np.where(is_leaf, 0, tree.children_right)),
        _floats(np.where(is_leaf, tree.value[:, 0, 0], 0.0)),
    )


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(v) for v in values)


def require_trainer() -> None:
    """Refuse to begin what could not be ended.

    Raises:
        UsageError: scikit-learn is missing.
    """
    _sklearn()


def _sklearn() -> ModuleType:
    try:
        import sklearn
        import sklearn.ensemble
        import sklearn.linear_model
    except ImportError as error:
        install = extra_of("scikit-learn").command
        raise UsageError(
            f"learning a cost model needs scikit-learn: {install}; to use one does not."
        ) from error
    return sklearn  # type: ignore[no-any-return]
