"""Measured influence, mixing coefficients, kernels and retrieval."""
