"""The service as a WSGI application of Flask's, for gunicorn: ``wsgi:app``. Its calls are urllib3's.

Two calls at the same time are made from a pool of threads, which are greenlets under gunicorn's gevent worker.
"""

from __future__ import annotations

import time

import blocking
import service
from flask import Flask, Response, jsonify, request

app = Flask(__name__)


@app.post("/v1/chat/completions")
def chat() -> Response:
    began = time.monotonic()
    number, asked = request.headers["x-request-id"], request.get_json()
    blocking.calls(number)
    if asked.get("stream"):
        return Response(blocking.events(number, asked, began), mimetype="text/event-stream")
    return jsonify(service.completion(number, asked))


@app.get("/items/<number>")
def item(number: str) -> Response:
    blocking.calls(number)
    return jsonify(number=number)


@app.get("/fail/<number>")
def fail(number: str) -> tuple[Response, int]:
    blocking.call(number, 0)
    return jsonify(error="as asked"), 500


@app.get("/health")
def health() -> Response:
    return jsonify(status="ok")
