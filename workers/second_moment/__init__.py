"""The second-moment prediction, from gains measured at single tokens."""
