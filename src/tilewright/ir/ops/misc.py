"""Operators of no other family: CumSum, Det and kin."""
