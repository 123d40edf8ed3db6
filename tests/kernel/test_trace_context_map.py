"""The pinned map of trace contexts: made, shared, read by others, and left as it was found."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from otelgpu.kernel import trace_context_map
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.trace_context_map import TraceContextMap, open_trace_contexts

TRACE, SPAN = bytes(range(16)), bytes(range(8))


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path("/sys/fs/bpf/otelgpu-test")
    yield folder / "traces_ctx_v1"
    shutil.rmtree(folder, ignore_errors=True)


def dump(path: Path) -> dict[tuple[int, int], bytes]:
    """(tgid, tid) → value, as bpftool reads the pinned map."""
    if shutil.which("bpftool") is None:
        pytest.skip("needs bpftool, which is not on PATH")
    done = subprocess.run(["bpftool", "-j", "map", "dump", "pinned", path], capture_output=True, check=True)
    found = {}
    for entry in json.loads(done.stdout):
        key, value = (bytes(int(byte, 16) for byte in entry[part]) for part in ("key", "value"))
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


def test_the_map_of_another_is_shared_and_left_in_its_place(path: Path) -> None:
    with TraceContextMap(path) as theirs:
        theirs.put(1, 2, TRACE, SPAN)
        with TraceContextMap(path) as ours:
            ours.put(3, 4, TRACE, SPAN)
            assert set(dump(path)) == {(1, 2), (3, 4)}
            ours.delete(1, 2)  # not ours to delete
        assert set(dump(path)) == {(1, 2)}
        ours.close()


def test_no_more_threads_are_remembered_than_the_map_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_context_map, "MAX_THREADS", 8)
    with TraceContextMap(path) as contexts:
        for tid in range(1, 31):
            assert contexts.put(1, tid, TRACE, SPAN)
        assert len(contexts._told) == 8
        assert dump(path).keys() <= {(1, tid) for tid in range(23, 31)}


def test_without_a_map_there_is_none_to_open(path: Path) -> None:
    assert open_trace_contexts(path) is None


def test_a_map_of_another_shape_is_refused(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    create = ["bpftool", "map", "create", path, "type", "lru_hash", "name", "traces_ctx_v1"]
    done = subprocess.run([*create, "key", "8", "value", "32", "entries", "16"], check=False)
    assert done.returncode == 0
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
