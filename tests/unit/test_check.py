"""``otelgpu check``: reports from facts made up here, facts from a process made here, and the command."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from rich.console import Console

from otelgpu.check.inspection import looks_like_server, process_of_thread
from otelgpu.check.process_report import SECCOMP_FILTER, ProcessReport, gone, is_thread
from otelgpu.check.process_report import judge as judge_by
from otelgpu.cli import check as check_module
from otelgpu.cli.check import ProcessInspector, check, try_destinations, wanted_symbols
from otelgpu.cli.listing import Finding, Listing, Report
from otelgpu.config import Config
from otelgpu.export.base import Signal
from otelgpu.export.otlp import trial
from otelgpu.export.otlp.settings import OtlpSettings
from otelgpu.families.gpu.torch.discover import CORE
from otelgpu.families.nccl.discover.coverage import NcclCopy
from otelgpu.families.rdma.discover.coverage import VERBS, OpenDevice
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import Image
from otelgpu.processes.coverage import EmbeddedRuntime, Library, Machine, Observed, Shown, TlsStack
from otelgpu.processes.listing import describe
from otelgpu.sources.discoveries import discovery_of

WANTED = {"libcudart": frozenset({"cudaMalloc", "cudaFree", "cudaLaunchKernel"})}
MACHINE = Machine(wanted=WANTED)


RUSTLS = TlsStack(name="rustls in serve", probed=False)
OPENSSL = ("SSL_read", "SSL_write")
UNKNOWN_GO = TlsStack(name="Go's crypto/tls 1.40 in serve", probed=False)


def judge(observed: Observed, machine: Machine = MACHINE, *, http: bool = True) -> ProcessReport:
    """By all families, or all but that of requests."""
    names = ("cuda", *(("http",) if http else ()), "nccl", "torch", "verbs")
    found = [discovery_of(name).inspect for name in names]
    return judge_by(observed, machine, [inspect() for inspect in found if inspect is not None])


def library(**changes: Any) -> Library:
    whole = Library(
        path="/venv/libcudart.so.12",
        name="libcudart",
        inode=7,
        symbols=tuple(sorted(WANTED["libcudart"])),
    )
    return replace(whole, **changes)


def process(**changes: Any) -> Observed:
    return replace(Observed(pid=42, name="serve", executable="/usr/bin/python3"), **changes)


def blind_spots(observed: Observed, machine: Machine = MACHINE) -> list[str]:
    return [one.what for one in judge(observed, machine).blind]


def test_a_whole_library_is_seen_and_nothing_is_blind() -> None:
    report = judge(process(libraries=(library(),)), MACHINE)
    assert report.sees[0] == "all 3 functions of /venv/libcudart.so.12"
    assert report.blind == ()


def test_a_function_that_a_copy_does_not_have_is_no_blind_spot() -> None:
    report = judge(process(libraries=(library(symbols=("cudaFree",)),)), MACHINE)
    assert report.sees[0].startswith("1 of 3 functions")
    assert report.blind == ()


def test_each_copy_in_a_process_has_its_own_line() -> None:
    copies = (library(), library(path="/other/libcudart-d0da41ae.so.11.0"))
    sees = judge(process(libraries=copies), MACHINE).sees
    assert sum("libcudart" in line for line in sees) == 2


def test_a_deleted_file_is_seen_and_said_to_be_deleted() -> None:
    assert "deleted" in judge(process(libraries=(library(deleted=True),)), MACHINE).sees[0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"symbols": ()}, "exports none of the 3 functions"),
        ({"symbols": (), "error": "it cannot be read: Permission denied"}, "Permission denied"),
        ({"refusal": "Input/output error"}, "takes no probe on it: Input/output error"),
    ],
)
def test_a_library_without_probes_is_blind_and_says_why(changes: dict[str, Any], why: str) -> None:
    report = judge(process(libraries=(library(**changes),)), MACHINE)
    assert why in report.blind[0].why
    assert report.blind[0].do


def test_an_allocator_of_pytorch_is_reported_by_what_it_is_good_for() -> None:
    machine = Machine(wanted={**WANTED, CORE: frozenset({"report", "report_of_1_13"})})
    torch = library(path="/venv/torch/lib/libc10.so", name=CORE, symbols=("report",))
    report = judge(process(libraries=(library(), torch)), machine, http=False)
    assert [line for line in report.sees if "libc10" in line] == [
        "tensors' memory by PyTorch's allocator in /venv/torch/lib/libc10.so, where it is asked for: "
        "profiles of mem, or family torch"
    ]
    assert report.blind == ()
    old = judge(process(libraries=(replace(torch, symbols=()),)), machine, http=False)
    assert [one.what for one in old.blind] == ["tensors' memory by /venv/torch/lib/libc10.so"]
    assert "1.10" in old.blind[0].why
    assert "libc10" not in judge(process(), machine, http=False).sees[0]


def test_a_static_runtime_with_symbols_is_seen() -> None:
    program = EmbeddedRuntime(path="/app/train", is_program=True, symbols=("cudaMalloc",))
    report = judge(process(embedded=(program,)), MACHINE)
    assert "linked statically into /app/train" in report.sees[0]
    assert report.blind == ()


def test_a_static_runtime_in_a_stripped_program_is_blind() -> None:
    program = EmbeddedRuntime(path="/app/train", is_program=True, stripped=True)
    blind = judge(process(embedded=(program,)), MACHINE).blind[0]
    assert "stripped" in blind.why
    assert "-cudart shared" in blind.do


def test_static_runtimes_in_libraries_are_one_blind_spot_that_names_them() -> None:
    inside = tuple(
        EmbeddedRuntime(path=f"/lib/{name}", is_program=False) for name in ("libcublasLt.so", "libnccl.so")
    )
    spots = blind_spots(process(libraries=(library(),), embedded=inside))
    assert spots == ["CUDA calls that libcublasLt.so, libnccl.so make by themselves"]


@pytest.mark.parametrize(
    ("version", "layout", "sees", "blind"),
    [
        ("2.27.5", "listed", ["communicators of NCCL 2.27.5 in /venv/libnccl.so.2"], 0),
        ("2.99.1", "debug_info", ["communicators of NCCL 2.99.1 in /venv/libnccl.so.2, by the file's"], 0),
        ("", "unknown", [], 1),
    ],
    ids=["listed", "debug_info", "unknown"],
)
def test_communicators_are_seen_where_their_layout_is_known(
    version: str, layout: Any, sees: list[str], blind: int
) -> None:
    copy = Shown("/venv/libnccl.so.2", NcclCopy(version=version, layout=layout))
    report = judge(process(shown={"nccl": (copy,)}), Machine(wanted={}), http=False)
    assert [line for line in report.sees if not any(map(line.startswith, sees))] == []
    assert (len(report.sees), len(report.blind)) == (len(sees), blind)


@pytest.mark.parametrize(
    ("devices", "sees", "blind"),
    [
        ((), "none was found open", None),
        ((OpenDevice(provider="/lib/libmlx5.so.1"),), "by /lib/libmlx5.so.1", None),
        ((OpenDevice(refusal="functions are in several files"),), None, "functions are in several files"),
    ],
    ids=["none", "known", "refused"],
)
def test_posts_are_seen_where_the_provider_is_known(
    devices: tuple[OpenDevice, ...], sees: str | None, blind: str | None
) -> None:
    verbs = library(path="/lib/libibverbs.so.1", name=VERBS, symbols=("ibv_create_qp",))
    machine = Machine(wanted={VERBS: frozenset(verbs.symbols)})
    shown = {"verbs": tuple(Shown("", device) for device in devices)}
    report = judge(process(libraries=(verbs,), shown=shown), machine, http=False)
    rest = report.sees[1:]  # the first is on libibverbs itself
    assert [bool(sees) and sees in line for line in rest] == [True] * (sees is not None)
    assert [one.why for one in report.blind] == [blind] * (blind is not None)
    assert not any(
        "posts" in line for line in judge(process(shown=shown), machine, http=False).sees
    )  # no library


DRIVER = Library(path="/usr/lib/libcuda.so.1", name="libcuda", inode=9, symbols=("cuLaunchKernel",))


@pytest.mark.parametrize("is_program", [True, False])
def test_a_runtime_without_symbols_is_seen_through_the_driver(is_program: bool) -> None:
    inside = EmbeddedRuntime(path="/lib/libcublasLt.so", is_program=is_program, stripped=True)
    report = judge(process(libraries=(library(), DRIVER), embedded=(inside,)), MACHINE)
    assert (
        report.sees[2] == "what libcublasLt.so launch by a CUDA runtime of their own, as calls of the driver"
    )
    assert report.blind == ()


@pytest.mark.parametrize("changes", [{"error": "unreadable"}, {"refusal": "no"}, {"symbols": ()}])
def test_a_driver_that_takes_no_probe_shows_nothing(changes: dict[str, Any]) -> None:
    inside = EmbeddedRuntime(path="/app/train", is_program=True, stripped=True)
    spots = blind_spots(process(libraries=(replace(DRIVER, **changes),), embedded=(inside,)))
    assert spots == ["calls of /usr/lib/libcuda.so.1", "CUDA runtime calls of /app/train"]


def test_without_a_library_the_process_is_reported_that_a_later_one_is_caught() -> None:
    assert "not loaded; caught when" in judge(process(), MACHINE).sees[0]


@pytest.mark.parametrize(
    ("seccomp", "said"), [(0, "or set return_probes: on"), (SECCOMP_FILTER, "do not set")]
)
def test_harmful_return_probes_cost_durations_and_results(seccomp: int, said: str) -> None:
    machine = replace(MACHINE, return_probes=False)
    blind = judge(process(libraries=(library(),), seccomp=seccomp), machine).blind
    assert blind[0].what == "durations and results of library calls"
    assert said in blind[0].do


def test_return_probes_do_not_matter_where_nothing_is_probed() -> None:
    assert blind_spots(process(), replace(MACHINE, return_probes=False)) == []


def test_open_connections_are_counted() -> None:
    assert "(3 open now)" in judge(process(connections=3), MACHINE).sees[-1]


@pytest.mark.parametrize(
    ("changes", "spot"),
    [
        ({"io_uring": 2}, "requests that go through io_uring"),
        ({"sockets": 1, "tls": (RUSTLS,)}, "what rustls in serve encrypts, if anything"),
        ({"sockets": 1, "tls": (UNKNOWN_GO,)}, "what Go's crypto/tls 1.40 in serve encrypts, if anything"),
        (
            {"sockets": 1, "runtimes": ("cpython", "asyncio")},
            "which request a call belongs to, by its thread (asyncio (uvloop too))",
        ),
        ({"sockets": 1, "runtimes": ("go",)}, "which request a call belongs to, by its thread (Go)"),
    ],
)
def test_what_hides_requests_is_blind(changes: dict[str, Any], spot: str) -> None:
    assert blind_spots(process(**changes)) == [spot]


def test_tls_and_event_loops_say_nothing_of_a_process_without_sockets() -> None:
    assert blind_spots(process(tls=(RUSTLS,), runtimes=("asyncio",))) == []


@pytest.mark.parametrize("runtime", ["go", "node", "tokio", "jvm", "dotnet"])
def test_what_to_do_is_what_can_be_done_in_that_language(runtime: str) -> None:
    (blind,) = judge(process(sockets=1, runtimes=(runtime,)), MACHINE).blind
    assert "traceparent" in blind.do and "python" not in blind.do.lower()


def test_threads_that_serve_a_request_each_are_seen_to() -> None:
    report = judge(process(sockets=1, runtimes=("cpython",)), MACHINE)
    assert report.blind == ()
    assert report.sees[-1] == "which request a call belongs to, by its thread: CPython, threads alone"


def test_an_io_uring_of_libuv_hides_no_request() -> None:
    report = judge(process(io_uring=2, has_libuv=True), MACHINE)
    assert report.blind == ()
    assert report.sees[-1].startswith("all on its sockets, though it has 2 io_uring(s)")


@pytest.mark.parametrize("return_probes", [True, None, False])
def test_openssl_is_seen_in_clear_as_long_as_returns_are_probed(return_probes: bool | None) -> None:
    openssl = TlsStack(name="/lib/libssl.so.3", probed=True)
    report = judge(process(sockets=1, tls=(openssl,)), replace(MACHINE, return_probes=return_probes))
    said = any("libssl.so.3 gives and takes it in clear" in line for line in report.sees)
    assert said == (return_probes is not False)
    assert [one.what for one in report.blind] == ([] if said else ["what libssl.so.3 encrypts"])


@pytest.mark.parametrize("return_probes", [True, None, False])
def test_go_s_tls_needs_no_return_probes(return_probes: bool | None) -> None:
    go = TlsStack(name="Go's crypto/tls 1.26.8 in serve", probed=True, by_return_probes=False)
    report = judge(process(sockets=1, tls=(go,)), replace(MACHINE, return_probes=return_probes))
    seen = "the same in TLS, as Go's crypto/tls 1.26.8 in serve gives and takes it in clear"
    assert seen in report.sees and report.blind == ()


def test_a_go_program_that_is_not_understood_is_said_to_be_so() -> None:
    (blind,) = judge(process(sockets=1, tls=(UNKNOWN_GO,)), MACHINE).blind
    assert "table of functions" in blind.why


def test_requests_are_blind_without_syscall_tracepoints() -> None:
    assert blind_spots(process(), replace(MACHINE, syscalls=False)) == ["HTTP requests"]


def test_unwanted_families_are_not_judged() -> None:
    report = judge(process(io_uring=1), Machine(wanted={}), http=False)
    assert (report.sees, report.blind) == ((), ())


@pytest.mark.parametrize(("closed", "do"), [("denied", "root"), ("empty", "nothing")])
def test_a_closed_process_is_wholly_blind(closed: Any, do: str) -> None:
    blind = judge(process(closed=closed), MACHINE).blind
    assert [one.what for one in blind] == ["everything"]
    assert do in blind[0].do


WORST = 10  # blind spots of a process that has all of them


def test_every_blind_spot_has_a_cause_and_something_to_do() -> None:
    worst = process(
        libraries=(library(error="x"), library(refusal="y"), library(symbols=())),
        embedded=(EmbeddedRuntime(path="/a", is_program=True), EmbeddedRuntime(path="/b", is_program=False)),
        tls=(RUSTLS, TlsStack(name="libssl.so", probed=True)),
        runtimes=("asyncio",),
        io_uring=1,
        sockets=1,
    )
    reports = (judge(worst, replace(MACHINE, return_probes=False)), gone(1), is_thread(2, 1))
    assert [len(report.blind) for report in reports] == [WORST, 1, 1]
    assert all(one.what and one.why and one.do for report in reports for one in report.blind)


# -- Facts -----------------------------------------------------------------------------------------------

PROGRAM = r"""
#include <stdio.h>
__attribute__((noinline)) int cudaMalloc(void) { return 2; }
__attribute__((section(".nv_fatbin"))) int device_code = 1;
int main(void) { puts("ready"); fflush(stdout); getchar(); return cudaMalloc(); }
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: no program with a static runtime can be made")
    source, binary = tmp_path / "main.c", tmp_path / "serve"
    source.write_text(PROGRAM)
    subprocess.run(["gcc", "-O1", "-o", binary, source], check=True)
    return binary


