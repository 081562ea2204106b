"""Chains of operators whose intermediate values stay on chip: joint tilings, what they move, and what none can beat."""
