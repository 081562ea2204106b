"""Normalisations by given or computed statistics."""
