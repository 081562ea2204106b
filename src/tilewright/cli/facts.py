"""What documents say beside results: which model, which machine, what was written where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.api.doctor import Host
from tilewright.results import Result, about


@dataclass(frozen=True, slots=True)
class ModelFacts(Result):
    """What every document on a model begins with."""

    model_sha256: str
    target: str
    host: Host

    @classmethod
    def of(cls, model_sha256: str, target: str) -> ModelFacts:
        """A model for a target, on this machine."""
        return cls(model_sha256, target, Host.here())


@dataclass(frozen=True, slots=True)
class WrittenArtifact(Result):
    """An artifact that was written, and what the way to it took."""

    artifact: Path
    artifact_bytes: int
    phase_s: Mapping[str, float] = field(metadata=about("What each phase took, writing included."))
    dumps: Mapping[str, str] = field(metadata=about("The graph as text after each pass of --dump-after."))


@dataclass(frozen=True, slots=True)
class NamedTarget:
    """A target and what it is."""

    name: str
    about: str


@dataclass(frozen=True, slots=True)
class Targets(Result):
    """The targets and the machines that can be named."""

    targets: tuple[NamedTarget, ...]
    machines: tuple[NamedTarget, ...] = field(
        metadata=about("Described machines; empty where one target was asked for.")
    )


@dataclass(frozen=True, slots=True)
class HostMachine(Result):
    """This machine in the words of `schema machine`."""

    machine: Mapping[str, Any]
