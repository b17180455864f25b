"""Kernels: plain PyTorch made faster or safer; they know nothing of federated learning."""
