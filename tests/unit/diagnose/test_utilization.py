"""`diagnose utilization`: of jobs whose fault is known the cause is named first; of healthy ones nothing is said."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from otelgpu.diagnose.stall.observations import Observations
from otelgpu.diagnose.stall.surroundings import Surroundings
from otelgpu.diagnose.utilization.causes import CAUSES, cause_of_wait
from otelgpu.diagnose.utilization.devices import ProcessUse
from otelgpu.diagnose.utilization.diagnosis import Job, diagnose
from otelgpu.diagnose.utilization.job_processes import (
    JobProcess,
    frameworks_of,
    has_cuda,
    interactive_by,
)
from otelgpu.diagnose.utilization.lost import Lost, lost_of
from otelgpu.diagnose.utilization.sentences import sentence
from otelgpu.diagnose.utilization.verdicts import INCONCLUSIVE, UtilizationReport
from tests.unit.diagnose.gpu_jobs import GIB, GpuTimeline, device, job
from tests.unit.diagnose.stall_timelines import LOOP, PID, kernel, native

STEPS = 40


def report_of(
    fill: Callable[[GpuTimeline, int], None], steps: int = STEPS, **more: object
) -> UtilizationReport:
    timeline = GpuTimeline()
    for step in range(steps):
        fill(timeline, step)
    timeline.launch(1)
    return diagnose(job(timeline, **more))[0]  # type: ignore[arg-type]


def causes(report: UtilizationReport) -> list[str]:
    return [each.cause or each.klass for each in report.verdicts]


def device_bound(timeline: GpuTimeline, step: int) -> None:
    timeline.launch()
    timeline.synchronize(40)


def checkpoint(timeline: GpuTimeline, step: int) -> None:
    device_bound(timeline, step)
    if step % 5 == 4:
        timeline.write(150, 50_000_000)


def decode(timeline: GpuTimeline, step: int) -> None:
    timeline.work(40)
    device_bound(timeline, step)


def looks(timeline: GpuTimeline, step: int) -> None:
    timeline.launch()
    timeline.item(30)
    timeline.now += 4_000_000


def copies(timeline: GpuTimeline, step: int) -> None:
    timeline.copy(30, 200_000_000)
    device_bound(timeline, step)


def allocates(timeline: GpuTimeline, step: int) -> None:
    timeline.allocate(15)
    device_bound(timeline, step)


def receives(timeline: GpuTimeline, step: int) -> None:
    frames = (*kernel("tcp_recvmsg_locked", "tcp_recvmsg"), *native("recv"), LOOP)
    timeline.wait(30, frames, "recvfrom")
    device_bound(timeline, step)


def sends(timeline: GpuTimeline, step: int) -> None:
    frames = (*kernel("sk_stream_wait_memory", "tcp_sendmsg_locked"), *native("send"), LOOP)
    timeline.wait(30, frames, "sendto")
    device_bound(timeline, step)


def reads_remotely(timeline: GpuTimeline, step: int) -> None:
    frames = (*kernel("nfs_file_read", "vfs_read", "filemap_read"), LOOP)
    timeline.wait(30, frames, "read")
    device_bound(timeline, step)


def exchanges(timeline: GpuTimeline, step: int) -> None:
    device_bound(timeline, step)
    timeline.call(30, "ncclAllReduce", "nccl_time")


@pytest.mark.parametrize(
    ("fill", "cause"),
    [
        (checkpoint, "checkpointing"),
        (decode, "preprocessing"),
        (looks, "api_misuse"),
        (copies, "host_transfer"),
        (allocates, "gpu_memory"),
        (receives, "external_data"),
        (sends, "result_upload"),
        (reads_remotely, "remote_read"),
        (exchanges, "data_exchange"),
    ],
)
def test_what_the_gpu_waits_for_is_the_cause(fill: Callable[[GpuTimeline, int], None], cause: str) -> None:
    report = report_of(fill)
    assert causes(report) == [cause]
    verdict = report.verdicts[0]
    assert verdict.cost is not None
    assert 0.05 < verdict.cost.share < 1
    assert verdict.next == CAUSES[cause].next
    assert verdict.code
    assert cause in sentence(verdict)


def test_nothing_is_said_of_a_loop_that_waits_for_the_device() -> None:
    assert causes(report_of(device_bound)) == []


def test_nothing_is_said_of_work_that_the_device_overlaps() -> None:
    def fill(timeline: GpuTimeline, step: int) -> None:
        timeline.launch()
        begin = timeline.now
        timeline.work(30)
        timeline.kernel((begin - timeline.now) / 1e6, 40)
        timeline.synchronize(10)

    assert causes(report_of(fill)) == []


def test_the_costly_cause_comes_first() -> None:
    def fill(timeline: GpuTimeline, step: int) -> None:
        decode(timeline, step)
        timeline.copy(15, 100_000_000)

    assert causes(report_of(fill)) == ["preprocessing", "host_transfer"]


def test_cost_is_the_idle_time_that_the_wait_covers() -> None:
    verdict = report_of(checkpoint).verdicts[0]
    assert verdict.cost is not None
    assert verdict.cost.seconds == pytest.approx(8 * 0.15, rel=0.02)


def test_a_busy_device_bounds_the_cost() -> None:
    busy = report_of(decode, devices=[device(utilization=0.8)])
    assert busy.verdicts[0].cost is not None
    assert busy.verdicts[0].cost.share == pytest.approx(0.2, abs=0.01)
    assert causes(report_of(decode, devices=[device(utilization=0.97)])) == []


def small_kernels(timeline: GpuTimeline, step: int) -> None:
    timeline.launch(count=500, ms=0.05, blocks=2)
    timeline.synchronize(1)


def test_kernels_that_are_too_small_are_a_small_batch() -> None:
    report = report_of(small_kernels, devices=[device(used=4 * GIB)])
    assert causes(report) == ["batch_size"]
    assert "a grid has 2 blocks in the median, the device 100 multiprocessors" in [
        each.text for each in report.verdicts[0].evidence
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"devices": [device(used=70 * GIB)]},
        {"devices": [device(used=4 * GIB, utilization=0.9)]},
        {"devices": [device(used=4 * GIB, model="NVIDIA Unknown")]},
    ],
)
def test_a_small_batch_needs_free_memory_an_idle_device_and_its_size(more: dict[str, object]) -> None:
    assert causes(report_of(small_kernels, **more)) == []


def test_who_waits_for_a_cpu_prepares_nothing() -> None:
    def fill(timeline: GpuTimeline, step: int) -> None:
        timeline.wait(40, (LOOP,), "")
        timeline.thread.rows[-1] = type(timeline.thread.rows[-1])(
            "off_cpu", timeline.now - 40_000_000, 40_000_000, (LOOP,), state="runnable"
        )
        device_bound(timeline, step)

    report = report_of(fill)
    assert causes(report) == []
    assert any("cpu_contention" in remark for remark in report.remarks)


def test_a_thread_that_its_quota_holds_back_is_told_so() -> None:
    timeline = GpuTimeline()
    for _ in range(40):
        timeline.launch()
        timeline.synchronize(20)
        timeline.row("off_cpu", 80, (LOOP,), state="runnable")
        timeline.now += 80_000_000
    watched = job(timeline)
    assert "in cpu_contention" in diagnose(watched)[0].remarks[0]
    watched.surroundings = {
        PID: Surroundings(throttled_s=3.2, throttled_times=40, quota_periods=40, quota_cpus=0.2)
    }
    report, _ = diagnose(watched)
    (remark,) = report.remarks
    assert "while the thread is ready to run and is held back by the CPU quota of its control group" in remark
    assert "raise the quota" in remark
    assert report.table[0].cause == "cgroup_throttling"


def test_a_look_at_a_result_stays_one_where_the_thread_is_preempted_after_it() -> None:
    def fill(timeline: GpuTimeline, step: int) -> None:
        timeline.launch()
        timeline.item(30)
        timeline.now += 2_000_000
        timeline.row("off_cpu", 15, (LOOP,), state="runnable")
        timeline.now += 17_000_000

    assert causes(report_of(fill)) == ["api_misuse"]


def test_what_nobody_has_waited_for_may_keep_the_device_busy() -> None:
    def fill(timeline: GpuTimeline, step: int) -> None:
        timeline.launch()
        timeline.work(40)
        timeline.launch()
        timeline.synchronize(1)

    assert causes(report_of(fill)) == []
    assert causes(report_of(fill, devices=[device(utilization=0.3)])) == ["preprocessing"]


# -- the job -------------------------------------------------------------------------------------------------


def seen(**more: object) -> JobProcess:
    return JobProcess(pid=PID, program="python", **{"has_cuda": True, **more})  # type: ignore[arg-type]


def test_a_process_that_is_done_and_holds_the_gpu_is_unreleased() -> None:
    timeline = GpuTimeline()
    for step in range(5):
        device_bound(timeline, step)
    report, _ = diagnose(job(timeline, seconds=10))
    assert causes(report) == ["unreleased"]
    assert report.verdicts[0].cost is not None
    assert report.verdicts[0].cost.share > 0.9


def test_a_process_without_any_call_that_has_memory_on_the_device_is_unreleased() -> None:
    assert causes(diagnose(job(None, seconds=10))[0]) == ["unreleased"]


def test_a_notebook_is_interactive() -> None:
    timeline = GpuTimeline()
    device_bound(timeline, 0)
    process = seen(interactive="its command has ipykernel_launcher.py")
    assert causes(diagnose(job(timeline, process=process, seconds=10))[0]) == ["interactive"]


def test_a_notebook_that_trains_is_none() -> None:
    report = report_of(device_bound, process=seen(interactive="its command has ipykernel"), steps=80)
    assert causes(report) == []


def test_a_framework_without_cuda_has_the_wrong_library() -> None:
    timeline = GpuTimeline()
    timeline.work(5000)
    process = seen(has_cuda=False, frameworks=["PyTorch"])
    report = diagnose(job(timeline, process=process, devices=[device(used=0, pid=1)]))[0]
    assert causes(report) == ["library_installation"]
    report = diagnose(job(timeline, process=process, devices=[]))[0]
    assert causes(report) == [INCONCLUSIVE]


def test_a_solver_on_the_cpu_is_no_deep_learning() -> None:
    timeline = GpuTimeline()
    for _ in range(10):
        timeline.work(400)
        timeline.launch(1)
        timeline.synchronize(1)
    assert causes(diagnose(job(timeline))[0]) == ["not_deep_learning"]
    assert causes(diagnose(job(timeline, process=seen(frameworks=["PyTorch"])))[0]) == ["preprocessing"]


def test_devices_that_are_not_used_and_devices_that_others_use_are_oversubscription() -> None:
    several = [device(), *(device(used=0, pid=-1, index=index) for index in (1, 2, 3))]
    report = report_of(device_bound, devices=several, process=seen(visible=4))
    assert causes(report) == ["oversubscription"]
    assert report.verdicts[0].cost is not None
    assert report.verdicts[0].cost.share == pytest.approx(3)
    assert causes(report_of(device_bound, devices=several)) == []  # which it was given is not known
    shared = device()
    shared = type(shared)(
        **{name: getattr(shared, name) for name in shared.__struct_fields__ if name != "processes"},
        processes=[*shared.processes, ProcessUse(pid=77, memory_bytes=GIB, utilization=0.4)],
    )
    report = report_of(device_bound, devices=[shared])
    assert causes(report) == ["oversubscription"]
    assert "PID 77 ran kernels on GPU 0 for 40% of the time" in report.verdicts[0].evidence[0].text


def test_what_is_missing_is_said() -> None:
    report = diagnose(job(None, seconds=10, devices=[]))[0]
    assert causes(report) == [INCONCLUSIVE]
    assert "no GPU can be read" in report.verdicts[0].evidence[0].text
    short = report_of(device_bound, steps=3)
    assert causes(short) == [INCONCLUSIVE]
    assert "too short" in short.verdicts[0].evidence[0].text


# -- small things --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "terminal", "is_one"),
    [
        (["/opt/bin/python", "-m", "ipykernel_launcher", "-f", "x.json"], False, True),
        (["/opt/bin/python", "/opt/bin/ipython"], False, True),
        (["python3"], True, True),
        (["python3", "-i", "train.py"], True, True),
        (["python3"], False, False),
        (["python3", "train.py"], True, False),
        (["python3", "-m", "train"], True, False),
        (["./train"], True, False),
        ([], True, False),
    ],
)
def test_who_somebody_types_into(command: list[str], *, terminal: bool, is_one: bool) -> None:
    assert bool(interactive_by(command, has_terminal=terminal)) is is_one


def test_libraries_by_their_files() -> None:
    assert frameworks_of(["libtorch_cpu.so", "libc.so.6"]) == ["PyTorch"]
    assert not has_cuda(["libtorch_cpu.so", "libcurl.so.4"])
    assert has_cuda(["libcudart-d0da41ae.so.11.0"])
    assert has_cuda(["libcudart.so.12"])


def test_a_write_to_a_remote_file_system_is_an_upload() -> None:
    assert cause_of_wait("file_write", ("nfs_file_write", "vfs_write"), "write") == "result_upload"
    assert cause_of_wait("file_write", ("ext4_file_write_iter",), "write") == "checkpointing"
    assert cause_of_wait("sleep", (), "clock_nanosleep") == ""


# -- what did not arrive -------------------------------------------------------------------------------------


def small(timeline: GpuTimeline, step: int) -> None:
    timeline.launch(100, ms=0.3, blocks=1)
    timeline.synchronize(2)


def jobs(fill: Callable[[GpuTimeline, int], None], **lost: int) -> Job:
    timeline = GpuTimeline()
    for step in range(STEPS):
        fill(timeline, step)
    timeline.launch(1)
    return structs.replace(job(timeline, devices=(device(4 * GIB),)), lost=Lost(**lost))


def test_launches_too_small_are_named_of_a_thread_of_which_nothing_else_was_seen() -> None:
    seen = jobs(small)
    unseen = structs.replace(seen, observations=Observations(threads=[], types=frozenset(), rejected={}))
    for each in (seen, unseen):
        report, _ = diagnose(each)
        assert causes(report) == ["batch_size"], report.verdicts
    assert report.verdicts[0].process is not None and report.verdicts[0].process.tid == PID


def test_an_idle_gpu_is_not_explained_where_nothing_was_seen_of_the_thread() -> None:
    seen = structs.replace(
        jobs(decode), observations=Observations(threads=[], types=frozenset(), rejected={})
    )
    report, _ = diagnose(seen)
    assert causes(report) == [INCONCLUSIVE]
    assert "what the thread did meanwhile was not seen" in report.verdicts[0].evidence[0].text


@pytest.mark.parametrize("fill", [decode, copies, checkpoint, looks, device_bound])
def test_where_many_calls_are_lost_no_gap_between_those_that_came_is_a_cause(
    fill: Callable[[GpuTimeline, int], None],
) -> None:
    calls = len(jobs(fill).calls)
    report, _ = diagnose(jobs(fill, calls=calls // 10))
    assert causes(report) == [INCONCLUSIVE]
    assert "9% of the calls of CUDA were lost" in report.verdicts[0].evidence[0].text
    assert any("calls of CUDA" in each and "lost or only counted" in each for each in report.limits)
    few, _ = diagnose(jobs(fill, calls=calls // 100))
    assert INCONCLUSIVE not in causes(few)
    assert any("lost or only counted" in each for each in few.limits) == (calls >= 100)


def test_small_grids_are_named_with_doubt_where_many_calls_are_lost() -> None:
    report, _ = diagnose(jobs(small, calls=1_000_000))
    assert causes(report) == ["batch_size"]
    assert report.verdicts[0].confidence == 0.5


def test_lost_observations_are_a_limit_and_nothing_found_takes_half_of_them() -> None:
    report, _ = diagnose(jobs(decode, observations=10))
    assert causes(report) == ["preprocessing"]
    assert any(each.startswith("10 observations of threads") for each in report.limits)
    report, _ = diagnose(jobs(device_bound, observations=1_000_000))
    assert causes(report) == []  # the GPU was not idle: there is nothing to explain


def test_what_is_lost_is_counted_by_where_it_was_lost() -> None:
    losses = {("cuda", "ring_full"): 3, ("cuda", "detail_shed"): 4, ("nccl", "ring_full"): 9}
    losses |= {("profile", "ring_full"): 5, ("profile", "profile_times_summed"): 6}
    assert lost_of(losses, beyond=1) == Lost(calls=8, observations=11)
    assert Lost(calls=8, observations=11).shares(24, 11) == (0.25, 0.5)
    assert Lost().shares(0, 0) == (0.0, 0.0)
