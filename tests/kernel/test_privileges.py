"""What a session gives up once it observes: in every thread, and in nothing that it observes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.privileges.capabilities import Capability, Held, held
from otelgpu.kernel.trace_context_map import TraceContextMap, open_trace_contexts
from tests.kernel.observing import OTELGPU, cuda_calls, read_spans, wait_until
from tests.kernel.privileged import OTHER_USER, helpers_of
from tests.rig import start_cuda_client

pytestmark = [pytest.mark.usefixtures("kernel"), pytest.mark.long]

KEPT = {
    *(Capability.BPF, Capability.PERFMON, Capability.SYS_PTRACE, Capability.DAC_READ_SEARCH),
    *(Capability.CHECKPOINT_RESTORE, Capability.SYSLOG),
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may enter, as pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="otelgpu-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def session(*arguments: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command that observes, from when it says so, or from when its program (``run``) has begun."""
    command = [OTELGPU, *arguments]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
    ) as process:
        try:
            assert process.stderr is not None
            if arguments[0] != "top" and "--" not in arguments:
                line = process.stderr.readline()
                assert "observing" in line, line
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def threads(pid: int) -> dict[str, Held]:
    found = {}
    for each in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
            found[each.name] = held(each)
    return found


def bits(capabilities: set[Capability]) -> int:
    return sum(1 << capability for capability in capabilities)


def assert_reduced(pid: int, kept: set[Capability]) -> None:
    for thread, own in threads(pid).items():
        assert own.permitted == own.effective == bits(kept), (thread, own)
        assert own.bounding == own.ambient == own.inheritable == 0, (thread, own)
        assert own.no_new_privileges, thread


@pytest.mark.parametrize("command", ["attach", "agent", "record", "top"])
def test_every_thread_has_what_is_needed_later_and_no_more(command: str, place: Path) -> None:
    # A Collector that is not there: its senders' and its channel's threads are.
    export = () if command == "top" else ("--export=otlp:http://127.0.0.1:9",)
    options = {
        "attach": (*export, f"-p{os.getpid()}"),
        "agent": (*export, "--executable=no-such-program"),
        "record": (*export, f"-p{os.getpid()}", "-o", str(place / "capture")),
        "top": ("cuda", f"-p{os.getpid()}"),
    }
    health = {"OTELGPU_HEALTH_ADDRESS": "127.0.0.1:0"}
    with session(command, *options[command], env=health) as running:
        wait_until(lambda: len(threads(running.pid)) > 2, "its threads have begun", 30)
        wait_until(lambda: threads(running.pid)[str(running.pid)].bounding == 0, "it gives up", 30)
        assert_reduced(running.pid, KEPT)


@pytest.mark.parametrize("source", ["uprobe", "inject"])
def test_a_program_keeps_what_it_was_given_and_may_gain_more(source: str, place: Path) -> None:
    privileged = place / "id"
    shutil.copy("/usr/bin/id", privileged)
    privileged.chmod(0o4755)
    gain = f"setpriv --reuid={OTHER_USER} --regid={OTHER_USER} --clear-groups --inh-caps=-all {privileged} -u"
    if subprocess.run(gain.split(), capture_output=True, text=True, check=False).stdout != "0\n":
        pytest.skip(f"a set-user-id program has no effect in {place} (nosuid?)")
    reported = place / "reported"
    program = f"{gain} > {reported}.new; cat /proc/self/status > {place}/status; mv {reported}.new {reported}; sleep 20"
    arguments = (f"--source={source}", "--export=otlp:http://127.0.0.1:9", "--", "sh", "-c", program)
    with session("run", *arguments) as running:
        wait_until(reported.exists, "the program has run", 30)
        assert reported.read_text() == "0\n"
        its = held(place)
        assert (its.permitted, its.bounding) == (held().permitted, held().bounding)
        assert not its.no_new_privileges
        wait_until(lambda: threads(running.pid)[str(running.pid)].bounding == 0, "it gives up", 30)
        assert_reduced(running.pid, KEPT | {Capability.KILL})


