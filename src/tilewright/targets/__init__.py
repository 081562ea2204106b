"""Targets: each turns a `Program` into something that runs, or is simulated."""
