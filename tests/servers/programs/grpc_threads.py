"""The service by grpcio, in a pool of threads: ``grpc_threads.py PORT``. Its calls are urllib3's. See kserve.py."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import blocking
import grpc
import kserve
import service

WAIT_S = 30.0


def begin(request: bytes, context: Any) -> tuple[str, str]:
    model, number = kserve.asked(request)
    if model == kserve.FAILING:
        blocking.call(number, 0)
        context.abort(grpc.StatusCode.INTERNAL, "as asked")
    if model not in (kserve.TINY, kserve.PATIENT):
        context.abort(grpc.StatusCode.NOT_FOUND, model)
    blocking.calls(number)
    return model, number


def wait(context: Any) -> None:
    over = Event()
    if context.add_callback(over.set):
        over.wait(WAIT_S)


def infer(request: bytes, context: Any) -> bytes:
    model, number = begin(request, context)
    if model == kserve.PATIENT:
        wait(context)
    return kserve.infer_response(model, number, service.WORD * kserve.TOKENS)


def stream(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    began = time.monotonic()
    model, number = begin(next(requests), context)
    token = kserve.stream_response(model, number, service.WORD)
    service.report_first_token(number, began)
    yield token
    if model == kserve.PATIENT:
        yield token
        wait(context)
        return
    blocking.call(number, 3)
    for _ in range(kserve.TOKENS - 1):
        time.sleep(service.PAUSE_S)
        yield token


def live(_request: bytes, _context: Any) -> bytes:
    return b""


def main() -> None:
    methods = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(infer),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(stream),
        "ServerLive": grpc.unary_unary_rpc_method_handler(live),
    }
    server = grpc.server(ThreadPoolExecutor(80))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(kserve.SERVICE, methods),))
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
