"""The in-process source: programs with the library in them, an agent beside them, and nobody with privileges."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otelgpu.elf.btf import Btf
from otelgpu.kernel.injection.server import InjectError, InjectListener, Library, environment, read_library
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Batch
from tests.rig.fakes import ROOT, build_fakes, missing_compiler

SOURCES = Path(__file__).with_name("data")
PROGRAMS = ROOT / "tests" / "fakes" / "programs"


@pytest.fixture(scope="module")
def library() -> Library:
    try:
        return read_library()
    except InjectError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def btf() -> Btf:
    return read_image("cuda").btf


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of inject_calls, of the libcudart that it is linked to and of two other copies of that."""
    if missing := missing_compiler():
        pytest.skip(f"{missing} is not installed")
    folder = tmp_path_factory.mktemp("inject")
    for copy, name in ((0, "libcudart.so.12"), (1, "libcudart-one.so"), (2, "libcudart-two.so")):
        options = ["-shared", "-fPIC", f"-DCOPY={copy}", f"-Wl,-soname,{name}"]
        _compile(SOURCES / "inject_cudart.c", folder / name, options)
    options = ["-pthread", str(folder / "libcudart.so.12"), "-Wl,-rpath,$ORIGIN", "-ldl"]
    _compile(SOURCES / "inject_calls.c", folder / "inject_calls", options)
    return folder


