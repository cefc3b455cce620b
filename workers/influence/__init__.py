"""Measurements: influence by gradients, mixing by hooks, needles, attention kernels."""
