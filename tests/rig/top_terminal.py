"""`otelgpu top` on a pseudo terminal, and requests for it to show."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.rig.llm_server import LlmServer

LIMIT_S: Final = 90.0
_STEERING: Final = re.compile(rb"\x1b(?:\[[0-9;?<>=]*[ -/]*[@-~]|[()][0-9A-Z]|[=>78]|P[^\x1b]*\x1b\\)")
_SIZES: Final = ("COLUMNS", "LINES")  # where they are set, they are believed, not the terminal
LEAVES_SCREEN: Final = b"\x1b[?1049l"


class Terminal:
    """`otelgpu top` on a pseudo terminal of 24 lines and 100 columns."""

    def __init__(self, *arguments: str) -> None:
        self._control, line = pty.openpty()
        fcntl.ioctl(line, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.line, self.modes = line, termios.tcgetattr(line)
        self.written = b""
        self.process = subprocess.Popen(
            [str(Path(sys.executable).with_name("otelgpu")), "top", *arguments],
            stdin=line,
            stdout=line,
            stderr=line,
            env={key: value for key, value in os.environ.items() if key not in _SIZES}
            | {"TERM": "xterm-256color"},
            start_new_session=True,
        )

    def press(self, key: str) -> None:
        """From here on `shows` looks at what is drawn after it."""
        self.read(0)
        self.written = b""
        os.write(self._control, key.encode())

    def shows(self, text: str) -> None:
        until = time.monotonic() + LIMIT_S
        while text not in self.text():
            assert self.read(0.1) and time.monotonic() < until, f"no {text!r} in {self.text()[-2000:]}"

    def text(self) -> str:
        return _STEERING.sub(b"", self.written).decode(errors="replace")

    def ends(self) -> int:
        """Its exit code, once the terminal has all it wrote."""
        until = time.monotonic() + LIMIT_S
        while self.process.poll() is None:
            assert time.monotonic() < until
            self.read(0.1)
        while select.select([self._control], [], [], 0)[0]:
            self.read(0)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._control)
        os.close(self.line)

    def read(self, timeout_s: float) -> bool:
        if select.select([self._control], [], [], timeout_s)[0]:
            self.written += os.read(self._control, 65_536)
        return self.process.poll() is None


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    made = Terminal(*arguments)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def asked_all_the_time(server: LlmServer) -> Iterator[None]:
    enough = threading.Event()
    question: Any = {"model": "words", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    body = json.dumps(question | {"max_tokens": 8})

    def ask() -> None:
        connection = server.connect()
        while not enough.wait(0.05):
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            connection.getresponse().read()
        connection.close()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        enough.set()
        asking.join()
