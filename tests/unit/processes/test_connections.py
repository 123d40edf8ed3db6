"""Connections that were open before anyone looked, from a /proc made here and from this process's own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.processes import connections
from otelgpu.processes.connections import Found, OpenConnection, open_connections

PID = 42
TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 100 1 0 100 0 0 10 0
   1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 101 1 0 20 4 30 10 -1
   2: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 102 1 0 20 4 30 10 -1
   3: 0100007F:0050 0100007F:9C41 01 00000000:00000000 02:00000AF9 00000000  1000        0 103 1 0 20 4 30 10 -1
   4: 0100007F:9C42 0100007F:1F90 06 00000000:00000000 03:00001734 00000000     0        0 0 3 0
"""
TCP6 = """  sl  local_address                         remote_address                        st tx_queue rx_queue
   0: 00000000000000000000000001000000:1F90 00000000000000000000000001000000:9C43 01 00000000:00000000 00:00000000 \
00000000     0        0 104 1 0 20 4 30 10 -1
"""
UNIX = """Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01   200 /run/a b
0000000000000000: 00000003 00000000 00000000 0001 03   201 /run/a b
0000000000000000: 00000003 00000000 00000000 0001 03   202
0000000000000000: 00000003 00000000 00000000 0002 03   203 /run/a b
0000000000000000: 00000003 00000000 00000000 0001 03   204 @/not/listening
"""


def make_proc(root: Path, inodes: dict[int, int], **tables: str) -> Path:
    """A /proc with one process, whose descriptors are the sockets with these inodes."""
    descriptors = root / str(PID) / "fd"
    descriptors.mkdir(parents=True, exist_ok=True)
    for descriptor, inode in inodes.items():
        (descriptors / str(descriptor)).symlink_to(f"socket:[{inode}]")
    (root / str(PID) / "net").mkdir(exist_ok=True)
    for name, text in tables.items():
        (root / str(PID) / "net" / name).write_bytes(text.encode(errors="surrogateescape"))
    ports = root / "sys/net/ipv4/ip_local_port_range"
    ports.parent.mkdir(parents=True, exist_ok=True)
    ports.write_text("32768\t60999\n")
    return root


@pytest.mark.parametrize(
    ("inode", "role"),
    [
        (100, None),  # listens
        (101, "SERVER"),
        (102, "CLIENT"),
        (103, "UNKNOWN"),  # a port that nobody listens on and no client is given
        (104, "SERVER"),  # of a port that IPv4 listens on
        (200, None),
        (201, "SERVER"),
        (202, "UNKNOWN"),
        (203, None),  # datagrams
        (204, "UNKNOWN"),
        (999, None),  # of a kind that no table has
    ],
)
def test_the_role_of_each_socket(tmp_path: Path, inode: int, role: str | None) -> None:
    proc = make_proc(tmp_path, {7: inode}, tcp=TCP, tcp6=TCP6, unix=UNIX)
    assert open_connections(PID, proc).connections == ([OpenConnection(7, role)] if role else [])  # type: ignore[arg-type]


def test_connections_are_in_the_order_of_their_descriptors(tmp_path: Path) -> None:
    proc = make_proc(tmp_path, {12: 101, 3: 102, 5: 201}, tcp=TCP, unix=UNIX)
    assert [each.descriptor for each in open_connections(PID, proc).connections] == [3, 5, 12]


def test_a_process_that_is_gone_has_none(tmp_path: Path) -> None:
    assert open_connections(PID, tmp_path).connections == []


def test_only_so_many_descriptors_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = make_proc(tmp_path, dict.fromkeys(range(3, 23), 101), tcp=TCP)
    assert open_connections(PID, proc).complete
    monkeypatch.setattr(connections, "MOST_DESCRIPTORS", 20)
    assert open_connections(PID, proc).complete
    monkeypatch.setattr(connections, "MOST_DESCRIPTORS", 19)
    found = open_connections(PID, proc)
    assert len(found.connections) == 19
    assert not found.complete


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_only_so_much_of_a_table_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    """What is left of a row says nothing."""
    table = UNIX + "0000000000000000: 00000003 00000000 00000000 0001 03   2051\n"
    proc = make_proc(tmp_path, {7: 201, 8: 205, 9: 20, 10: 2}, unix=table)
    monkeypatch.setattr(connections, "MOST_TABLE_BYTES", len(table))
    assert open_connections(PID, proc).complete
    monkeypatch.setattr(connections, "MOST_TABLE_BYTES", len(table) - cut)
    assert open_connections(PID, proc) == Found([OpenConnection(7, "SERVER")], complete=False)


def test_a_path_with_line_ends_invents_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    hostile = "x\nNum: zz 00 0001 03 7\n\x0b\x85\udcff" + "9" * 5000
    row = f"0000000000000000: 00000003 00000000 00000000 0001 03   204 {hostile}\n"
    proc = make_proc(tmp_path, {7: 201, 8: 204}, unix=UNIX + row)
    assert open_connections(PID, proc).connections == [
        OpenConnection(7, "SERVER"),
        OpenConnection(8, "UNKNOWN"),
    ]


@given(table=st.text(), name=st.sampled_from(["tcp", "tcp6", "unix"]))
def test_no_table_raises(tmp_path_factory: pytest.TempPathFactory, table: str, name: str) -> None:
    proc = make_proc(tmp_path_factory.mktemp("proc"), {7: 101}, **{name: table})
    open_connections(PID, proc)


def test_those_of_this_process() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as server,
    ):
        found = {each.descriptor: each.role for each in open_connections(os.getpid()).connections}
        assert found[client.fileno()] == "CLIENT"
        assert found[server.fileno()] == "SERVER"
        assert listener.fileno() not in found
