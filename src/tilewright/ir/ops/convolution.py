"""Convolutions: float, transposed, integer and quantised."""
