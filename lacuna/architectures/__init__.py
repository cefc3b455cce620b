"""Architectures: what is known of a model by its name or its configuration, without weights."""
