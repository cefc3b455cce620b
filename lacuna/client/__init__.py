"""A service's client (`clients`), placement without a service (`offline`), tables of chunks."""
