"""From a request to a profile: where arrays and wire models meet on the worker's side."""

from workers.job.handler import ProfileHandler

__all__ = ["ProfileHandler"]
