"""PCGC (2022): its tables as ratios between planners on described machines, its rules, its examples.

Absolute times and powers of the paper are those of boards that we do not have: what is compared is by how
much one planner is better than another.
"""
