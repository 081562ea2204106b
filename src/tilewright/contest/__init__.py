"""Graphs of the MLSys 2026 graph-scheduling contest: files, rules, and prices for the joint search."""
