"""Runs a command under a seccomp profile of container runtimes: ``python -m tests.rig.seccomp FILE CMD…``.

The filter is made by libseccomp, as runc makes it. Source: seccomp.h of libseccomp 2.5.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

LIBRARY: Final = "libseccomp.so.2"
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_COMPARE: Final = {"SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}
_UNKNOWN: Final = -1  # __NR_SCMP_ERROR
_NO_NEW_PRIVS: Final = 3  # SCMP_FLTATR_CTL_NNP


class _Argument(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = [
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    ]


def _action(rule: dict[str, Any], errno_key: str, kind_key: str) -> int:
    kinds = {
        "SCMP_ACT_ALLOW": _ALLOW,
        "SCMP_ACT_ERRNO": _ERRNO | rule.get(errno_key, 1),
        "SCMP_ACT_KILL_PROCESS": _KILL,
    }
    kind: str = rule[kind_key]
    return int(kinds[kind])


def load_filter(document: dict[str, Any], *, no_new_privileges: bool = True) -> list[str]:
    """Filter this process from here on; names that the library does not know, which runtimes leave out too."""
    library = ctypes.CDLL(LIBRARY)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(_action(document, "defaultErrnoRet", "defaultAction")))
    library.seccomp_attr_set(context, _NO_NEW_PRIVS, int(no_new_privileges))
    unknown = []
    for rule in document["syscalls"]:
        arguments = (_Argument * len(rule.get("args", ())))(
            *(
                _Argument(each["index"], _COMPARE[each["op"]], each["value"], each.get("valueTwo", 0))
                for each in rule.get("args", ())
            )
        )
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number == _UNKNOWN:
                unknown.append(name)
                continue
            code = library.seccomp_rule_add_array(
                context, _action(rule, "errnoRet", "action"), number, len(arguments), arguments
            )
            if code:
                raise OSError(-code, f"{name}: {os.strerror(-code)}")
    if code := library.seccomp_load(context):
        raise OSError(-code, os.strerror(-code))
    return unknown


if __name__ == "__main__":
    load_filter(json.loads(Path(sys.argv[1]).read_text()))
    os.execvp(sys.argv[2], sys.argv[2:])
