"""PCGC (2022): its tables in its units, what its gains consist of, its rules, its examples.

The paper's boards are not here: our times and powers are simulated, of machines that descriptions stand for,
so that what one planner gains over another can be compared, not one board with another.
"""
