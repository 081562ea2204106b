"""A kernel written as its plan: attention scores of bytes, capped and masked as they leave the registers.

Both factors are activations: queries by keys. What `tilewright explain --kernel` prints is what is read here.

Prints:

    2 kernels: integer-panels, integer-...
    largest error beside float64: below 1e-05
"""

import numpy as np

from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.kernel import Layout
from tilewright.targets.cpu.plans import parse_plan, plan_kernels
from tilewright.targets.cpu.product.integer.dot import dot_of
from tilewright.testing.kernel_runner import KernelRunner

isa = host_isa()
lanes = isa.lanes("i32")
plan = parse_plan(f"""
product int32 by {dot_of(isa, lanes).name}
  a = input0 uint8[4, 40, 64]
  b = input1 uint8[4, 50, 64] in panels
  c = output0 float32[4, 40, 50]
  zeros 128 and 121
  r0 = input2 float32[50]
  column key 50: b 64, c 1, r0 1
  row query 40: a 64, c 50
  outer head 4: a 2560, b 3200, c 2000
  sum d 64: a 1, b 1
  tile 4 rows by 2 vectors of {lanes}
  chunks 4 by 1, of row tiles
  finish add(mul(tanh(mul(float32(acc), 0.0001)), 30), r0)
""")
kernels = plan_kernels(plan, isa)
print(f"{len(kernels)} kernels: {', '.join(k.template for k in kernels)}")

rng = np.random.default_rng(0)
queries, keys = (rng.integers(0, 256, (4, n, 64), dtype=np.uint8) for n in (40, 50))
mask = np.where(np.arange(50) < 45, 0, -100).astype(np.float32)
given = [queries, keys, mask]
operands = {("input", number): array for number, array in enumerate(given)}
operands["output", 0] = np.zeros((4, 40, 50), np.float32)
runner = KernelRunner(kernels, operands, {k: Layout.row_major(x.ndim) for k, x in operands.items()}, isa)
runner()

scores = np.einsum("hqd,hkd->hqk", queries - 128.0, keys - 121.0)
error = np.abs(runner.result(("output", 0)) - (np.tanh(scores * 1e-4) * 30 + mask)).max()
print("largest error beside float64: below 1e-05" if error < 1e-5 else f"error {error}")
