"""Secure aggregation of clients that hold slices: the server learns sums over cohorts, and no client's update."""
