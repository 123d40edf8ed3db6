"""What libbpf says reaches who asks for the reason, and costs who does not ask nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from otelgpu.kernel.libbpf import BpfError, Object

CODE = """
from collections import Counter
from otelgpu.kernel import libbpf, loader
levels = Counter()
receive = libbpf.Libbpf._on_print
def count(self, level, pattern, arguments):
    levels[level] += 1
    return receive(self, level, pattern, arguments)
libbpf.Libbpf._on_print = count
libbpf.Object(loader.read_image("file").data, "file").close()
print(sorted(levels))
try:
    libbpf.Object(b"no ELF file", "none")
except libbpf.BpfError:
    print(sorted(levels))
"""


def test_messages_for_who_debugs_libbpf_do_not_wait_for_the_interpreter() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[0]\n"


def test_an_error_says_what_libbpf_said() -> None:
    with pytest.raises(BpfError, match="ELF"):
        Object(b"no ELF file", "none")