def _compile(source: Path, target: Path, options: list[str]) -> None:
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(target), str(source)]
    done = subprocess.run(command + options, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Agent:
    """A listener that is drained in a thread, as the real one is while a program runs."""

    def __init__(self, library: Library, btf: Btf, **options: Any) -> None:
        self.listener = InjectListener(library.layout, btf, **options)
        self.listener.start()
        self._library = library
        self._names = {
            number: name.removeprefix("API_") for name, number in btf.enumerators("cuda_api").items()
        }
        self.batches: list[Batch] = []
        self.gone: list[int] = []

    def environment(self) -> dict[str, str]:
        return {**os.environ, **environment(self._library.path, self.listener.path, os.environ)}

    def collect(self) -> None:
        self.gone += self.listener.gone()
        self.batches += self.listener.drain()

    def run(
        self, *command: str | Path, drain: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, and collect meanwhile or only after it."""
        options = {"env": self.environment(), "text": True, **options}
        process = subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
        )
        until = time.monotonic() + 60
        while drain and process.poll() is None and time.monotonic() < until:
            self.collect()
            time.sleep(0.002)
        output, errors = process.communicate(timeout=60)
        self.collect()
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def calls(self) -> dict[str, int]:
        """Records by function."""
        found: Counter[str] = Counter()
        for batch in self.batches:
            found.update(self._names[int(api)] for api in batch.records["api"])
        return dict(found)

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """Of the records' heads."""
        return np.concatenate([batch.heads[name] for batch in self.batches])

    def losses(self) -> dict[str, int]:
        return {reason: n for reason, n in self.listener.counters().items() if reason != "submitted" and n}


@pytest.fixture
def open_agent(library: Library, btf: Btf) -> Iterator[Callable[..., Agent]]:
    opened: list[Agent] = []

    def make(**options: Any) -> Agent:
        opened.append(Agent(library, btf, **options))
        return opened[-1]

    yield make
    for agent in opened:
        agent.listener.close()


@pytest.fixture
def agent(open_agent: Callable[..., Agent]) -> Agent:
    return open_agent()


def said(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a program printed of itself; it must have ended as it does without otelgpu."""
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def observable(calls: Mapping[str, int], btf: Btf) -> dict[str, int]:
    """Of a program's own counts those of functions that the table has."""
    names = btf.enumerators("cuda_api")
    return {name: count for name, count in calls.items() if f"API_{name}" in names}


# -- Ways to the functions --------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["program_shared", "program_ptsz", "program_driver", "program_late"])
def test_every_call_of_a_linked_program_is_recorded_once(program: str, agent: Agent, btf: Btf) -> None:
    folder = build_fakes()
    options = [f"--libraries={folder / 'libcudart.so.12'}"] if program == "program_late" else []
    done = said(agent.run(folder / program, *options))
    reported = {name: n for name, n in agent.calls().items() if not name.startswith("__cudaRegister")}
    assert reported == observable(done["calls"], btf)
    assert agent.losses() == {}


def test_every_call_by_ctypes_is_recorded_once(agent: Agent, btf: Btf) -> None:
    library = build_fakes() / "libcudart.so.12"
    done = said(agent.run(sys.executable, PROGRAMS / "by_ctypes.py", f"--library={library}"))
    assert agent.calls() == observable(done["calls"], btf)


def test_functions_from_cu_get_proc_address_are_observed(agent: Agent) -> None:
    script = """if 1:
        import ctypes
        cuda = ctypes.CDLL({library!r})
        def get(name, version=12000):
            address, found = ctypes.c_void_p(), ctypes.c_int()
            status = cuda.cuGetProcAddress_v2(
                name, ctypes.byref(address), version, ctypes.c_uint64(0), ctypes.byref(found))
            assert status == 0, (name, status)
            return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 3)(address.value)
        get(b"cuInit")(0, 0, 0)
        context, pointer = ctypes.c_uint64(), ctypes.c_uint64()
        assert get(b"cuDevicePrimaryCtxRetain")(ctypes.addressof(context), 0, 0) == 0
        assert get(b"cuCtxSetCurrent")(context.value, 0, 0) == 0
        for _ in range(11):
            assert get(b"cuMemAlloc")(ctypes.addressof(pointer), 4096, 0) == 0
            assert get(b"cuMemFree")(pointer.value, 0, 0) == 0
    """.format(library=str(build_fakes() / "libcuda.so.1"))  # fmt: skip
    done = agent.run(sys.executable, "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    calls = agent.calls()
    assert (calls["cuMemAlloc_v2"], calls["cuMemFree_v2"]) == (11, 11)


@pytest.mark.parametrize(
    "path", ["nvidia/cuda_runtime/lib/libcudart.so.12", "nvidia/cu13/lib/libcudart.so.13"]
)
def test_the_real_runtime_answers_as_ever(path: str, agent: Agent) -> None:
    """Without a GPU each call fails, with a result that is not otelgpu's."""
    library = Path(sysconfig.get_path("purelib"), path)
    if not library.exists():
        pytest.skip(f"{path} is not there: nvidia-cuda-runtime-cu12 or nvidia-cuda-runtime is not installed")
    script = f"""if 1:
        import ctypes
        cudart, pointer = ctypes.CDLL({str(library)!r}), ctypes.c_void_p()
        print(cudart.cudaMalloc(ctypes.byref(pointer), 4096), cudart.cudaFree(None), cudart.cudaDeviceSynchronize())
    """
    bare = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    done = agent.run(sys.executable, "-c", script)
    assert (done.stdout, done.stderr) == (bare.stdout, bare.stderr)
    assert agent.calls() == {"cudaMalloc": 1, "cudaFree": 1, "cudaDeviceSynchronize": 1}
    reported = [int(status) for batch in agent.batches for status in batch.records["status"]]
    assert reported == [int(word) for word in bare.stdout.split()]


def test_each_of_several_copies_gets_its_own_calls(agent: Agent, built: Path) -> None:
    copies = f"copies:{built / 'libcudart-one.so'}:{built / 'libcudart-two.so'}"
    done = said(agent.run(built / "inject_calls", copies))
    assert agent.calls() == {"cudaFree": done["calls"]}


@pytest.mark.parametrize("command", ["arguments", "next", "unload:{one}"])
def test_the_program_notices_nothing(command: str, agent: Agent, built: Path) -> None:
    done = said(agent.run(built / "inject_calls", command.format(one=built / "libcudart-one.so")))
    assert sum(agent.calls().values()) == done["calls"]


def test_a_call_inside_another_is_part_of_it(agent: Agent, built: Path) -> None:
    said(agent.run(built / "inject_calls", "arguments"))
    assert agent.calls() == {"cudaIpcOpenMemHandle": 1, "cudaMalloc": 1}  # which calls cudaFree
    (batch,) = agent.batches
    malloc = batch.records[1]
    assert (int(malloc["object"]), int(malloc["bytes"]), int(malloc["status"])) == (4711, 4711, 0)
    assert malloc["head"]["returned"] and 0 < malloc["head"]["duration_ns"] < 10**9
    assert malloc["caller"] > 0


# -- Threads and processes --------------------------------------------------------------------------------


def test_nothing_is_lost_uncounted_beyond_capacity(open_agent: Callable[..., Agent], built: Path) -> None:
    agent = open_agent(ring_bytes=1 << 16)
    done = said(agent.run(built / "inject_calls", "threads:4:1000000"))
    recorded = sum(len(batch.records) for batch in agent.batches)
    losses = agent.losses()
    assert set(losses) == {"ring_full"}
    assert recorded + losses["ring_full"] == done["calls"] == 4_000_000
    assert recorded == agent.listener.counters()["submitted"]


def test_times_of_a_thread_run_forward_and_are_those_of_the_clock(agent: Agent, built: Path) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    said(agent.run(built / "inject_calls", "calls:3000", "wait:20", "calls:2000"))
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    starts = agent.column("time_ns").astype(np.int64)
    assert len(starts) == 5000
    assert before < starts[0] and int((starts + agent.column("duration_ns").astype(np.int64)).max()) < after
    assert (np.diff(starts) >= 0).all()
    assert 20_000_000 <= int(np.diff(starts).max()) < 2_000_000_000


def test_records_name_the_process_and_its_threads(agent: Agent, built: Path) -> None:
    done = said(agent.run(built / "inject_calls", "calls:1", "threads:3:5"))
    assert set(agent.column("tgid").tolist()) == set(done["pids"])
    tids = Counter(agent.column("tid").tolist())
    assert sorted(tids.values()) == [1, 5, 5, 5]
    assert tids[done["pids"][0]] == 1


def test_threads_records_come_in_the_order_of_their_ends(agent: Agent, built: Path) -> None:
    said(agent.run(built / "inject_calls", "threads:4:5000"))
    ends = agent.column("time_ns") + agent.column("duration_ns")
    assert (len(ends), agent.losses()) == (20_000, {})
    for batch in agent.batches:
        assert (np.diff((batch.heads["time_ns"] + batch.heads["duration_ns"]).astype(np.int64)) >= 0).all()


def test_threads_that_end_give_their_rings_back(open_agent: Callable[..., Agent], built: Path) -> None:
    agent = open_agent(threads=2)
    said(agent.run(built / "inject_calls", "born:40"))
    assert agent.calls() == {"cudaFree": 40}
    assert agent.losses() == {}


def test_calls_of_threads_without_a_ring_are_counted(open_agent: Callable[..., Agent], built: Path) -> None:
    agent = open_agent(threads=1)
    done = said(agent.run(built / "inject_calls", "calls:1", "threads:2:10"))
    assert agent.calls() == {"cudaFree": 1}
    assert agent.losses() == {"thread_state_failed": done["calls"] - 1}


@pytest.mark.parametrize("way", ["fork", "clone", "inside"])
def test_a_child_writes_as_itself(way: str, agent: Agent, built: Path) -> None:
    done = said(agent.run(built / "inject_calls", f"{way}:11"))
    parent, child = done["pids"]
    assert Counter(agent.column("tgid").tolist()) == {parent: 2, child: 11}
    assert sorted(agent.gone) == sorted([parent, child])
    assert agent.losses() == {}


def test_a_program_that_replaces_itself_goes_on(agent: Agent, built: Path) -> None:
    done = said(agent.run(built / "inject_calls", "calls:2", "exec", "calls:5", "exec", "calls:3"))
    assert done["calls"] == 3
    assert Counter(agent.column("tgid").tolist()) == {done["pids"][0]: 3 + 6 + 3}


def test_a_child_by_vfork_is_its_parent(agent: Agent, built: Path) -> None:
    """It lives in the parent's memory: what it calls before there is a connection is counted."""
    done = said(agent.run(built / "inject_calls", "vfork", "calls:5", "vfork"))
    assert Counter(agent.column("tgid").tolist()) == {done["pids"][0]: 6}
    assert agent.losses() == {"not_connected": 1}


def test_a_call_that_is_left_by_longjmp_is_counted(agent: Agent, built: Path) -> None:
    done = said(agent.run(built / "inject_calls", "jump:6"))
    assert agent.calls() == {"cudaFree": done["calls"]}
    assert agent.losses() == {"call_abandoned": 1}


def test_calls_of_signal_handlers_do_no_harm(agent: Agent, built: Path) -> None:
    done = said(agent.run(built / "inject_calls", "signals"))
    losses = agent.losses()
    assert set(losses) <= {"ring_full"}
    assert sum(agent.calls().values()) + losses.get("ring_full", 0) >= done["calls"]


@pytest.mark.parametrize("way", ["held", "held_thread", "held_child"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_no_call_waits_for_what_its_own_thread_has_locked(
    way: str, number: int, agent: Agent, built: Path
) -> None:
    """The first call of a place, a thread, and a process, in a handler that interrupted malloc or in a child."""
    done = agent.run(built / "inject_calls", f"{way}:{number}")
    assert (done.returncode, done.stderr) == (0, "")
    assert agent.losses() in ({}, {"thread_unknown": 1})


def test_a_call_does_not_wait_for_a_library_that_another_thread_loads(agent: Agent, built: Path) -> None:
    done = said(agent.run(built / "inject_calls", f"loading:{built / 'libcudart-one.so'}"))
    assert (done["calls"], agent.losses()) == (1, {})


# -- Without an agent -------------------------------------------------------------------------------------


def test_without_an_agent_a_program_runs_as_ever(library: Library, built: Path, tmp_path: Path) -> None:
    nobody = {**os.environ, **environment(library.path, tmp_path / "nobody", os.environ)}
    took = []
    for env in (dict(os.environ), nobody):
        began = time.monotonic()
        done = subprocess.run(
            [built / "inject_calls", "arguments", "next", "threads:4:100000", "fork:3"],
            env=env, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert said(done)["calls"] == 400_009
        took.append(time.monotonic() - began)
    assert took[1] < 3 * took[0] + 5  # it waits for nobody


def test_an_agent_that_does_not_answer_is_waited_for_briefly(
    library: Library, built: Path, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(tmp_path / "socket"))
        silent.listen()
        env = {**os.environ, **environment(library.path, tmp_path / "socket", os.environ)}
        began = time.monotonic()
        done = subprocess.run(
            [built / "inject_calls", "calls:1000"],
            env=env, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert said(done)["calls"] == 1000
    assert 0.1 <= time.monotonic() - began < 1


def test_calls_before_a_late_answer_are_counted(
    open_agent: Callable[..., Agent], library: Library, built: Path, tmp_path: Path
) -> None:
    agent = open_agent()
    late = tmp_path / "late"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as front:
        front.bind(str(late))
        front.listen()

        def pass_on() -> None:  # as if the agent had been busy for so long
            connection, _ = front.accept()
            time.sleep(0.3)
            with connection, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as behind:
                behind.connect(str(agent.listener.path))
                behind.send(connection.recv(1024))
                data, descriptors, _, _ = socket.recv_fds(behind, 16, 1)
                socket.send_fds(connection, [data], descriptors)
                os.close(descriptors[0])

        passing = threading.Thread(target=pass_on)
        passing.start()
        env = {**os.environ, **environment(library.path, late, os.environ)}
        done = said(agent.run(built / "inject_calls", "calls:5", "wait:1200", "calls:7", env=env))
        passing.join()
    assert done["calls"] == 12
    assert agent.calls() == {"cudaFree": 7}
    losses = agent.losses()
    assert losses.pop("not_connected") == 5
    # What came by way of another process was taken for that one's, which has no such thread while that runs.
    assert losses in ({}, {"thread_unknown": 1})
    assert set(agent.column("tgid").tolist()) == {os.getpid()}


def test_a_program_outlives_its_agent(library: Library, built: Path, tmp_path: Path) -> None:
    """The agent is killed in the middle: exit code and results are the program's own."""
    script = """if 1:
        import sys, time
        from pathlib import Path
        from otelgpu.kernel.injection.server import InjectListener, read_library
        from otelgpu.kernel.loader import read_image
        listener = InjectListener(read_library().layout, read_image("cuda").btf, path=Path(sys.argv[1]))
        listener.start()
        print("ready", flush=True)
        while True:
            if sum(len(batch.records) for batch in listener.drain()):
                print("drained", flush=True)
            time.sleep(0.001)
    """
    path = tmp_path / "socket"
    killed = subprocess.Popen(
        [sys.executable, "-c", script, path], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert killed.stdout is not None and killed.stdout.readline() == "ready\n"
    env = {**os.environ, **environment(library.path, path, os.environ)}
    program = subprocess.Popen(
        [built / "inject_calls", "calls:2000", "wait:300", "threads:4:200000", "fork:9", "arguments"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert killed.stdout.readline() == "drained\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    output, errors = program.communicate(timeout=60)
    assert said(subprocess.CompletedProcess([], program.returncode, output, errors))["calls"] == 802_013


def test_nothing_of_ours_stays_open_in_the_program(agent: Agent, built: Path) -> None:
    script = f"""if 1:
        import ctypes, os
        before = set(os.listdir("/proc/self/fd"))
        ctypes.CDLL({str(built / "libcudart-one.so")!r}).cudaFree(None)
        print(len(set(os.listdir("/proc/self/fd")) - before))
    """
    assert agent.run(sys.executable, "-c", script).stdout == "0\n"
    assert agent.calls() == {"cudaFree": 1}


def test_a_library_of_another_version_is_refused(agent: Agent, library: Library) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(5)
        client.connect(str(agent.listener.path))
        client.send(bytes(library.layout.dtype("inject_hello").itemsize))
        assert client.recv(16) == b""
    assert agent.losses() == {"library_of_another_version": 1}


def test_only_this_user_can_reach_the_socket(agent: Agent) -> None:
    assert agent.listener.path.parent.stat().st_mode & 0o777 == 0o700
    agent.listener.close()
    assert not agent.listener.path.parent.exists()


@pytest.mark.parametrize("preloaded", [True, False])
def test_cuda_loads_the_library_itself(preloaded: bool, agent: Agent, library: Library, btf: Btf) -> None:
    """CUDA_INJECTION64_PATH alone connects, and sees no call; with LD_PRELOAD every call is still seen once."""
    env = agent.environment() | {"CUDA_INJECTION64_PATH": str(library.path)}
    if not preloaded:
        del env["LD_PRELOAD"]
    done = said(agent.run(build_fakes() / "program_driver", env=env))
    assert agent.gone == [done["pid"]]
    assert agent.calls() == (observable(done["calls"], btf) if preloaded else {})
    assert agent.losses() == {}


def test_the_library_loads_with_an_old_glibc(library: Library) -> None:
    """Versions of glibc's symbols that it needs: 2.18 is of 2013."""
    from elftools.elf.elffile import ELFFile

    with library.path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".gnu.version_r")
        needed = {aux.name for _, versions in section.iter_versions() for aux in versions}
    newest = max(tuple(map(int, name.removeprefix("GLIBC_").split("."))) for name in needed)
    assert newest <= (2, 18)
