"""From a request to what it asks for: `ProfileHandler` runs the job."""

from workers.job.handler import ProfileHandler

__all__ = ["ProfileHandler"]
