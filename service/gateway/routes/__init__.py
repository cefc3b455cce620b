"""HTTP routes, a module for each group; `computed` has rollouts, placements and calibrations."""
