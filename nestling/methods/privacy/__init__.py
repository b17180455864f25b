"""Differential privacy of clients that hold slices: the clipped, noised sum of their changes, and what it costs."""
