"""Timeloop's files: its architectures and problems as ours, mappings in both directions.

Read are the trees of versions 0.2 to 0.4 and the flat lists that CoSA's configuration uses. The facts about
keys are those of Timeloop's documentation, of its sources (NVlabs/timeloop) and of its results.
"""

from tilewright.mapping.timeloop.architecture import load_architecture
from tilewright.mapping.timeloop.constraints import load_constraints
from tilewright.mapping.timeloop.document import read_document, sections_of
from tilewright.mapping.timeloop.export import FILES, dump, write, write_each
from tilewright.mapping.timeloop.loops import load_mapping
from tilewright.mapping.timeloop.workload import load_problem

__all__ = [
    "FILES",
    "dump",
    "load_architecture",
    "load_constraints",
    "load_mapping",
    "load_problem",
    "read_document",
    "sections_of",
    "write",
    "write_each",
]
