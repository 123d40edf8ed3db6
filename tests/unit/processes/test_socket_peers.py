"""Who has the other end of a connection: tables of several network namespaces, as files."""

from __future__ import annotations

import os
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.processes.socket_peers import Peer, peer_of
from tests.rig.examples import examples

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
MINE, THEIRS, THIRD = 11, 22, 33


def words(address: str, port: int) -> str:
    """As the kernel writes it: words in the machine's byte order."""
    packed = ip_address(address).packed
    parts = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return f"{''.join(f'{part:08X}' for part in parts)}:{port:04X}"


def row(local: tuple[str, int], remote: tuple[str, int], inode: int, state: str = "01") -> str:
    ends = f"{words(*local)} {words(*remote)}"
    return f"   0: {ends} {state} 00000000:00000000 00:00000000 00000000  1000        0 {inode} 1 0 20 4 30\n"


class Machine:
    """Processes, each in a namespace, with the rows of its table and the sockets that it holds."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc

    def process(self, pid: int, namespace: str, rows: str, *sockets: int, table: str = "tcp") -> None:
        folder = self.proc / str(pid)
        for name in ("net", "ns", "fd"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "net" / table).write_text(HEAD + rows)
        if not (folder / "ns/net").is_symlink():
            (folder / "ns/net").symlink_to(f"net:[{namespace}]")
        for inode in sockets:
            (folder / "fd" / str(len(os.listdir(folder / "fd")))).symlink_to(f"socket:[{inode}]")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


OWN, OTHER = ("10.9.0.1", 40000), ("10.9.0.2", 8080)


def test_a_peer_in_another_network_namespace_is_found(machine: Machine) -> None:
    machine.process(MINE, "1", row(OWN, OTHER, 500), 500)
    machine.process(THEIRS, "2", row(OTHER, OWN, 700), 5, 700)
    assert peer_of(MINE, 500, proc=machine.proc) == Peer(address="10.9.0.2:8080", pid=THEIRS, elsewhere=True)


def test_a_peer_in_the_same_namespace_is_found(machine: Machine) -> None:
    own, other = ("127.0.0.1", 40000), ("127.0.0.1", 8080)
    rows = row(own, other, 500) + row(other, own, 700)
    machine.process(MINE, "1", rows, 500)
    machine.process(THEIRS, "1", rows, 700)
    assert peer_of(MINE, 500, proc=machine.proc) == Peer(address="127.0.0.1:8080", pid=THEIRS)
    assert peer_of(THEIRS, 700, proc=machine.proc) == Peer(address="127.0.0.1:40000", pid=MINE)


def test_a_loopback_address_is_each_namespaces_own(machine: Machine) -> None:
    own, other = ("127.0.0.1", 40000), ("127.0.0.1", 8080)
    machine.process(MINE, "1", row(own, other, 500), 500)
    machine.process(THEIRS, "2", row(other, own, 700), 700)
    assert peer_of(MINE, 500, proc=machine.proc) == Peer(address="127.0.0.1:8080")


def test_none_is_named_where_several_look_like_it(machine: Machine) -> None:
    machine.process(MINE, "1", row(OWN, OTHER, 500), 500)
    machine.process(THEIRS, "2", row(OTHER, OWN, 700), 700)
    machine.process(THIRD, "3", row(OTHER, OWN, 900), 900)
    assert peer_of(MINE, 500, proc=machine.proc) == Peer(address="10.9.0.2:8080")


@pytest.mark.parametrize(
    "rows",
    [
        "",
        row(OTHER, ("10.9.0.1", 40001), 700),
        row(("10.9.0.3", 8080), OWN, 700),
        row(OTHER, OWN, 700, state="06"),
        "0: nonsense\n",
    ],
    ids=["none", "another port", "translated", "closing", "no row"],
)
def test_a_peer_that_is_not_here_has_an_address_alone(machine: Machine, rows: str) -> None:
    machine.process(MINE, "1", row(OWN, OTHER, 500), 500)
    machine.process(THEIRS, "2", rows, 700)
    assert peer_of(MINE, 500, proc=machine.proc) == Peer(address="10.9.0.2:8080")


def test_addresses_of_both_versions_are_one(machine: Machine) -> None:
    machine.process(MINE, "1", row(OWN, OTHER, 500), 500)
    mapped = row(("::ffff:10.9.0.2", 8080), ("::ffff:10.9.0.1", 40000), 700)
    machine.process(THEIRS, "2", mapped, 700, table="tcp6")
    assert peer_of(MINE, 500, proc=machine.proc) == Peer(address="10.9.0.2:8080", pid=THEIRS, elsewhere=True)
    six = (("fd00::1", 40000), ("fd00::2", 8080))
    machine.process(MINE, "1", row(*six, 501), table="tcp6")
    machine.process(THEIRS, "2", row(*reversed(six), 701), 701, table="tcp6")
    assert peer_of(MINE, 501, proc=machine.proc) == Peer(address="[fd00::2]:8080", pid=THEIRS, elsewhere=True)


def test_a_socket_whose_holder_may_not_be_seen_is_nobodys(machine: Machine) -> None:
    machine.process(MINE, "1", row(OWN, OTHER, 500), 500)
    machine.process(THEIRS, "2", row(OTHER, OWN, 700))
    found = peer_of(MINE, 500, proc=machine.proc)
    assert found == Peer(address="10.9.0.2:8080", pid=0, elsewhere=True)


def test_what_is_no_connection_has_no_peer(machine: Machine) -> None:
    machine.process(MINE, "1", row(OWN, OTHER, 500, state="0A"), 500)
    assert peer_of(MINE, 500, proc=machine.proc) is None
    assert peer_of(MINE, 7, proc=machine.proc) is None
    assert peer_of(4, 7, proc=machine.proc) is None


@examples(100)
@given(text=st.one_of(st.binary(max_size=300), st.text("0123456789ABCDEF: \n", max_size=300).map(str.encode)))
def test_no_table_breaks_it(text: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    made = Machine(tmp_path_factory.mktemp("proc"))
    made.process(MINE, "1", row(OWN, OTHER, 500), 500)
    made.process(THEIRS, "2", "")
    (made.proc / str(THEIRS) / "net/tcp").write_bytes(text)
    assert peer_of(MINE, 500, proc=made.proc) == Peer(address="10.9.0.2:8080")
