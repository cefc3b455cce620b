"""Models: where they come from, how they are loaded, what they are, and which stay warm.

`sources` finds a model's files (hub, local folder, demo package, preset configuration), `loading`
makes an evaluated, frozen model of them, `facts` describes it, `cache` keeps recent ones. Weights
are safetensors, or the demo's GGUF; code of a repository is never run.
"""
