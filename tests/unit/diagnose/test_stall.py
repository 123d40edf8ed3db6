"""``otelgpu diagnose stall``: from what threads were seen to do to verdicts, on timelines whose truth is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from otelgpu.diagnose.stall.causes import CAUSES
from otelgpu.diagnose.stall.diagnosis import diagnose
from otelgpu.diagnose.stall.observations import (
    BLOCK_TIME,
    CPU,
    FILE_TIME,
    OFF_CPU,
    SYSCALL_TIME,
    Observations,
    Seen,
    WrittenBack,
)
from otelgpu.diagnose.stall.sentences import ordinal, sentence, shown_bytes
from otelgpu.diagnose.stall.surroundings import GroupWrites, Neighbour, SocketWait, Surroundings, Writer
from otelgpu.diagnose.stall.verdicts import INCONCLUSIVE, StallReport, StallVerdict
from otelgpu.render.frames import Frame, Kind
from tests.rig.examples import examples
from tests.unit.diagnose.stall_timelines import (
    LOOP,
    MS,
    OTHER,
    PID,
    SAVE,
    Timeline,
    kernel,
    native,
    observed,
)

QUIET = Surroundings(others_cpu_s=0.0)
BUSY = Surroundings(others_cpu_s=1e3, neighbours=[Neighbour(pid=7, name="stress", cpu_s=1e3)])
FUTEX = kernel("do_futex")


def report(seen: Observations, around: Surroundings | None = BUSY) -> StallReport:
    return diagnose(seen, subjects=(PID,), surroundings=None if around is None else {PID: around})[0]


def loop(
    stall: Callable[[Timeline], None], *, steps: int = 30, every: int = 5, work_ms: float = 60
) -> Timeline:
    """A step works and sleeps; each ``every``-th does something else besides."""
    made = Timeline()
    for step in range(steps):
        made.work(work_ms)
        made.sleep(20)
        if step % every == every - 1:
            stall(made)
    return made


def test_a_file_that_is_written_in_every_fifth_step_is_said_in_one_sentence() -> None:
    seen = observed(loop(lambda made: made.write(120, 50_000_000), steps=20))
    (verdict,) = report(seen).verdicts
    assert sentence(verdict) == (
        "Stall: python (PID 4242), main thread (TID 4242), writes 50.0 MB to checkpoint.bin at train.py:31 save, "
        "which takes 120 ms, in every 5th of 20 steps (every 0.52 s), in the kernel under generic_perform_write ← "
        "vfs_write ← ksys_write; it costs 24% of the time: write it in another thread, of a copy, while the next step "
        "runs, or less often."
    )
    assert verdict.rhythm is not None and (verdict.rhythm.times, verdict.rhythm.every) == (4, 5)
    assert verdict.bytes == 50_000_000 and verdict.file == "checkpoint.bin"
    assert "ThreadPoolExecutor" in verdict.code


def threads_lock(made: Timeline) -> None:
    made.wait(100, (*FUTEX, *native("PyThread_acquire_lock_timed"), SAVE, LOOP))


def from_queue(made: Timeline) -> None:
    taken = Frame(Kind.PYTHON, "get", "/usr/lib/python3.11/queue.py", 171)
    waits = Frame(Kind.PYTHON, "wait", "/usr/lib/python3.11/threading.py", 320)
    made.wait(100, (*FUTEX, *native("PyThread_acquire_lock_timed"), waits, taken, SAVE, LOOP))


def from_worker(made: Timeline) -> None:
    taken = Frame(Kind.PYTHON, "_recv", "/usr/lib/python3.11/multiprocessing/connection.py", 378)
    made.wait(100, (*kernel("anon_pipe_read", "vfs_read"), taken, SAVE, LOOP), syscall="read")


def other_program(made: Timeline) -> None:
    inside = Frame(Kind.PYTHON, "communicate", "/usr/lib/python3.11/subprocess.py", 1209)
    made.wait(100, (*kernel("do_poll"), inside, SAVE, LOOP), syscall="poll")


def collection(made: Timeline) -> None:
    made.work(100, (*native("visit_reachable", "gc_collect_main"), SAVE, LOOP))


INDUCTOR = Frame(Kind.PYTHON, "run", "/usr/lib/python3/site-packages/torch/_inductor/graph.py", 7)


def inductor(made: Timeline) -> None:
    made.work(100, (*native("PyObject_Call"), INDUCTOR, SAVE, LOOP))


def faults(made: Timeline) -> None:
    made.work(100, (*kernel("clear_page_erms", "handle_mm_fault", "asm_exc_page_fault"), SAVE, LOOP))


STALLS: dict[str, Callable[[Timeline], None]] = {
    "file_write": lambda made: made.write(100, 1000),
    "file_sync": lambda made: (made.write(40, 1000), made.write(60, 0, call="sync"))[0],
    "file_read": lambda made: made.write(100, 1000, call="read"),
    "file_change": lambda made: made.wait(100, (SAVE, LOOP), syscall="unlink", state="uninterruptible"),
    "sleep": lambda made: made.sleep(100, SAVE),
    "lock": threads_lock,
    "input": from_worker,
    "subprocess": other_program,
    "garbage_collection": collection,
    "page_faults": faults,
    "compile": inductor,
    "cpu_contention": lambda made: made.wait(160, (LOOP,), syscall="", state="runnable"),
    "gil": lambda made: made.wait(100, (*native("[waiting for the GIL]", "take_gil"), LOOP), syscall=""),
    "network": lambda made: made.wait(100, (*kernel("tcp_recvmsg"), SAVE, LOOP), syscall="recvfrom"),
    "device_sync": lambda made: made.call(100, "cudaStreamSynchronize"),
    "device_copy": lambda made: made.call(100, "cudaMemcpy"),
    "device_memory": lambda made: made.call(100, "cudaFree"),
    "collective": lambda made: made.call(100, "ncclAllReduce", kind="nccl_time"),
    "other_wait": lambda made: made.wait(
        100, (*kernel("msleep"), SAVE, LOOP), syscall="ioctl", state="uninterruptible"
    ),
}


@pytest.mark.parametrize("cause", STALLS)
def test_each_cause_is_named_first_and_alone(cause: str) -> None:
    found = report(observed(loop(STALLS[cause])))
    assert [each.cause for each in found.verdicts] == [cause]
    (verdict,) = found.verdicts
    assert verdict.rhythm is not None and verdict.rhythm.every == 5
    assert verdict.next and sentence(verdict).startswith("Stall: python (PID 4242), main thread (TID 4242), ")


def test_every_cause_but_throttling_has_a_timeline() -> None:
    assert STALLS.keys() | {"cgroup_throttling"} == CAUSES.keys()


def test_a_queue_that_is_filled_by_a_thread_is_input() -> None:
    (verdict,) = report(observed(loop(from_queue))).verdicts
    assert verdict.cause == "input"


def test_waits_for_a_cpu_are_the_quotas_where_the_group_was_throttled() -> None:
    throttled = Surroundings(throttled_s=2.0, throttled_times=40, quota_cpus=0.5, others_cpu_s=100.0)
    (verdict,) = report(observed(loop(STALLS["cpu_contention"])), throttled).verdicts
    assert verdict.cause == "cgroup_throttling"
    assert "throttled 40 times, 2 s in all (quota: 0.5 CPUs)" in [each.text for each in verdict.evidence][1]


def test_waits_for_a_cpu_that_the_profiler_took_are_no_verdict() -> None:
    found = report(observed(loop(STALLS["cpu_contention"])), QUIET)
    assert all(each.cause != "cpu_contention" for each in found.verdicts)
    assert any("otelgpu itself" in each for each in found.remarks)


def test_who_came_into_a_group_with_a_quota_meanwhile_is_not_judged() -> None:
    moved = Surroundings(quota_cpus=0.5, others_cpu_s=100.0)
    found = report(observed(loop(STALLS["cpu_contention"])), moved)
    assert all(each.cause != "cpu_contention" for each in found.verdicts)
    assert any("quota of 0.5 CPUs" in each for each in found.remarks)


def test_the_holder_of_a_lock_is_named_with_its_line() -> None:
    main, other = loop(threads_lock), Timeline(tid=PID + 1, name="evictor")
    for row in [each for each in main.thread.rows if each.type == OFF_CPU and each.syscall == ""]:
        if any(frame.name.startswith("PyThread") for frame in row.frames):
            other.now = row.begin_ns
            other.sleep(100, OTHER)
    (verdict,) = report(observed(main, other)).verdicts
    assert verdict.holder is not None
    assert (verdict.holder.tid, verdict.holder.name) == (PID + 1, "evictor")
    assert verdict.holder.line is not None and verdict.holder.line.function == "evict"
    assert 'held by thread "evictor" (TID 4243) at cache.py:7 evict' in sentence(verdict)


def test_the_holder_of_the_gil_is_who_ran() -> None:
    main, other = loop(STALLS["gil"]), Timeline(tid=PID + 1, name="tokenizer")
    for row in list(main.thread.rows):
        if row.frames[0].name == "[waiting for the GIL]":
            other.now = row.begin_ns
            other.work(90, (OTHER,))
    (verdict,) = report(observed(main, other)).verdicts
    assert verdict.holder is not None and verdict.holder.name == "tokenizer"
    assert verdict.holder.share == pytest.approx(0.9)


def test_a_thread_that_was_not_there_holds_nothing() -> None:
    other = Timeline(tid=PID + 1, name="bystander")
    other.sleep(10, OTHER)
    (verdict,) = report(observed(loop(threads_lock), other)).verdicts
    assert verdict.holder is None


def test_a_sleep_in_every_step_alike_is_remarked_and_no_verdict() -> None:
    found = report(observed(loop(lambda made: None)))
    assert not found.verdicts
    assert any("train (train.py:12) sleeps 20.0 ms each time" in each for each in found.remarks)


def test_a_launcher_that_waits_for_its_child_is_not_judged() -> None:
    launcher = Timeline(tid=1)
    launcher.thread.pid = 1
    launcher.wait(3000, kernel("do_wait"), syscall="wait4")
    found, _ = diagnose(observed(launcher, loop(STALLS["file_write"])), subjects=(1,), surroundings={})
    assert [each.thread.pid for each in found.verdicts if each.thread is not None] == [PID]


def test_a_server_that_waits_for_requests_is_not_judged() -> None:
    made = Timeline()
    for number in range(40):
        made.wait((10, 200, 40, 500)[number % 4], (*kernel("do_epoll_wait"), LOOP), syscall="epoll_wait")
        made.work(20)
    assert not report(observed(made)).verdicts


def test_a_server_whose_answers_are_its_rhythm_is_not_judged() -> None:
    made = Timeline()
    for number in range(40):
        made.wait((10, 200, 10, 500)[number % 4], (*kernel("do_epoll_wait"), LOOP), syscall="epoll_wait")
        made.wait(1, (SAVE, LOOP), syscall="getpid")
        made.work(20)
    assert not report(observed(made)).verdicts


def test_imports_and_the_interpreters_end_are_not_looked_at() -> None:
    made = Timeline()
    bootstrap = Frame(Kind.PYTHON, "_find_and_load", "<frozen importlib._bootstrap>", 1176)
    for _ in range(20):
        made.row(FILE_TIME, 30, (bootstrap, LOOP), file_call="read", file_name="lib.so", size_bytes=10)
        made.now += 60 * MS
    made.work(1500)
    finalize = native("gc_collect_main", "Py_FinalizeEx")
    for _ in range(3):
        made.work(60, finalize)
        made.work(100, native("Py_FinalizeEx"))
    assert not report(observed(made)).verdicts


@pytest.mark.parametrize(
    ("missing", "said"),
    [(OFF_CPU, "offcpu"), (SYSCALL_TIME, "syscall"), (FILE_TIME, "file"), (CPU, "cpu")],
)
def test_a_kind_that_was_not_recorded_is_a_limit(missing: str, said: str) -> None:
    found = report(observed(loop(STALLS["file_write"]), without=(missing,)), None)
    assert any(each.startswith(f"no profile of kind {said}") for each in found.limits)


def test_without_waits_and_calls_nothing_can_be_said() -> None:
    (verdict,) = report(
        observed(loop(STALLS["file_write"]), without=(OFF_CPU, SYSCALL_TIME, FILE_TIME)), None
    ).verdicts
    assert verdict.klass == INCONCLUSIVE and "profile -t cpu,offcpu,syscall,file" in verdict.next


def test_of_nothing_it_is_said_that_nothing_works() -> None:
    (verdict,) = report(observed()).verdicts
    assert verdict.klass == INCONCLUSIVE


def test_a_file_says_what_it_does_not_know() -> None:
    assert any(each.startswith("from a file") for each in report(observed(loop(faults)), None).limits)


def test_the_line_is_that_which_makes_the_gap_and_not_one_that_is_in_every_step() -> None:
    made = Timeline()
    fault = kernel("clear_page_erms", "handle_mm_fault")
    for step in range(30):
        made.work(40, (*fault, LOOP))
        made.sleep(20)
        if step % 5 == 4:
            made.work(30, (*fault, SAVE, LOOP))
    assert [each.line.line for each in report(observed(made)).verdicts if each.line] == [31]


def test_gaps_in_which_it_ran_are_inconclusive() -> None:
    (verdict,) = report(observed(loop(lambda made: made.work(150, (SAVE, LOOP))))).verdicts
    assert verdict.klass == INCONCLUSIVE and "no wait that was seen explains it" in verdict.evidence[0].text


@examples(60)
@given(
    work_ms=st.integers(20, 200),
    every=st.integers(2, 8),
    length=st.floats(0.6, 4.0),
    turns=st.integers(4, 8),
    jitter=st.lists(st.floats(-0.05, 0.05), min_size=64, max_size=64),
)
def test_a_write_is_found_with_its_rhythm_and_its_cost(
    work_ms: int, every: int, length: float, turns: int, jitter: list[float]
) -> None:
    made = Timeline()
    steps, spent = every * turns, 0.0
    for step in range(steps):
        made.work(work_ms * (1 + jitter[step % 64]))
        made.sleep(10)
        if step % every == every - 1:
            made.write(length * work_ms, 1_000_000)
            spent += length * work_ms
    first = report(observed(made)).verdicts[0]
    assert first.cause == "file_write" and first.rhythm is not None and first.cost is not None
    assert first.rhythm.every == every and first.rhythm.times >= turns - 1
    assert first.cost.seconds == pytest.approx(spent / 1e3, rel=0.35)


@examples(60)
@given(
    work_ms=st.integers(20, 200),
    sleep_ms=st.integers(2, 50),
    read_ms=st.floats(0.5, 12.0),
    jitter=st.lists(st.floats(-0.1, 0.1), min_size=40, max_size=40),
)
def test_nothing_is_said_of_steps_that_are_alike(
    work_ms: int, sleep_ms: int, read_ms: float, jitter: list[float]
) -> None:
    made = Timeline()
    for each in jitter:
        made.work(work_ms * (1 + each))
        made.sleep(sleep_ms * (1 + each))
        made.write(read_ms * (1 - each) if read_ms < 0.15 * work_ms else 0.5, 1_000_000, call="read")
    assert not report(observed(made)).verdicts


@pytest.mark.parametrize(("ms", "every", "steps"), [(12, 5, 40), (30, 25, 100)])
def test_gaps_that_are_short_or_rare_are_not_worth_a_verdict(ms: float, every: int, steps: int) -> None:
    assert not report(observed(loop(lambda made: made.write(ms, 1000), every=every, steps=steps))).verdicts


def test_spans_that_a_program_publishes_are_its_steps() -> None:
    made = Timeline()
    for step in range(30):
        for _ in range(3):  # three sleeps a step, which would be taken for steps
            made.work(20)
            made.sleep(10)
        if step % 5 == 4:
            made.write(120, 1000)
        span = f"{step + 1:032x}-{step + 1:016x}"
        made.thread.rows = [row if row.span else structs.replace(row, span=span) for row in made.thread.rows]
    found = report(observed(made))
    (verdict,) = found.verdicts
    assert (found.input.steps, found.input.beat) == (30, "spans that the program publishes")
    assert verdict.rhythm is not None and verdict.rhythm.every == 5
    assert len(verdict.spans) == 6 and verdict.spans[0].endswith(f"{5:016x}")


def test_a_launch_only_queues_work() -> None:
    (verdict,) = report(observed(loop(lambda made: made.call(100, "cudaLaunchKernel")))).verdicts
    assert verdict.klass == INCONCLUSIVE


def test_numbers_are_written_as_people_read_them() -> None:
    assert [ordinal(each) for each in (1, 2, 3, 5, 11, 12, 21, 112)] == (
        ["1st", "2nd", "3rd", "5th", "11th", "12th", "21st", "112th"]
    )
    assert [shown_bytes(each) for each in (999, 50_000_000, 2_500_000_000)] == ["999 B", "50.0 MB", "2.5 GB"]


def in_parts(made: Timeline) -> None:
    """A large file, read in 50 parts."""
    for _ in range(50):
        made.write(2, 1_000_000, call="read")
        made.work(0.5)


def test_a_file_that_is_read_in_many_parts_is_no_rhythm() -> None:
    (verdict,) = report(observed(loop(in_parts))).verdicts
    assert verdict.cause == "file_read"
    assert verdict.rhythm is not None and (verdict.rhythm.steps, verdict.rhythm.every) == (30, 5)


def cold_pages(made: Timeline) -> None:
    """Waits of a mapped file: by sums of 1 ms, as the kernel part reports short ones."""
    for _ in range(100):
        made.wait(
            1, (*kernel("filemap_fault", "handle_mm_fault"), SAVE, LOOP), state="uninterruptible", syscall=""
        )
        made.work(0.2)


def test_a_thousand_short_page_faults_are_one_stall_and_no_rhythm() -> None:
    (verdict,) = report(observed(loop(cold_pages))).verdicts
    assert verdict.cause == "page_faults"
    assert verdict.rhythm is not None and (verdict.rhythm.steps, verdict.rhythm.every) == (30, 5)


def test_of_waits_for_a_cpu_the_longest_are_the_quotas_where_others_ran_too() -> None:
    made = Timeline()
    for _step in range(40):
        made.work(20)
        for _ in range(6):
            made.wait(12, (LOOP,), syscall="", state="runnable")
        made.wait(48, (LOOP,), syscall="", state="runnable")
        made.sleep(10)
    held = Surroundings(throttled_s=48e-3 * 40, throttled_times=40, quota_cpus=0.2, others_cpu_s=100.0)
    found = report(observed(made), held).verdicts
    assert [each.cause for each in found] == ["cgroup_throttling", "cpu_contention"]
    assert found[0].latency is not None and abs(found[0].latency.median_s - 0.048) < 1e-3


@pytest.mark.parametrize(("periods", "causes"), [(60, ["cgroup_throttling"]), (400, [])])
def test_a_quota_that_is_spent_in_most_periods_is_the_cause_of_all_waits(
    periods: int, causes: list[str]
) -> None:
    """Less time is counted than was waited: all waits are as long, and which are the quota's cannot be told."""
    made = Timeline()
    for _step in range(40):
        made.work(20)
        for _ in range(2):
            made.wait(40, (LOOP,), syscall="", state="runnable")
        made.sleep(10)
    held = Surroundings(
        throttled_s=0.33, throttled_times=35, quota_periods=periods, quota_cpus=0.2, others_cpu_s=0.0
    )
    found = report(observed(made), held).verdicts
    assert [each.cause for each in found] == causes
    if found:
        assert "in 35 of 60 periods, 0.33 s in all (quota: 0.2 CPUs)" in found[0].evidence[1].text


