"""`otelgpu top` on a terminal, beside the example server: what it shows, its keys, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import termios
from contextlib import suppress

import pytest

from tests.rig import start_llm_server
from tests.rig.top_terminal import LEAVES_SCREEN, asked_all_the_time, terminal

pytestmark = pytest.mark.usefixtures("kernel")


def test_it_shows_a_server_at_work_and_leaves_the_terminal_as_it_was() -> None:
    with start_llm_server() as server, asked_all_the_time(server), terminal("-p", f"{server.pid}") as top:
        top.shows("starting …")
        top.shows("/v1/chat/completi")  # the first view that has something; the rest may find no room
        assert "TTFT p50" in top.text()
        top.press("2")
        top.shows("launches/s")
        top.shows("CUDA kernels")
        top.press("5")
        top.shows("CUDA launch/s")
        top.press("/")
        top.shows("words of the rows to show")
        top.press(f"{server.worker_pid}\r")
        top.shows(f"/{server.worker_pid}")
        top.press("\r")
        top.shows(f"Process {server.worker_pid}")
        top.press("q")
        assert top.ends() == 0
        assert LEAVES_SCREEN in top.written
        assert termios.tcgetattr(top.line) == top.modes
        with suppress(ChildProcessError), pytest.raises(ProcessLookupError):
            os.killpg(top.process.pid, 0)  # nothing of it runs on


@pytest.mark.parametrize("how", ["\x03", signal.SIGTERM, signal.SIGINT], ids=["ctrl-c", "SIGTERM", "SIGINT"])
def test_it_can_be_ended_while_it_loads(how: str | signal.Signals) -> None:
    with terminal("-p", f"{os.getpid()}") as top:
        top.shows("starting …")
        if isinstance(how, str):
            top.press(how)
        else:
            top.process.send_signal(how)
        assert top.ends() == 0
        assert termios.tcgetattr(top.line) == top.modes


@pytest.mark.parametrize(
    ("arguments", "said", "exit_code"),
    [
        (("-p", "4194303"), "there is no process 4194303", 1),
        (("--sort", "nothing"), "there is no column nothing", 2),
        (("--ring-bytes", "12345"), "ring", 1),
    ],
    ids=["process", "usage", "configuration"],
)
def test_what_cannot_begin_is_said_when_the_terminal_is_back(
    arguments: tuple[str, ...], said: str, exit_code: int
) -> None:
    with terminal(*arguments) as top:
        assert top.ends() == exit_code
        assert said in top.written.rpartition(LEAVES_SCREEN)[2].decode()