def inspected(binary: Path, inspector: ProcessInspector) -> Observed:
    with subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        observed = inspector.observe(child.pid)
        child.communicate(b"\n")
    assert observed is not None
    return observed


def test_a_runtime_in_the_program_is_found_by_its_symbols(program: Path) -> None:
    observed = inspected(program, ProcessInspector(WANTED))
    assert observed.embedded == (
        EmbeddedRuntime(path=str(program), is_program=True, symbols=("cudaMalloc",), stripped=False),
    )


def test_a_stripped_program_with_device_code_is_found_by_its_section(program: Path) -> None:
    subprocess.run(["strip", program], check=True)
    observed = inspected(program, ProcessInspector(WANTED))
    assert observed.embedded == (EmbeddedRuntime(path=str(program), is_program=True, stripped=True),)


def test_a_deleted_library_is_read_and_its_probes_are_tried(program: Path, tmp_path: Path) -> None:
    shared = tmp_path / "libcudart.so.12"
    source = tmp_path / "runtime.c"
    source.write_text("int cudaMalloc(void) { return 0; } int cudaFree(void) { return 0; }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", shared, source], check=True)
    tried: list[str] = []

    def refuse(symbol: str, path: str, offset: int) -> str:
        tried.append(symbol)
        return "Input/output error" if offset else ""

    loader = f"import ctypes; ctypes.CDLL({str(shared)!r}); print('ready', flush=True); input()"
    inspector = ProcessInspector(WANTED, refuse)
    with subprocess.Popen(
        [sys.executable, "-c", loader], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        whole = inspector.observe(child.pid)
        shared.unlink()
        deleted = inspector.observe(child.pid)
        interesting = inspector.is_interesting(child.pid)
        child.communicate(b"\n")
    assert whole is not None
    assert whole.libraries[0].symbols == ("cudaFree", "cudaMalloc")
    assert whole.libraries[0].refusal == "Input/output error"
    assert tried == ["cudaFree"]  # once for the file, whoever maps it and however often it is looked at
    assert deleted is not None
    assert deleted.libraries[0].deleted
    assert interesting


def test_what_is_not_an_elf_file_is_reported_and_not_raised(tmp_path: Path) -> None:
    script = tmp_path / "map.py"
    fake = tmp_path / "libcudart.so.12"
    fake.write_bytes(b"no ELF" * 1000)
    script.write_text(
        f"import mmap\nfile = open({str(fake)!r}, 'rb')\n"
        "mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)\n"
        "print('ready', flush=True)\ninput()\n"
    )
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        observed = ProcessInspector(WANTED).observe(child.pid)
        child.communicate(b"\n")
    assert observed is not None
    assert "cannot be understood" in observed.libraries[0].error


def test_sockets_of_this_process_are_counted() -> None:
    inspector = ProcessInspector({})
    before = inspector.observe(os.getpid())
    with socket.socket(), socket.socket():
        after = inspector.observe(os.getpid())
    assert before is not None
    assert after is not None
    assert after.sockets - before.sockets == 2


UVLOOP = """
import asyncio, uvloop
async def serve():
    await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, input)
uvloop.run(serve())
"""


def observed_running(*code: str | Path) -> Observed:
    """What is seen of a Python program that has said a line."""
    with subprocess.Popen(
        [sys.executable, "-c", *code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        observed = ProcessInspector({}).observe(child.pid)
        child.communicate(b"\n")
    assert observed is not None
    return observed


def test_uvloop_is_known_and_not_called_blind_for_its_io_uring() -> None:
    pytest.importorskip("uvloop", reason="uvloop is not installed")
    observed = observed_running(UVLOOP)
    assert (observed.runtimes, observed.has_libuv) == (("asyncio", "cpython"), True)
    assert [
        spot for spot in blind_spots(replace(observed, io_uring=observed.io_uring or 1)) if "io_uring" in spot
    ] == []


def test_tls_of_this_process_is_reported_by_its_functions() -> None:
    loader = "import ssl, ctypes; print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", loader], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        observed = ProcessInspector({}).observe(child.pid)
        child.communicate(b"\n")
    assert observed is not None
    assert [(Path(stack.name).name.partition(".")[0], stack.probed) for stack in observed.tls] == [
        ("libssl", True)
    ]


def test_tls_that_is_linked_into_a_program_is_reported_by_its_library(program: Path) -> None:
    """A release build of Rust: no ``rustls::`` is in it."""
    source = program.with_name("main.c")
    mark = 'static const char mark[] __attribute__((used)) = "/registry/src/x/rustls-0.23.35/src/conn.rs";'
    source.write_text(PROGRAM + mark)
    subprocess.run(["gcc", "-O1", "-s", "-o", program, source], check=True)
    stacks = inspected(program, ProcessInspector({})).tls
    assert stacks == (TlsStack(name="rustls 0.23.35 in serve", probed=False),)


def test_tls_that_is_linked_into_a_library_is_seen_by_its_functions_or_reported_by_its_name(
    tmp_path: Path,
) -> None:
    """As BoringSSL is in Python modules, whatever they are called; functions may be local."""
    mark = 'static const char mark[] __attribute__((used)) = "/deps/boringssl/ssl/handshake_client.cc";'
    functions = "".join(
        f"__attribute__((used)) static int {name}(void) {{ return 1; }}\n" for name in OPENSSL
    )
    for name, source in (("kept.abi3.so", functions + mark), ("hidden.abi3.so", mark)):
        (tmp_path / "module.c").write_text(source)
        command = ["gcc", "-shared", "-fPIC", "-O1", "-o", tmp_path / name, tmp_path / "module.c"]
        subprocess.run(command, check=True)
    loader = (
        "import ctypes, socket, sys; own = socket.socket(); [ctypes.CDLL(path) for path in sys.argv[1:]]; "
        "print('ready', flush=True); input()"
    )
    modules = [tmp_path / "kept.abi3.so", tmp_path / "hidden.abi3.so"]
    observed = observed_running(loader, *modules)
    stacks = {stack.name: stack.probed for stack in observed.tls}
    assert stacks[str(modules[0])] and not stacks["BoringSSL in hidden.abi3.so"]
    assert "BoringSSL in kept.abi3.so" not in stacks


def test_a_vanished_process_has_no_facts() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert ProcessInspector(WANTED).observe(child.pid) is None
    assert process_of_thread(child.pid) is None


def test_a_thread_is_led_back_to_its_process() -> None:
    started, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (started.set(), done.wait()))
    thread.start()
    started.wait()
    try:
        assert process_of_thread(thread.native_id or 0) == os.getpid()
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("/usr/bin/python3", "/usr/local/bin/gunicorn", "app:app"), True),
        (("/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server"), True),
        (("ollama", "serve"), True),
        (("/usr/bin/python3", "/usr/bin/backup.py"), False),
        (("bash", "-c", "sleep 1"), False),
    ],
)
def test_known_servers_are_reported_by_their_command(command: tuple[str, ...], expected: bool) -> None:
    own = describe(os.getpid())
    assert own is not None
    assert looks_like_server(replace(own, comm="x", command=command)) is expected


