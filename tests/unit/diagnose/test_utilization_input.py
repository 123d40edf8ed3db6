"""What `diagnose utilization` reads: spans, configurations of models, peaks, devices; whatever they hold."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from otelgpu.cli import job_watch
from otelgpu.cli.job_watch import JobWatch, read_process
from otelgpu.cli.stall_surroundings import Reading
from otelgpu.cli.utilization import installed_peaks
from otelgpu.diagnose.utilization.devices import device_uses
from otelgpu.diagnose.utilization.diagnosis import diagnose
from otelgpu.diagnose.utilization.figures import Workload, _of_devices
from otelgpu.diagnose.utilization.gpu_calls import BLOCKING_COPY, COPY, LAUNCH, SYNC, GpuCalls, kind_of
from otelgpu.diagnose.utilization.idle import idle_by_calls, idle_by_device
from otelgpu.diagnose.utilization.model_shape import UnknownShape, parse_model
from otelgpu.diagnose.utilization.peaks import peak_of
from otelgpu.diagnose.utilization.recorded_calls import recorded_calls
from otelgpu.model.devices import DeviceReadings, DeviceSeen, ProcessReading, Quantity
from tests.rig.examples import examples
from tests.unit.diagnose.gpu_jobs import GpuTimeline, columns, job

LLAMA_3_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


# -- models and peaks ----------------------------------------------------------------------------------------


def test_parameters_of_a_known_model_are_counted() -> None:
    shape = parse_model(json.dumps(LLAMA_3_8B).encode())
    # 8,030,261,248 as published; layer norms, 266,240 in all, are not multiplied with as matrices are.
    assert shape.stored == 8_030_261_248 - 266_240
    assert shape.parameters == shape.stored - 4096 * 128256
    assert shape.kv_bytes_per_token() == 131_072
    assert shape.dtype == "bf16"


def test_training_takes_three_times_the_forward_pass() -> None:
    shape = parse_model(json.dumps(LLAMA_3_8B).encode())
    assert shape.flops_per_token(0, training=True) == 6.0 * shape.parameters
    assert shape.flops_per_token(1000, training=False) == 2.0 * shape.parameters + 4.0 * 32 * 4096 * 1000


def test_of_experts_those_count_that_a_token_goes_through() -> None:
    dense = parse_model(json.dumps(LLAMA_3_8B).encode())
    mixture = parse_model(
        json.dumps({**LLAMA_3_8B, "num_local_experts": 8, "num_experts_per_tok": 2}).encode()
    )
    mlp = 32 * 3 * 4096 * 14336
    assert mixture.parameters == dense.parameters + mlp
    assert mixture.stored == dense.stored + 7 * mlp


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"hidden_size": -1}', b'{"hidden_size": "x"}', b"\xff", b"[" * 100_000]
)
def test_what_is_no_configuration_is_refused(content: bytes) -> None:
    with pytest.raises(UnknownShape):
        parse_model(content)


@given(st.dictionaries(st.sampled_from([*LLAMA_3_8B, "head_dim", "n_inner", "num_experts"]), st.integers()))
@examples(100)
def test_any_numbers_give_a_shape_or_are_refused(changed: dict[str, int]) -> None:
    content = {
        **LLAMA_3_8B,
        **{key: value for key, value in changed.items() if key not in ("hidden_act", "torch_dtype")},
    }
    try:
        shape = parse_model(json.dumps(content).encode())
    except UnknownShape:
        return
    assert shape.flops_per_token(10, training=True) > 0


def test_peaks_are_by_the_whole_name_of_a_device() -> None:
    peaks = installed_peaks()
    known = peak_of("NVIDIA H100 80GB HBM3", peaks)
    assert known is not None
    assert known.memory_gb_per_s == 3350
    assert peak_of("Tesla V100-SXM2-16GB", peaks) is not None
    assert peak_of("NVIDIA H100", peaks) is None
    assert peak_of("", peaks) is None


def test_peaks_have_a_source_and_are_plausible() -> None:
    names = [name for peak in installed_peaks() for name in peak.models]
    assert len(names) == len(set(names))
    for peak in installed_peaks():
        assert peak.source.startswith("https://www.nvidia.com/")
        assert 30 < peak.sms < 200
        assert peak.tflops["fp32"] < peak.tflops["fp16"]
        assert "fp8" not in peak.tflops or peak.tflops["fp8"] == pytest.approx(
            2 * peak.tflops["fp16"], rel=0.03
        )


# -- figures -------------------------------------------------------------------------------------------------


def figure(name: str, **workload: Any) -> Any:
    timeline = GpuTimeline()
    for _ in range(40):
        timeline.launch()
        timeline.synchronize(40)
        timeline.sleep(10)
    watched = job(timeline)
    if workload:
        watched.workload = Workload(shape=parse_model(json.dumps(LLAMA_3_8B).encode()), **workload)
    report, _ = diagnose(watched)
    return next(each for each in report.figures if each.name == name)


def test_mfu_is_what_the_model_needs_over_the_peak() -> None:
    needed = 6 * (8_030_261_248 - 266_240 - 4096 * 128256)
    assert figure("mfu", tokens_per_second=10_000.0).value == pytest.approx(needed * 1e4 / 1e15)


def test_mfu_without_a_configuration_says_what_is_missing() -> None:
    found = figure("mfu")
    assert found.value is None
    assert "give --model-config" in found.text
    assert "--tokens-per-second" in figure("mfu", training=True).text


def test_mbu_is_what_a_step_reads_over_the_bandwidth() -> None:
    found = figure("mbu", training=False, tokens_per_step=8, context=1000)
    read = 2 * (8_030_261_248 - 266_240) + 8 * 1000 * 131_072
    assert found.value == pytest.approx(read / 0.05005 / 2e12, rel=0.01)


# -- idle time -----------------------------------------------------------------------------------------------


def test_after_a_wait_the_device_is_idle_until_the_next_launch() -> None:
    rows = [
        (0, 1_000_000, LAUNCH, 1, 1, 1, -1, 0, 1, 0),
        (1_000_000, 9_000_000, SYNC, 1, 1, 1, -1, 0, -1, 0),
        (14_000_000, 15_000_000, LAUNCH, 1, 1, 1, -1, 0, 1, 0),
        (15_100_000, 15_200_000, LAUNCH, 1, 1, 1, -1, 0, 1, 0),
        (20_000_000, 20_100_000, LAUNCH, 1, 1, 1, -1, 0, 1, 0),
    ]
    idle = idle_by_calls(columns(rows), 0, 20_100_000)
    assert idle.begin_ns.tolist() == [9_000_000, 15_200_000]
    assert idle.end_ns.tolist() == [14_000_000, 20_000_000]
    assert idle.drained.tolist() == [True, False]
    assert idle.within([10_000_000], [16_000_000]).tolist() == [4_800_000]


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), max_size=30),
    st.integers(0, 1000),
    st.integers(0, 1000),
)
@examples(100)
def test_idle_time_of_an_interval_is_what_no_kernel_covers(
    kernels: list[tuple[int, int]], begin: int, length: int
) -> None:
    timeline = GpuTimeline()
    timeline.kernels = [(at, at + took, 1, 1) for at, took in sorted(kernels)]
    idle = idle_by_device(job(timeline).times, 0, 1000)
    end = min(begin + length, 1000)
    busy = {moment for at, took in kernels for moment in range(at, at + took)}
    assert idle.within([begin], [end]).tolist() == [len(set(range(begin, end)) - busy)]


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("cudaLaunchKernelExC", LAUNCH),
        ("cuGraphLaunch", LAUNCH),
        ("cudaMemcpyAsync", COPY),
        ("cuMemcpyHtoD_v2", BLOCKING_COPY),
        ("cudaStreamSynchronize", SYNC),
    ],
)
def test_kinds_of_calls_by_their_names(function: str, kind: int) -> None:
    assert kind_of(function) == kind


# -- files ---------------------------------------------------------------------------------------------------


def line(*spans: dict[str, Any], pid: object = 7) -> bytes:
    key = "intValue" if isinstance(pid, int) else "stringValue"
    resource = {"attributes": [{"key": "process.pid", "value": {key: str(pid)}}]}
    scope = {"scope": {"name": "otelgpu.cuda"}, "spans": list(spans)}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}).encode()


def span(name: str, begin: object = "1000", end: object = "2000", **numbers: int) -> dict[str, Any]:
    attributes = [
        {"key": key.replace("_", "."), "value": {"intValue": str(value)}} for key, value in numbers.items()
    ]
    return {
        "traceId": "0" * 31 + "1",
        "spanId": "0" * 15 + "1",
        "name": name,
        "startTimeUnixNano": begin,
        "endTimeUnixNano": end,
        "attributes": attributes,
    }


def read(*lines: bytes) -> tuple[GpuCalls, Counter[str]]:
    rejected: Counter[str] = Counter()
    return recorded_calls(lines, rejected)[0], rejected


def test_calls_of_a_file_are_read() -> None:
    calls, rejected = read(
        line(
            span("cudaLaunchKernel flash_fwd", cuda_grid_x=4, cuda_grid_y=2, cuda_grid_z=1, thread_id=9),
            span("cudaMemcpy", "500", "600", cuda_size=100),
        )
    )
    assert calls.kind.tolist() == [BLOCKING_COPY, LAUNCH]
    assert calls.blocks.tolist() == [-1, 8]
    assert calls.size_bytes.tolist() == [100, -1]
    assert not rejected


def test_calls_that_were_summed_with_others_between_them_are_counted_and_left_out() -> None:
    merged = span("cudaLaunchKernel", otelgpu_count=500)
    merged["attributes"].append({"key": "otelgpu.merged", "value": {"boolValue": True}})
    calls, rejected = read(line(span("cudaLaunchKernel", otelgpu_count=2), merged))
    assert calls.count.tolist() == [2]
    assert rejected == {"calls_merged": 500}


def test_spans_that_cannot_be_are_counted_and_left_out() -> None:
    calls, rejected = read(
        line(span("cudaMalloc", "x"), span("cudaMalloc", "2000", "1000"), span("cudaMalloc", thread_id=-5)),
        line(span("cudaMalloc"), pid="seven"),
        b'{"otelgpu.cuda": "otelgpu.cuda"',
    )
    assert len(calls) == 1
    assert calls.tid.tolist() == [-1]
    assert rejected["spans_unreadable"] + rejected["lines_unreadable"] >= 2
    assert rejected["calls_left_out"] == 1


# -- devices and processes -----------------------------------------------------------------------------------


def test_readings_become_one_figure_each() -> None:
    seen = DeviceSeen(time_ns=0, uuid="GPU-1", index=0, minor=0, model="NVIDIA L4")
    readings = [
        DeviceReadings(
            time_ns=second * 10**9,
            uuid="GPU-1",
            values={
                Quantity.UTILIZATION_PERCENT: 20 * second,
                Quantity.MEMORY_USED_BYTES: 100 + second,
                Quantity.MEMORY_TOTAL_BYTES: 1000,
                Quantity.PCIE_RECEIVED_BYTES: 1000 * second,
                Quantity.PCIE_TRANSMITTED_BYTES: 500 * second,
                Quantity.SM_UTILIZATION_PPM: 100_000 * second,
                Quantity.NVLINK_RECEIVED_BYTES_PER_S: 1000,
                Quantity.NVLINK_TRANSMITTED_BYTES_PER_S: 2000 + second,
            },
            processes=(ProcessReading(tgid=5, device="GPU-1", memory_bytes=100, utilization_percent=10),),
        )
        for second in range(1, 5)
    ]
    (use,) = device_uses([seen, *readings])
    assert use.utilization == pytest.approx(0.5)
    assert use.memory_used_bytes == 104
    assert use.pcie_bytes_per_s == pytest.approx(1500)
    assert use.nvlink_bytes_per_s == pytest.approx(3002.5)  # there is no counter
    assert (use.sm, use.dram) == (pytest.approx(0.25), None)
    assert use.processes[0].utilization == pytest.approx(0.1)
    (few,) = device_uses([seen, *readings[:2]])
    assert few.utilization is None


def test_of_a_divided_gpu_each_part_is_a_device_with_its_own_processes() -> None:
    gpu = DeviceSeen(time_ns=0, uuid="GPU-1", index=3, minor=0, model="NVIDIA H100", mig=True)
    parts = [
        DeviceSeen(
            time_ns=0, uuid=f"MIG-{slot}", index=-1, minor=-1, model="NVIDIA H100 MIG 1g.10gb", parent="GPU-1"
        )
        for slot in range(2)
    ]
    other = DeviceSeen(time_ns=0, uuid="GPU-0", index=0, minor=0, model="NVIDIA L4")
    readings = [
        item
        for second in range(1, 5)
        for item in (
            DeviceReadings(
                time_ns=second * 10**9,
                uuid="GPU-1",
                values={},
                processes=tuple(
                    ProcessReading(tgid=5 + slot, device=f"MIG-{slot}", memory_bytes=100) for slot in range(2)
                ),
            ),
            DeviceReadings(
                time_ns=second * 10**9,
                uuid="MIG-1",
                values={
                    Quantity.SM_UTILIZATION_PPM: 250_000,
                    Quantity.PCIE_RECEIVED_BYTES_PER_S: 1000,
                    Quantity.PCIE_TRANSMITTED_BYTES_PER_S: 500,
                },
            ),
        )
    ]
    uses = device_uses([gpu, *parts, other, *readings])
    assert [(each.uuid, each.is_part) for each in uses] == [
        ("GPU-0", False),
        ("MIG-0", True),
        ("MIG-1", True),
    ]
    assert [[process.pid for process in each.processes] for each in uses] == [[], [5], [6]]
    assert [each.sm for each in uses] == [None, None, pytest.approx(0.25)]
    assert uses[2].pcie_bytes_per_s == pytest.approx(1500)
    said = {each.name: each.text for each in _of_devices(uses[2:], None)}
    assert said["gpu_utilization"] == "the driver tells it of whole GPUs, not of a part of one (MIG)"
    assert said["dram_utilization"].startswith("not read: NVML's GPM")
    placed = structs.replace(
        readings[0], processes=(ProcessReading(tgid=9, device="GPU-1", memory_bytes=100),)
    )
    uses = device_uses([gpu, *parts, placed])
    assert [each.uuid for each in uses] == ["GPU-1", "MIG-0", "MIG-1"]
    assert [[process.pid for process in each.processes] for each in uses] == [[9], [], []]
    (alone,) = device_uses([gpu])  # nothing is known of its parts
    assert (alone.uuid, alone.is_part) == ("GPU-1", False)


def test_pcie_is_by_counters_then_by_means_then_by_samples() -> None:
    rates = {
        (Quantity.PCIE_RECEIVED_KB_PER_S, Quantity.PCIE_TRANSMITTED_KB_PER_S): 1,
        (Quantity.PCIE_RECEIVED_BYTES_PER_S, Quantity.PCIE_TRANSMITTED_BYTES_PER_S): 2_000,
    }
    seen = DeviceSeen(time_ns=0, uuid="GPU-1", index=0, minor=0, model="NVIDIA H100")
    found = []
    values: dict[Quantity, int] = {}
    for quantities, value in rates.items():
        values |= dict.fromkeys(quantities, value)
        readings = [DeviceReadings(time_ns=each * 10**9, uuid="GPU-1", values=values) for each in range(4)]
        found.append(device_uses([seen, *readings])[0].pcie_bytes_per_s)
    assert found == [pytest.approx(2_000), pytest.approx(4_000)]


@pytest.mark.parametrize(
    ("value", "count"),
    [("0,1", 2), ("", 0), ("0,-1,2", 1), ("GPU-8f3a,MIG-1", 2), ("NoDevFiles", 0), ("x" * 9999, 0)],
)
def test_a_process_is_read(tmp_path: Path, value: str, count: int) -> None:
    folder = tmp_path / "7"
    (folder / "fd").mkdir(parents=True)
    (folder / "fd" / "0").symlink_to("/dev/pts/3")
    (folder / "fd" / "5").symlink_to("/dev/nvidia0")
    (folder / "cmdline").write_bytes(b"/usr/bin/python3\0")
    (folder / "stat").write_text("7 (python3) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0" + " 0" * 30)
    (folder / "status").write_text("NSpid:\t7\nUid:\t0\t0\t0\t0\n")
    (folder / "environ").write_bytes(f"CUDA_VISIBLE_DEVICES={value}\0CUDA_LAUNCH_BLOCKING=1\0".encode())
    (folder / "maps").write_text("7f00-7f10 r-xp 00000000 08:01 42 /opt/torch/lib/libtorch_cpu.so\n")
    found = read_process(7, proc=tmp_path)
    assert found is not None
    assert found.visible == count
    assert found.blocking
    assert found.holds_device
    assert found.frameworks == ["PyTorch"]
    assert "terminal" in found.interactive
    assert read_process(8, proc=tmp_path) is None


def test_quotas_of_a_job_are_read_from_first_to_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(times: int, quota: float | None = 0.5) -> Reading:
        counted = (times, 2 * times, times / 10)
        return Reading(
            group=Path("/job"), throttled=counted, quota_cpus=quota, faults=None, others={}, dirtied={}
        )

    watch = JobWatch()
    for times in (10, 12, 25):
        readings = {7: reading(times), 8: reading(times, None), 9: reading(3)}
        monkeypatch.setattr(job_watch, "read_own", lambda pid, proc, known=readings: known[pid])
        for pid in readings:
            watch._look_at_quota(pid)
    (found,) = watch.surroundings().items()
    assert found[0] == 7
    assert (found[1].throttled_times, found[1].quota_periods, found[1].quota_cpus) == (15, 30, 0.5)


def test_columns_of_no_calls_are_empty() -> None:
    calls = columns([])
    assert len(calls) == 0
    assert np.array_equal(calls.of(LAUNCH).begin_ns, calls.begin_ns)
