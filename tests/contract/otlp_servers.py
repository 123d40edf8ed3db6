"""Real OTLP servers in this process, gRPC and HTTP, that answer each request as a script says."""

from __future__ import annotations

import gzip
import http.server
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Request:
    """What a server was sent, decompressed."""

    path: str
    headers: dict[str, str]  # lower-case names
    body: bytes
    at: float

    @property
    def spans(self) -> int:
        """How many spans it holds, read by opentelemetry-proto."""
        parts = ExportTraceServiceRequest.FromString(self.body).resource_spans
        return sum(len(scope.spans) for part in parts for scope in part.scope_spans)

    @property
    def metrics(self) -> int:
        """How many metrics it holds."""
        parts = ExportMetricsServiceRequest.FromString(self.body).resource_metrics
        return sum(len(scope.metrics) for part in parts for scope in part.scope_metrics)


@dataclass
class Server:
    """A running server and what it got."""

    address: str = ""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0


@dataclass(frozen=True)
class Tls:
    """PEM files of an authority, and of a server and a client that it vouches for."""

    authority: str
    certificate: str
    key: str
    client_certificate: str
    client_key: str


def response(path: str, rejected: int = 0, message: str = "") -> bytes:
    """An Export response with a partial success, or a full one."""
    if not rejected and not message:
        return b""
    if path.endswith("profiles") or "Profiles" in path:
        return ExportProfilesServiceResponse(
            partial_success={"rejected_profiles": rejected, "error_message": message}  # type: ignore[arg-type]
        ).SerializeToString()
    if path.endswith("metrics") or "Metrics" in path:
        return ExportMetricsServiceResponse(
            partial_success={"rejected_data_points": rejected, "error_message": message}  # type: ignore[arg-type]
        ).SerializeToString()
    return ExportTraceServiceResponse(
        partial_success={"rejected_spans": rejected, "error_message": message}  # type: ignore[arg-type]
    ).SerializeToString()


# One answer of a gRPC server: given the path and the call, returns the response or aborts the call.
GrpcAnswer = Callable[[str, Any], bytes]


def grpc_partial(rejected: int, message: str) -> GrpcAnswer:
    return lambda path, call: response(path, rejected, message)


def grpc_garbage(path: str, call: Any) -> bytes:
    return b"\xff\xff\xff"


def grpc_hang(path: str, call: Any) -> bytes:
    time.sleep(1.5)
    return b""


def grpc_fail(code: grpc.StatusCode, retry_after_s: float | None = None) -> GrpcAnswer:
    """Abort with a code, and with RetryInfo in the status details if a wait is given."""

    def answer(path: str, call: Any) -> bytes:
        if retry_after_s is not None:
            info = AnyMessage()
            delay = Duration(seconds=int(retry_after_s), nanos=int(retry_after_s % 1 * 1e9))
            info.Pack(RetryInfo(retry_delay=delay))
            details = Status(code=code.value[0], message="busy", details=[info]).SerializeToString()
            call.set_trailing_metadata((("grpc-status-details-bin", details),))
        call.abort(code, "scripted")
        raise AssertionError("unreachable")

    return answer


@contextmanager
def grpc_server(
    *script: GrpcAnswer,
    tls: Tls | None = None,
    mutual: bool = False,
    host: str = "localhost",
    port: int = 0,
) -> Iterator[Server]:
    """A gRPC server that plays ``script`` and then accepts everything."""
    state, answers, lock = Server(), iter(script), threading.Lock()

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            def export(body: bytes, call: Any) -> bytes:
                headers = {k: v for k, v in call.invocation_metadata() if isinstance(v, str)}
                with lock:
                    state.requests.append(Request(details.method, headers, body, time.monotonic()))
                    answer = next(answers, None)
                return answer(details.method, call) if answer else b""

            return grpc.unary_unary_rpc_method_handler(export)

    options = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 4 << 20))
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=(Handler(),), options=options)
    if tls:
        credentials = grpc.ssl_server_credentials(
            [(read(tls.key), read(tls.certificate))],
            root_certificates=read(tls.authority) if mutual else None,
            require_client_auth=mutual,
        )
        bound = server.add_secure_port(f"{host}:{port}", credentials)
    else:
        bound = server.add_insecure_port(f"{host}:{port}")
    server.start()
    state.address = f"{'https' if tls else 'http'}://{host}:{bound}"
    try:
        yield state
    finally:
        server.stop(0).wait(5)


@dataclass(frozen=True)
class HttpAnswer:
    """One answer of an HTTP server."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None  # None: a full success, or an empty failure
    delay_s: float = 0.0
    disconnect: bool = False  # close the connection instead of answering
    drip_s: float = 0.0  # between the bytes of the body
    close_after: bool = False  # answer, then close without saying so


def http_partial(rejected: int, message: str) -> HttpAnswer:
    return HttpAnswer(body=response("/v1/traces", rejected, message))


@contextmanager
def http_server(
    *script: HttpAnswer, tls: Tls | None = None, mutual: bool = False, port: int = 0
) -> Iterator[Server]:
    """An HTTP/1.1 server that plays ``script`` and then accepts everything."""
    state, answers, lock = Server(), iter(script), threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            with lock:
                state.connections += 1

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {key.lower(): value for key, value in self.headers.items()}
            if headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            with lock:
                state.requests.append(Request(self.path, headers, body, time.monotonic()))
                answer = next(answers, HttpAnswer())
            time.sleep(answer.delay_s)
            if answer.disconnect:
                self.close_connection = True
                return
            content = answer.body or b""
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(content)))
            for key, value in answer.headers:
                self.send_header(key, value)
            self.end_headers()
            if answer.drip_s:
                for byte in content:
                    self.wfile.write(bytes([byte]))
                    time.sleep(answer.drip_s)
            else:
                self.wfile.write(content)
            self.close_connection = self.close_connection or answer.close_after

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Quiet(http.server.ThreadingHTTPServer):
        daemon_threads = True
        address_family = __import__("socket").AF_INET

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # clients that give up are part of the tests

    server = Quiet(("127.0.0.1", port), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
        if mutual:
            context.load_verify_locations(tls.authority)
            context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.address = f"{'https' if tls else 'http'}://localhost:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
