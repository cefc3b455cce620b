"""One module a resource: profiles and comparisons, jobs, rollouts, placements, status, the page."""
