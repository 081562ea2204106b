"""Operators that select elements by index: gather, scatter, one-hot, top-k and kin."""
