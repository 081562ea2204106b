"""What documents say beside results: which model, which machine, what was written where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.api.host import Host
from tilewright.planning import MemberInfo, MemberOption
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
class ListedOption:
    """One option of a member of a registry, which is written `name{option=value}`."""

    name: str
    type: str
    default: str
    about: str

    @classmethod
    def of(cls, option: MemberOption) -> ListedOption:
        """The option in texts."""
        return cls(option.name, option.type_text, option.default_text, option.about)


@dataclass(frozen=True, slots=True)
class ListedMember:
    """A planner, pass or target: its family, its options, and the package it is from if a plugin."""

    family: str
    name: str
    about: str
    plugin: str | None
    options: tuple[ListedOption, ...]

    @classmethod
    def of(cls, family: str, info: MemberInfo) -> ListedMember:
        """What its registry says of it."""
        return cls(
            family, info.name, info.about, info.plugin or None, tuple(map(ListedOption.of, info.options))
        )


@dataclass(frozen=True, slots=True)
class Planners(Result):
    """The planners and passes that can be named."""

    members: tuple[ListedMember, ...]
    problems: tuple[str, ...] = field(metadata=about("Plugins that cannot be used, a line for each."))


@dataclass(frozen=True, slots=True)
class NamedMachine:
    """A machine and what it is. Those that do not run networks serve mapping of single operators alone."""

    name: str
    about: str
    runs_networks: bool


@dataclass(frozen=True, slots=True)
class Targets(Result):
    """The targets and the machines that can be named."""

    targets: tuple[ListedMember, ...]
    machines: tuple[NamedMachine, ...] = field(
        metadata=about("Described machines; empty where one target was asked for.")
    )
    machine_options: tuple[ListedOption, ...] = field(metadata=about("Options of every described machine."))
    problems: tuple[str, ...] = field(metadata=about("Plugins that cannot be used, a line for each."))


@dataclass(frozen=True, slots=True)
class HostMachine(Result):
    """This machine in the words of `schema machine`."""

    machine: Mapping[str, Any]
