"""PCGC (2022): fuse by rules, then cut again where the machine's cost model says that the parts cost less.

`planner.py` is the partitioner, with the threshold on whichever of time and energy is not minimised;
`rules.py` reads the table of rules (`rules.yaml`), `fuse.py` joins what they allow until nothing changes,
`pieces.py` prices parts of what was joined, `recut.py` cuts (Algorithm 2, and exactly).
"""

from __future__ import annotations

from tilewright.partition.pcgc.planner import Pcgc

__all__ = ["Pcgc"]
