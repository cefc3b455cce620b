"""The workers: they measure influence and recall, of weights or of served models, predict profiles
from theory, and run experiments.
"""
