"""Flask under gunicorn's gthread workers: ``flask_server.py THREADS``; a line with its port."""

import json
import socket
import sys
import time
from collections.abc import Iterator

import jobs
from flask import Flask, Response, request
from gunicorn.app.base import BaseApplication

app = Flask("flask_server")


@app.get("/job/<int:number>")
def job(number: int) -> str:
    jobs.work(number, time.sleep)
    jobs.report(number)
    return str(number)


@app.post("/v1/chat/completions")
def chat() -> Response:
    asked = json.loads(request.data)
    number = asked["max_tokens"]
    if not asked.get("stream"):
        jobs.work(number, time.sleep)
        jobs.report(number, stream=False)
        return Response(json.dumps(jobs.completion(number)), mimetype="application/json")

    def body() -> Iterator[str]:
        yield from jobs.events(number)

    return Response(body(), mimetype="text/event-stream")


class Application(BaseApplication):
    """As the command line ``gunicorn --threads N`` makes it, on a port that we know."""

    def load_config(self) -> None:
        settings = {
            "bind": f"fd://{listening.fileno()}",
            "worker_class": "gthread",
            "threads": int(sys.argv[1]),
            "workers": 1,
            "accesslog": None,
            "loglevel": "warning",
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        return app


listening = socket.create_server(("127.0.0.1", 0), backlog=128)
listening.set_inheritable(True)
print(listening.getsockname()[1], flush=True)
Application().run()
