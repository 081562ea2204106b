"""Recurrent layers: a loop over time."""
