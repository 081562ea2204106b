"""A learned cost model as a file: JSON that says from what it learned, how wrong it was, what it knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tilewright.arrays import Array
from tilewright.cost.features import FEATURES, FEATURES_VERSION
from tilewright.cost.learned.regressor import Regressor
from tilewright.errors import UsageError
from tilewright.fields import FieldError, decoded, field_of, inside, parsed_json
from tilewright.files import read_at_most
from tilewright.results import json_of

FORMAT = "tilewright learned cost model"
VERSION = 1
MAX_FILE_BYTES = 64 << 20

Quantity = Literal["time", "energy"]
Estimates = Literal["target", "roofline"]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What was predicted of operators that training never saw, beside the target's own estimate.

    `mape` is the mean of relative errors, `kendall_tau` how well the order agrees, `right_share` of the
    choices between a kernel and its parts that matter those that come out as they are.
    """

    num_operators: int
    mape: float
    kendall_tau: float
    estimate_mape: float
    estimate_kendall_tau: float
    num_choices: int = 0
    right_share: float = 1.0
    estimate_right_share: float = 1.0


@dataclass(frozen=True, slots=True)
class Learned:
    """One quantity: regressors that add up, by which method, from how much; `held_out` is its error."""

    method: str
    num_measured: int
    num_operators: int
    regressors: tuple[Regressor, ...]
    held_out: HeldOut | None = None

    def log_ratio(self, features: Array) -> Array:
        """By how much the target's own estimates are off: the logarithm to base 2 of the ratio."""
        return np.asarray(np.sum([regressor.predict(features) for regressor in self.regressors], axis=0))


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """What was learned for one machine: how far its target's own estimates are off, or those of its roofline.

    `energy_source` says where energies come from, `threads` on how many kernels ran; none where that is not
    what was varied.
    """

    machine: str
    quantities: Mapping[str, Learned]
    estimates: Estimates = "target"
    energy_source: str = ""
    threads: tuple[int, ...] = ()
    features: tuple[str, ...] = FEATURES
    features_version: int = FEATURES_VERSION
    format: str = FORMAT
    version: int = VERSION
    trained_on: tuple[str, ...] = field(default=())

    def text(self) -> str:
        """The model as a file has it."""
        return json.dumps(json_of(self), allow_nan=False, separators=(",", ":")) + "\n"

    def write(self, path: Path) -> None:
        """Write the file.

        Raises:
            OSError: it cannot be written.
        """
        path.write_text(self.text(), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> LearnedModel:
        """The model of a file.

        Raises:
            UsageError: no such file, a damaged one, one of another version or with unknown features; one line
                that says what to do.
        """
        try:
            data = read_at_most(path, MAX_FILE_BYTES)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"learned model {path}: {reason}; give the file of a model.") from error
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(
                f"learned model {path}: has more than {MAX_FILE_BYTES} bytes; give the file of a model."
            )
        try:
            document = parsed_json(data)
            _require_format(document, path)
            model = decoded(cls, document)
            _require_features(model, path)
            with inside("quantities"):
                for name, learned in model.quantities.items():
                    if name not in ("time", "energy"):
                        raise FieldError("expected time or energy", f".{name}")
                    for i, regressor in enumerate(learned.regressors):
                        with inside(f"{name}.regressors[{i}]"):
                            regressor.require_valid(len(FEATURES))
            return model
        except UsageError:
            raise
        except (ValueError, RecursionError) as error:
            what = str(error).rstrip(".") or type(error).__name__
            raise UsageError(f"learned model {path}: is damaged: {what}; train it again.") from error


def _require_format(document: Any, path: Path) -> None:
    if field_of(document, "format", str) != FORMAT:
        raise UsageError(f"learned model {path}: is no learned cost model; give a file that training wrote.")
    version = field_of(document, "version", int)
    if version != VERSION:
        raise UsageError(
            f"learned model {path}: has version {version}, this program reads {VERSION}; train it again."
        )


def _require_features(model: LearnedModel, path: Path) -> None:
    if model.features_version != FEATURES_VERSION:
        raise UsageError(
            f"learned model {path}: its features have version {model.features_version}, this program's "
            f"{FEATURES_VERSION}; train it again."
        )
    if model.features != FEATURES:
        unknown = next((name for name in model.features if name not in FEATURES), None)
        what = f"has an unknown feature {unknown!r}" if unknown else "has not this program's features"
        raise UsageError(f"learned model {path}: {what}; train it again.")
