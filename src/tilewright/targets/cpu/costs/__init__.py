"""Costs of kernels on the processor, as estimated."""
