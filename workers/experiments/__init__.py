"""Experiments on the user's own questions: prompts in several orders, read by any reader."""
