"""What a listener believes of a process that connects, says hello and then writes what it likes."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from otelgpu.elf.btf import Btf
from otelgpu.kernel.injection import server as inject
from otelgpu.kernel.injection.server import (
    InjectError,
    InjectListener,
    Library,
    environment,
    read_library,
)
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Batch
from tests.rig.examples import examples
from tests.rig.inject_client import InjectClient

EPOLL = select.epoll


@pytest.fixture(scope="module")
def library() -> Library:
    try:
        return read_library()
    except InjectError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def btf() -> Btf:
    try:
        return read_image("cuda").btf
    except BpfError as error:
        pytest.skip(str(error))


@pytest.fixture
def listener(library: Library, btf: Btf) -> Iterator[InjectListener]:
    made = InjectListener(library.layout, btf, threads=2, ring_bytes=1 << 16)
    made.start()
    yield made
    made.close()


@pytest.fixture
def client(listener: InjectListener, library: Library, btf: Btf) -> InjectClient:
    return InjectClient(listener, library.layout, btf)


def records(batches: list[Batch]) -> int:
    return sum(len(batch.records) for batch in batches)


def test_a_record_as_it_should_be_comes_as_it_is(listener: InjectListener, client: InjectClient) -> None:
    written = client.call(object=4711, status=3)
    client.write(written)
    (batch,) = listener.drain()
    assert (batch.family, batch.kind) == ("cuda", "cuda_call")
    written["head"]["cgroup_id"] = batch.heads["cgroup_id"]
    assert batch.records.tobytes() == written.tobytes()
    assert listener.counters() == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": 0},
        {"kind": 16},  # a name, which is longer
        {"kind": 65535},
        {"api": 0},
        {"api": 65535},
        {"time_ns": 0},
        {"time_ns": (1 << 64) - 1},
        {"duration_ns": 1 << 62},
    ],
    ids=str,
)
def test_what_cannot_be_is_dropped_and_counted(
    fields: dict[str, int], listener: InjectListener, client: InjectClient
) -> None:
    client.write(client.call(), client.call(**fields), client.call())
    assert records(listener.drain()) == 2
    assert listener.counters() == {"record_malformed": 1}


def test_a_process_cannot_speak_for_another(listener: InjectListener, client: InjectClient) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        client.write(
            client.call(tgid=other.pid, tid=other.pid, cgroup_id=77777, context_source=6, reserved=9)
        )
    finally:
        (batch,) = listener.drain()
        other.kill()
        other.wait()
    head = batch.heads[0]
    assert (head["tgid"], head["tid"], head["context_source"], head["reserved"]) == (os.getpid(), 0, 0, 0)
    assert head["cgroup_id"] != 77777
    assert listener.counters() == {"thread_unknown": 1}


def test_a_thread_that_has_ended_keeps_its_number(listener: InjectListener, client: InjectClient) -> None:
    ended = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
    client.write(client.call(tid=int(ended.stdout)))
    assert listener.drain()[0].heads["tid"].tolist() == [int(ended.stdout)]


def test_looking_up_threads_has_an_end(
    listener: InjectListener, client: InjectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inject.peers, "is_namespaced", lambda tgid: True)
    looked: list[int] = []
    clock = SimpleNamespace(now_ns=time.monotonic_ns())  # else a busy machine gives it more time to look
    monkeypatch.setattr(inject, "time", SimpleNamespace(monotonic_ns=lambda: clock.now_ns, sleep=time.sleep))

    def slow(tgid: int, said: int) -> int:
        looked.append(said)
        clock.now_ns += 30_000_000
        return 0

    monkeypatch.setattr(inject.peers, "namespaced_thread", slow)
    other = InjectClient(listener, client.layout, client.btf)
    listener.pressure()
    for number in range(1, 40):  # a writer that says it is another thread each time
        other.threads["owner"][0] = number
        listener.pressure()
    other.write(*(other.call(tid=number) for number in range(100, 200)))
    (batch,) = listener.drain()
    assert len(looked) == 4  # a tenth of a second is over within the fourth
    assert not batch.heads["tid"].any() and len(batch.records) == 100


def test_a_process_that_ended_before_its_answer_is_refused(
    listener: InjectListener, client: InjectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(ended.pid)
    ended.wait()
    monkeypatch.setattr(inject, "_pidfd_of", lambda connection, tgid: pidfd)
    with pytest.raises((ValueError, OSError)):
        InjectClient(listener, client.layout, client.btf)
    deadline = time.monotonic() + 5
    while not listener.counters() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert listener.counters() == {"connection_failed": 1}


def test_who_connected_is_known_by_more_than_a_number(listener: InjectListener, client: InjectClient) -> None:
    listener.pressure()
    (process,) = listener._processes.values()
    information = Path(f"/proc/self/fdinfo/{process.pidfd}").read_text()
    assert f"Pid:\t{os.getpid()}\n" in information
    assert not os.get_inheritable(process.pidfd)


def test_who_connects_and_says_nothing_keeps_nobody_waiting(
    listener: InjectListener, library: Library, btf: Btf
) -> None:
    silent = []
    for _ in range(300):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(str(listener.path))
        silent.append(connection)
    InjectClient(listener, library.layout, btf).write()
    for connection in silent:
        connection.close()
    assert listener.counters()["connection_silent"] >= 300 - 256 - 1


class SteppedEpoll:
    """epoll that waits for leave before each look, and reports of newcomers first."""

    leave = threading.Semaphore(0)
    looks = 0

    def __init__(self) -> None:
        self._real = EPOLL()
        self.register = self._real.register
        self.unregister = self._real.unregister

    def __enter__(self) -> SteppedEpoll:
        return self

    def __exit__(self, *_: object) -> None:
        self._real.close()

    def poll(self) -> list[tuple[int, int]]:
        self.leave.acquire()
        type(self).looks += 1
        return sorted(self._real.poll())  # the listening socket has the lowest number


def test_one_that_is_let_go_may_hang_up_at_the_same_moment(
    library: Library, btf: Btf, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = InjectListener(library.layout, btf)
    monkeypatch.setattr(inject.select, "epoll", SteppedEpoll)
    listener.start()

    def connect() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(str(listener.path))
        return connection

    waiting = []
    for number in range(256):  # as many as may wait
        waiting.append(connect())
        SteppedEpoll.leave.release()
        while SteppedEpoll.looks <= number:
            time.sleep(0.001)
    time.sleep(0.05)  # the last one is accepted
    waiting += [connect()]
    waiting[0].close()
    SteppedEpoll.leave.release(1000)
    client = InjectClient(listener, library.layout, btf)
    client.write(client.call())
    assert records(listener.drain()) == 1
    for connection in waiting:
        connection.close()
    listener.close()


@pytest.mark.parametrize("data", [b"x", bytes(16), bytes(4096)])
def test_who_says_nonsense_is_refused(data: bytes, listener: InjectListener) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(5)
        connection.connect(str(listener.path))
        connection.send(data)
        assert connection.recv(16) == b""
    assert sum(listener.counters().values()) == 1
    assert listener.processes == []


def test_a_socket_that_a_dead_agent_left_is_taken_over(library: Library, btf: Btf, tmp_path: Path) -> None:
    path = tmp_path / "inject.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(path))
    listener = InjectListener(library.layout, btf, path=path)
    listener.start()
    InjectClient(listener, library.layout, btf)
    listener.close()
    listener.close()
    assert not path.exists()


@pytest.mark.parametrize("ring_bytes", [0, 100, 4097, 3 << 12])
def test_a_ring_of_no_power_of_two_is_refused(ring_bytes: int, library: Library, btf: Btf) -> None:
    with pytest.raises(InjectError, match="power of two"):
        InjectListener(library.layout, btf, ring_bytes=ring_bytes)


def test_a_path_that_cannot_be_is_an_error(library: Library, btf: Btf, tmp_path: Path) -> None:
    with pytest.raises(InjectError, match="cannot listen"):
        InjectListener(library.layout, btf, path=tmp_path / "nowhere" / "inject.sock")


@pytest.mark.parametrize(
    ("before", "after"),
    [("", "/l.so"), ("/a.so", "/l.so:/a.so"), ("/a.so /l.so:/b.so", "/l.so:/a.so:/b.so")],
)
def test_what_is_preloaded_already_stays(before: str, after: str) -> None:
    found = environment(Path("/l.so"), Path("/s"), {"LD_PRELOAD": before})
    assert found == {"LD_PRELOAD": after, "OTELGPU_INJECT_SOCKET": "/s"}


@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    written=st.lists(st.tuples(st.sampled_from([128, 256]), st.binary(min_size=8, max_size=256)), max_size=20)
)
def test_records_of_random_bytes_do_no_harm(
    written: list[tuple[int, bytes]],
    library: Library,
    btf: Btf,
    record_listener: Callable[[], InjectListener],
) -> None:
    listener = record_listener()
    client = InjectClient(listener, library.layout, btf)
    client.write(*((data * (size // len(data) + 1))[:size] for size, data in written))
    kept = listener.drain()
    for batch in kept:
        assert (batch.heads["tgid"] == os.getpid()).all()
    assert records(kept) + listener.counters().get("record_malformed", 0) >= len(written)


@pytest.fixture(scope="module")
def record_listener(library: Library, btf: Btf) -> Iterator[Callable[[], InjectListener]]:
    """One for all examples; each connects anew, which replaces what this process was given before."""
    made = InjectListener(library.layout, btf, threads=1, ring_bytes=1 << 16)
    made.start()
    yield lambda: made
    made.close()
