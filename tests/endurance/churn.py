"""A node's life in small: processes, threads, connections and mapped libraries that come and go.

``python -m tests.endurance.churn [--rate N] [--seed N]``: N short processes a second until SIGTERM, each of a
kind of :data:`KINDS`, and one server that outlives them all. What was done is a JSON line at the end. Nothing here
knows otelgpu.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import http.client
import http.server
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.rig.fakes import build_fakes, fake_cudart_path

LAST_PID: Final = Path("/proc/sys/kernel/ns_last_pid")
CHILD_LIMIT_S: Final = 20
LAUNCHES: Final = 13
AT_ONCE: Final = 8
"""Processes that may live at a time: the rate stays what it is on a machine that is busy otherwise."""
_ANSWER: Final = json.dumps(
    {"id": "chatcmpl-1", "object": "chat.completion", "model": "tiny", "usage": {"completion_tokens": 3}}
).encode()
_QUESTION: Final = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "?"}]}).encode()


class _Dim3(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]


def _compute(library: Path) -> None:
    """Memory, launches, a synchronisation: 2 threads, one of which ends before the other."""
    cuda = ctypes.CDLL(str(library))
    one = _Dim3(1, 1, 1)

    def work(launches: int) -> None:
        memory = ctypes.c_void_p()
        cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(4096))
        for number in range(launches):
            kernel = ctypes.c_void_p(4096 + 16 * (number % 3))
            cuda.cudaLaunchKernel(kernel, one, one, None, ctypes.c_size_t(0), None)
        cuda.cudaDeviceSynchronize()
        cuda.cudaFree(memory)

    other = threading.Thread(target=work, args=(1,))
    other.start()
    other.join()
    work(LAUNCHES)


class _Handler(http.server.BaseHTTPRequestHandler):
    """A completion, with CUDA calls behind it where the path asks for them; streamed if that is asked for."""

    protocol_version = "HTTP/1.1"
    library: Path | None = None

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.library is not None:
            _compute(self.library)
        if "stream" in self.path:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for word in ("one", "two", "three"):
                event = b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % word.encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(_ANSWER)))
        self.end_headers()
        self.wfile.write(_ANSWER)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients that are killed are part of it


def _serve(library: Path | None) -> _Server:
    handler = type("_Serving", (_Handler,), {"library": library})
    return _Server(("127.0.0.1", 0), handler)


def _ask(port: int, path: str = "/v1/chat/completions") -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CHILD_LIMIT_S)
    for _ in range(2):  # on one connection
        connection.request("POST", path, _QUESTION, {"Content-Type": "application/json"})
        connection.getresponse().read()
    connection.close()


class Churn:
    """What the kinds of processes share: the server's port and the libraries' places."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self._port = folder, port
        self._library = fake_cudart_path()
        self._client = str(build_fakes() / "cuda_client")

    def nothing(self) -> None:
        """Forks and ends."""

    def asks(self) -> None:
        """Talks to the server that lives on."""
        _ask(self._port)

    def streams(self) -> None:
        """The same, by server-sent events."""
        _ask(self._port, "/v1/chat/completions?stream")

    def computes(self) -> None:
        """Maps the fake and makes calls."""
        _compute(self._library)

    def serves(self) -> None:
        """A service of its own: connections and CUDA calls of a process that is gone soon."""
        server = _serve(self._library)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        _ask(server.server_port)

    def deploys(self) -> None:
        """Maps a library that was not there before and is deleted meanwhile, as in a container of its own."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            copy = Path(folder, self._library.name)
            shutil.copy(self._library, copy)
            _compute(copy)

    def executes(self) -> None:
        """Another program, which is linked to the fake."""
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 1)
        os.execv(self._client, [self._client, f"--calls={LAUNCHES}"])

    def is_killed(self) -> None:
        """In the middle of a request that it serves."""
        server = _serve(None)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        threading.Thread(target=_ask, args=(server.server_port,), daemon=True).start()
        time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)


Action = Callable[[Churn], None]
KINDS: Final[tuple[tuple[Action, int], ...]] = (
    (Churn.nothing, 4),
    (Churn.asks, 4),
    (Churn.streams, 3),
    (Churn.computes, 3),
    (Churn.serves, 3),
    (Churn.executes, 3),
    (Churn.deploys, 1),
    (Churn.is_killed, 1),
)
"""What a process does, and how often of 22 times."""


def _live(action: Action, churn: Churn) -> None:
    """In the child; does not return."""
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(CHILD_LIMIT_S)
        action(churn)
        code = 0
    finally:
        os._exit(code)


def _give_again(number: int) -> bool:
    """Have the kernel give a process id again to whatever is forked next, here or elsewhere."""
    with contextlib.suppress(OSError):
        LAST_PID.write_text(str(number - 1))
        return True
    return False


def _start_server() -> tuple[int, int]:
    """In a process that lives on, so that no thread is there when others are forked; (pid, port)."""
    server = _serve(fake_cudart_path())
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        server.serve_forever()
    server.server_close()
    return pid, server.server_port


def run(rate: float, seed: int) -> Counter[str]:
    """Until SIGTERM; how many of each kind, and how many process ids came again."""
    draw = random.Random(seed)
    done: Counter[str] = Counter()
    stop: list[int] = []
    recent: deque[int] = deque(maxlen=8)
    pid, port = _start_server()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stop.append(number))
    print(json.dumps({"server": pid}), flush=True)
    actions, weights = zip(*KINDS, strict=True)
    with tempfile.TemporaryDirectory(prefix="churn-") as folder:
        churn = Churn(Path(folder), port)
        alive: dict[int, Action] = {}

        def reap(block: bool) -> bool:
            child, status = os.waitpid(-1, 0 if block else os.WNOHANG)
            if not child:
                return False
            assert child != pid, "the server that outlives them all ended"
            action = alive.pop(child)
            recent.append(child)
            done[action.__name__] += 1
            done["failed"] += status not in (0, signal.SIGKILL) or (
                status != 0 and action is not Churn.is_killed
            )
            return True

        due = time.monotonic()
        while not stop:
            action = draw.choices(actions, weights)[0]
            old = recent[0] if recent and draw.random() < 0.1 else 0
            wanted = old if old and not os.path.exists(f"/proc/{old}") and _give_again(old) else 0
            child = os.fork()
            if child == 0:
                _live(action, churn)
            alive[child] = action
            done["ids given again"] += child == wanted
            due = max(due + 1 / rate, time.monotonic() - 1)
            time.sleep(max(due - time.monotonic(), 0))
            while reap(block=len(alive) >= AT_ONCE):
                pass
        while alive:
            reap(block=True)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=10, help="processes a second (10)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of their kinds (1)")
    options = parser.parse_args()
    json.dump(run(options.rate, options.seed), sys.stdout)
    print(flush=True)


if __name__ == "__main__":
    main()