def test_throttling_costs_what_it_costs_in_all_steps_and_not_in_the_longest_alone() -> None:
    """Each step waits 80 ms for the next period, in one of many functions, some 60 ms longer; and a collection."""
    made = Timeline()
    for step in range(60):
        made.work(20)
        layer = Frame(Kind.PYTHON, f"layer{step % 9}", "/app/model.py", 7)
        made.wait(140 if step % 13 == 5 else 80, (layer, LOOP), syscall="", state="runnable")
        if step % 20 == 7:
            collection(made)
        made.sleep(3)
    held = Surroundings(
        throttled_s=4.5, throttled_times=60, quota_periods=62, quota_cpus=0.2, others_cpu_s=100.0
    )
    found = report(observed(made), held).verdicts
    assert [each.cause for each in found] == ["cgroup_throttling", "garbage_collection"]
    assert found[0].cost is not None and found[0].cost.share == pytest.approx(0.78, abs=0.04)
    assert "in every one of 60 steps" in sentence(found[0])


@pytest.mark.parametrize("sleep_ms", [0, 3])
def test_waits_for_the_next_period_are_many_though_it_runs_for_less_between_them(sleep_ms: int) -> None:
    """With a call that gives steps, and without."""
    made = Timeline()
    for _step in range(40):
        made.work(20)
        made.wait(80, (LOOP,), syscall="", state="runnable")
        if sleep_ms:
            made.sleep(sleep_ms)
    held = Surroundings(throttled_s=3.2, throttled_times=40, quota_periods=41, quota_cpus=0.2)
    (verdict,) = report(observed(made), held).verdicts
    assert verdict.cause == "cgroup_throttling"
    assert verdict.cost is not None and verdict.cost.share == pytest.approx(0.79, abs=0.02)
    assert verdict.rhythm is not None and verdict.rhythm.times >= 39


