"""Requests to the example LLM server, one after another, while a test lasts: do they fail, how long do they take?"""

from __future__ import annotations

import json
import threading
import time
from typing import Final, Self

from tests.rig.llm_server import LlmServer

_BODY: Final = json.dumps(
    {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "stream": True}
).encode()
_HEADERS: Final = {"Content-Type": "application/json"}
_END: Final = b"data: [DONE]\n\n"


class LlmLoad:
    """Streamed completions from some threads until the end of the block, each with a connection of its own.

    ``seconds`` has how long each took that was answered in full, ``failures`` what came of the others.
    """

    def __init__(self, server: LlmServer, *, threads: int = 2, pause_s: float = 0.005) -> None:
        self._server, self._pause_s = server, pause_s
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        self.seconds: list[float] = []
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        connection = self._server.connect()
        while not self._stop.wait(self._pause_s):
            began = time.monotonic()
            try:
                connection.request("POST", "/v1/chat/completions", _BODY, _HEADERS)
                answer = connection.getresponse()
                text = answer.read()
            except Exception as error:
                self.failures.append(repr(error))
                connection.close()
                continue
            if answer.status == 200 and text.endswith(_END):
                self.seconds.append(time.monotonic() - began)
            else:
                self.failures.append(f"{answer.status}: {text[-200:]!r}")
        connection.close()
