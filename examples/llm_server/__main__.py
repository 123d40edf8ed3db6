"""Serve the application with gunicorn's gthread worker: a pool of threads, one request each."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

if not __package__:  # started as `python examples/llm_server`
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from flask import Flask
from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]

from llm_server.app import create_app
from llm_server.cudart import CudaLibraryError
from llm_server.engine import Engine, KernelLibraryError

SWITCH_INTERVAL_S = 0.0005
EXIT_APP_LOAD_ERROR = 4  # gunicorn.arbiter.Arbiter.APP_LOAD_ERROR: the master stops instead of trying again


def announce(arbiter: Any) -> None:
    """Gunicorn's when_ready hook: print where the server listens, which with --port 0 is known only now."""
    for listener in arbiter.LISTENERS:
        host, port = listener.sock.getsockname()[:2]
        print(f"listening on http://{host}:{port}", flush=True)


class Server(BaseApplication):  # type: ignore[misc]
    """Gunicorn with our options. The engine is made in each worker: CUDA does not survive a fork."""

    def __init__(self, options: dict[str, object]) -> None:
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            if name in self.cfg.settings:  # the control socket came with gunicorn 25
                self.cfg.set(name, value)

    def load(self) -> Flask:
        # A thread that has read a request waits for the interpreter lock before it can handle it, by
        # default for up to 5 ms for each thread that is busy: too long for a service that streams.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            return create_app(Engine.from_environment())
        except (CudaLibraryError, KernelLibraryError) as error:
            print(f"llm_server: {error}", file=sys.stderr, flush=True)
            sys.exit(EXIT_APP_LOAD_ERROR)


def parse_options(arguments: list[str] | None = None) -> dict[str, object]:
    """Command line → gunicorn settings."""
    parser = argparse.ArgumentParser(prog="llm_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any free one (default 8000)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--threads", type=int, default=10, help="threads of each (default 10)")
    parser.add_argument("--log-level", default="warning", help="gunicorn's (default warning)")
    options = parser.parse_args(arguments)
    return {
        "bind": f"{options.host}:{options.port}",
        "workers": options.workers,
        "threads": options.threads,
        "worker_class": "gthread",
        "worker_connections": 1000,
        "backlog": 1024,
        "keepalive": 75,
        "graceful_timeout": 5,
        "loglevel": options.log_level,
        "proc_name": "llm_server",
        "control_socket_disable": True,
        "when_ready": announce,
    }


if __name__ == "__main__":
    Server(parse_options()).run()
