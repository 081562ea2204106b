"""Generic lowering of loop nests to kernels: everything affine, explicitly vectorised."""

from tilewright.targets.cpu.loopnest.choose import loop_choices
from tilewright.targets.cpu.loopnest.lower import Chooser, chooser_of, loop_nest_supports, lower_nests
from tilewright.targets.cpu.loopnest.template import LOOP_NEST

__all__ = ["LOOP_NEST", "Chooser", "chooser_of", "loop_choices", "loop_nest_supports", "lower_nests"]