def test_wanted_symbols_come_from_section_names() -> None:
    objects = Path(check_module.__file__).parents[1] / "_bpf"
    if not (objects / "cuda.bpf.o").exists():
        pytest.skip("otelgpu/_bpf/cuda.bpf.o is not built: make bpf")
    wanted = wanted_symbols([Image("cuda", (objects / "cuda.bpf.o").read_bytes())])
    assert "cudaLaunchKernel" in wanted["libcudart"]


# -- Destinations ----------------------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_collector_that_listens_is_reached_once_for_both_signals(listener: int) -> None:
    findings = try_destinations(Config(), {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{listener}"})
    assert [finding.present for finding in findings] == [True]


def test_a_collector_that_is_down_does_not_stop_observing() -> None:
    with socket.socket() as nobody:  # who has a port and does not listen at it: no other test can
        nobody.bind(("127.0.0.1", 0))
        (finding,) = try_destinations(
            Config(export=(f"otlp:http://127.0.0.1:{nobody.getsockname()[1]}",)), {}
        )
    assert (finding.present, finding.stops) == (False, False)
    assert "Collector" in finding.remedy


def test_without_an_endpoint_results_go_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    finding = try_destinations(Config(), {})[0]
    assert f"results go to {tmp_path}/otelgpu.jsonl" in finding.detail


@pytest.mark.parametrize("text", ["nowhere", "otlp:ftp://host", "file:/no/such/folder/x.jsonl"])
def test_a_destination_that_cannot_work_stops_a_session(text: str) -> None:
    assert try_destinations(Config(export=(text,)), {})[0].stops


def test_a_password_in_an_endpoint_is_not_shown() -> None:
    (finding,) = try_destinations(Config(export=("otlp:http://user:secret@127.0.0.1:1",)), {})
    shown = json.dumps(finding.shown())
    assert "127.0.0.1:1" in shown and "secret" not in shown


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector/path"}, ("collector", 443)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]:4317"}, ("::1", 4317)),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ("localhost", 4317)),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "unix:/run/x"}, None),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "dns:///host:4317"},
            ("host", 4317),
        ),
    ],
)
def test_where_an_endpoint_is(environ: dict[str, str], address: tuple[str, int] | None) -> None:
    assert OtlpSettings.from_environment(environ, Signal.TRACES).address == address


