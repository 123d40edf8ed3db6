"""Lines of the kernel log: what is an Xid, who wrote it, when it was."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.rdma.poll.kernel_log import MESSAGE, KernelLogWatch, parse_line
from otelgpu.model.fabric import FabricInput, HardwareError
from tests.rig.examples import examples

NOW = 9_000_000_000
XID_79 = "NVRM: Xid (PCI:0000:cb:00): 79, pid=1234, name=python, GPU has fallen off the bus."


class Log:
    """A log of which each read gives one record, as /dev/kmsg does."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(False)
        self.watch = KernelLogWatch(theirs.detach)

    def write(self, text: str, *, time_us: int = 5_140_900, priority: int = 3) -> None:
        self._ours.send(
            f"{priority},339,{time_us},-;{text}\n SUBSYSTEM=pci\n".encode(errors="surrogateescape")
        )

    def close(self) -> None:
        self.watch.close()
        self._ours.close()


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.close()


def errors(found: list[FabricInput]) -> list[HardwareError]:
    return [item for item in found if isinstance(item, HardwareError)]


LINES = {
    "new": (XID_79, ("xid", 79, "0000:cb:00", 1234, "python", "GPU has fallen off the bus.")),
    "old": (
        "NVRM: Xid (0000:03:00): 14, Channel 00000001",
        ("xid", 14, "0000:03:00", 0, "", "Channel 00000001"),
    ),
    "no process": (
        "NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        ("xid", 79, "0000:3b:00", 0, "", "GPU has fallen off the bus."),
    ),
    "pid only": (
        "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping",
        ("xid", 63, "0000:10:1c", 1896, "", "Row Remapper: New row marked for remapping"),
    ),
    "nothing more": ("NVRM: Xid (PCI:0000:01:00): 43", ("xid", 43, "0000:01:00", 0, "", "")),
    "thread's name": (
        "NVRM: Xid (PCI:0000:c6:00): 79, pid=1101234, name=nvc:[driver], GPU has fallen off the bus.",
        ("xid", 79, "0000:c6:00", 1101234, "nvc:[driver]", "GPU has fallen off the bus."),
    ),
    "switch": (
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)",
        ("sxid", 28006, "0000:c1:00.0", 0, "", "Non-fatal, Link 46 MC TS crumbstore MCTO (First)"),
    ),
}


@pytest.mark.parametrize(("line", "expected"), LINES.values(), ids=LINES.keys())
def test_every_form_of_a_line_is_understood(line: str, expected: tuple[object, ...]) -> None:
    found = parse_line(line, 7)
    assert found is not None
    assert (found.kind, found.code, found.pci_bus_id, found.tgid, found.process, found.message) == expected
    assert found.time_ns == 7


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU at PCI:0000:03:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7",
        "python says NVRM: Xid (PCI:0000:cb:00): 79, pid=1",
        "NVRM: Xid (PCI:zz): 79,",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Data {0x00140004, 0x00000000}",
        "",
    ],
)
def test_other_lines_report_no_error(line: str) -> None:
    assert parse_line(line, 1) is None


def test_a_name_that_imitates_another_field_stays_a_name() -> None:
    found = parse_line("NVRM: Xid (PCI:0000:cb:00): 31, pid=5, name=pid=6, Ch 00000008", 1)
    assert found is not None
    assert (found.tgid, found.process, found.message) == (5, "pid=6", "Ch 00000008")


def test_what_could_steer_a_terminal_is_taken_out_and_the_rest_is_bounded() -> None:
    found = parse_line(f"NVRM: Xid (PCI:0000:cb:00): 31, pid=5, name=\x1b[2J, \x1b]0;x\x07{'y' * 9000}", 1)
    assert found is not None
    assert "\x1b" not in found.process + found.message
    assert len(found.message) == MESSAGE


def test_a_line_is_reported_at_the_time_that_it_was_read(log: Log) -> None:
    log.write("usb 1-1: new device", time_us=1_000_000)
    log.write(XID_79, time_us=2_000_000)
    log.write(XID_79.replace("79", "45"), time_us=2_500_000)
    found = errors(log.watch.poll(NOW))
    assert [(error.code, error.time_ns) for error in found] == [(79, NOW - 500_000_000), (45, NOW)]


def test_what_a_program_wrote_is_not_believed(log: Log) -> None:
    log.write(XID_79, priority=(1 << 3) | 3)  # LOG_USER, which writers to /dev/kmsg get
    assert log.watch.poll(NOW) == []
    assert +log.watch.counters == {"kernel_log_forged": 1}


def test_an_unknown_form_is_counted(log: Log) -> None:
    log.write("NVRM: Xid [cb:00] seventy-nine")
    log.write("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Data {0x0}")
    assert log.watch.poll(NOW) == []
    assert +log.watch.counters == {"kernel_log_strange": 1}


def test_an_overrun_is_counted_and_reading_goes_on() -> None:
    answers: Iterator[object] = iter(
        [BrokenPipeError(errno.EPIPE, ""), f"3,1,5,-;{XID_79}\n".encode(), BlockingIOError()]
    )

    def read(descriptor: int, size: int) -> bytes:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, bytes)
        return answer

    watch = KernelLogWatch(lambda: os.open("/dev/null", os.O_RDONLY), read)
    assert [error.code for error in errors(watch.poll(NOW))] == [79]
    assert +watch.counters == {"kernel_log_overrun": 1}
    watch.close()


@pytest.mark.parametrize(
    ("number", "reason", "said"),
    [(errno.EPERM, "kernel_log_refused", 1), (errno.ENOENT, "kernel_log_missing", 0)],
    ids=["refused", "missing"],
)
def test_a_log_that_cannot_be_opened(
    number: int, reason: str, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> int:
        raise OSError(number, os.strerror(number))

    watch = KernelLogWatch(refuse)
    ended, end = os.pipe()
    assert (watch.poll(NOW), watch.wait(ended)) == ([], False)
    assert +watch.counters == {reason: 1}
    assert len(caplog.records) == said
    os.close(ended)
    os.close(end)


def test_waiting_ends_with_a_line_and_with_the_end(log: Log) -> None:
    ended, end = os.pipe()
    log.write(XID_79)
    assert log.watch.wait(ended)
    os.close(end)
    assert not log.watch.wait(ended)
    os.close(ended)


@given(st.binary(max_size=300))
@examples(80)
def test_whatever_a_record_holds_nothing_is_raised(record: bytes) -> None:
    records = iter([record, f"3,1,{'9' * 30},-;x".encode(), b""])
    watch = KernelLogWatch(lambda: os.open("/dev/null", os.O_RDONLY), lambda descriptor, size: next(records))
    for error in errors(watch.poll(NOW)):
        assert error.message.isprintable()
    watch.close()


@given(st.text(max_size=200))
@examples(50)
def test_whatever_follows_the_code_is_understood(rest: str) -> None:
    found = parse_line(f"NVRM: Xid (PCI:0000:cb:00): 13, {rest}", 1)
    assert found is not None and found.code == 13
    assert (found.message + found.process).isprintable()
    assert 0 <= found.tgid < 1 << 31
