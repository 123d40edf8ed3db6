"""Chat completions by LitServe's OpenAI API: ``litserve_server.py PORT``. Its calls are urllib3's, from its worker.

A process reads requests with uvicorn and puts them in a queue; the worker, another, takes one after the other. What it
yields is made into responses by the first. The number of a request is its ``user``: no headers are passed on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import litserve
import service
import urllib3
from litserve.specs.openai import ChatCompletionRequest


class Api(litserve.LitAPI):
    """What the worker does."""

    def setup(self, device: str) -> None:
        self.client = urllib3.PoolManager(maxsize=2)
        self.pool = ThreadPoolExecutor(2)

    def decode_request(self, request: ChatCompletionRequest) -> ChatCompletionRequest:
        return request

    def predict(self, asked: ChatCompletionRequest) -> Iterator[dict[str, Any]]:
        began, number = time.monotonic(), asked.user
        self.call(number, 0)
        list(self.pool.map(self.call, (number, number), (1, 2)))
        if asked.stream:
            yield message("")
            service.report_first_token(number, began)
        yield message(service.WORD)
        if asked.stream:
            self.call(number, 3)
        for _ in range(asked.max_tokens - 2):
            time.sleep(service.PAUSE_S if asked.stream else 0)
            yield message(service.WORD)
        yield message(service.WORD, asked.max_tokens)

    def call(self, number: str, which: int) -> None:
        answer = self.client.request("GET", service.call_url(number, which))
        assert answer.status == 200, answer.status


def message(content: str, tokens: int = 0) -> dict[str, Any]:
    """With all of the usage in the last one: in a stream LitServe takes that one's, else the sum of all."""
    usage = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens} if tokens else {}
    return {"role": "assistant", "content": content} | usage


if __name__ == "__main__":
    server = litserve.LitServer(Api(spec=litserve.OpenAISpec()), accelerator="cpu", timeout=60)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="warning")
