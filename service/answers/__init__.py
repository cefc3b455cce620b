"""Use cases of the gateway: one module for each kind of request."""
