"""One search over what planners decide one after another: begin with `base.py` and `planner.py`."""
