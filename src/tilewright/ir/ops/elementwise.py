"""Elementwise operators: one parallel nest over the output, inputs broadcast as in numpy."""
