"""Lacuna: where in a prompt a language model listens, and where it does not."""
