"""What measuring says of one candidate at one site: its time beside the baseline's, or why it has none.

A *candidate* is a JSON object: choices of products, or the form of a subgraph. Whoever made it reads it back;
here it is only compared. Times are of the same run as the baseline's, so that their ratio outlives the load
of the machine. *Features* are numbers by name which describe the candidate's loop nests; `feature_set` names
and versions the list, so that learning from them mixes no two.

What is read here may come from another user's file: `from_json` takes what it can check, nothing else.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, TypeGuard

from tilewright.cost.base import Measurement
from tilewright.records import dataclass

JsonObject = Mapping[str, Any]
"""Plain values, as `json` reads and writes them."""

MAX_CANDIDATE_CHARACTERS = 1 << 18
MAX_TEXT_CHARACTERS = 4096
MAX_FEATURES = 1024
EMULATED = "an emulator"
"""How the names of processors begin that are emulated."""
_MAX_NS = 1e15  # 11 days
_MAX_TIME_S = 1e11


class FailureReason(StrEnum):
    """Why a candidate has no time: it is never chosen."""

    CRASHED = "crashed"
    HUNG = "hung"
    WRONG_VALUES = "wrong-values"
    DECLINED = "declined"


class Source(StrEnum):
    """Who measured: this machine or one like it; another, so that it is a hint; or one that is trusted."""

    MEASURED = "measured"
    IMPORTED = "imported"
    TRUSTED = "trusted"


@dataclass(frozen=True, slots=True)
class PlanContext:
    """Everything but the work that decides a measurement; `key` is its digest.

    `machine` is the fingerprint of the instruction set, `caches` their sizes; `processor` is the name of the
    processor, which does not enter the key. `surroundings` is the digest of the plan around the site where
    that matters: how its neighbours are scheduled.
    """

    version: str
    machine: str
    caches: str
    toolchain: str
    accuracy: str
    num_threads: int
    surroundings: str = ""
    processor: str = ""
    format_version: int = 3

    @property
    def key(self) -> str:
        """Digest of it."""
        facts: list[object] = [self.format_version, self.version, self.machine, self.caches, self.toolchain]
        facts += [self.accuracy, self.num_threads]
        if self.surroundings:
            facts.append(self.surroundings)
        return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()

    @property
    def is_emulated(self) -> bool:
        """Whether an emulator measured, whose times are no processor's."""
        return self.processor.startswith(EMULATED)

    @property
    def fingerprint(self) -> str:
        """Digest of what decides times apart from options: machine, processor, compiler and versions."""
        facts = [self.format_version, self.version, self.machine, self.caches, self.toolchain, self.processor]
        return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, document: object) -> PlanContext | None:
        """What `to_json` gave; None for anything else."""
        if not isinstance(document, Mapping) or set(document) != set(cls.__slots__):
            return None
        numbers = [document["num_threads"], document["format_version"]]
        texts = [v for k, v in document.items() if k not in ("num_threads", "format_version")]
        if not all(type(n) is int and 0 < n < 1 << 20 for n in numbers) or not all(map(is_text, texts)):
            return None
        return cls(**document)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who measured, on which host (empty: here), and when clocks and load of it were last calibrated."""

    source: Source = Source.MEASURED
    host: str = ""
    calibrated_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """A candidate that ran and gave the right values: how long it took, and the baseline beside it.

    `baseline_ns` is the lower quartile of the plain plan's samples, `measured_at_s` seconds since 1970, 0
    where unknown.
    """

    site: str
    candidate: JsonObject
    measured: Measurement
    baseline_ns: float
    measured_at_s: float
    features: Mapping[str, float] = field(default_factory=dict)
    feature_set: str = ""
    provenance: Provenance = Provenance()

    @property
    def time_ns(self) -> float:
        """The lower quartile: disturbances only ever add time, and the least of all is luck."""
        return self.measured.low_ns

    @property
    def ratio(self) -> float:
        """Its time over the baseline's: below 1 it is faster."""
        return self.time_ns / self.baseline_ns

    @property
    def is_hint(self) -> bool:
        """Whether it must be measured here before it counts."""
        return self.provenance.source is Source.IMPORTED

    @property
    def candidate_key(self) -> str:
        """Digest of the candidate."""
        return candidate_key(self.candidate)

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the site."""
        measured = {name: getattr(self.measured, name) for name in Measurement.__slots__}
        return {
            "candidate": self.candidate,
            "measured": measured,
            "baseline_ns": self.baseline_ns,
            "measured_at_s": self.measured_at_s,
            "features": dict(self.features),
            "feature_set": self.feature_set,
            "source": str(self.provenance.source),
            "host": self.provenance.host,
            "calibrated_at_s": self.provenance.calibrated_at_s,
        }

    @classmethod
    def from_json(cls, site: str, document: object) -> Observation | None:
        """What `to_json` gave, of a site; None for anything else."""
        if not isinstance(document, Mapping):
            return None
        candidate, measured = document.get("candidate"), _measurement(document.get("measured"))
        features, provenance = _features(document.get("features")), _provenance(document)
        baseline_ns, measured_at_s = document.get("baseline_ns"), document.get("measured_at_s")
        feature_set = document.get("feature_set")
        if not is_candidate(candidate) or measured is None or features is None or provenance is None:
            return None
        if not _is_time_ns(baseline_ns) or not _is_moment(measured_at_s) or not is_text(feature_set):
            return None
        return cls(
            site,
            candidate,
            measured,
            float(baseline_ns),
            float(measured_at_s),
            features,
            feature_set,
            provenance,
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A candidate that did not run, or not rightly, after it was tried again: why, and what was seen."""

    site: str
    candidate: JsonObject
    reason: FailureReason
    detail: str
    failed_at_s: float

    @property
    def candidate_key(self) -> str:
        """Digest of the candidate."""
        return candidate_key(self.candidate)

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the site."""
        return {
            "candidate": self.candidate,
            "reason": str(self.reason),
            "detail": self.detail[:MAX_TEXT_CHARACTERS],
            "failed_at_s": self.failed_at_s,
        }

    @classmethod
    def from_json(cls, site: str, document: object) -> Failure | None:
        """What `to_json` gave, of a site; None for anything else."""
        if not isinstance(document, Mapping):
            return None
        candidate, detail = document.get("candidate"), document.get("detail")
        reason, failed_at_s = document.get("reason"), document.get("failed_at_s")
        if not is_candidate(candidate) or not is_text(detail) or not _is_moment(failed_at_s):
            return None
        if reason not in tuple(FailureReason):
            return None
        return cls(site, candidate, FailureReason(reason), detail, float(failed_at_s))


def candidate_text(candidate: JsonObject) -> str:
    """A candidate as text: equal ones have the same.

    >>> candidate_text({"b": 1, "a": [2]})
    '{"a":[2],"b":1}'
    """
    return json.dumps(candidate, sort_keys=True, separators=(",", ":"), allow_nan=False)


def candidate_key(candidate: JsonObject) -> str:
    """Digest of a candidate."""
    return hashlib.sha256(candidate_text(candidate).encode()).hexdigest()


def parsed(text: str) -> object:
    """The value of a JSON text; None for what is none, or holds what no number is."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def is_candidate(candidate: object) -> TypeGuard[JsonObject]:
    """Whether it is a JSON object of a size that candidates have."""
    if not isinstance(candidate, Mapping) or not candidate:
        return False
    try:
        return len(candidate_text(candidate)) <= MAX_CANDIDATE_CHARACTERS
    except (TypeError, ValueError, RecursionError):
        return False


