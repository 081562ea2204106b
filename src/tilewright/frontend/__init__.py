"""Frontends: bytes in, a `Graph` with static shapes out."""
