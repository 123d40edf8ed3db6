"""The parts of tests/vm that need no guest: what programs said, the table, the tests that it names."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.vm import guest, rdma, table
from tests.vm.features import FEATURES, node_ids
from tests.vm.kernels import Kernel, RigError

PINGPONG = """\
  local address:  LID 0x0000, QPN 0x000011, PSN 0xce24f1, GID ::ffff:10.78.0.1
  remote address: LID 0x0000, QPN 0x000012, PSN 0x035616, GID ::ffff:10.78.0.2
4096000 bytes in 5.62 seconds = 5.83 Mbit/sec
500 iters in 5.62 seconds = 11244.78 usec/iter
"""
WRITE_BW = """\
 local address: LID 0000 QPN 0x0012 PSN 0xe8a872 RKey 0x0003c7 VAddr 0x0055da02966000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:78:00:01
 local address: LID 0000 QPN 0x0013 PSN 0x458e74 RKey 0x0003c7 VAddr 0x0055da02976000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:78:00:01
 remote address: LID 0000 QPN 0x0014 PSN 0x458e74 RKey 0x0003c7 VAddr 0x0055da02976000
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      800              11.46              8.45   \t\t   0.000135
"""


def test_a_pingpong_s_bytes_are_of_both_directions(tmp_path: Path) -> None:
    (tmp_path / "pingpong.client").write_text(PINGPONG)
    (tmp_path / "pingpong.server").write_text(PINGPONG.replace("000011", "000013"))
    assert list(rdma.said(tmp_path, "pingpong")) == [
        rdma.Posted("rxeA", 0x11, "send", 500, 2048000),
        rdma.Posted("rxeB", 0x13, "send", 500, 2048000),
    ]


def test_perftest_s_iterations_are_of_all_queue_pairs(tmp_path: Path) -> None:
    for side in rdma.DEVICES:
        (tmp_path / f"write_bw.{side}").write_text(WRITE_BW)
    assert list(rdma.said(tmp_path, "write_bw")) == [
        rdma.Posted("rxeA", 0x12, "write", 400, 400 * 65536),
        rdma.Posted("rxeA", 0x13, "write", 400, 400 * 65536),
    ]


def test_features_name_tests_that_exist() -> None:
    for each in node_ids():
        path, _, name = each.partition("::")
        assert f"def {name.partition('[')[0]}(" in (guest.ROOT / path).read_text(), each


def _result(release: str, *, present: bool | None, outcome: str) -> dict[str, Any]:
    finding = {"name": "cuda", "present": present, "detail": "first\nlast", "consequence": "blind"}
    return {
        "release": release,
        "check": {"features": [], "families": [finding]},
        "features": dict.fromkeys(FEATURES, outcome) if outcome else {},
    }


def test_the_table_reports_what_is_missing_and_in_which_words() -> None:
    old, new = _result("5.1", present=False, outcome=""), _result("7.1", present=True, outcome="passed")
    text = table.render([old, new])
    assert "| BPF object `cuda` | **refused** | loads |" in text
    assert "| cgroups | no | yes |" in text
    assert "### Linux 5.1\n\n- cuda: `first … last` – blind\n" in text
    assert "### Linux 7.1\n\nNothing is missing.\n" in text


def test_what_was_not_measured_is_not_reported_to_be_missing() -> None:
    loads, refused = _result("7.1", present=True, outcome=""), _result("5.1", present=False, outcome="")
    assert "| cgroups | not measured | no |" in table.render([loads, refused])


def test_a_test_that_fails_is_reported() -> None:
    text = table.render([_result("7.1", present=True, outcome="AssertionError: 3\n != 4")])
    assert "| cgroups | **fails** |" in text
    assert "- cgroups: `AssertionError: 3 != 4`" in text


def test_the_first_root_is_an_archive_that_cpio_reads(tmp_path: Path) -> None:
    archive = io.BytesIO()
    guest._add(archive, "bin", 0o40755)
    guest._add(archive, "bin/odd", 0o100755, b"abc")
    guest._add(archive, "TRAILER!!!", 0)
    content = archive.getvalue()
    assert len(content) % 4 == 0
    if guest._program("cpio") is None:
        pytest.skip("needs cpio, which is not on PATH, to read the archive")
    listed = subprocess.run(["cpio", "-it", "--quiet"], input=content, capture_output=True, check=True)
    assert listed.stdout.split() == [b"bin", b"bin/odd"]


OOPS = "[    2.09] Oops: int3: 0000 [#2] SMP NOPTI\n"
BEGINS = "guest: the command begins\n"


@pytest.mark.parametrize(
    ("consoles", "booted"),
    [
        ([OOPS, OOPS, BEGINS], 3),
        ([OOPS, OOPS, OOPS], 3),
        (["[    2.09] Oops: 0000\n"], 1),
        ([BEGINS + OOPS], 1),  # the command may be why
    ],
)
def test_a_guest_is_started_anew_where_qemu_ran_a_breakpoint_that_was_gone(
    monkeypatch: pytest.MonkeyPatch, consoles: list[str], booted: int
) -> None:
    boots: list[str] = []

    def boot(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        console = consoles[len(boots)]
        boots.append(console)
        (place,) = (Path(each.rpartition("path=")[2]) for each in words if each.startswith("file,id=console"))
        place.write_text(console)
        for port in ("out", "err", "code"):
            (place.parent / port).write_text("7\n" if port == "code" and console == BEGINS else "")
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(guest.subprocess, "run", boot)
    monkeypatch.setattr(guest, "missing_programs", lambda: None)
    monkeypatch.setattr(guest, "_initramfs", lambda *_: b"")
    kernel = Kernel("7", "7.2.13")
    if consoles[-1] == BEGINS:
        assert guest.run(kernel, "true").code == 7
    else:
        with pytest.raises(RigError, match="gave no exit code"):
            guest.run(kernel, "true")
    assert len(boots) == booted
