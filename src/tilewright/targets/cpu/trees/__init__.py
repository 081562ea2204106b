"""Ensembles of decision trees: several walks at a time, side by side on one core."""

from tilewright.targets.cpu.trees.template import estimate_trees, lower_trees

__all__ = ["estimate_trees", "lower_trees"]
