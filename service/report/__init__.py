"""Answers in the terminal: tables, charts and sentences, and progress while one waits."""
