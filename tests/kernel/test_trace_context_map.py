"""The pinned map of trace contexts: made, shared, read by others, and left as it was found."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otelgpu.kernel import trace_context_map
from otelgpu.kernel.libbpf import BpfError, load_libbpf
from otelgpu.kernel.trace_context_map import TraceContextMap, open_trace_contexts
from tests.kernel.observing import wait_until
from tests.rig.bpf_objects import read_pinned

TRACE, SPAN = bytes(range(16)), bytes(range(8))


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path("/sys/fs/bpf/otelgpu-test")
    yield folder / "traces_ctx_v1"
    shutil.rmtree(folder, ignore_errors=True)


def dump(path: Path) -> dict[tuple[int, int], bytes]:
    """(tgid, tid) → value, as another program finds them in the pinned map."""
    found = {}
    for key, value in read_pinned(path, 8, 24).items():
        (both,) = struct.unpack("<Q", key)
        found[both >> 32, both & 0xFFFFFFFF] = value
    return found


def test_what_is_put_can_be_read_by_others_until_it_is_deleted(path: Path) -> None:
    with TraceContextMap(path) as contexts:
        assert contexts.put(7, 8, TRACE, SPAN)
        assert contexts.put(7, 9, TRACE, SPAN)
        assert dump(path) == {(7, 8): TRACE + SPAN, (7, 9): TRACE + SPAN}
        contexts.delete(7, 8)
        contexts.delete(7, 8)
        assert dump(path) == {(7, 9): TRACE + SPAN}
    assert not path.exists()


@pytest.fixture
def holder() -> Iterator[Callable[[], None]]:
    """Start another process that holds what this one has open; it ends with the test."""
    children: list[int] = []

    def start() -> None:
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        children.append(child)

    yield start
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def leave_map(path: Path, value_bytes: int) -> None:
    """Pin a map with an entry, which nobody has open."""
    path.parent.mkdir(exist_ok=True)
    library = load_libbpf()
    made = library.bpf_map_create(9, b"traces_ctx_v1", 8, value_bytes, 100, None)  # BPF_MAP_TYPE_LRU_HASH
    assert made >= 0
    assert library.bpf_map_update_elem(made, bytes(8), bytes(value_bytes), 0) == 0
    assert library.bpf_obj_pin(made, os.fsencode(path)) == 0
    os.close(made)


def test_the_map_of_another_is_shared_and_left_in_its_place(path: Path, holder: Callable[[], None]) -> None:
    with TraceContextMap(path) as theirs:
        holder()
        theirs.put(1, 2, TRACE, SPAN)
        with TraceContextMap(path) as ours:
            ours.put(3, 4, TRACE, SPAN)
            assert set(dump(path)) == {(1, 2), (3, 4)}
            ours.delete(1, 2)  # not ours to delete
        assert set(dump(path)) == {(1, 2)}
        ours.close()


def entries(*threads: tuple[int, int]) -> dict[tuple[int, int], tuple[bytes, bytes]]:
    return dict.fromkeys(threads, (TRACE, SPAN))


def test_who_shared_the_map_of_one_that_has_ended_pins_it_again(
    path: Path, holder: Callable[[], None]
) -> None:
    theirs = TraceContextMap(path)
    holder()
    with TraceContextMap(path) as ours, TraceContextMap(path) as another:
        ours.show(entries((3, 4)))
        theirs.close()
        assert not path.exists()
        ours.show(entries((3, 4), (5, 6)))
        another.show(entries((7, 8)))
        assert set(dump(path)) == {(3, 4), (5, 6), (7, 8)}
        assert path.stat().st_mode & 0o777 == 0o600
        another.close()
        assert set(dump(path)) == {(3, 4), (5, 6)}
    assert not path.exists()


def test_who_shared_a_map_goes_on_with_the_one_that_took_its_place(
    path: Path, holder: Callable[[], None]
) -> None:
    theirs = TraceContextMap(path)
    holder()
    with TraceContextMap(path) as ours:
        ours.show(entries((3, 4)))
        theirs.close()
        with TraceContextMap(path) as newer:
            newer.show(entries((1, 2)))
            ours.show(entries((3, 4)))
            assert set(dump(path)) == {(1, 2), (3, 4)}
            ours.close()
            assert set(dump(path)) == {(1, 2)}


def test_that_nobody_can_find_the_map_is_said_once(
    path: Path, holder: Callable[[], None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_context_map, "_RETRY_S", 0.0)
    theirs = TraceContextMap(path)
    holder()
    with TraceContextMap(path) as ours:
        theirs.close()
        leave_map(path, 32)
        for _ in range(3):
            ours.show(entries((3, 4)))
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("what threads work for is published where nobody finds it: ")
    assert path.exists()


def test_no_more_threads_are_remembered_than_the_map_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_context_map, "MAX_THREADS", 8)
    with TraceContextMap(path) as contexts:
        for tid in range(1, 31):
            assert contexts.put(1, tid, TRACE, SPAN)
        assert len(contexts._reported) == 8
        assert dump(path).keys() <= {(1, tid) for tid in range(23, 31)}


def test_without_a_map_there_is_none_to_open(path: Path) -> None:
    assert open_trace_contexts(path) is None


def test_a_map_of_another_shape_is_refused(path: Path) -> None:
    leave_map(path, 32)
    with pytest.raises(BpfError, match="is not a map of trace contexts"):
        open_trace_contexts(path)
    with pytest.raises(BpfError, match="is not a map of trace contexts"):
        TraceContextMap(path)
    assert path.exists()


def test_a_file_system_that_holds_no_maps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BpfError, match="cannot pin a map"):
        TraceContextMap(tmp_path / "otel" / "traces_ctx_v1")


def test_outside_of_the_first_pid_namespace_it_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_context_map, "pid_namespace", lambda: 4026532000)
    with pytest.raises(BpfError, match="initial PID namespace"):
        TraceContextMap(path)


def test_a_map_that_a_killed_program_left_is_made_anew(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    leave_map(path, 24)
    with TraceContextMap(path) as contexts:
        contexts.put(7, 8, TRACE, SPAN)
        assert dump(path) == {(7, 8): TRACE + SPAN}
    assert not path.exists()
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} is of a program that was killed: it is made anew"
    ]


def test_a_program_that_is_killed_leaves_no_map_unless_another_shares_it(path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from otelgpu.kernel.trace_context_map import TraceContextMap\n"
        "contexts = TraceContextMap(pathlib.Path(sys.argv[1]))\n"
        "print('there', flush=True)\n"
        "input()"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        with TraceContextMap(path) as ours:
            ours.show(entries((3, 4)))
            process.kill()
            process.wait()
            wait_until(lambda: not path.exists(), "its guard has taken it away")
            ours.show(entries((3, 4)))
            assert set(dump(path)) == {(3, 4)}
    assert not path.exists()
