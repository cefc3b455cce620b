"""Statistics of influence and recall, on arrays: bands, paired comparisons, flatness, sample sizes.

Every interval and test here is checked by simulation: `bench/coverage.py`,
`bench/coverage_recall.py`, `bench/experiments.py`.
"""
