"""What an agent with nothing to observe has not imported: each costs all agents memory, and their start."""

from __future__ import annotations

import subprocess
import sys

DEAR = (
    *("elftools", "pynvml", "importlib.metadata", "email.message", "secrets", "hmac"),
    *("hashlib", "statistics", "random", "fractions", "ctypes.util", "subprocess", "tempfile"),
    *("grpc", "opentelemetry.sdk", "google.protobuf", "rich", "textual", "numpy.ma", "asyncio"),
)
CODE = f"""
import os
import sys
from otelgpu.kernel.quiet_imports import import_quietly
import_quietly()
from otelgpu.cli import commands, observe
from otelgpu.config import Config
from otelgpu.cli.options import _import_the_rest, families_of
from otelgpu.families.requests.protocols import installed
from otelgpu.families.nccl.discover import communicators
from otelgpu.processes.listing import describe
from otelgpu.processes.resources import ResourceDetector
from otelgpu.sources.discoveries import discovery_of
config = Config()
_import_the_rest(config, exports=())
installed()
[discovery_of(name) for name in families_of(config)]
ResourceDetector().describe(describe(os.getpid()))
print([name for name in {DEAR!r} if name in sys.modules])
"""


def test_what_some_runs_need_is_imported_by_those() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
