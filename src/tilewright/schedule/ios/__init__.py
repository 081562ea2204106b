"""IOS: the stage schedule of a graph, found with a proof. Ding et al., MLSys 2021.

States are sets of operators still to be scheduled, as bitmasks; a stage takes an ending away from one.
"""
