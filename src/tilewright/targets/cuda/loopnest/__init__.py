"""Kernels of any affine nest: an element or sixteen bytes for each thread, long sums by a warp or a block."""

from tilewright.targets.cuda.loopnest.generate import lower_loops as lower_loops
