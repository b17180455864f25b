"""The server: rounds, merging, and the step to new weights."""
