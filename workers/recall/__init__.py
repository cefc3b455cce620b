"""Recall: how well a model finds what stands in its prompt, by where it stands."""
