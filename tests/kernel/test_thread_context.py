"""What a process publishes of its threads' trace contexts (OTEP 4947) is in each record, as it was at the call."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from otelgpu.kernel.trace_context_map import TraceContextMap
from otelgpu.model.context_sources import ContextSource
from tests.kernel.observing import Watch, wait_until
from tests.rig import fake_cudart_path

DATA = Path(__file__).parent / "data"
NONE, THREAD_CONTEXT, OBI = ContextSource.NONE, ContextSource.THREAD_CONTEXT, ContextSource.OBI
CALLS = 101


@dataclass(frozen=True)
class Model:
    """One way of compiling a tracer; ``linked``: into the program."""

    access: str  # of enum context_access: how the place is then reached
    flags: tuple[str, ...]
    linked: bool = False
    program_flags: tuple[str, ...] = ()
    compiler: str = "gcc"


LARGE = "-DPADDING=65536"  # more than glibc leaves room for in the static block
MODELS = {
    "descriptor, static": Model("STATIC", ("-mtls-dialect=gnu2",)),
    "descriptor, dynamic": Model("GLIBC", ("-mtls-dialect=gnu2", LARGE)),
    "descriptor, not to be overridden": Model("GLIBC", ("-mtls-dialect=gnu2", "-Wl,-Bsymbolic", LARGE)),
    "general dynamic": Model("GLIBC", ("-mtls-dialect=gnu",)),
    "general dynamic, large": Model("GLIBC", ("-mtls-dialect=gnu", LARGE)),
    "general dynamic, System V hash": Model("GLIBC", ("-mtls-dialect=gnu", "-Wl,--hash-style=sysv")),
    "initial exec": Model("STATIC", ("-ftls-model=initial-exec",)),
    "program": Model("STATIC", ("-fPIE", LARGE), linked=True, program_flags=("-rdynamic", "-pie")),
    "program at a fixed address": Model(
        "STATIC", ("-fno-pie",), linked=True, program_flags=("-rdynamic", "-no-pie")
    ),
    "static program": Model("STATIC", ("-fno-pie",), linked=True, program_flags=("-static", "-DOWN_CUDART")),
    "musl, descriptor": Model("MUSL", ("-mtls-dialect=gnu2",), compiler="musl-gcc"),
    "musl, general dynamic": Model("MUSL", ("-mtls-dialect=gnu", LARGE), compiler="musl-gcc"),
    "musl, program": Model(
        "STATIC", ("-fPIE",), linked=True, program_flags=("-rdynamic", "-pie"), compiler="musl-gcc"
    ),
    "musl, static program": Model(
        "STATIC", ("-fno-pie",), linked=True, program_flags=("-static", "-no-pie"), compiler="musl-gcc"
    ),
}


def build(folder: Path, model: Model) -> tuple[str, str, str]:
    """(program, its CUDA runtime, its tracer) as words of the command line."""
    if shutil.which(model.compiler) is None:
        pytest.skip(f"needs {model.compiler}, which is not on PATH")
    program, tracer, variable = folder / "publisher", folder / "libtracer.so", DATA / "publisher_variable.c"
    own = ["-DOWN_CUDART"] if model.compiler == "musl-gcc" else []
    common = [model.compiler, "-O2", "-Wall", "-Werror", "-pthread"]
    sources = [DATA / "publisher.c"]
    if model.linked:
        part = folder / "variable.o"
        subprocess.run([*common, *model.flags, "-c", variable, "-o", part], check=True)
        sources += [part]
        own += ["-DOWN_TRACER"]
    else:
        subprocess.run([*common, "-fPIC", "-shared", *model.flags, variable, "-o", tracer], check=True)
    command = [*common, *own, *model.program_flags, *sources, "-o", program, "-ldl"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    has_cudart = "-DOWN_CUDART" in command
    return str(program), "-" if has_cudart else str(fake_cudart_path()), "-" if model.linked else str(tracer)


class Publisher:
    """A running publisher.c."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def wait_for(self, said: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == said

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self) -> None:
        self.go_on()
        assert self.process.wait(timeout=30) == 0