def test_who_stands_guard_keeps_what_lets_held_processes_go_and_who_makes_names_keeps_nothing() -> None:
    with session("attach", f"-p{os.getpid()}", "--hold-on-load", "--export=file:/dev/null") as running:
        assert_reduced(running.pid, KEPT | {Capability.KILL})
        # Who sees to it that the agent stops is started last, and has given up what it had a moment later.
        wait_until(lambda: len(helpers_of(running.pid)[0]) == 1, "one has privileges", 30)
        (guard,), readers = helpers_of(running.pid)
        assert_reduced(guard, {Capability.KILL, Capability.BPF, Capability.PERFMON})
        assert readers
        for reader in readers:
            assert_reduced(reader, set())


def test_nothing_is_given_up_where_that_is_not_wanted() -> None:
    wanted = {"OTELGPU_DROP_PRIVILEGES": "false"}
    with session("attach", f"-p{os.getpid()}", "--export=file:/dev/null", env=wanted) as running:
        for own in threads(running.pid).values():
            assert own == held()


def test_results_in_another_user_s_folder_are_written_all_the_same(place: Path) -> None:
    """Root without CAP_DAC_OVERRIDE may not write there: the files are open before that is given up."""
    theirs = place / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, OTHER_USER, OTHER_USER)
    traces, capture = theirs / "traces.jsonl", theirs / "capture"
    with start_cuda_client(calls=23) as client:
        record = ("record", "-o", str(capture), f"-p{client.pid}", f"--export=file:{traces}")
        with session(*record) as running:
            wait_until(lambda: threads(running.pid)[str(running.pid)].bounding == 0, "it gives up", 30)
            client.finish()
    assert cuda_calls(read_spans(traces))["cudaLaunchKernel"] == 23
    again = theirs / "again.jsonl"
    subprocess.run([OTELGPU, "replay", capture, "-o", again, "--quiet"], check=True, timeout=60)
    assert cuda_calls(read_spans(again))["cudaLaunchKernel"] == 23


# -- Files, sockets and maps that others could reach -----------------------------------------------------


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777], ids=oct)
def test_modes_do_not_hang_on_the_umask(mask: int, place: Path) -> None:
    """A capture holds prompts; the socket in its folder, the map and its folder decide who may feed us."""
    capture, traces = place / "capture", place / "traces.jsonl"
    pinned = Path("/sys/fs/bpf/otel/traces_ctx_v1")
    if pinned.exists():
        pytest.skip(f"{pinned} is there already")
    was_there = pinned.parent.exists()
    show = place / "shown"
    program = (
        'ls -ld "$(dirname "$OTELGPU_INJECT_SOCKET")" > '
        + f"{show}.new; umask 0; mv {show}.new {show}; exec sleep 20"
    )
    arguments = ("--source=inject", f"--export=file:{traces}", "-o", str(capture), "--", "sh", "-c", program)
    before = os.umask(mask)
    try:
        with session("record", *arguments, env={"OTELGPU_PUBLISH_CONTEXT": "true"}):
            wait_until(show.exists, "the program has run", 30)
            modes = [stat.S_IMODE(path.stat().st_mode) for path in (capture, traces, pinned, pinned.parent)]
    finally:
        os.umask(before)
    assert modes[0] in (0o600, 0o600 & ~mask)
    assert modes[1] == 0o644 & ~mask
    assert modes[2] == 0o600
    assert was_there or not modes[3] & 0o022
    assert show.read_text().startswith(("drwx------", "d---------"))
    assert not pinned.exists()


@pytest.mark.parametrize("whose", ["folder", "map"])
def test_a_map_of_contexts_that_another_user_put_there_is_refused(whose: str) -> None:
    folder = Path("/sys/fs/bpf/otelgpu-test-stranger")
    path = folder / "traces_ctx_v1"
    contexts = TraceContextMap(path)
    try:
        os.close(open_trace_contexts(path) or 0)
        os.chown(folder if whose == "folder" else path, OTHER_USER, OTHER_USER)
        with pytest.raises(BpfError, match="of another user"):
            open_trace_contexts(path)
        with pytest.raises(BpfError, match="of another user"):
            TraceContextMap(path)
    finally:
        contexts.close()
        path.unlink(missing_ok=True)
        folder.rmdir()
