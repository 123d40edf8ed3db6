"""Whether ``otelgpu top`` is a program on this terminal, and its start: drawn before there is anything to draw.

What is typed is looked at again by who observes (command.py), which takes a second of imports; that second is not
waited for. Hence this module, and all that it imports, is small.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import click

from otelgpu.cli.top.observer import Channel, Observer
from otelgpu.errors import OtelgpuError
from otelgpu.kernel.privileges import dropping as privileges

_NO_TERMINALS: Final = ("", "dumb", "unknown")  # values of TERM
_PLAIN: Final = ("--once", "--json", "-h", "--help")


def is_program(arguments: Sequence[str]) -> bool:
    """Whether the command line, behind ``otelgpu``, asks for it, and the terminal can have it.

    All three streams are to be the terminal: keys come by the first, and Textual draws on the third.
    """
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return (
        arguments[:1] == ["top"]
        and not any(each in _PLAIN for each in arguments)
        and os.environ.get("TERM", "") not in _NO_TERMINALS
        and all(stream is not None and stream.isatty() for stream in streams)
    )


def draw(observe: Callable[[Channel], object]) -> int:
    """Run the program until somebody ends it; its exit code. ``observe``: parses the command line, and observes."""
    observer = Observer(observe)
    try:
        from otelgpu.cli.top.app import TopApp  # while the other loads what observes

        with suppress(OtelgpuError):  # then nothing was given up, and nothing is used
            privileges.give_up(())
        app = TopApp(reports=observer.reports, log=observer.log)
        app.run()
    finally:
        observer.end()
    if app.failure is None:
        return app.return_code or 0
    click.echo(app.failure.text, err=True)
    return app.failure.exit_code
