"""What the numbers were measured on."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

SYSTEM_PYTHON = "/usr/bin/python3"
"""Debian's, which has Debian's bcc."""


def describe() -> dict[str, str | int | bool | float]:
    """Everything that a reader needs in order to compare, in plain values."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.+)$", cpuinfo, re.MULTILINE)
    hypervisor = bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE))
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": model[1] if model else platform.processor(),
        "cores": os.cpu_count() or 0,
        "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        "virtual_machine": hypervisor,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "opentelemetry_sdk": version("opentelemetry-sdk"),
        "libbpf": _libbpf(),
        "bpftrace": _first_line("bpftrace", "--version"),
        "bcc": _first_line(SYSTEM_PYTHON, "-c", "import bcc; print(bcc.__version__)"),
        "gcc": _first_line("gcc", "--version"),
        "load_average": round(os.getloadavg()[0], 2),
        "other_bpf_programs": programs_of_others(),
    }


def programs_of_others() -> int:
    """Probing BPF programs that are loaded already: they slow what is measured here, and the table says so."""
    try:
        listed = subprocess.run(["bpftool", "prog", "show", "-j"], capture_output=True, check=False)
        programs = json.loads(listed.stdout or b"[]")
    except (OSError, ValueError):
        return 0
    kinds = ("kprobe", "tracepoint", "tracing", "raw_tracepoint")
    return sum(program.get("type") in kinds for program in programs)


def _libbpf() -> str:
    try:
        library = ctypes.CDLL("libbpf.so.1")
    except OSError:
        return "none"
    library.libbpf_version_string.restype = ctypes.c_char_p
    return str(library.libbpf_version_string().decode())


def _first_line(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return "none"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else "none"
