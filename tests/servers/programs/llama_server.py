"""llama.cpp's HTTP server, in C++, from the package xllamacpp: ``llama_server.py PORT``. It makes no calls.

Threads (cpp-httplib's) read requests and write events, each those of a connection; another computes for all of them.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import tiny_model
import xllamacpp

MODEL = Path("tiny.gguf")

tiny_model.write(MODEL)
params = xllamacpp.CommonParams()
params.hostnames, params.port = ["127.0.0.1"], int(sys.argv[1])
params.model.path, params.model_alias = str(MODEL), {"tiny"}
params.n_parallel, params.n_ctx = 8, 1 << 13
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.verbosity = 1  # errors
server = xllamacpp.Server(params)
signal.sigwait({signal.SIGTERM})
