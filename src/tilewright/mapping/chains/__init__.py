"""Chains of operators whose intermediate values stay on chip: joint tilings and lower bounds."""