# -- The command -----------------------------------------------------------------------------------------

OK = Finding(name="BTF", present=True, required=True, detail="there")
MISSING = Finding(
    name="BTF", present=False, required=True, detail="absent", consequence="nothing works", remedy="get it"
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """A machine of the test's making: nothing is loaded into the kernel."""
    found = [
        OK,
        replace(OK, name="tracefs", required=False),
        replace(OK, name="return probes", required=False),
    ]
    monkeypatch.setattr(check_module, "survey_machine", lambda config, quick=False: found)
    monkeypatch.setattr(check_module, "load_families", lambda config, stack, able: ([], []))
    monkeypatch.setattr(check_module, "_images", lambda families: [])
    return found


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(check, [*arguments, "--export", "console"])


def test_exit_code_0_when_observing_is_possible(machine: list[Finding]) -> None:
    result = invoke("-p", str(os.getpid()))
    assert result.exit_code == 0, result.output
    assert "Observing is possible." in result.output


def test_exit_code_1_when_something_required_is_missing(machine: list[Finding]) -> None:
    machine[0] = MISSING
    result = invoke("-p", str(os.getpid()))
    assert result.exit_code == 1
    assert "      so: nothing works\n      do: get it\n" in result.output


def test_a_vanished_process_is_said_and_fails(machine: list[Finding]) -> None:
    result = invoke("-p", f"{os.getpid()},2147483647")
    assert result.exit_code == 1
    assert "there is no process 2147483647" in result.output


def test_what_is_no_number_is_wrong_usage(machine: list[Finding]) -> None:
    assert invoke("-p", "gunicorn").exit_code == 2


def test_json_has_the_documented_members(machine: list[Finding]) -> None:
    document = json.loads(invoke("-p", str(os.getpid()), "--json").output)
    assert set(document) == {"ok", "state", "features", "families", "collector", "processes"}
    members = {"name", "present", "required", "detail", "consequence", "remedy"}
    assert document["features"]
    assert all(set(finding) == members for finding in document["features"] + document["collector"])
    assert set(document["processes"][0]) == {
        *("pid", "found", "name", "executable", "container_id", "namespace_pids", "seccomp"),
        *("libraries", "sees", "blind", "identity", "claimed"),
    }


@pytest.mark.parametrize(
    ("present", "required", "state", "code"),
    [
        (True, True, "ready", 0),
        (None, True, "ready", 0),
        (False, False, "partly", 0),
        (False, True, "blocked", 1),
    ],
)
def test_the_state_is_one_word(
    machine: list[Finding], present: bool | None, required: bool, state: str, code: int
) -> None:
    machine[1] = replace(OK, name="tracefs", present=present, required=required)
    result = invoke("--json", "-p", str(os.getpid()))
    assert (json.loads(result.output)["state"], result.exit_code) == (state, code)


def test_a_quick_check_loads_nothing_looks_at_nobody_and_connects_to_nothing(
    machine: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("not in a quick check")

    for name in ("load_families", "judge_processes"):
        monkeypatch.setattr(check_module, name, forbidden)
    monkeypatch.setattr(trial, "connect", forbidden)
    result = CliRunner().invoke(check, ["--quick", "--json", "--export", "otlp:http://192.0.2.1:4318"])
    document = json.loads(result.output)
    assert (result.exit_code, document["state"], document["processes"]) == (0, "ready", [])
    assert [finding["present"] for finding in document["collector"]] == [None]
    assert {finding["name"] for finding in document["families"]} >= {"process", "cuda", "http"}


def test_a_quick_check_fails_where_something_required_is_missing(machine: list[Finding]) -> None:
    machine[0] = MISSING
    assert invoke("--quick").exit_code == 1


def test_a_quick_check_of_a_process_is_wrong_usage(machine: list[Finding]) -> None:
    assert invoke("--quick", "-p", "1").exit_code == 2


def test_names_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = ProcessReport(pid=1, process=process(name="\x1b[2Jx\ny", executable="/tmp/\udcff"))
    report = Report(features=(), families=(), collector=(), processes=(evil,), asked=True)
    Listing(Console(file=sys.stdout)).write(report)
    shown = capsys.readouterr().out
    assert "[2Jx" in shown and "\x1b" not in shown


def test_marks_fall_back_where_the_encoding_lacks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "encoding", "ascii")
    console = Console(record=True, file=io.StringIO())
    report = Report(features=(MISSING,), families=(), collector=(), processes=(), asked=False)
    Listing(console).write(report)
    assert "x missing BTF" in console.export_text()


def test_missing_decompressors_are_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_module._decompressors().present
    monkeypatch.setattr(check_module, "find_spec", lambda name: None if name == "lz4" else name)
    finding = check_module._decompressors()
    assert (finding.present, finding.required, finding.detail) == (False, False, "missing: lz4")
    assert "otelgpu[names]" in finding.remedy


@pytest.mark.parametrize("present", [True, False])
def test_whether_a_file_that_is_cut_off_ends_the_agent_is_said(
    monkeypatch: pytest.MonkeyPatch, present: bool
) -> None:
    monkeypatch.setattr(check_module, "survives_cut_files", lambda: present)
    (finding,) = (
        each for each in check_module.survey_machine(Config(), quick=True) if "cut off" in each.name
    )
    assert (finding.present, finding.stops) == (present, False)
    assert "ends the agent" in finding.consequence


def test_a_family_that_is_loaded_on_demand_stops_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(image: Image, **_: object) -> None:
        raise BpfError(f"the kernel refused BPF object {image.family}")

    monkeypatch.setattr(check_module, "load_family", refuse)
    with ExitStack() as stack:
        found, loaded = check_module.load_families(Config(), stack, able=True)
    assert loaded == []
    assert {finding.name for finding in found if finding.stops} == {"process", "cuda", "http", "sched"}
    others = {finding.name for finding in found if not finding.stops}
    assert others >= {"file", "nccl", "verbs", "profile", "probe"}