def test_who_waits_for_a_compiler_that_was_started_compiles() -> None:
    made = loop(other_program)
    compiler = Timeline(tid=PID + 7)
    compiler.thread.pid, compiler.thread.program = PID + 7, "x86_64-linux-gnu-gcc-12"
    for begin in (row.begin_ns for row in made.thread.rows if row.syscall == "poll"):
        compiler.now = begin
        compiler.work(90, native("yyparse"))
    (verdict,) = report(observed(made, compiler)).verdicts
    assert verdict.cause == "compile" and verdict.line is not None and verdict.line.function == "save"
    compiler.thread.program = "gccgo-tests"
    assert [each.cause for each in report(observed(made, compiler)).verdicts] == ["subprocess"]


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("torch/_dynamo/eval_frame.py", "_fn"),
        ("triton/runtime/jit.py", "run"),
        ("triton/runtime/autotuner.py", "run"),
    ],
)
def test_code_that_calls_what_was_compiled_does_not_compile(file: str, function: str) -> None:
    frame = Frame(Kind.PYTHON, function, f"/usr/lib/python3/site-packages/{file}", 7)
    made = loop(lambda made: made.work(100, (frame, SAVE, LOOP)))
    assert all(each.cause != "compile" for each in report(observed(made)).verdicts)


