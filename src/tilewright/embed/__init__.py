"""A network for a C program: one object file, a header, a file of weights, an example.

Nothing of it needs Python or this package at run time. The object has one function that runs the network once
on one thread, in memory that the caller gives; it allocates nothing, keeps no state and can run any number of
times at once.
"""

from tilewright.embed.package import ExportedModel, emitting_target, export_object, program_for, tuned_for
from tilewright.targets.cpu.isa import isa_for_export
from tilewright.targets.cpu.target import EmittingTarget

__all__ = [
    "EmittingTarget",
    "ExportedModel",
    "emitting_target",
    "export_object",
    "isa_for_export",
    "program_for",
    "tuned_for",
]
