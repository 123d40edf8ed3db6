"""An OpenAI-compatible server that decodes on the GPU with PyTorch, by launches (eagerly) or by a CUDA graph.

A transformer with random weights and a fixed window, one thread for each connection, one CUDA stream for each
thread. Every token costs the same launches, so what a request launches is a fixed part and a part for each token.
With ``--graphs`` a token is one launch of a graph that all requests take turns at.

    python torch_service.py [--layers 12] [--width 768] [--graphs]

Prints ``listening on PORT``, and serves until it is killed.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

WORDS, WINDOW = 1000, 64


class Block(torch.nn.Module):
    """Attention and a feed-forward network, each with its norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)])
        self.projected = torch.nn.Linear(width, 3 * width)
        self.joined = torch.nn.Linear(width, width)
        self.fed = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        query, key, value = self.projected(self.norms[0](given)).chunk(3, dim=-1)
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        given = given + self.joined(found)
        return given + self.fed(self.norms[1](given))


class Model(torch.nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, width)
        self.blocks = torch.nn.Sequential(*(Block(width) for _ in range(layers)))
        self.scores = torch.nn.Linear(width, WORDS)

    @torch.inference_mode()
    def next_word(self, window: torch.Tensor) -> torch.Tensor:
        scores = self.scores(self.blocks(self.words(window))[:, -1])
        return torch.argmax(scores, dim=-1, keepdim=True)


class Eager:
    """One request's decoding, a launch for each kernel."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._window = torch.zeros((1, WINDOW), dtype=torch.long, device="cuda")

    def __call__(self) -> int:
        word = self._model.next_word(self._window)
        self._window = torch.cat((self._window[:, 1:], word), dim=1)
        return int(word.item())


class Graphed:
    """All requests' decoding: one step captured once, launched in turn, on one window for all."""

    def __init__(self, model: Model) -> None:
        self._turn = threading.Lock()
        window = torch.zeros((1, WINDOW), dtype=torch.long, device="cuda")
        aside = torch.cuda.Stream()
        with torch.cuda.stream(aside):  # what the first steps allocate and load cannot be captured
            for _ in range(3):
                model.next_word(window)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._word = model.next_word(window)
            window.copy_(torch.cat((window[:, 1:], self._word), dim=1))

    def __call__(self) -> int:
        with self._turn:
            self._graph.replay()
            return int(self._word.item())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    decoding: Callable[[], Callable[[], int]]  # for one request: what gives its next word

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.inference_mode():
            next_word = Handler.decoding()
            began = time.perf_counter()
            for number in range(asked["max_tokens"]):
                self.event({"choices": [{"index": 0, "delta": {"content": f"w{next_word()} "}}]})
                if number == 0:
                    first_s = time.perf_counter() - began
        count = asked["max_tokens"]
        usage = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": 1 + count}
        self.event({"choices": [], "usage": usage, "first_s": first_s})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, content: dict[str, Any]) -> None:
        answer = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "random", **content}
        self.chunk(b"data: " + json.dumps(answer).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Nothing: a line for each request is not what is measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--graphs", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(7)
    with torch.inference_mode():
        model = Model(options.layers, options.width).half().cuda().eval()
        graphed = Graphed(model) if options.graphs else None
    Handler.decoding = lambda: graphed or Eager(model)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(f"listening on {server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
