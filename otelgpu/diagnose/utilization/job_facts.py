"""What a job ran on and with, as facts that are compared with another's: see :mod:`.differences`. Pure.

In: what was watched, and its report's figures. Out: :class:`Fact` values: texts that are equal or not, and numbers.
What is not known is absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field

from otelgpu.diagnose.stall.verdicts import Spent
from otelgpu.diagnose.utilization.devices import DeviceUse
from otelgpu.diagnose.utilization.job_processes import JobProcess
from otelgpu.diagnose.utilization.verdicts import Fact, Figure
from otelgpu.model.spans import SpanColumns, plain
from otelgpu.render.page_columns import clean

DEVICE: Final = "device"
HOST: Final = "host"
LIBRARY: Final = "library"
ENVIRONMENT: Final = "environment"
KERNEL: Final = "kernel"
CALL: Final = "call"
IDLE: Final = "idle"
FIGURE: Final = "figure"
GROUPS: Final[Mapping[str, str]] = {
    DEVICE: "GPUs: model, driver, clocks (means), power limit",
    HOST: "the machine",
    LIBRARY: "versions of mapped libraries, as far as the names of their files say them",
    ENVIRONMENT: "variables of a closed list",
    KERNEL: "kernels: launches a second",
    CALL: "calls of CUDA, copies too: share of the time in them, of all threads",
    IDLE: "what the thread did while the GPU was idle: share of the time",
    FIGURE: "figures of the report",
}
"""In the order in which they are shown."""

VARIABLES: Final = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"),
    *("CUDA_DEVICE_ORDER", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF"),
    *("PYTORCH_ALLOC_CONF", "TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_CUDNN_V8_API_DISABLED"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM", "VLLM_ATTENTION_BACKEND"),
    *(
        "NCCL_P2P_DISABLE",
        "NCCL_P2P_LEVEL",
        "NCCL_SHM_DISABLE",
        "NCCL_IB_DISABLE",
        "NCCL_IB_HCA",
        "NCCL_ALGO",
    ),
    *("NCCL_PROTO", "NCCL_NET_GDR_LEVEL", "NCCL_SOCKET_IFNAME", "NCCL_BUFFSIZE", "NCCL_MIN_NCHANNELS"),
    *("NCCL_MAX_NCHANNELS", "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_CROSS_NIC"),
)
"""Of the environment that change how fast a job is, and are no secrets."""
LONGEST_VALUE: Final = 200
MOST_NAMES: Final = 30
"""Kernels, and calls, of a job."""

_LIBRARY: Final = re.compile(
    r"(lib(?:cuda|cudart|cublas|cublasLt|cudnn|cufft|cusparse|cusolver|nccl|nvrtc|cupti|ibverbs|mlx5)[a-z_0-9]*?)"
    r"(?:-[0-9a-f]{8})?\.so\.([0-9][0-9.]*)"
)
_SCOPE: Final = "otelgpu.cuda"
_OF_DEVICE: Final = "cuda.call.delay"


class Calls(Struct, kw_only=True):
    """``launches``: by kernel; ``seconds``: by function."""

    launches: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def calls_by_name(batches: Iterable[SpanColumns]) -> Calls:
    """Of spans ``cudaLaunchKernel flash_fwd``."""
    found = Calls()
    for batch in batches:
        if batch.scope != _SCOPE or any(each.key == _OF_DEVICE for each in batch.attributes):
            continue
        names, codes = [plain(each) for each in batch.name.table], batch.name.codes
        good = batch.start_unix_ns <= batch.end_unix_ns
        took = np.where(good, batch.end_unix_ns - batch.start_unix_ns, 0).astype(np.float64)
        counts = np.bincount(codes, minlength=len(names)).tolist()
        sums = np.bincount(codes, weights=took, minlength=len(names)).tolist()
        for name, count, spent in zip(names, counts, sums, strict=True):
            function, _, kernel = name.partition(" ")
            _add(found.seconds, clean(function), spent / 1e9)
            if kernel and "Launch" in function:
                _add(found.launches, clean(kernel), count)
    return found


def _add(sums: dict[str, float], name: str, value: float) -> None:
    sums[name] = sums.get(name, 0.0) + value


def libraries_of(files: Iterable[str]) -> dict[str, str]:
    """Library → version, by the last parts of the paths of mapped files."""
    matches = (_LIBRARY.fullmatch(name) for name in files)
    return {match[1]: match[2] for match in matches if match is not None}


def facts_of(
    devices: Sequence[DeviceUse],
    processes: Iterable[JobProcess],
    host: Mapping[str, str],
    calls: Calls | None,
    seconds: float,
    table: Sequence[Spent],
    figures: Sequence[Figure],
) -> list[Fact]:
    """All, in the order of :data:`GROUPS`. ``seconds``: in which the calls were made."""
    found = [fact for device in devices for fact in _of_device(device)]
    found += [Fact(group=HOST, name=name, text=text) for name, text in host.items()]
    libraries: dict[str, str] = {}
    environment: dict[str, str] = {}
    for process in processes:
        libraries |= process.libraries
        environment |= process.environment
    found += [Fact(group=LIBRARY, name=name, text=libraries[name]) for name in sorted(libraries)]
    found += [Fact(group=ENVIRONMENT, name=name, text=environment[name]) for name in sorted(environment)]
    if calls is not None and seconds > 0:
        found += [
            Fact(group=group, name=name, value=count / seconds, unit=unit)
            for group, counts, unit in ((KERNEL, calls.launches, "1/s"), (CALL, calls.seconds, "1"))
            for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:MOST_NAMES]
        ]
    spent: dict[str, float] = {}
    for row in table:
        _add(spent, row.cause, row.share)
    found += [Fact(group=IDLE, name=name, value=share, unit="1") for name, share in spent.items()]
    found += [
        Fact(group=FIGURE, name=each.name, value=each.value, unit=each.unit)
        for each in figures
        if each.value is not None
    ]
    return found


def _of_device(device: DeviceUse) -> list[Fact]:
    name = f"GPU {device.index}"
    texts = {"model": device.model, "driver": device.driver}
    numbers = {
        "SM clock": (device.sm_clock_mhz, "MHz"),
        "memory clock": (device.memory_clock_mhz, "MHz"),
        "power limit": (device.power_limit_watts, "W"),
    }
    return [
        *(
            Fact(group=DEVICE, name=f"{name} {what}", text=clean(text))
            for what, text in texts.items()
            if text
        ),
        *(
            Fact(group=DEVICE, name=f"{name} {what}", value=value, unit=unit)
            for what, (value, unit) in numbers.items()
            if value is not None
        ),
    ]
