"""Headers for bcc where the running kernel has none: those of Debian's, for as long as a test runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.rig import RigError


@contextlib.contextmanager
def kernel_headers() -> Iterator[None]:
    """Show them to bcc; undone at the end. Raises `RigError` where there are none to show."""
    modules = Path("/lib/modules") / os.uname().release
    made: list[Path] = []
    try:
        if not (modules / "build").exists() and not Path("/sys/kernel/kheaders.tar.xz").exists():
            found = sorted(Path("/usr/src").glob("linux-headers-*-amd64"))
            common = sorted(Path("/usr/src").glob("linux-headers-*-common"))
            if not found or not common:
                raise RigError("bcc needs kernel headers (Debian: apt-get install linux-headers-amd64)")
            if not modules.exists():
                modules.mkdir(parents=True)
                made.append(modules)
            for name, target in (("build", found[-1]), ("source", common[-1])):
                (modules / name).symlink_to(target)
                made.insert(0, modules / name)
        yield
    finally:
        for path in made:
            if path.is_symlink():
                path.unlink()
            else:
                path.rmdir()
