"""The shape of every `--json` document: which keys it has, of which types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_COUNT = {"type": "integer"}
_FLAG = {"type": "boolean"}
_LIST = {"type": "array"}
_OBJECT = {"type": "object"}
_MAYBE_TEXT = {"type": ["string", "null"]}


@dataclass(frozen=True, slots=True)
class ReportSchema:
    """One kind of document. Every listed key is required; more may be added in later versions."""

    kind: str
    about: str
    keys: Mapping[str, Mapping[str, Any]]

    def document(self, version: int) -> dict[str, Any]:
        """The JSON Schema."""
        head = {
            "kind": {"const": self.kind},
            "schema_version": {"const": version},
            "tilewright_version": _TEXT,
        }
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"tilewright {self.kind}",
            "description": self.about,
            "type": "object",
            "properties": {**head, **self.keys},
            "required": [*head, *self.keys],
        }


_MODEL = {"model_sha256": _TEXT}
_ALL = (
    ReportSchema("zoo", "Networks that can be built.", {"networks": _LIST}),
    ReportSchema("targets", "Targets that can be named.", {"targets": _LIST}),
    ReportSchema(
        "doctor",
        "The state of this installation and machine.",
        {"ok": _FLAG, "checks": _LIST, "host": _OBJECT, "versions": _OBJECT},
    ),
    ReportSchema("inspect", "What a file holds.", {"file": _TEXT}),
    ReportSchema(
        "check",
        "What a target makes of each operator.",
        {"model": _TEXT, "target": _TEXT, "ok": _FLAG, "operators": _LIST, **_MODEL, "host": _OBJECT},
    ),
    ReportSchema(
        "compile",
        "A compilation: kernels, memory, times.",
        {"target": _TEXT, **_MODEL, "artifact": _TEXT, "phase_s": _OBJECT, "host": _OBJECT},
    ),
    ReportSchema(
        "run", "One inference.", {**_MODEL, "outputs": _LIST, "written": _MAYBE_TEXT, "host": _OBJECT}
    ),
    ReportSchema(
        "bench",
        "Latency beside other engines; every sample is in milliseconds.",
        {
            "model": _TEXT,
            **_MODEL,
            "num_threads": _COUNT,
            "contestants": _LIST,
            "machine": _OBJECT,
            "num_rounds": _COUNT,
            "advice": _LIST,
        },
    ),
    ReportSchema(
        "compare",
        "Differences between two ways to run a model, per tensor.",
        {"a": _TEXT, "b": _TEXT, "ok": _FLAG, "rtol": _NUMBER, "atol": _NUMBER, "tensors": _LIST},
    ),
    ReportSchema("explain", "Which nodes became which kernel, and why.", _MODEL),
    ReportSchema(
        "demo", "The demonstration's figures.", {"network": _TEXT, "median_ms": _NUMBER, "max_error": _NUMBER}
    ),
    ReportSchema(
        "cache", "Stored kernels.", {"directory": _MAYBE_TEXT, "total_bytes": _COUNT, "entries": _LIST}
    ),
)
REPORTS: Mapping[str, ReportSchema] = {report.kind: report for report in _ALL}

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def violations(document: Mapping[str, Any], version: int) -> list[str]:
    """Where a report departs from its schema; empty when it conforms.

    >>> violations({"kind": "zoo", "schema_version": 1, "tilewright_version": "0", "networks": 3}, 1)
    ['networks: 3 is not an array']
    """
    schema = REPORTS[document["kind"]].document(version)
    found: list[str] = []
    for key in schema["required"]:
        if key not in document:
            found.append(f"{key}: missing")
            continue
        rule, value = schema["properties"][key], document[key]
        if "const" in rule:
            if value != rule["const"]:
                found.append(f"{key}: {value!r} is not {rule['const']!r}")
            continue
        names = [rule["type"]] if isinstance(rule["type"], str) else rule["type"]
        if not any(isinstance(value, _TYPES[n]) for n in names):
            found.append(f"{key}: {value!r} is not an {' or '.join(names)}")
    return found
