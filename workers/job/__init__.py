"""From a request to a profile: `ProfileHandler` runs the job."""

from workers.job.handler import ProfileHandler

__all__ = ["ProfileHandler"]
