"""Redis: keys, job queue and profiles."""
