"""Machinery of a run: one main, threads, memory of outputs, steps on the host."""
