"""A target as people name it, read once: where a request is made. What runs on a target gets the reference.

cpu                              one of `families.TARGETS`; `host` is the same
stcp920{overlap=none}            a described machine, with options
machines/chip.yaml               a machine that a file describes
"""

from __future__ import annotations

import os

from tilewright.errors import UsageError
from tilewright.families import TARGETS
from tilewright.planning.spec import Spec
from tilewright.records import dataclass

_HOST_TARGET, _HOST_MACHINE = "cpu", "host"
# This machine as what runs models, and as a description: whichever of both names is given is meant.


@dataclass(frozen=True, slots=True)
class TargetRef(Spec):
    """A target's name, or that of a machine or its file, and the texts of options; whether there is such a
    target, `targets.find_target` says.

    >>> str(TargetRef.parse("host{ barriers = strict }"))
    'cpu{barriers=strict}'
    """

    @classmethod
    def parse(cls, text: str | os.PathLike[str] | TargetRef) -> TargetRef:
        """Read a target, as text or as the path of a machine's file; a reference is itself.

        Raises:
            UsageError: no name, or options that do not end.

        >>> TargetRef.parse("eyeriss").is_machine, TargetRef.parse("cpu").is_machine
        (True, False)
        """
        if isinstance(text, TargetRef):
            return text
        text = os.fspath(text)
        if not text:
            raise UsageError("target: the name is empty.")
        spec = Spec.parse(text)
        return cls(_HOST_TARGET if spec.name == _HOST_MACHINE else spec.name, spec.options)

    @property
    def is_cpu(self) -> bool:
        """Whether this is the processor of this host, whatever options are stated."""
        return self.name == _HOST_TARGET

    @property
    def is_machine(self) -> bool:
        """Whether this is a described machine rather than one of `families.TARGETS`. Plugins are looked for
        last: neither they nor what describes machines is loaded for built-in targets."""
        return self.name not in TARGETS.built_in_names() and self.name not in TARGETS.names()

    @property
    def is_known_machine(self) -> bool:
        """Whether the name is that of a preset, or is looked for in a file."""
        from tilewright.hardware.presets import is_file, preset_names

        return self.name in preset_names() or is_file(self.name)

    @property
    def is_emulated(self) -> bool:
        """Whether this is a device that the processor emulates."""
        return ("device", "emulated") in self.options

    def require_measurable(self, what: str) -> None:
        """Refuse to time `what` runs here where this is an emulated device.

        Raises:
            UsageError: it is.
        """
        if self.is_emulated:
            raise UsageError(
                f"{what} runs on an emulated device, whose time says nothing of a GPU; give a target that is "
                "there."
            )


CPU = TargetRef(_HOST_TARGET)
"""The processor of this host, as it is by default."""