@contextmanager
def started(words: tuple[str, ...]) -> Iterator[Publisher]:
    publisher = Publisher(words)
    try:
        publisher.wait_for("started")
        yield publisher
    finally:
        publisher.process.kill()
        publisher.process.communicate()


def expected(token: int) -> tuple[bytes, bytes, int, int]:
    """(trace id, span id, flags, source) of a call: context_of() of publisher.c."""
    if token % 5 < 2:
        return bytes(16), bytes(8), 0, NONE
    mask = (1 << 64) - 1
    ids = struct.pack("<QQ", token, token ^ mask), struct.pack("<Q", token * 31 & mask)
    return *ids, token >> 4 & 1, THREAD_CONTEXT


def found(record: np.void) -> tuple[bytes, bytes, int, int]:
    head = record["head"]
    ids = bytes(head["trace_id"]), bytes(head["span_id"])
    return *ids, int(head["trace_flags"]), int(head["context_source"])


def calls_of(watching: Watch) -> dict[int, tuple[bytes, bytes, int, int]]:
    frees = watching.records("cuda_free")
    calls = {int(record["object"]): found(record) for record in frees}
    assert len(calls) == len(frees)
    return calls


def access_of(watching: Watch, tgid: int) -> str:
    """How the BPF programs reach the process' first variable."""
    btf = watching.source.btf["process"]
    value = watching.source._loaded["process"].map("context_processes").get(struct.pack("<I", tgid))
    assert value is not None
    number = int(np.frombuffer(value, btf.dtype("context_places"))["place"][0][0]["access"])
    names = {number: name for name, number in btf.enumerators("context_access").items()}
    return names[number].removeprefix("CONTEXT_ACCESS_")


def tokens(threads: int, calls: int = CALLS) -> set[int]:
    return {thread << 32 | call for thread in range(1, threads + 1) for call in range(1, calls + 1)}


@pytest.mark.parametrize("name", MODELS)
def test_every_call_carries_the_context_that_its_thread_published(
    watching: Watch, tmp_path: Path, name: str
) -> None:
    with started((*build(tmp_path, MODELS[name]), "5", str(CALLS))) as publisher:
        publisher.go_on()
        publisher.wait_for("loaded")
        watching.observe(publisher.pid)
        access = access_of(watching, publisher.pid)
        watching.during(publisher.finish)
    assert calls_of(watching) == {token: expected(token) for token in tokens(5)}
    assert access == MODELS[name].access
    assert watching.total("cuda", "context_unreadable") == 0


@pytest.mark.parametrize(
    "name", ["descriptor, static", "descriptor, dynamic", "general dynamic", "initial exec"]
)
def test_a_tracer_that_is_loaded_later_is_found(watching: Watch, tmp_path: Path, name: str) -> None:
    with started((*build(tmp_path, MODELS[name]), "3", str(CALLS))) as publisher:
        watching.observe(publisher.pid)
        assert publisher.pid not in watching.source.publishers
        publisher.go_on()
        publisher.wait_for("loaded")
        began = time.monotonic()
        while publisher.pid not in watching.source.publishers:
            watching.pump(0.01)
            assert time.monotonic() - began < 1
        watching.during(publisher.finish)
    assert calls_of(watching) == {token: expected(token) for token in tokens(3)}


@pytest.mark.parametrize("sessions", [True, False])
def test_with_and_without_session_links(watch: Callable[..., Watch], tmp_path: Path, sessions: bool) -> None:
    watching = watch(sessions=sessions)
    with started((*build(tmp_path, MODELS["descriptor, dynamic"]), "2", str(CALLS))) as publisher:
        publisher.go_on()
        publisher.wait_for("loaded")
        watching.observe(publisher.pid)
        watching.during(publisher.finish)
    assert calls_of(watching) == {token: expected(token) for token in tokens(2)}


def test_a_child_publishes_where_its_parent_does(watching: Watch, tmp_path: Path) -> None:
    with started((*build(tmp_path, MODELS["descriptor, static"]), "3", str(CALLS), "fork")) as publisher:
        publisher.go_on()
        publisher.wait_for("loaded")
        watching.observe(publisher.pid)
        watching.during(publisher.finish)
    assert calls_of(watching) == {token: expected(token) for token in tokens(3)}
    assert publisher.pid not in {int(record["head"]["tgid"]) for record in watching.records("cuda_free")}


