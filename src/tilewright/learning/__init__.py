"""What costs are learned from: kernels that were measured or simulated, and how well others follow from them.

`samples.py` says what a sample is, `simulated.py` and `measured.py` make them, `table.py` holds families of
networks out and trains. The models themselves are in `cost/learned/`.
"""
