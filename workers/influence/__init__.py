"""Measured influence, and the mixing coefficient that is recorded in the same passes."""
