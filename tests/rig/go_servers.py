"""The HTTPS server of tests/rig/serve_https.go, built as releases are."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("serve_https.go")


def build_https_server(folder: Path) -> Path:
    """The stripped program; skips where Go is not installed."""
    go = shutil.which("go", path="/usr/local/go/bin:/usr/local/bin:/usr/bin")
    if go is None:
        pytest.skip("go is not installed")
    program = folder / "serve"
    command = [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(program), str(_SOURCE)]
    subprocess.run(command, cwd=_SOURCE.parent, check=True)
    return program