def test_functions_of_libraries_that_compile_are_known() -> None:
    for name in ("nvrtcCompileProgram", "cuModuleLoadDataEx", "cudnnFindConvolutionForwardAlgorithmEx"):
        (verdict,) = report(observed(loop(lambda made, name=name: made.call(100, name)))).verdicts  # type: ignore[misc]
        assert verdict.cause == "compile"


def test_a_program_without_python_has_steps_and_places_by_its_own_functions() -> None:
    main = (
        Frame(Kind.NATIVE, "main", "/app/simulate"),
        Frame(Kind.NATIVE, "__libc_start_main", "/lib/libc.so.6"),
    )
    save = Frame(Kind.NATIVE, "save_state", "/app/simulate")
    made = Timeline(name="simulate")
    for step in range(30):
        made.work(60, main)
        made.wait(20, (Frame(Kind.NATIVE, "nanosleep", "/lib/libc.so.6"), *main), syscall="clock_nanosleep")
        if step % 5 == 4:
            made.row(FILE_TIME, 100, (save, *main), file_call="write", file_name="state.bin", size_bytes=1000)
            made.wait(100, (save, *main), syscall="write")
    (verdict,) = report(observed(made)).verdicts
    assert verdict.cause == "file_write" and verdict.rhythm is not None and verdict.rhythm.every == 5
    assert verdict.line is not None and verdict.line.function == "save_state"
    assert "at simulate save_state, which takes 100 ms" in sentence(verdict)