def test_another_program_of_the_same_process_does_not_publish_by_it(watching: Watch, tmp_path: Path) -> None:
    with started((*build(tmp_path, MODELS["initial exec"]), "2", str(CALLS), "exec")) as publisher:
        publisher.go_on()
        publisher.wait_for("loaded")
        watching.observe(publisher.pid)
        assert publisher.pid in watching.source.publishers
        publisher.go_on()
        publisher.wait_for("started")
        watching.pump(0.1)
        assert publisher.pid not in watching.source.publishers
        publisher.go_on()
        publisher.wait_for("loaded")
        watching.during(publisher.finish)
    assert set(calls_of(watching)) == tokens(2)
    assert set(calls_of(watching).values()) == {(bytes(16), bytes(8), 0, NONE)}
    assert watching.total("cuda", "context_unreadable") == 0


def test_what_ended_is_forgotten(watching: Watch, tmp_path: Path) -> None:
    processes = watching.source._loaded["process"].map("context_processes")
    with started((*build(tmp_path, MODELS["program"]), "1", "3")) as publisher:
        watching.observe(publisher.pid)
        key = struct.pack("<I", publisher.pid)
        assert processes.get(key) is not None
        publisher.go_on()
        watching.during(publisher.finish)
    wait_until(lambda: processes.get(key) is None, "the entry of a process that ended is deleted")
    watching.pump(0.1)
    assert publisher.pid not in watching.source.publishers


def test_a_pointer_into_nothing_is_counted_and_is_no_context(watching: Watch, tmp_path: Path) -> None:
    with started((*build(tmp_path, MODELS["initial exec"]), "1", "7", "wild")) as publisher:
        publisher.go_on()
        publisher.wait_for("loaded")
        watching.observe(publisher.pid)
        watching.during(publisher.finish)
    assert set(calls_of(watching).values()) == {(bytes(16), bytes(8), 0, NONE)}
    assert watching.total("cuda", "context_unreadable") == 7


def test_obi_reports_what_the_process_itself_does_not(watch: Callable[..., Watch], tmp_path: Path) -> None:
    trace_id, span_id = bytes(range(1, 17)), bytes(range(1, 9))
    with TraceContextMap() as contexts:
        watching = watch()
        with started((*build(tmp_path, MODELS["initial exec"]), "1", str(CALLS))) as publisher:
            publisher.go_on()
            publisher.wait_for("loaded")
            watching.observe(publisher.pid)
            assert contexts.put(publisher.pid, publisher.pid, trace_id, span_id)
            watching.during(publisher.finish)
    calls = calls_of(watching)
    by_obi = (trace_id, span_id, 1, OBI)
    assert set(calls) == tokens(1)
    assert {token for token, context in calls.items() if context == by_obi} == {t for t in calls if t % 5 < 2}
    assert all(context == expected(t) for t, context in calls.items() if t % 5 >= 2)


def test_what_crosses_a_socket_carries_the_context_of_the_thread_that_moved_it(
    watching: Watch, tmp_path: Path
) -> None:
    count = 13
    _, _, tracer = build(tmp_path, MODELS["descriptor, dynamic"])
    server = subprocess.Popen(
        [sys.executable, DATA / "answering.py", tracer, str(count)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        watching.observe(server.pid)

        def ask() -> None:
            for _ in range(count):
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                    assert connection.recv(1 << 16).endswith(b"ok")

        watching.during(ask)
    finally:
        server.kill()
        server.communicate()
    moved = [
        (int(record["chunk"]["direction"]), found(record["chunk"]))
        for record in watching.records("http_data_256")
        if record["chunk"]["captured"]
    ]
    read = [(0, (bytes(16), bytes(8), 0, NONE))] * count
    written = [(1, (bytes([n] * 16), bytes([n + 1] * 8), 1, THREAD_CONTEXT)) for n in range(1, count + 1)]
    assert [each for each in moved if each[0] == 0] == read
    assert [each for each in moved if each[0] == 1] == written
