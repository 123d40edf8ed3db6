"""Numbers of system calls by name, against this machine's own header."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otelgpu.families.profiles.syscall_names import COMPAT, syscall_name

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "read"),
        (202, "futex"),
        (334, "rseq"),
        (335, "syscall 335"),
        (424, "pidfd_send_signal"),
        (469, "file_setattr"),
        (470, "syscall 470"),
        (COMPAT | 3, "i386 syscall 3"),
        (COMPAT - 1, "syscall 2147483647"),
        (1 << 40, "syscall 1099511627776"),
    ],
)
def test_a_number_is_called_what_the_kernel_calls_it(number: int, name: str) -> None:
    assert syscall_name(number) == name


def test_all_that_the_header_knows_are_known_by_its_names() -> None:
    if not HEADER.exists():
        pytest.skip(f"needs {HEADER}")
    known = re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text())
    assert len(known) > 300
    assert {int(number): syscall_name(int(number)) for _, number in known} == {
        int(number): name for name, number in known
    }
