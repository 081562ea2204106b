"""Cost models that are learned: what measured operators say of operators that were never measured.

`regressor.py` predicts in numpy, `model.py` is the file, `costs.py` the cost model that planners ask;
`training.py` makes one, for which the extra `[learn]` has to be installed.
"""
