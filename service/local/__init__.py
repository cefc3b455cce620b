"""The service on one machine: the embedded store, and gateway and workers as child processes."""
