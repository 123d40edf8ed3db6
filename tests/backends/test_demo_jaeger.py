"""``make demo-jaeger`` finds in Jaeger all that its service did, says where to look, and leaves nothing running."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys

import pytest

from tests.backends.jaeger import missing_jaeger
from tests.rig import ROOT

pytestmark = [
    pytest.mark.skipif(missing_jaeger() is not None, reason=str(missing_jaeger())),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to observe the service"),
]


@pytest.mark.parametrize(
    ("options", "shown", "right"),
    [
        (["--requests=3"], "cudaLaunchKernel gemm_bf16", "3 requests, each with its trace in Jaeger"),
        (["--training"], "nccl.rank=3", "120 collectives, each with its 8 ranks in one trace in Jaeger"),
    ],
)
def test_what_was_done_is_read_back_and_shown(options: list[str], shown: str, right: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo_jaeger", *options],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"right: {right}" in done.stdout
    assert shown in done.stdout
    link = re.search(
        r"its API +http://127\.0\.0\.1:(\d+)/api/v3/traces/[0-9a-f]{32}$", done.stdout, re.MULTILINE
    )
    assert link is not None
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", int(link[1]))) == errno.ECONNREFUSED
