"""The simulated accelerator: whole networks on a described machine with buffers that the schedule fills.

`ports.py` says what a cluster's levels carry, `work.py` what an operator costs a unit; `steps.py` makes the
steps of a plan, `simulate.py` runs them on the units' queues (`events.py`), `execute.py` computes values.
`plan.py` leads from a schedule to a simulation; `recipes.py` has the paper's way and its baselines,
`search.py` goes on from the best; `target.py` and `backend.py` are what the compiler asks.
"""