def writes_to(*folders: str, names: Sequence[str] = ("checkpoint.bin",)) -> StallVerdict:
    """The verdict on a loop that writes a file every fifth step, in turn to each of the folders and names."""
    made = Timeline()
    for step in range(40):
        made.work(30)
        made.sleep(10)
        if step % 5 == 4:
            turn = step // 5
            made.write(100, 50_000_000, name=names[turn % len(names)], folder=folders[turn % len(folders)])
    (verdict,) = report(observed(made)).verdicts
    return verdict


@pytest.mark.parametrize(
    ("folders", "names", "file", "path"),
    [
        (["/srv/run7"], ["a.bin"], "a.bin", "/srv/run7/a.bin"),
        (["/srv/run7"], ["a1.bin", "a2.bin"], "a*.bin", "/srv/run7/a*.bin"),
        (["/srv/run7", "/srv/run8"], ["a.bin"], "a.bin", "/srv/run*/a.bin"),
        (["…/d/d"], ["a.bin"], "a.bin", "…/d/d/a.bin"),
        ([""], ["a1.bin", "a2.bin"], "a*.bin", ""),
    ],
)
def test_a_file_is_named_with_its_path(folders: list[str], names: list[str], file: str, path: str) -> None:
    verdict = writes_to(*folders, names=names)
    assert (verdict.file, verdict.path) == (file, path)
    said = [each.text for each in verdict.evidence if each.name == "file"]
    assert [path in text for text in said] == ([True] if path else [])
    assert ["cut" in text or "too many" in text for text in said] == ([path.startswith("…")] if path else [])


