"""Errors of GPUs and NVSwitches that the NVIDIA drivers write to the kernel log.

In: ``/dev/kmsg``, one record a read (Documentation/ABI/testing/dev-kmsg), from its end on. Out:
:class:`~otelgpu.model.fabric.HardwareError`. What user space writes into the log is distinguished from the kernel's
own by its facility, which the kernel does not let it forge (``devkmsg_write`` of kernel/printk/printk.c), and is not
believed. Lines are untrusted all the same: bounded, and without what could steer a terminal.

Forms: ``NVRM: Xid (PCI:0000:cb:00): 79, pid=1234, name=python, …``, older ``NVRM: Xid (0000:03:00): 14, …``,
``pid='<unknown>', name=<unknown>``; ``nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, …``, which two
lines of details follow (NVIDIA, Xid Errors; Fabric Manager User Guide, appendix D).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import select
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from otelgpu.model.fabric import FabricInput, HardwareError
from otelgpu.model.text import printable

_log = logging.getLogger("otelgpu.kernel_log")

DEVICE: Final = Path("/dev/kmsg")

MESSAGE: Final = 240
"""Characters of a message that are kept."""

REASONS: Final[Mapping[str, str]] = {
    "kernel_log_missing": "there is no /dev/kmsg: no Xid and no SXid is reported",
    "kernel_log_refused": "no permission to read the kernel log (CAP_SYSLOG, or kernel.dmesg_restrict=0): no Xid and "
    "no SXid is reported",
    "kernel_log_overrun": "the kernel log was written faster than it was read, so that lines were lost",
    "kernel_log_unreadable": "the kernel log could not be read; tried again",
    "kernel_log_forged": "a line that looks like an Xid or SXid and was written by a program, not by the kernel",
    "kernel_log_strange": "a line that looks like an Xid or SXid of a form that is not known",
}

_RECORD: Final = 8192  # CONSOLE_EXT_LOG_MAX of kernel/printk/internal.h; a shorter buffer is answered EINVAL
_AT_ONCE: Final = 4096  # records that are read before others have their turn
_PCI: Final = r"\((?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\)"
_XID: Final = re.compile(rf"NVRM: Xid {_PCI}: (?P<code>\d{{1,6}})(?:, (?P<rest>.*))?", re.DOTALL)
_SXID: Final = re.compile(
    rf"nvidia-nvswitch\d{{1,4}}: SXid {_PCI}: (?P<code>\d{{1,6}})(?:, (?P<rest>.*))?", re.DOTALL
)
_PID: Final = re.compile(r"pid='?(?P<pid>\d{1,10}|<unknown>)'?(?:, |$)")
_PROCESS: Final = re.compile(r"name='?(?P<name>[^,]{0,64}?)'?(?:, |$)")
_DETAILS: Final = ("Severity ", "Data {")  # of an SXid that a line before reported
_NUMBER: Final = re.compile(rb"\d{1,15}")  # microseconds of thirty years
_UNKNOWN: Final = "<unknown>"
_LOOKS: Final = ("NVRM: Xid", ": SXid")


def parse_line(text: str, time_ns: int) -> HardwareError | None:
    """An error that a line of the log reports, None for any other line."""
    kind, found = "xid", _XID.match(text)
    if found is None:
        kind, found = "sxid", _SXID.match(text)
    if found is None:
        return None
    rest = found["rest"] or ""
    if kind == "sxid" and rest.startswith(_DETAILS):
        return None
    tgid, process = 0, ""
    if kind == "xid":
        if owner := _PID.match(rest):
            rest = rest[owner.end() :]
            tgid = 0 if owner["pid"] == _UNKNOWN else int(owner["pid"])
        if name := _PROCESS.match(rest):
            rest = rest[name.end() :]
            process = "" if name["name"] == _UNKNOWN else name["name"]
    return HardwareError(
        time_ns=time_ns,
        kind=kind,
        code=int(found["code"]),
        pci_bus_id=found["pci"].lower(),
        tgid=tgid if tgid < 1 << 31 else 0,
        process=printable(process),
        message=printable(rest)[:MESSAGE],
    )


class KernelLogWatch:
    """Reads the log from construction to :meth:`close`; construction opens it at its end and never raises.

    ``open_log`` gives a descriptor that does not block, of which each read is one record.
    """

    def __init__(
        self,
        open_log: Callable[[], int] | None = None,
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._read = read
        self._descriptor = self._open(open_log or _open_at_end)

    def _open(self, open_log: Callable[[], int]) -> int:
        try:
            return open_log()
        except OSError as error:
            refused = error.errno in (errno.EPERM, errno.EACCES)
            self.counters["kernel_log_refused" if refused else "kernel_log_missing"] += 1
            if refused:
                _log.warning(
                    "GPU errors (Xid) are not reported: no permission to read %s; give CAP_SYSLOG, or set "
                    "kernel.dmesg_restrict=0",
                    DEVICE,
                )
            return -1

    def wait(self, ended: int) -> bool:
        """Wait for a line; False when descriptor ``ended`` is readable, or there is no log to wait for."""
        if self._descriptor < 0:
            return False
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLIN)
        waiting.register(ended, select.POLLIN)
        return ended not in dict(waiting.poll())

    def poll(self, now_ns: int) -> list[FabricInput]:
        """Errors that were logged since the last call; does not block. ``now_ns``: CLOCK_MONOTONIC.

        The log's clock begins with CLOCK_MONOTONIC and drifts from it. A line is read as soon as it is there, so
        that the newest one read is of now, and those before it keep their distance from it.
        """
        found: list[tuple[int, str]] = []
        newest_ns = 0
        for _ in range(_AT_ONCE):
            record = self._next()
            if record is None:
                break
            parsed = self._split(record)
            if parsed is None:
                continue
            newest_ns = max(newest_ns, parsed[0])
            if any(looks in parsed[1] for looks in _LOOKS):
                found.append(parsed)
        errors: list[FabricInput] = []
        for line_ns, text in found:
            error = parse_line(text, max(now_ns - (newest_ns - line_ns), 0))
            if error is not None:
                errors.append(error)
            elif not _SXID.match(text):  # further details of one that was reported
                self.counters["kernel_log_strange"] += 1
        return errors

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _next(self) -> bytes | None:
        """The next record, empty when some were lost before it; None when there is none now."""
        if self._descriptor < 0:
            return None
        try:
            return self._read(self._descriptor, _RECORD) or None
        except BlockingIOError:
            return None
        except BrokenPipeError:  # what was next has been overwritten; the next read goes on after it
            self.counters["kernel_log_overrun"] += 1
            return b""
        except OSError:
            self.counters["kernel_log_unreadable"] += 1
            return None

    def _split(self, record: bytes) -> tuple[int, str] | None:
        """(time in ns, text) of a record that the kernel wrote: ``6,339,5140900,-;text`` and lines of its own."""
        prefix, separator, message = record.partition(b";")
        fields = prefix.split(b",")
        if not separator or len(fields) < 3 or not all(_NUMBER.fullmatch(fields[i]) for i in (0, 2)):
            return None
        text = message.partition(b"\n")[0].decode(errors="replace")
        if int(fields[0]) >> 3:  # the facility; the kernel's is 0
            self.counters["kernel_log_forged"] += any(looks in text for looks in _LOOKS)
            return None
        return int(fields[2]) * 1000, text


def _open_at_end() -> int:
    descriptor = os.open(DEVICE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.lseek(descriptor, 0, os.SEEK_END)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
