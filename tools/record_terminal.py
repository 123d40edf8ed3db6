# SPDX-License-Identifier: Apache-2.0
"""A session at a shell, recorded on a pseudo terminal: what was on the screen, as a picture for the manual.

In: lines to type, and what has to be seen before the next one is. Out: SVG, as Rich draws a terminal. What is shown
was written by the programs then; nothing in it is made up or cut out. Programs that draw on the whole screen are not
for this: Textual draws those itself (:mod:`examples.terminal_pictures`).
"""

from __future__ import annotations

import codecs
import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

LIMIT_S: Final = 300.0
"""The longest that one line may take."""
_PROMPT: Final = "$ "
_PROMPTED: Final = r"\r\n\$ $"
_ROWS: Final = 200  # higher than any session: programs that ask for the screen's size cut nothing
_ERASED: Final = re.compile(r"[^\n]*(?:\n(?:\x1b\[\?25h|\r)*\x1b\[1A)?\x1b\[2K")
"""A line that its program wiped away, as those of progress, after going back to it where it had left it."""
_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


class Shell:
    """A bash on a terminal of ``columns``, that reads no file of its user's."""

    def __init__(self, columns: int, folder: Path, environment: Mapping[str, str]) -> None:
        self.written = ""
        self._control, line = pty.openpty()
        fcntl.ioctl(line, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
        self._process = subprocess.Popen(
            ["setsid", "--ctty", "bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=line,
            stdout=line,
            stderr=line,
            cwd=folder,
            env={**os.environ, "TERM": "xterm-256color", "PS1": _PROMPT, **environment},
        )
        os.close(line)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._wait(r"\$ $", 0)

    def type(self, keys: str, *, until: str = _PROMPTED) -> re.Match[str]:
        """Type a line or a key, and wait until what comes after it matches: the prompt, when the program has ended.

        Raises :class:`TimeoutError`.
        """
        at = len(self.written)
        os.write(self._control, keys.encode())
        return self._wait(until, at)

    def _wait(self, pattern: str, at: int) -> re.Match[str]:
        deadline = time.monotonic() + LIMIT_S
        while (found := re.search(pattern, self.written[at:])) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {pattern!r} in {self.written[at:][-1000:]!r}")
            if select.select([self._control], [], [], 1.0)[0]:
                self.written += self._decoder.decode(os.read(self._control, 65_536))
        return found

    def close(self) -> None:
        """End it, and what it runs in the foreground."""
        os.close(self._control)  # hangs up
        self._process.wait(30)


@contextmanager
def shell(columns: int, folder: Path, environment: Mapping[str, str]) -> Iterator[Shell]:
    """One, for a while."""
    made = Shell(columns, folder, environment)
    try:
        yield made
    finally:
        made.close()


def picture(written: str, *, columns: int, title: str) -> str:
    """SVG of what was written to a terminal of ``columns``, but for the last prompt, where nothing was typed."""
    kept = _ERASED.sub("", written.replace("\r\n", "\n").removesuffix(_PROMPT)).rstrip("\n")
    text = Text.from_ansi(kept)
    screen = Console(
        record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for line in text.split():
        for row in line.divide(range(columns, len(line), columns)):  # where a terminal breaks it
            screen.print(row, soft_wrap=True)
    return without_fonts(screen.export_svg(title=title))


def without_fonts(svg: str) -> str:
    """A picture of Rich's or Textual's without fonts of another host: a page that shows it asks nobody else."""
    return _FONTS.sub("", svg)
