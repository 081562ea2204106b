"""The simulated accelerator: whole networks on a described machine with buffers that the schedule fills.

`work.py` says what an operator costs a unit, `steps.py` makes the steps of a plan, `simulate.py` runs them
on the units' queues (`events.py`), `plan.py` leads from a graph to a simulation, with the paper's baselines.
"""
