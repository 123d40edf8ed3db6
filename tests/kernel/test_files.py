"""Probes go to files, each once, whoever maps it, by whatever name and from whatever namespace."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.observing import OTELGPU, Watch, cuda_calls, probed, read_spans
from tests.rig import build_fakes, fake_cudart_path, run_cuda_client, start_cuda_client

TWO_COPIES = """
import ctypes, sys
first, second = (ctypes.CDLL(path) for path in sys.argv[1:3])
sys.stdin.readline()
for _ in range(41): first.cudaDeviceSynchronize()
for _ in range(43): second.cudaDeviceSynchronize()
"""
MS_PRIVATE_SCRIPT = "set -e; mount --make-rprivate /; "


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A copy of the fake that nobody has looked at yet."""
    path = tmp_path / "own" / "libcudart.so.12"
    path.parent.mkdir()
    shutil.copy(fake_cudart_path(), path)
    return path


def unshared(*flags: str, script: str = "") -> list[str]:
    """A command that runs another in namespaces of its own, after a shell script; skips where it cannot be."""
    command = ["unshare", *flags]
    tried = subprocess.run(
        [*command, "sh", "-c", script or "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"{' '.join(command)} with {script!r} fails here: {tried.stderr.strip()}")
    return [*command, "sh", "-c", script + 'exec "$@"', "sh"] if script else command


def test_two_copies_in_one_process_are_both_probed(watching: Watch, library: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "libcudart-d0da41ae.so.12.9.79"  # as auditwheel renames it
    other.parent.mkdir()
    shutil.copy(library, other)
    command = [sys.executable, "-c", TWO_COPIES, str(library), str(other)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        watching.source.prepare_file(library)
        watching.source.prepare_file(other)
        watching.observe(process.pid)
        watching.during(lambda: process.communicate("go\n"))
    assert watching.calls(process.pid) == {"cudaDeviceSynchronize": 41 + 43}


def test_one_file_by_two_names_is_probed_once(watching: Watch, library: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked" / "libcudart.so.13"
    linked.parent.mkdir()
    os.link(library, linked)
    command = [sys.executable, "-c", TWO_COPIES, str(library), str(linked)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        watching.source.prepare_file(library)
        watching.source.prepare_file(linked)
        watching.observe(process.pid)
        watching.during(lambda: process.communicate("go\n"))
    assert watching.calls(process.pid) == {"cudaDeviceSynchronize": 41 + 43}


def test_one_library_in_two_processes_is_counted_by_process(watching: Watch) -> None:
    with start_cuda_client(calls=101) as first, start_cuda_client(calls=103) as second:
        watching.observe(first.pid, second.pid)
        watching.during(first.finish)
        watching.during(second.finish)
    assert watching.calls(first.pid)["cudaLaunchKernel"] == 101
    assert watching.calls(second.pid)["cudaLaunchKernel"] == 103


def test_a_library_deleted_while_it_is_mapped_is_still_reached(library: Path, tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    with start_cuda_client(library=library, calls=107, functions=("cudaMalloc",)) as client:
        library.unlink()
        with subprocess.Popen(
            [OTELGPU, "attach", f"-p{client.pid}", f"--export=file:{traces}"],
            stderr=subprocess.PIPE,
            text=True,
        ) as agent:
            assert agent.stderr is not None
            assert "observing" in agent.stderr.readline()
            said = client.finish()
            agent.terminate()
            agent.communicate(timeout=20)
    assert Path(said.library) == library
    assert cuda_calls(read_spans(traces))["cudaMalloc"] == 107


def test_a_program_deleted_while_it_runs_keeps_its_kernels_names(watching: Watch, tmp_path: Path) -> None:
    program = tmp_path / "cuda_client"
    shutil.copy(build_fakes() / "cuda_client", program)
    moved = ("sh", "-c", 'shift; exec "$0" "$@"', str(program))
    with start_cuda_client(prefix=moved, calls=11, library=fake_cudart_path()) as client:
        program.unlink()
        watching.observe(client.pid)
        watching.during(client.finish)
    names = {answer.name for answer in watching.names().values()}
    assert names == {
        "flash_fwd(float const*, float*, int)",
        "void rms_norm<float, 128>(float const*, float*, int)",
    }


def test_a_file_of_another_mount_namespace_is_reached(watching: Watch, library: Path, tmp_path: Path) -> None:
    """The path that the process knows leads elsewhere, or nowhere, outside of its namespace."""
    place = tmp_path / "place"
    place.mkdir()
    prefix = unshared("-m", script=MS_PRIVATE_SCRIPT + f"mount --bind {library.parent} {place}; ")
    with start_cuda_client(
        prefix=prefix, late_ms=0, library=place / "libcudart.so.12", calls=0, linger_ms=500
    ) as opener:
        watching.observe(opener.pid)
        watching.during(opener.finish)  # caught late, and probed through the process's own view
    with start_cuda_client(
        prefix=prefix, late_ms=0, library=place / "libcudart.so.12", calls=109, functions=("cudaFree",)
    ) as client:
        watching.observe(client.pid)
        said = watching.during(client.finish)
    assert not (place / "libcudart.so.12").exists()
    assert said.library == str(place / "libcudart.so.12")
    assert watching.calls(client.pid)["cudaFree"] == 109


def container(library: Path, folder: Path) -> tuple[list[str], Path]:
    """A command prefix that gives a program its own overlay over the library's folder, and the path in it."""
    for part in ("upper", "work", "merged"):
        (folder / part).mkdir(parents=True)
    options = f"lowerdir={library.parent},upperdir={folder}/upper,workdir={folder}/work"
    mount = f"mount -t overlay overlay -o {options} {folder}/merged; "
    return unshared("-m", script=MS_PRIVATE_SCRIPT + mount), folder / "merged" / library.name


def test_containers_of_one_image_are_not_counted_twice(
    watching: Watch, library: Path, tmp_path: Path
) -> None:
    containers = [container(library, tmp_path / name) for name in ("a", "b")]
    for prefix, path in containers:
        with start_cuda_client(prefix=prefix, late_ms=0, library=path, calls=0, linger_ms=300) as opener:
            watching.observe(opener.pid)
            watching.during(opener.finish)
    for number, (prefix, path) in enumerate(containers):
        with start_cuda_client(prefix=prefix, late_ms=0, library=path, calls=113 + number) as client:
            watching.observe(client.pid)
            said = watching.during(client.finish)
        assert not path.exists() and said.library == str(path)
        assert watching.calls(client.pid)["cudaLaunchKernel"] == 113 + number


@pytest.mark.parametrize("order", ["below first", "above first"])
def test_a_container_and_the_host_with_one_file_are_not_counted_twice(
    watching: Watch, library: Path, tmp_path: Path, order: str
) -> None:
    prefix, path = container(library, tmp_path / "a")
    if order == "below first":
        watching.source.prepare_file(library)
    with start_cuda_client(prefix=prefix, late_ms=0, library=path, calls=0, linger_ms=300) as opener:
        watching.observe(opener.pid)
        watching.during(opener.finish)
    watching.source.prepare_file(library)
    for where, opened in ((prefix, path), ((), library)):
        with start_cuda_client(prefix=where, late_ms=0, library=opened, calls=127) as client:
            watching.observe(client.pid)
            watching.during(client.finish)
        assert watching.calls(client.pid)["cudaLaunchKernel"] == 127


def test_a_process_in_a_pid_namespace_is_known_by_its_number_outside(watching: Watch) -> None:
    prefix = unshared("-p", "-f", "--mount-proc")
    with start_cuda_client(prefix=prefix, calls=131, functions=("all",)) as client:
        children = Path(f"/proc/{client.process.pid}/task/{client.process.pid}/children").read_text()
        outside = int(children)
        watching.observe(outside)
        said = watching.during(client.finish)
    assert said.pid == 1 != outside
    assert watching.calls(outside) == watching.calls() == probed(dict(said.calls))


def test_the_agent_works_inside_a_pid_namespace(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    prefix = unshared("-p", "-f", "--mount-proc")
    said = run_cuda_client(
        prefix=(*prefix, OTELGPU, "run", "--detail=all", f"--export=file:{traces}", "--"),
        calls=137,
        functions=("all",),
        library=fake_cudart_path(),
        exit_code=9,
    )
    assert said.exit_code == 9
    assert said.pid < 1000
    spans = read_spans(traces)
    assert cuda_calls(spans) == probed(dict(said.calls))
    assert {span["resource"]["process.pid"] for span in spans} == {said.pid}


def test_an_agent_in_a_container_does_not_see_who_is_outside(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    prefix = unshared("-p", "-f", "--mount-proc", "--kill-child")
    command = [*prefix, OTELGPU, "agent", "--detail=all", f"--export=file:{traces}", "--duration=3"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as agent:
        assert agent.stderr is not None
        assert "observing" in agent.stderr.readline()
        run_cuda_client(calls=139)
        agent.communicate(timeout=20)
    assert read_spans(traces) == [] if traces.exists() else True


def test_a_file_that_changes_its_contents_is_not_taken_for_the_old_one(
    watching: Watch, library: Path
) -> None:
    """A package upgrade writes a new inode under the old name."""
    watching.source.prepare_file(library)
    new = library.with_name("new")
    shutil.copy(library, new)
    os.rename(new, library)
    watching.source.prepare_file(library)
    with start_cuda_client(late_ms=0, library=library, calls=149) as client:
        watching.observe(client.pid)
        watching.during(client.finish)
    assert watching.calls(client.pid)["cudaLaunchKernel"] == 149


def test_a_library_that_is_no_library_is_skipped_and_counted(watching: Watch, tmp_path: Path) -> None:
    for name, content in (("a", b""), ("b", b"#!/bin/sh\n"), ("c", b"\x7fELF" + b"\xff" * 4096)):
        path = tmp_path / name / "libcudart.so.12"
        path.parent.mkdir()
        path.write_bytes(content)
        watching.source.prepare_file(path)
    assert watching.total("probes", "file_not_elf") == 3


def test_a_library_that_is_unmapped_at_once_harms_nobody(watching: Watch, library: Path) -> None:
    code = (
        "import _ctypes, ctypes, sys; sys.stdin.readline()\n"
        "for _ in range(50): _ctypes.dlclose(_ctypes.dlopen(sys.argv[1], 2))\n"
        "print(ctypes.CDLL(sys.argv[1]).cudaDeviceSynchronize())"
    )
    command = [sys.executable, "-c", code, str(library)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        watching.observe(process.pid)
        stdout, _ = watching.during(lambda: process.communicate("go\n"))
    assert (process.returncode, stdout) == (0, "0\n")
    assert ctypes.CDLL(None)  # and we are still here