def is_name(value: object) -> TypeGuard[str]:
    """Whether it may name a site or a model: a digest, with a prefix perhaps."""
    return isinstance(value, str) and 0 < len(value) <= 256 and value.isascii() and value.isprintable()


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _measurement(document: object) -> Measurement | None:
    if not isinstance(document, Mapping) or set(document) != set(Measurement.__slots__):
        return None
    low, median, high = (document[name] for name in ("low_ns", "median_ns", "high_ns"))
    count, context = document["count"], document["context"]
    if not all(map(_is_time_ns, (low, median, high))) or not low <= median <= high:
        return None
    if type(count) is not int or not 0 < count < 1 << 40 or not is_text(context):
        return None
    return Measurement(float(median), float(low), float(high), count, context)


def _features(document: object) -> dict[str, float] | None:
    if not isinstance(document, Mapping) or len(document) > MAX_FEATURES:
        return None
    if not all(is_text(name) and _is_number(value) for name, value in document.items()):
        return None
    return {name: float(value) for name, value in document.items()}


def _provenance(document: JsonObject) -> Provenance | None:
    source, host, calibrated_at_s = (document.get(name) for name in ("source", "host", "calibrated_at_s"))
    if source not in tuple(Source) or not is_text(host):
        return None
    if calibrated_at_s is not None and not _is_moment(calibrated_at_s):
        return None
    return Provenance(Source(source), host, None if calibrated_at_s is None else float(calibrated_at_s))


def _is_number(value: object) -> TypeGuard[float]:
    if type(value) is int:
        return abs(value) < 1 << 1000
    return type(value) is float and math.isfinite(value)


def _is_time_ns(value: object) -> TypeGuard[float]:
    return _is_number(value) and 0 < value <= _MAX_NS


def _is_moment(value: object) -> TypeGuard[float]:
    return _is_number(value) and 0 <= value <= _MAX_TIME_S


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is a text that can be written, and not too long."""
    return isinstance(value, str) and len(value) <= MAX_TEXT_CHARACTERS and _is_unicode(value)


def _is_unicode(text: str) -> bool:
    """Whether it can be written: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
