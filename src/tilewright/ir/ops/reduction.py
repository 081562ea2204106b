"""Reductions along axes, softmax and its relatives."""
