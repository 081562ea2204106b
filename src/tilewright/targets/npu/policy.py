"""How a cluster runs the steps of a plan: what overlaps, what stays, what is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Overlap = Literal["none", "tiles", "layers"]
"""`none`: phases and steps in sequence. `tiles`: a step's tiles overlap. `layers`: steps overlap, too."""

Launching = Literal["once", "each subgraph", "each step"]
"""`once`: one program, in which values pass on the chip from part to part. `each subgraph`: kernels, which
pass values through main memory. `each step`: that often, wherever values lie."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How steps are run: what overlaps, whether the shared buffer keeps weights from step to step, whether
    those that fit stay on the chip from batch to batch, and whether there is one kernel, one for each
    subgraph, or one for each step."""

    overlap: Overlap = "layers"
    keeps_weights: bool = True
    resident_weights: bool = False
    launches: Launching = "once"
