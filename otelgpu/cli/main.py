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


def leave_at_once(number: int, frame: FrameType | None) -> None:
    """Handler of SIGINT while modules are imported: there is nothing to be undone, and no code of theirs breaks off."""
    os._exit(INTERRUPTED)
