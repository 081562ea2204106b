"""Chains of operators whose intermediate values stay on chip: joint tilings, and what none can beat."""
