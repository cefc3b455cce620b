"""Finding the residual stream and attention branches of any causal language model."""
