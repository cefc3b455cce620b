"""Models: where they come from, how they are loaded, and which stay in memory.

`sources` finds a model's files (hub, local folder, demo package, preset configuration), `loading`
makes a frozen model in evaluation mode of them, and `cache` keeps recent ones. Weights are
safetensors, or the demo's GGUF. Code from a repository is never run.
"""
