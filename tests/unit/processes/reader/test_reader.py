"""A reader that may die: whatever a question does, it has an end, and the next one has an answer."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from otelgpu.elf.image import ElfError
from otelgpu.kernel.privileges.capabilities import OTHER_FILES, held
from otelgpu.processes.reader import accounts, pace, server
from otelgpu.processes.reader.accounts import HOSTS, NOBODYS, Accounts, Owner, owner_of
from otelgpu.processes.reader.client import Limits, Reader, ReaderError
from otelgpu.processes.reader.forker import Forker
from otelgpu.processes.reader.messages import Asked, Descriptor, MessageError, decode, receive
from otelgpu.processes.reader.server import Confinement
from tests.unit.processes.reader import questions

# A fresh interpreter, whose workers, being nobody, may not look where its packages are: below /root, for one.
NOTHING_TO_IMPORT = """
import resource, sys
import numpy as np
from otelgpu.processes.reader.accounts import NOBODYS
from otelgpu.processes.reader.client import Reader
from tests.unit.processes.reader import questions

class Unreadable:
    def find_spec(self, name, path=None, target=None):
        if resource.getrlimit(resource.RLIMIT_FSIZE)[0] == 0:  # a worker
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Unreadable())
reader = Reader()
print(reader.ask(NOBODYS, questions.distinct, np.array([3, 1, 3])).tolist())
reader.close()
"""
QUICK = Limits(busy_s=0.2, wall_s=2.0, advance_s=0.5, share=0.1)
PATIENT = Limits(busy_s=20, wall_s=60, advance_s=60, start_s=30)
TENANT = ("/tenant", 1000)


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader(QUICK, Confinement(needs=(OTHER_FILES,), memory_bytes=64 << 20), slowness=1.0)
    yield made
    made.close()


def test_plain_data_goes_there_and_back(reader: Reader) -> None:
    rows = np.array([(1, b"ab"), (2, b"cd")], dtype=[("number", "<u4"), ("text", "S2")])
    answer = reader.ask(NOBODYS, questions.everything, 7, "seven", rows)
    assert (answer.number, answer.text, answer.pairs) == (8, "SEVEN", {"a": (1, b"\xff")})
    assert answer.rows.dtype == rows.dtype and answer.rows.tolist() == rows[::-1].tolist()


def test_workers_have_what_numpy_imports_only_when_it_needs_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_TO_IMPORT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "[1, 3]\n", done.stderr


def test_open_files_go_there_and_back(reader: Reader, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    size, descriptor = reader.ask(NOBODYS, questions.opened, str(tmp_path / "file"))
    assert size == 7 and os.read(descriptor, 1) == b"c"
    assert reader.ask(NOBODYS, questions.first_byte, Descriptor(descriptor)) == b"o"
    os.close(descriptor)


def test_what_a_question_raises_is_raised(reader: Reader) -> None:
    with pytest.raises(FileNotFoundError):
        reader.ask(NOBODYS, questions.failing, "os")
    with pytest.raises(ElfError, match="no image"):
        reader.ask(NOBODYS, questions.failing, "elf")
    with pytest.raises(ReaderError):
        reader.ask(NOBODYS, questions.failing, "other")
    with pytest.raises(TypeError, match="not a question"):
        reader.ask(NOBODYS, questions.no_question)


def ended(reader: Reader, reason: str) -> bool:
    """That a question ended so, and the next one is answered."""
    assert reader.counters[reason] == 1
    assert sum(reader.counters.values()) == 1
    return reader.ask(NOBODYS, questions.memory, 10) == 10


def test_a_computation_without_end_ends(reader: Reader) -> None:
    began = time.monotonic()
    with pytest.raises(ReaderError):
        reader.ask(TENANT, questions.forever)
    assert time.monotonic() - began < QUICK.wall_s + 1
    assert ended(reader, "worker_timed_out")


@pytest.mark.parametrize("slowness", [1.0, 10.0])
def test_on_a_slow_machine_a_question_may_take_longer_and_has_an_end_still(slowness: float) -> None:
    limits = Limits(busy_s=0.1, wall_s=60.0)
    with closing(Reader(limits, Confinement(cpu_seconds=10), slowness=slowness)) as reader:
        if slowness == 1.0:
            with pytest.raises(ReaderError):
                reader.ask(TENANT, questions.busy, 0.5)
        else:
            reader.ask(TENANT, questions.busy, 0.5)
        with pytest.raises(ReaderError) as failed:
            reader.ask(TENANT, questions.forever)
        assert failed.value.reason == "worker_timed_out"


@pytest.mark.parametrize(("tried_s", "slowness"), [(0.0, 1.0), (2e-4, 1.0), (3e-3, 10.0), (9.0, pace.MOST)])
def test_bounds_are_longer_on_slow_machines_and_nowhere_without_end(tried_s: float, slowness: float) -> None:
    assert pace.slowness_of(tried_s) == pytest.approx(slowness)
    assert 1.0 <= pace.slowness() <= pace.MOST


def test_a_file_that_does_not_open_ends(reader: Reader, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ReaderError):
        reader.ask(TENANT, questions.blocked, str(tmp_path / "fifo"))
    assert ended(reader, "worker_timed_out")


def test_a_file_that_shrinks_ends_the_worker_only(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 << 20))
    cut = threading.Timer(0.03, os.truncate, (path, 0))
    reader.ask(NOBODYS, questions.memory, 1)  # it has been started
    cut.start()
    with pytest.raises(ReaderError):
        reader.ask(TENANT, questions.behind_the_end, str(path))
    cut.join()
    assert ended(reader, "worker_died")


def test_memory_without_end_ends() -> None:
    patient = Limits(busy_s=20, wall_s=60)  # pages cost time, and more of it where the machine is busy
    with closing(Reader(patient, Confinement(memory_bytes=64 << 20))) as reader:
        assert reader.ask(TENANT, questions.memory, 32 << 20) == 32 << 20
        with pytest.raises(ReaderError):
            reader.ask(TENANT, questions.memory, 128 << 20)
        assert ended(reader, "worker_died")


@pytest.mark.parametrize("worker_s", [10.0, 0.0], ids=["", "of a worker that has had its time"])
def test_an_answer_of_another_type_is_none(reader: Reader, worker_s: float) -> None:
    reader._worker_s = worker_s
    with pytest.raises(ReaderError):
        reader.ask(TENANT, questions.wrong)
    assert ended(reader, "worker_died")


@pytest.mark.parametrize(
    "what", ["write", "make", "truncate", "remove", "connect", "execute", "fork", "kill"]
)
def test_a_worker_can_do_nothing_but_read(reader: Reader, tmp_path: Path, what: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    path.chmod(0o666)
    tmp_path.chmod(0o777)
    assert reader.ask(NOBODYS, questions.forbidden, what, str(path)) == "PermissionError"
    assert [each.name for each in tmp_path.iterdir()] == ["file"] and path.read_bytes() == b"content"


def test_who_has_spent_its_share_is_refused_and_others_are_not(reader: Reader) -> None:
    for _ in range(10):
        with pytest.raises(ReaderError) as failed:
            reader.ask(TENANT, questions.forever)
        if failed.value.reason == "owner_over_budget":
            break
    assert failed.value.reason == "owner_over_budget"
    assert reader.ask(("/other", 1000), questions.memory, 5) == 5
    until = time.monotonic() + 20
    while True:  # its share fills again
        try:
            assert reader.ask(TENANT, questions.memory, 5) == 5
            break
        except ReaderError as error:
            assert error.reason == "owner_over_budget" and time.monotonic() < until
        time.sleep(0.1)


def test_who_ended_a_worker_waits_where_that_is_wanted() -> None:
    limits = Limits(busy_s=0.05, wall_s=2.0, advance_s=5.0, failure_s=60.0)
    with closing(Reader(limits)) as reader:
        with pytest.raises(ReaderError):
            reader.ask(TENANT, questions.forever)
        with pytest.raises(ReaderError) as refused:
            reader.ask(TENANT, questions.everything, 1, "", np.zeros(1))
        assert refused.value.reason == "owner_over_budget"
        assert reader.ask(NOBODYS, questions.everything, 1, "", np.zeros(1)).number == 2


def test_a_worker_is_replaced_before_its_time_is_over() -> None:
    confinement = Confinement(cpu_seconds=1)
    with closing(Reader(Limits(busy_s=0.5, advance_s=60.0), confinement)) as reader:
        for _ in range(15):  # more than the kernel lets one of them have
            reader.ask(TENANT, questions.busy, 0.1)
        assert not any(reader.counters.values())


def test_an_owner_is_a_cgroup_and_a_user() -> None:
    path, user = owner_of(os.getpid())
    assert user == os.geteuid()
    assert path == Path("/proc/self/cgroup").read_text().splitlines()[0].rpartition(":")[2]
    assert owner_of(2**22 + 1) == NOBODYS


@pytest.mark.parametrize(
    ("cgroups", "owner"),
    [
        ("0::/\n", HOSTS),
        ("2:cpu:/\n1:memory:/\n0::/\n", HOSTS),
        ("3:rdma:/\n2:memory:/docker/ab\n0::/\n", ("/", 0)),  # a container that has no such controller
        ("0::/kubepods/pod1\n", ("/kubepods/pod1", 0)),
    ],
)
def test_the_hosts_own_programs_have_no_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroups: str, owner: Owner
) -> None:
    monkeypatch.setattr(accounts, "_ROOT", {"/"})
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(cgroups)
    if os.geteuid():
        pytest.skip("needs root, to own what root does")
    assert owner_of(7, proc=tmp_path) == owner
    account = Accounts(share=0.0, advance_s=1.0).of(owner)
    account.spend(2.0)
    assert account.is_spent() == (owner != HOSTS)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\xa1a\xa1b", b"\x01" * 100])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        decode(data, Asked)


def test_a_message_that_promises_too_much_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("<I", 0xFFFF_FFFF))
        with pytest.raises(MessageError):
            receive(ours)
        theirs.sendall(struct.pack("<I", 10) + b"short")
        theirs.close()
        with pytest.raises(EOFError):
            receive(ours)


def test_closing_leaves_no_process(reader: Reader) -> None:
    reader.ask(NOBODYS, questions.memory, 1)
    forker = reader._own.number
    workers = Path(f"/proc/{forker}/task/{forker}/children").read_text().split()
    assert len(workers) == 1
    reader.close()
    until = time.monotonic() + 5
    while any(Path("/proc", each).exists() for each in (str(forker), *workers)):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def forker() -> Iterator[Forker]:
    made = Forker()
    yield made
    made.close()


def children_of(number: int) -> list[str]:
    return Path(f"/proc/{number}/task/{number}/children").read_text().split()


def test_readers_that_share_who_forks_have_workers_and_limits_of_their_own(forker: Forker) -> None:
    with (
        closing(Reader(PATIENT, Confinement(memory_bytes=64 << 20), forker=forker)) as little,
        closing(Reader(PATIENT, forker=forker)) as much,
    ):
        with pytest.raises(ReaderError):
            little.ask(NOBODYS, questions.memory, 100 << 20)
        assert much.ask(NOBODYS, questions.memory, 100 << 20) == 100 << 20
        assert little.ask(NOBODYS, questions.memory, 1) == 1
        assert len(children_of(forker.number)) == 2
        assert (little.counters["worker_died"], much.counters["worker_died"]) == (1, 0)


def test_a_reader_that_is_closed_leaves_who_forks_to_the_others(forker: Forker) -> None:
    first, second = Reader(PATIENT, forker=forker), Reader(PATIENT, forker=forker)
    first._requests.send(b"worker")  # without the socket that goes with it
    first.close()
    with closing(second):
        assert second.ask(NOBODYS, questions.memory, 1) == 1
    assert forker.number and Path(f"/proc/{forker.number}").exists()


def test_a_worker_that_comes_too_late_is_not_taken_for_the_next(forker: Forker) -> None:
    with closing(Reader(PATIENT, forker=forker)) as reader:
        reader._requests.settimeout(0.1)
        os.kill(forker.number, signal.SIGSTOP)
        with pytest.raises(ReaderError, match="no worker could be started"):
            reader.ask(NOBODYS, questions.process)
        os.kill(forker.number, signal.SIGCONT)
        reader._requests.settimeout(30)
        number = reader.ask(NOBODYS, questions.process)
        assert reader._worker is not None and reader._worker._number == number
        assert f"Pid:\t{number}\n" in Path(f"/proc/self/fdinfo/{reader._worker._pidfd}").read_text()


def test_what_workers_need_is_imported_with_privileges_and_they_have_none_from_their_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("made_known_first", "made_known_later"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with (
        closing(Forker(modules=("made_known_first",))) as forker,
        closing(Reader(PATIENT, forker=forker)) as reader,
    ):
        forker.prepare("made_known_later")
        number = reader.ask(NOBODYS, questions.process)
        assert not held(Path(f"/proc/{number}")).permitted
        until = time.monotonic() + 10
        while held(Path(f"/proc/{forker.number}")).permitted:
            assert time.monotonic() < until
            time.sleep(0.05)
        while reader.ask(NOBODYS, questions.has_imported, ("made_known_first", "made_known_later")) < 2:
            assert time.monotonic() < until
            reader._worker.end()
            reader._worker = None  # the next one is forked anew


def test_what_no_worker_needs_yet_is_not_imported_while_the_agent_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needed_later.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(server, "_TOLD_WITHIN_S", 60.0)
    with (
        closing(Forker()) as forker,
        closing(Reader(PATIENT, forker=forker)) as first,
        closing(Reader(PATIENT, Confinement(modules=("needed_later",)), forker=forker)) as second,
    ):
        time.sleep(0.2)
        assert first.ask(NOBODYS, questions.has_imported, ("needed_later",)) == 0
        assert second.ask(NOBODYS, questions.has_imported, ("needed_later",)) == 1


def test_a_worker_that_is_asked_nothing_gives_back_what_its_answers_took() -> None:
    def resident() -> int:
        return int(Path(f"/proc/{number}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with closing(Reader(PATIENT)) as reader:
        number = reader.ask(NOBODYS, questions.process)
        before = resident()
        assert reader.ask(NOBODYS, questions.littered, 50 << 20) == number
        until = time.monotonic() + 30
        while resident() > before + (25 << 20):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert reader.ask(NOBODYS, questions.process) == number


def test_a_worker_that_is_asked_nothing_for_longer_ends_and_is_missed_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_AT_REST_S", 0.01)
    monkeypatch.setattr(server, "_ENDS_AFTER_S", 0.1)
    with closing(Reader(PATIENT)) as reader:
        number = reader.ask(NOBODYS, questions.process)
        wait_until_gone(number)
        assert reader.ask(NOBODYS, questions.process) != number
        assert not any(reader.counters.values())


def test_a_question_that_a_worker_ended_before_it_read_is_asked_of_the_next(reader: Reader) -> None:
    number = reader.ask(NOBODYS, questions.process)
    os.kill(number, signal.SIGSTOP)
    asked = reader._worker._connection.fileno()
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(reader.ask(NOBODYS, questions.process)))
    thread.start()
    not_read = array.array("i", [0])
    while not not_read[0]:
        fcntl.ioctl(asked, termios.TIOCOUTQ, not_read)
    os.kill(number, signal.SIGKILL)
    thread.join()
    assert answers and answers != [number]
    assert not any(reader.counters.values())


def wait_until_gone(number: int) -> None:
    until = time.monotonic() + 20
    while Path(f"/proc/{number}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
