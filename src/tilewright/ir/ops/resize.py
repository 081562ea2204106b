"""Resampling: Resize and Upsample through exact per-axis tables; GridSample and AffineGrid."""
