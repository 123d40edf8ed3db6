"""Start the API process, and from it the engine's: the command line of the whole service."""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

if not __package__:  # started as `python examples/engine`
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import uvicorn

from engine.api import create_app
from engine.client import EngineClient
from engine.truth import TruthFile

CORE = Path(__file__).with_name("core.py")
STOP_TIMEOUT_S = 5


def main() -> None:
    """Serve until SIGTERM. Options that are not known here are the engine's."""
    parser = argparse.ArgumentParser(prog="engine", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any free one (default 8000)")
    parser.add_argument("--truth", type=Path, help="folder for engine.jsonl and api.jsonl")
    options, engine_options = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        addresses = [f"ipc://{folder}/{name}" for name in ("input", "output")]
        command = [
            sys.executable,
            str(CORE),
            "--input",
            addresses[0],
            "--output",
            addresses[1],
            *engine_options,
        ]
        if options.truth is not None:
            command += ["--truth", str(options.truth / "engine.jsonl")]
        engines: list[subprocess.Popen[bytes]] = []

        def start_engine() -> int:
            engines.append(subprocess.Popen(command))
            return engines[0].pid

        truth = TruthFile(None if options.truth is None else options.truth / "api.jsonl")
        listener = socket.create_server((options.host, options.port))
        host, port = listener.getsockname()[:2]
        print(f"listening on http://{host}:{port}", flush=True)
        # uvicorn ends in good order and then raises the signal again, for whoever had it before.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        try:
            app = create_app(EngineClient(*addresses), truth, start_engine)
            uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
        finally:
            for engine in engines:
                engine.terminate()
                engine.wait(STOP_TIMEOUT_S)


if __name__ == "__main__":
    main()
