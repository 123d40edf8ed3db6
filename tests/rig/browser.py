"""Chromium without a window: pictures of pages, and their elements once their scripts have run.

In: a URL (``file://`` too). Out: a PNG, or HTML. Debian's chromium-headless-shell is all that it takes; chromium
does as well, but its page is lower than its picture by a toolbar. Nothing here knows otelgpu.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.rig.llm_server import RigError

PACKAGES: Final = "chromium-headless-shell fonts-dejavu-core"
_NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_TIMEOUT_S: Final = 90.0  # it takes a second; on a machine that shares its cores, many times that


def missing_browser() -> str | None:
    """Why there is no browser to run, and what to do; None when there is one."""
    if browser_program() is None:
        return f"no Chromium: run `apt-get install -y --no-install-recommends {PACKAGES}` as root"
    return None


def screenshot(url: str, path: Path, size: tuple[int, int] = (1400, 900), budget_ms: int = 8000) -> None:
    """Write a picture of the page as a PNG, ``size`` in pixels. Raises `RigError`.

    ``budget_ms``: how much of the page's own time its timers and animations get, which passes at once when nothing is
    to be loaded.
    """
    path.unlink(missing_ok=True)
    _run(url, budget_ms, size, f"--screenshot={path.absolute()}")
    if not path.exists():
        raise RigError(f"Chromium made no picture of {url}")


def dump_dom(url: str, size: tuple[int, int] = (1400, 900), budget_ms: int = 8000) -> str:
    """The page's elements as HTML, after its scripts had their ``budget_ms``. Raises `RigError`."""
    return _run(url, budget_ms, size, "--dump-dom")


def browser_program() -> str | None:
    """Chromium, by whichever name; None where there is none."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


@contextmanager
def headless(*arguments: str) -> Iterator[tuple[list[str], Path]]:
    """A command that runs it, and the folder of its profile until the end of the block. Raises `RigError`.

    The profile is of this run only: pages know nothing of each other.
    """
    program = browser_program()
    if program is None:
        raise RigError(missing_browser() or "")
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        options = [
            "--headless",
            "--no-sandbox",  # which root cannot have; pages are our own
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            f"--user-data-dir={profile}",
        ]
        yield [program, *options, *arguments], Path(profile)


def _run(url: str, budget_ms: int, size: tuple[int, int], action: str) -> str:
    """What it wrote to its output."""
    options = (
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
        f"--window-size={size[0]},{size[1]}",
        f"--virtual-time-budget={budget_ms}",
        action,
    )
    with headless(*options, url) as (command, _):
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise RigError(f"Chromium did not end within {_TIMEOUT_S:.0f} s at {url}") from error
    if done.returncode:
        raise RigError(
            f"Chromium ended with {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}"
        )
    return done.stdout.decode(errors="replace")
