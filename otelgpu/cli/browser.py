"""Opens pages in the browser of the person at this machine, without telling the others an address that is a secret.

What stands on a browser's command line everybody on the machine can read. There the browser gets the path of a file
that only this user can read; the file has the address.
"""

from __future__ import annotations

import html
import os
import shutil
import tempfile
import webbrowser
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import click

_PAGE: Final = """<!DOCTYPE html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>otelgpu</title>
"""


class HandOver:
    """Within ``with``: files that lead a browser to addresses that nobody else may know."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.spend()

    def address_of(self, url: str) -> str:
        """Of a file that leads there, until it is spent."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="otelgpu-view-", dir=_private_folder()))
        file = self._folder / "open.html"
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as page:
            page.write(_PAGE.format(url=html.escape(url)))
        return file.as_uri()

    def spend(self) -> None:
        """The browser was there: nobody needs the file any more; idempotent."""
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def open_page(address: str, asked: bool | None, hand_over: HandOver | None = None) -> None:
    """In the browser, where somebody can see it; unasked not as root, who should have none.

    Without a desktop ``webbrowser`` would take a browser of terminals. With ``hand_over`` the address is a secret.
    """
    has_desktop = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if not (has_desktop and os.geteuid() != 0 if asked is None else asked):
        return
    try:
        opened = webbrowser.open(hand_over.address_of(address) if hand_over is not None else address)
    except OSError:  # no place for the file that leads there
        opened = False
    if asked and not opened:
        click.echo(f"otelgpu: no browser could be started; open {address}", err=True)


def _private_folder() -> str | None:
    """The user's own for files of running programs, if there is one; else where temporary files are."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    return folder if folder and os.access(folder, os.W_OK | os.X_OK) else None
