"""Generic lowering of loop nests to kernels: everything affine, explicitly vectorised."""

from tilewright.targets.cpu.loopnest.lower import loop_nest_supports, lower_nests
from tilewright.targets.cpu.loopnest.template import LOOP_NEST

__all__ = ["LOOP_NEST", "loop_nest_supports", "lower_nests"]
