"""AGO (Xu et al., INFOCOM 2023): subgraphs of any structure, bounded by what they take to tune.

`planner.py` is the partitioner; `weights.py` says what an operator takes to tune (Eq. 1), `clusters.py` joins
(Algorithm 1, CLUSTER), `stages.py` keeps the stages that its published rule asks for, `limits.py` says what
is too much to join, `reform.py` takes subgraphs apart for the tuner and puts them together (SPLIT, JOIN).
"""

from __future__ import annotations

from tilewright.partition.ago.planner import Ago
from tilewright.partition.ago.reform import join, split

__all__ = ["Ago", "join", "split"]
