"""IOS (MLSys 2021): its tables and figures, by our search and simulator.

The paper measures on GPUs of its authors with cuDNN; here described machines are simulated, none of whose
numbers was fitted to the paper's results. Figures 6, 9, 10 and 16 are images: what the text says of them is
compared.
"""
