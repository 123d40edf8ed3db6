"""The smallest OTLP/HTTP server: takes everything, remembers when each request came and what was in it."""

from __future__ import annotations

import contextlib
import gzip
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Sink:
    """What was received. Bodies are parsed by whoever asks, so that receiving costs little."""

    def __init__(self) -> None:
        self.url = ""
        self.arrived = threading.Condition()
        self.requests: list[tuple[int, str, bytes]] = []  # CLOCK_MONOTONIC ns, path, body

    def take(self, time_ns: int, path: str, body: bytes) -> None:
        with self.arrived:
            self.requests.append((time_ns, path, body))
            self.arrived.notify_all()

    def first_traces_ns(self, timeout_s: float) -> int | None:
        """When the first spans came."""
        with self.arrived:
            self.arrived.wait_for(
                lambda: any(path == "/v1/traces" for _, path, _ in self.requests), timeout_s
            )
            return next((time_ns for time_ns, path, _ in self.requests if path == "/v1/traces"), None)

    def spans(self) -> int:
        """How many spans came."""
        requests = [ExportTraceServiceRequest.FromString(b) for _, p, b in self.requests if p == "/v1/traces"]
        return sum(len(s.spans) for r in requests for rs in r.resource_spans for s in rs.scope_spans)

    def counter(self, name: str) -> int:
        """A cumulative counter's last value, summed over its series."""
        bodies = [body for _, path, body in self.requests if path == "/v1/metrics"]
        if not bodies:
            return 0
        last = ExportMetricsServiceRequest.FromString(bodies[-1])
        return sum(
            point.as_int
            for resource in last.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.sum.data_points
        )


@contextlib.contextmanager
def running_sink(sink: Sink | None = None) -> Iterator[Sink]:
    """A sink (this one) on a free port of the loopback interface."""
    sink = sink or Sink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            sink.take(now, self.path, body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sink.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
