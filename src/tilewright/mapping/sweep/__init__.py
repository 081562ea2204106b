"""Workloads mapped onto variants of a machine, in processes here or on a cluster, and compared."""
