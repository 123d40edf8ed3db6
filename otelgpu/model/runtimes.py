"""Runtimes that serve requests: which of them let a thread work for several at once, and what to do about it.

Where a runtime interleaves requests on a thread, or moves one from thread to thread, that a thread read a request says
nothing of whose work the thread does later: while that request waits, others run, and work goes on after the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from otelgpu.model.resource import GO

CPYTHON: Final = "cpython"
GRPCIO: Final = "grpcio"
"""Of which whoever is about to write takes what others have to be written as well (its "combiner")."""
UNKNOWN: Final = "unknown"
"""That of a process which could not be looked at."""


class Runtime(Struct, frozen=True, kw_only=True):
    """``known_by``: what of a process's files shows it. ``does``: to threads and requests; "": one thread for each."""

    label: str
    known_by: str
    does: str = ""
    exact: str = ""
    """How the work of its requests is linked all the same."""
    remedy: str = ""
    """What a user can do, in the imperative."""

    @property
    def multiplexes(self) -> bool:
        """Whether a thread that reads a request is no evidence of whose work it does."""
        return bool(self.does)


_PYTHON_REMEDY: Final = "use opentelemetry-sdk with OTEL_PYTHON_CONTEXT=otelgpu (docs/how-to/bridge.md)"
_NOTHING: Final = "nothing by itself"
_CARRIED: Final = "requests that carry on the `traceparent` which they came with"
_ON_A_THREAD: Final = "interleaves requests on a thread"
_BETWEEN_THREADS: Final = "moves requests from thread to thread"


def _sdk(language: str) -> str:
    return (
        f"pass traceparent on, as OpenTelemetry for {language} does: what it calls is then in the caller's trace; GPU "
        "work is linked where its process publishes thread contexts (OTEP 4947)"
    )


RUNTIMES: Final[Mapping[str, Runtime]] = {
    CPYTHON: Runtime(
        label="CPython, threads alone",
        known_by="the interpreter, or libpython, without any of those below",
        exact="`thread`, and `wakeup` of those that it has work for it",
    ),
    "asyncio": Runtime(
        label="asyncio (uvloop too)",
        known_by="its module `_asyncio` is mapped, or part of the interpreter",
        does=_ON_A_THREAD,
        exact="`task`: what the task does that writes the response (CPython 3.9 to 3.14)",
        remedy=_PYTHON_REMEDY,
    ),
    "gevent": Runtime(
        label="gevent, greenlet",
        known_by="an extension module of either is mapped",
        does=_ON_A_THREAD,
        exact=_NOTHING,
        remedy=f"{_PYTHON_REMEDY}, or gunicorn's worker class gthread",
    ),
    GRPCIO: Runtime(
        label="gRPC's C core, in Python",
        known_by="its module `cygrpc` is mapped",
        does="reads requests on threads that do not serve them",
        exact=_NOTHING,
        remedy=_PYTHON_REMEDY,
    ),
    "node": Runtime(
        label="Node.js, libuv",
        known_by="functions of Node.js or libuv that the program exports, or a library of that name",
        does=_ON_A_THREAD,
        exact=_CARRIED,
        remedy=_sdk("JavaScript"),
    ),
    "tokio": Runtime(
        label="Tokio (Rust)",
        known_by="what Tokio says in its panics, or its crate's path in them, also in stripped programs",
        does=_BETWEEN_THREADS,
        exact=_CARRIED,
        remedy=_sdk("Rust"),
    ),
    GO: Runtime(
        label="Go",
        known_by="the note or section that its linker writes",
        does=_BETWEEN_THREADS,
        exact="`task`: what the goroutine does that writes the response, what handlers of HTTP/2 and gRPC send, and "
        f"what `http.Client` sends for either or with the context of its request (Go 1.21 to 1.26); {_CARRIED}",
        remedy=_sdk("Go"),
    ),
    "jvm": Runtime(
        label="Java (virtual threads, Netty)",
        known_by="`libjvm.so` is mapped",
        does=_BETWEEN_THREADS,
        exact=_CARRIED,
        remedy=_sdk("Java"),
    ),
    "dotnet": Runtime(
        label=".NET",
        known_by="`libcoreclr.so` is mapped",
        does=_BETWEEN_THREADS,
        exact=_CARRIED,
        remedy=_sdk(".NET"),
    ),
    UNKNOWN: Runtime(
        label="not known",
        known_by="the process ended before it could be looked at",
        does="is not known",
        exact=_NOTHING,
        remedy="nothing: the next one is looked at in time",
    ),
}
"""In order of precedence: a process is called after the last of those that it has."""


def multiplexing(names: Collection[str]) -> tuple[str, ...]:
    """Of a process's runtimes those that make its threads no evidence."""
    return tuple(name for name, runtime in RUNTIMES.items() if runtime.multiplexes and name in names)
