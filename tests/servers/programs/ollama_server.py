"""Ollama's server, in Go, with a tiny model: ``ollama_server.py OLLAMA PORT``. It makes no calls of the load's.

It reads requests with net/http and hands them by HTTP to a runner, another process, which computes with llama.cpp.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import tiny_model

MODEL = Path("tiny.gguf")
OLLAMA, PORT = sys.argv[1], int(sys.argv[2])


def main() -> None:
    """Make the model known to a server that is asked nothing else, then be the one that is asked."""
    tiny_model.write(MODEL)
    os.environ |= {
        "OLLAMA_HOST": f"127.0.0.1:{PORT + 1}",
        "OLLAMA_MODELS": str(Path("models").absolute()),
        "OLLAMA_NUM_PARALLEL": "8",
        "OLLAMA_KEEP_ALIVE": "-1",
        "HOME": str(Path.cwd()),
        "GIN_MODE": "release",
    }
    maker = subprocess.Popen([OLLAMA, "serve"])
    try:
        make(f"http://127.0.0.1:{PORT + 1}")
    finally:
        maker.terminate()
        maker.wait()
    os.environ["OLLAMA_HOST"] = f"127.0.0.1:{PORT}"
    os.execv(OLLAMA, [OLLAMA, "serve"])


def make(url: str) -> None:
    """Have a model made of the file, once the server answers."""
    data = MODEL.read_bytes()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    until = time.monotonic() + 60
    while True:
        try:
            ask(f"{url}/api/blobs/{digest}", data)
            break
        except urllib.error.HTTPError:
            raise
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    ask(f"{url}/api/create", json.dumps({"model": "tiny", "files": {MODEL.name: digest}}).encode())


def ask(url: str, body: bytes) -> None:
    """Raises OSError."""
    with urllib.request.urlopen(url, body) as answer:
        answer.read()


main()
