"""What the server itself knows of each request: a JSON line in the file that LLM_TRUTH names.

A tool that observes the server from outside can be checked against it. Times are CLOCK_MONOTONIC in ns.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from llm_server.cudart import CallLog

ENVIRON_KEY = "llm_server.request_truth"

Environ = dict[str, Any]
WsgiApplication = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


@dataclass(slots=True)
class RequestTruth:
    """One request, from the moment that the application got it until its last byte was handed over."""

    calls: CallLog
    start_ns: int = field(default_factory=time.monotonic_ns)
    response_id: str = ""
    request_id: str = ""
    model: str = ""
    path: str = ""
    stream: bool = False
    status: int = 0
    thread_id: int = field(default_factory=threading.get_native_id)
    first_token_ns: int = 0
    last_token_ns: int = 0
    output_tokens: int = 0
    finished: bool = False

    def note_token(self) -> None:
        """A token is about to be sent."""
        self.last_token_ns = time.monotonic_ns()
        self.first_token_ns = self.first_token_ns or self.last_token_ns
        self.output_tokens += 1

    def to_json(self, end_ns: int) -> dict[str, Any]:
        """The line's content.

        `tpot_s` is what gen_ai.server.time_per_output_token measures (OpenTelemetry semantic conventions):
        (request duration - time to first token) / (output tokens - 1); null with fewer than two tokens.
        """
        ttft_ns = self.first_token_ns - self.start_ns if self.first_token_ns else None
        tpot_ns = None
        if ttft_ns is not None and self.output_tokens > 1:
            tpot_ns = (end_ns - self.start_ns - ttft_ns) / (self.output_tokens - 1)
        line: dict[str, Any] = {
            "id": self.response_id,
            "x_request_id": self.request_id,
            "pid": os.getpid(),
            "thread_id": self.thread_id,
            "path": self.path,
            "model": self.model,
            "stream": self.stream,
            "status": self.status,
            "finished": self.finished,
            "start_ns": self.start_ns,
            "first_token_ns": self.first_token_ns or None,
            "last_token_ns": self.last_token_ns or None,
            "end_ns": end_ns,
            "ttft_s": None if ttft_ns is None else ttft_ns / 1e9,
            "tpot_s": None if tpot_ns is None else tpot_ns / 1e9,
            "output_tokens": self.output_tokens,
            "cuda_calls": self.calls.counts,
        }
        if self.calls.keep_times:
            line["cuda_call_times"] = self.calls.times
        return line


class TruthMiddleware:
    """WSGI middleware around the whole application: starts a `RequestTruth` first and writes it last."""

    def __init__(self, application: WsgiApplication, path: str | None, *, keep_times: bool) -> None:
        self._application = application
        self._keep_times = keep_times
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Serve one request; the truth about it is in `environ[ENVIRON_KEY]` meanwhile."""
        truth = RequestTruth(CallLog(keep_times=self._keep_times))
        environ[ENVIRON_KEY] = truth

        def note_status(status: str, *arguments: Any) -> Any:
            truth.status = int(status.split(" ", 1)[0])
            return start_response(status, *arguments)

        return _Body(self, truth, self._application(environ, note_status))

    def write(self, truth: RequestTruth, end_ns: int) -> None:
        """Append the line of an LLM request, in one write: several processes may share the file."""
        if self._file is not None and truth.response_id:
            os.write(self._file, json.dumps(truth.to_json(end_ns)).encode() + b"\n")


class _Body:
    """A response's body, which says when it was taken to its end and when it was closed."""

    def __init__(self, middleware: TruthMiddleware, truth: RequestTruth, body: Iterable[bytes]) -> None:
        self._middleware = middleware
        self._truth = truth
        self._body = body
        self._end_ns = 0

    def __iter__(self) -> Iterator[bytes]:
        yield from self._body
        self._end_ns = time.monotonic_ns()
        self._truth.finished = True

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            close()
        self._middleware.write(self._truth, self._end_ns or time.monotonic_ns())