def test_of_two_faults_in_one_step_each_is_named() -> None:
    made = Timeline()
    for step in range(40):
        made.work(30)
        made.sleep(10)
        if step % 4 == 3:
            made.sleep(250, SAVE)
        if step % 12 == 11:
            made.write(60, 50_000_000)
    assert [each.cause for each in report(observed(made)).verdicts] == ["sleep", "file_write"]


@pytest.mark.parametrize(
    ("late", "causes"),
    [({3, 11, 19, 27, 35}, ["network"]), ({3, 4, 15, 17, 36}, [])],
    ids=["every eighth", "at random"],
)
def test_what_steps_are_found_by_is_a_stall_where_it_is_longer_in_every_nth(
    late: set[int], causes: list[str]
) -> None:
    receive = (*kernel("sk_wait_data", "tcp_recvmsg"), *native("recv"), LOOP)
    made = Timeline()
    for step in range(40):
        made.wait(300 if step in late else 2, receive, syscall="recvfrom")
        made.work(30)
    found = report(observed(made))
    assert found.input.beat.startswith("recvfrom")
    assert [each.cause for each in found.verdicts] == causes
    assert [each.rhythm.every for each in found.verdicts if each.rhythm is not None] == [8] * len(causes)


def test_a_loop_after_long_preparations_has_steps() -> None:
    made = Timeline()
    for _ in range(20):  # of other steps than those that come
        made.write(200, 1_000_000)
    for step in range(40):
        made.work(30)
        made.sleep(10)
        if step % 5 == 4:
            made.wait(100, (*kernel("filemap_read"), OTHER, LOOP), syscall="pread64", state="uninterruptible")
    found = report(observed(made))
    assert [each.cause for each in found.verdicts] == ["file_read"]
    assert found.verdicts[0].rhythm is not None and found.verdicts[0].rhythm.every == 5


