"""What the pod of ``helm test`` does: send requests, and see whether they come out at the other end as spans.

In: variables of its environment (``main``). Out: one line that says what was found, or what was not and where to look;
exit code 0 or 1. Python's standard library is all that it needs.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATH = "/otelgpu-helm-test"
REQUESTS = 5  # at least, for the agent's own figures to show them
PAUSE_SECONDS = 1.0
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.send_header("content-length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, *_: object) -> None:
        """Nothing."""


def serve() -> str:
    """Start a server in a process of its own, which ends with this one; its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    kept, mine = os.pipe()
    if os.fork() == 0:
        os.close(mine)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.read(kept, 1)  # until the parent is gone
        os._exit(0)
    os.close(kept)
    os.set_inheritable(mine, False)
    return f"http://127.0.0.1:{server.server_port}{PATH}"


def get(url: str, **headers: str) -> str:
    """The body. Raises OSError."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as answer:
        return str(answer.read(16 << 20), "utf-8", "replace")


def delivered(metrics: str) -> tuple[float, float]:
    """Of an agent's ``/metrics``: spans that were accepted, and for how many seconds none was, of those to be sent."""
    spans = failing = 0.0
    for name, labels, value in _SAMPLE.findall(metrics):
        if name == "otel_sdk_exporter_span_exported_total" and "error_type=" not in labels:
            spans += float(value)
        elif name == "otelgpu_exporter_failing_seconds":
            failing = max(failing, float(value))
    return spans, failing


def in_backend(request: str, traces: str, deadline: float) -> str | None:
    """Whether a trace that begins with the request is in a backend; None: it is, else why not."""
    trace = secrets.token_hex(16)
    path = re.sub(r"^\w+://[^/]*|[?#].*$", "", request) or "/"
    why = "nothing was asked"
    while time.monotonic() < deadline:
        try:
            get(request, traceparent=f"00-{trace}-{secrets.token_hex(8)}-01")
        except OSError as error:
            return f"{request} does not answer: {error}"
        try:
            if path in get(traces.replace("{id}", trace)):
                print(f"found: a request to {path} is the trace {trace} in the backend")
                return None
            why = f"what the backend has of trace {trace} says nothing of {path}"
        except urllib.error.HTTPError as error:
            why = f"the backend has no trace {trace}: HTTP {error.code}"
        except OSError as error:
            why = f"the backend does not answer at {traces}: {error}"
        time.sleep(PAUSE_SECONDS)
    return why


def in_agent(request: str, agent: str, deadline: float) -> str | None:
    """Whether the agent delivers as many spans as there are requests, those of others among them; None: it does."""
    before, sent, why = None, 0, ""
    while time.monotonic() < deadline:
        try:
            now, failing = delivered(get(f"{agent}/metrics"))
        except OSError as error:  # a Service takes a moment to be known
            why = f"the agent of this node does not answer at {agent}: {error}"
            time.sleep(PAUSE_SECONDS)
            continue
        before = now if before is None else before
        why = f"the agent delivered {now - before:g} spans while {sent} requests were made"
        if sent >= REQUESTS and now - before >= sent:
            print(f"found: {why}")
            return None
        if failing:
            why += f"; its destination has accepted nothing for {failing:g} s: see the Collector's log"
        try:
            get(request, traceparent=f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01")
        except OSError as error:
            return f"{request} does not answer: {error}"
        sent += 1
        time.sleep(PAUSE_SECONDS)
    return why


def main() -> int:
    """Find out, and say it.

    REQUEST_URL: whom to ask, without it a server of this pod. TRACES_URL: where a backend has the trace ``{id}``;
    without it AGENT_URL, where the agent of this node answers, is looked at. TIMEOUT_SECONDS: for how long.
    """
    variables = os.environ
    deadline = time.monotonic() + float(variables.get("TIMEOUT_SECONDS") or 60)
    request = variables.get("REQUEST_URL") or serve()
    if traces := variables.get("TRACES_URL"):
        why = in_backend(request, traces, deadline)
    else:
        why = in_agent(request, variables["AGENT_URL"].rstrip("/"), deadline)
    if why:
        print(f"not found: {why}", file=sys.stderr)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
