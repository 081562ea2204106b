"""Writes every golden text anew: `python -m tests.golden.rewrite`, then read the difference."""

from __future__ import annotations

from tests.golden import test_cli, test_errors, test_faults, test_ir, test_kernels, test_plans
from tests.unit.passes import test_golden

if __name__ == "__main__":
    for module in (test_cli, test_errors, test_faults, test_ir, test_kernels, test_plans, test_golden):
        module.write()