def test_steps_that_run_for_longer_are_inconclusive_and_where_they_run_is_said() -> None:
    (verdict,) = report(observed(loop(lambda made: made.work(200, (SAVE, LOOP))))).verdicts
    assert verdict.klass == INCONCLUSIVE
    assert verdict.evidence[0].text.endswith("most of it at save (train.py:31)")


def disk_reads(made: Timeline) -> None:
    """Eight requests, and a read that waits for them."""
    for number in range(8):
        request = Seen(BLOCK_TIME, made.now + number * MS, 5 * MS, (SAVE, LOOP), call="read", device="vda")
        made.thread.rows.append(request)
    made.write(100, 8_000_000, call="read")


def test_the_disk_is_named_that_a_thread_asked_while_it_stood_still() -> None:
    (verdict,) = report(observed(loop(disk_reads))).verdicts
    assert verdict.cause == "file_read" and verdict.device == "vda"
    assert "meanwhile it asked vda: read 48 times; 5.00 ms each" in [each.text for each in verdict.evidence]


def test_a_write_without_requests_of_its_own_is_written_back_for_all() -> None:
    seen = observed(loop(lambda made: made.write(100, 1000)))
    assert all(each.name != "disk" for each in report(seen).verdicts[0].evidence)  # nobody looked
    seen.types |= {BLOCK_TIME}
    (verdict,) = report(seen).verdicts
    assert verdict.device == ""
    assert any(
        "the kernel writes it back later, for all who share the disk" in each.text
        for each in verdict.evidence
    )


