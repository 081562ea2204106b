"""Benchmarks: what is claimed of speed, errors and plans is measured here, by `python -m benchmarks NAME`."""
