"""Serves a GGUF file with llama.cpp's own server; run by a Python that has `xllamacpp`.

    python llama_server.py MODEL.gguf CONTEXT [KEY]

Prints the port and serves until its standard input closes.
"""

import sys

from xllamacpp import CommonParams, Server  # type: ignore[import-not-found]

parameters = CommonParams()
parameters.model.path = sys.argv[1]
parameters.hostnames = ["127.0.0.1"]
parameters.port = 0
parameters.n_ctx = int(sys.argv[2])
parameters.n_parallel = 1
parameters.cpuparams.n_threads = 1
parameters.cpuparams_batch.n_threads = 1
if len(sys.argv) > 3:
    parameters.api_keys = [sys.argv[3]]
server = Server(parameters)
print(server.listening_address, flush=True)
sys.stdin.read()