def waits_for_a_peer(made: Timeline) -> None:
    made.wait(100, (*kernel("tcp_recvmsg"), SAVE, LOOP), syscall="recvfrom")


def test_the_peer_that_a_thread_was_seen_to_wait_for_is_evidence() -> None:
    seen = observed(loop(waits_for_a_peer))
    tid = seen.threads[0].tid
    here = SocketWait(tid=tid, looks=3, all_looks=40, address="10.0.0.9:53")
    there = SocketWait(
        tid=tid, looks=37, all_looks=40, address="10.0.0.7:80", pid=7, name="data", elsewhere=True
    )
    other = SocketWait(tid=tid + 1, looks=9, all_looks=9, address="10.0.0.8:1")

    def said(seen: Observations, *waits: SocketWait) -> list[str]:
        (verdict,) = report(seen, structs.replace(QUIET, socket_waits=waits)).verdicts
        return [each.text for each in verdict.evidence if each.name == "peer"]

    first, second = said(seen, here, other, there)
    assert first == (
        "in 37 of 40 looks at which it stood in a call on a socket, the peer was 10.0.0.7:80, data (PID 7) in another "
        "network namespace"
    )
    assert second.endswith("10.0.0.9:53, which no process of this machine is known to have")
    assert said(seen, other) == said(observed(loop(disk_reads)), here) == []


def test_pages_that_the_kernel_writes_back_are_charged_to_who_made_them_dirty() -> None:
    def said(**counted: Any) -> list[str]:
        around = structs.replace(QUIET, **counted)
        (verdict,) = report(observed(loop(lambda made: made.write(100, 1000))), around).verdicts
        return [each.text for each in verdict.evidence if each.name == "written_back"]

    others = [Writer(pid=7, name="etcd", dirtied_bytes=2_500_000)]
    assert said() == said(others_dirtied_bytes=5) == said(dirtied_bytes=0) == []
    (text,) = said(dirtied_bytes=7_500_000, others_dirtied_bytes=2_500_000, writers=others)
    assert "it made 7.5 MB dirty meanwhile, 75% of all; all others 2.5 MB: etcd (PID 7) 2.5 MB" in text
    (text,) = said(dirtied_bytes=7_500_000)
    assert "7.5 MB dirty meanwhile, 100% of all; no other that still runs any" in text


@pytest.mark.parametrize(
    ("devices", "others", "says"),
    [
        (
            {"dm-0": 8_000_000, "sda": 8_000_100},
            0,
            "kernel wrote 8.0 MB to sda, 8.0 MB to dm-0 meanwhile; no other",
        ),
        (
            {"sda": 10_000_000},
            2_500_000,
            "10.0 MB to sda meanwhile; other processes made 25% of its dirty pages",
        ),
        ({}, 0, "nothing was written to a disk for control group /job meanwhile"),
    ],
)
def test_what_is_written_back_for_a_control_group_is_said(
    devices: dict[str, int], others: int, says: str
) -> None:
    writes = GroupWrites(group="/job", bytes_by_device=devices, others_dirtied_bytes=others)
    around = structs.replace(QUIET, dirtied_bytes=7_500_000, group_writes=writes)
    seen = observed(loop(lambda made: made.write(100, 1000)))
    seen.types |= {BLOCK_TIME}
    seen.written_back.append(WrittenBack(group="job", device="sda", requests=4, spent_ns=80 * MS))
    (verdict,) = report(seen, around).verdicts
    said = {each.name: each.text for each in verdict.evidence}
    assert says in said["group_writes"]
    assert said["disk"].endswith("the kernel writes it back later, for its control group /job")
    assert said["group_requests"].endswith("wrote back to sda meanwhile in 4 requests, 20.0 ms each")
