"""Served models in the operator's settings: where they answer (`table`), what measuring costs."""
