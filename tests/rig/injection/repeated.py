"""Loads the library into busy programs again and again, and looks at what is left of it in them.

Each time is a whole session: an agent listens, the library comes, connects, has CUPTI (the fake one) and a thread; the
agent goes, and the library ends what it does. A program that is harmed says so itself, or ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from otelgpu.kernel.injection.live import LIVE_FUNCTION, live_request
from otelgpu.kernel.injection.server import InjectListener, read_library
from otelgpu.kernel.loader import read_image
from otelgpu.processes.live_injection.loading import Loaded, load_library
from otelgpu.processes.live_injection.refusals import InjectionRefused
from tests.rig.fakes import build_fakes
from tests.rig.injection.container import innermost_child

MODES: Final = ("threads", "malloc", "signals", "forks", "waits", "numbers")
_SOURCE: Final = Path(__file__).parent / "busy.c"
_DORMANT_S: Final = 10.0
_UNHEARD_S: Final = 15.0
"""UNHEARD_NS of connection.c."""


class Busy(Struct, kw_only=True):
    """A program that runs, and what was seen of it."""

    mode: str
    process: subprocess.Popen[str]
    tgid: int
    """By our numbers; ``process`` may be one that started it."""
    injected: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    held_s: list[float] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    before: tuple[int, int] = (0, 0)
    code: int | None = None
    done: int = 0
    said: str = ""

    @property
    def counts(self) -> tuple[int, int]:
        """Descriptors and threads."""
        folder = Path(f"/proc/{self.tgid}")
        return len(os.listdir(folder / "fd")), len(os.listdir(folder / "task"))

    @property
    def left_behind(self) -> list[str]:
        """Mappings that are no file's, and are the agent's memory or may be executed."""
        lines = Path(f"/proc/{self.tgid}/maps").read_text().splitlines()
        return [
            line
            for line in lines
            if "memfd:otelgpu" in line or (" r-xp " in line and " 00:00 0 " in line and "[" not in line)
        ]

    def end(self) -> None:
        """Let it say what it did."""
        if self.process.poll() is None:
            os.kill(self.tgid, signal.SIGTERM)
        try:
            said, self.said = self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            said, self.said = self.process.communicate()
        self.code = self.process.returncode
        self.done = int(said.strip() or 0) if self.code == 0 else 0


def build_busy(folder: Path) -> Path:
    """The program, linked to the fake libcudart."""
    program, fakes = folder / "busy", build_fakes()
    command: list[str | Path] = [
        "gcc",
        "-O2",
        "-pthread",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        program,
        _SOURCE,
    ]
    link: list[str | Path] = [
        "-Wl,--no-as-needed",
        f"-L{fakes}",
        "-l:libcudart.so.12",
        "-lm",
        f"-Wl,-rpath,{fakes}",
    ]
    subprocess.run([*command, *link], check=True, timeout=60)
    return program


@contextmanager
def running(program: Path, mode: str, command: Sequence[str | Path] = ()) -> Iterator[Busy]:
    """One of them; ``command`` is what starts it otherwise, as its only child."""
    process = subprocess.Popen(
        [*(command or [program]), mode], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    tgid = process.pid
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said == "ready\n", process.communicate(timeout=30)[1]
        tgid = innermost_child(tgid) if command else tgid
        yield Busy(mode=mode, process=process, tgid=tgid)
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(tgid, signal.SIGKILL)
            process.kill()
        process.communicate()


def inject_once(tgid: int) -> Loaded:
    """A whole session, of no length."""
    library = read_library()
    listener = InjectListener(library.layout, read_image("cuda").btf)
    try:
        return load_library(
            tgid,
            library.path,
            LIVE_FUNCTION,
            live_request(library.layout),
            listener.answer,
        )
    finally:
        listener.close()


def await_dormant(busy: Busy, *, unheard: bool = False) -> bool:
    """Whether it has as many descriptors and threads as before, and nothing of ours is mapped but libraries.

    ``unheard``: the agent did not say that it goes.
    """
    until = time.monotonic() + _DORMANT_S + (_UNHEARD_S if unheard else 0)
    while time.monotonic() < until:
        # One that forks has more of both for a moment.
        if busy.counts <= busy.before and not busy.left_behind:
            return True
        time.sleep(0.01)
    return False


def repeat(times: int, modes: tuple[str, ...] = MODES) -> list[Busy]:
    """So many in all, by turns; all programs run at once. What was seen of each."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        program = build_busy(Path(folder))
        all_busy = [stack.enter_context(running(program, mode)) for mode in modes]
        for busy in all_busy:
            busy.before = busy.counts
        for number in range(times):
            busy = all_busy[number % len(all_busy)]
            if busy.process.poll() is not None:
                continue  # it has said why
            if busy.injected and not await_dormant(busy):
                busy.refused[f"left behind: {busy.counts} of {busy.before}, {busy.left_behind}"] += 1
            try:
                loaded = inject_once(busy.tgid)
            except InjectionRefused as error:
                busy.refused[error.message] += 1
                continue
            assert loaded.answer == 1, loaded
            busy.injected += 1
            busy.held_s.append(loaded.held_s)
            busy.attempts.append(loaded.attempts)
        for busy in all_busy:
            if busy.process.poll() is None and not await_dormant(busy):
                busy.refused[f"left behind: {busy.counts} of {busy.before}, {busy.left_behind}"] += 1
            busy.end()
        return all_busy
