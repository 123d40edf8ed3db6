"""Memory is given back where the C library can."""

from __future__ import annotations

import subprocess
import sys

import pytest

from otelgpu.kernel import heap


def test_free_memory_is_asked_for_once_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(heap, "_trim", lambda: asked.append)
    heap.give_back()
    assert asked == [0]


def test_another_c_library_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_trim", lambda: None)
    heap.give_back()


def test_threads_share_one_heap() -> None:
    code = (
        "import re, threading\n"
        "from otelgpu.kernel.heap import share_one\n"
        "{}\n"
        "def fill():\n"
        "    kept.append([bytes(1000) for _ in range(20_000)])\n"
        "kept = []\n"
        "threads = [threading.Thread(target=fill) for _ in range(4)]\n"
        "[each.start() for each in threads]; [each.join() for each in threads]\n"
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None)\n"
        "read, write = os.pipe()\n"
        "libc.fdopen.restype = ctypes.c_void_p\n"
        "libc.malloc_info(0, ctypes.c_void_p(libc.fdopen(write, b'w'))); libc.fflush(None)\n"
        "print(len(re.findall(b'<heap nr', os.read(read, 1 << 20))))"
    )

    def heaps(before: str) -> int:
        command = [sys.executable, "-c", code.format(before)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert heaps("") > 1
    assert heaps("share_one()") == 1
