"""The workers: they load models, measure influence profiles, and predict them from theory."""
