"""The entry point, which Ctrl-C ends without a traceback however early it comes.

Whatever is slow to import is imported in :func:`main`: before that, an interrupt is Python's own to report.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Final

INTERRUPTED: Final = 128 + signal.SIGINT
"""Exit code after Ctrl-C: 130, as of a shell's command."""


def main() -> None:
    """Run the command line, and exit; see :func:`otelgpu.cli.commands.run` for the exit codes."""
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # elsewise it is ignored: nohup, a job of sh
        signal.signal(signal.SIGINT, leave_at_once)
    try:
        from otelgpu.cli.commands import run

        try:
            run()
        finally:  # all is done: what Python does before it ends is not to be interrupted
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:  # between two lines of this
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        if _all_is_given_back and (end.code is None or isinstance(end.code, int)):
            _end(end.code or 0)
        raise


_all_is_given_back = False


def all_is_given_back() -> None:
    """What was open is closed, and what was made is delivered: this process may end as it is.

    To take its modules and their objects apart one by one is 30 to 50 ms of a processor.
    """
    global _all_is_given_back
    _all_is_given_back = True


def _end(code: int) -> None:
    """Unless something has yet to be waited for, or cannot be written: Python says so at its own end."""
    import threading  # by then it is

    if any(not each.daemon for each in threading.enumerate() if each is not threading.main_thread()):
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    os._exit(code & 0xFF)


def leave_at_once(number: int, frame: FrameType | None) -> None:
    """Handler of SIGINT while modules are imported: there is nothing to be undone, and no code of theirs breaks off."""
    os._exit(INTERRUPTED)
