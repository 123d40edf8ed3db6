"""vLLM's server on a CPU, with a tiny model: ``vllm_server.py PORT``. It makes no calls.

A process reads requests with uvicorn and hands them by ZeroMQ to the engine, another, which computes for all of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tiny_transformer

MODEL = Path("tiny")
OPTIONS = (
    *("--served-model-name=tiny", "--dtype=float32", "--max-model-len=1024", "--max-num-seqs=64"),
    *("--enforce-eager", "--uvicorn-log-level=warning", "--disable-log-stats"),
)

tiny_transformer.write(MODEL)
os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
command = ("-m", "vllm.entrypoints.openai.api_server", f"--model={MODEL.absolute()}", *OPTIONS)
os.execv(sys.executable, (sys.executable, *command, "--host=127.0.0.1", f"--port={sys.argv[1]}"))
