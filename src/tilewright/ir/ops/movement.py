"""Operators that move elements without computing: reshape, transpose, concat, slice, pad and kin."""
