"""The service as a WSGI application of Flask's, for gunicorn: ``wsgi:app``. Its calls are urllib3's.

Two calls at the same time are made from a pool of threads, which are greenlets under gunicorn's gevent worker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import service
import urllib3
from flask import Flask, Response, jsonify, request

app = Flask(__name__)
client = urllib3.PoolManager(maxsize=512)


def call(number: str, which: int) -> None:
    answer = client.request("GET", service.call_url(number, which))
    assert answer.status == 200, answer.status


def calls(number: str) -> None:
    call(number, 0)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(call, (number, number), (1, 2)))


@app.post("/v1/chat/completions")
def chat() -> Response:
    began = time.monotonic()
    number, asked = request.headers["x-request-id"], request.get_json()
    calls(number)
    if asked.get("stream"):
        return Response(events(number, asked, began), mimetype="text/event-stream")
    return jsonify(service.completion(number, asked))


def events(number: str, asked: dict[str, Any], began: float) -> Iterator[bytes]:
    yield service.role_event(number)
    service.report_first_token(number, began)
    yield service.token_event(number)
    call(number, 3)
    for _ in range(asked["max_tokens"] - 1):
        time.sleep(service.PAUSE_S)
        yield service.token_event(number)
    yield service.last_events(number, asked)


@app.get("/items/<number>")
def item(number: str) -> Response:
    calls(number)
    return jsonify(number=number)


@app.get("/fail/<number>")
def fail(number: str) -> tuple[Response, int]:
    call(number, 0)
    return jsonify(error="as asked"), 500


@app.get("/health")
def health() -> Response:
    return jsonify(status="ok")
