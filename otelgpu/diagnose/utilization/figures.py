"""The figures of a job: how much of what the device can do is used, and what is missing to know it. Pure.

MFU: FLOPs that the model needs for its tokens, over what the devices could have done (PaLM, arXiv:2204.02311, B). MBU:
bytes that a decode step has to read, over what the memory could have given meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.diagnose.utilization.devices import DeviceUse
from otelgpu.diagnose.utilization.findings import Loop
from otelgpu.diagnose.utilization.gpu_calls import BLOCKING_COPY, COPY, LAUNCH, SYNC
from otelgpu.diagnose.utilization.idle import BY_DEVICE
from otelgpu.diagnose.utilization.matrix_products import MatrixProducts
from otelgpu.diagnose.utilization.model_shape import ModelShape
from otelgpu.diagnose.utilization.peaks import Peak
from otelgpu.diagnose.utilization.verdicts import Figure

NO_CONFIGURATION: Final = (
    "FLOPs unknown: give --model-config or --ask-server, or --flops for those of calls of cuBLAS"
)
_NO_PRODUCTS: Final = "no call of cuBLAS or cuBLASLt was seen whose shapes are known"
_FEW: Final = "too few readings"
_OF_PARTS: Final = "the driver tells it of whole GPUs, not of a part of one (MIG)"
_NO_GPM: Final = (
    "not read: NVML's GPM is on Hopper and newer, and is not there on this device, or too few readings"
)


class Workload(Struct, frozen=True, kw_only=True):
    """What is said of the work. ``tokens_per_step``: all devices' together, of inference the sequences.

    ``context``: tokens of a sequence, 0: attention is left out. ``source``: where the shape was found, in words; "": it
    was given.
    """

    shape: ModelShape
    source: str = ""
    training: bool = True
    tokens_per_step: int = 0
    tokens_per_second: float = 0.0
    context: int = 0
    dtype: str = ""


def figures(
    loop: Loop | None,
    step_s: float,
    devices: Sequence[DeviceUse],
    peak: Peak | None,
    workload: Workload | None,
    products: MatrixProducts | None = None,
) -> list[Figure]:
    """All, in the order in which they are read. ``devices``: that the job is on; ``step_s`` 0: not known.

    ``products``: of all its processes; None: nobody looked.
    """
    model, number = devices[0].model if devices else "", max(len(devices), 1)
    seconds = loop.length_ns / 1e9 if loop is not None else 0.0
    return [
        *(
            _of_products(products, seconds, number, peak, model)
            if products is not None and not _tokens_per_second(workload, step_s)
            else _of_model(workload, step_s, number, peak, model)
        ),
        *_of_devices(devices, peak),
        *(_of_loop(loop) if loop is not None else []),
    ]


def _no_peak(model: str) -> str:
    return f"no peak figures of {model!r} are known" if model else "no GPU is known"


def _tokens_per_second(workload: Workload | None, step_s: float) -> float:
    """0: not known."""
    if workload is None:
        return 0.0
    return workload.tokens_per_second or (workload.tokens_per_step / step_s if step_s else 0.0)


def _of_model(
    workload: Workload | None, step_s: float, devices: int, peak: Peak | None, model: str
) -> list[Figure]:
    if workload is None:
        return [Figure(name="mfu", value=None, unit="1", text=NO_CONFIGURATION)]
    shape = workload.shape
    dtype = workload.dtype or shape.dtype
    rate = _tokens_per_second(workload, step_s)
    source = f"; {workload.source}" if workload.source else ""
    found = []
    if not rate:
        missing = "no tokens a second: give --tokens-per-second, or --tokens-per-step where steps are found"
    elif peak is None:
        missing = _no_peak(model)
    elif dtype not in peak.tflops:
        missing = f"no peak of {dtype} is known of {model}"
    else:
        missing = ""
    if missing or peak is None:
        found.append(Figure(name="mfu", value=None, unit="1", text=missing + source))
    else:
        flops = shape.flops_per_token(workload.context, training=workload.training)
        value = flops * rate / (peak.tflops[dtype] * 1e12 * devices)
        text = (
            f"{flops / 1e9:.3g} GFLOP a token, {rate:,.0f} tokens/s, of {peak.tflops[dtype]:g} TFLOP/s ({dtype}, dense)"
            f" × {devices}{source}"
        )
        found.append(Figure(name="mfu", value=value, unit="1", text=text))
    if workload.training:
        return found
    if not step_s or not workload.tokens_per_step:
        text = (
            "no decode steps: give --tokens-per-step (sequences in a batch), and a job whose steps are found"
        )
        return [*found, Figure(name="mbu", value=None, unit="1", text=text)]
    if peak is None:
        return [*found, Figure(name="mbu", value=None, unit="1", text=_no_peak(model))]
    read = shape.decode_bytes(workload.tokens_per_step, workload.context)
    value = read / step_s / (peak.memory_gb_per_s * 1e9 * devices)
    text = (
        f"{read / 1e9:.3g} GB a step of {step_s * 1e3:.3g} ms, of {peak.memory_gb_per_s:g} GB/s × {devices}"
    )
    return [*found, Figure(name="mbu", value=value, unit="1", text=text)]


def _of_products(
    products: MatrixProducts, seconds: float, devices: int, peak: Peak | None, model: str
) -> list[Figure]:
    """A lower bound: what other kernels computed is in no shape."""
    rate = "matrix_flops_per_second"
    if not products.calls or not seconds:
        return [
            Figure(name=name, value=None, unit=unit, text=_NO_PRODUCTS)
            for name, unit in (("mfu", "1"), (rate, "{FLOP}/s"))
        ]
    without = f", {products.unknown:,} more without shapes" if products.unknown else ""
    text = (
        f"at least: from {products.calls:,} calls of cuBLAS{without}; what other kernels did is not counted"
    )
    flops = sum(products.flops.values()) / seconds
    found = Figure(name=rate, value=flops, unit="{FLOP}/s", text=text)
    if peak is None:
        return [Figure(name="mfu", value=None, unit="1", text=_no_peak(model)), found]
    of = ", ".join(dtype or "of unknown type" for dtype in products.flops)
    share = products.seconds_at(peak.tflops) / (seconds * devices)
    text = f"{text}; of the peak of {model} × {devices}, dense ({of})"
    return [Figure(name="mfu", value=share, unit="1", text=text), found]


def _of_devices(devices: Sequence[DeviceUse], peak: Peak | None) -> list[Figure]:
    if not devices:
        return [Figure(name="gpu_utilization", value=None, unit="1", text="no GPU could be read (NVML)")]
    first = devices[0]
    untold = _OF_PARTS if first.is_part else _FEW
    rows = [
        ("gpu_utilization", first.utilization, "share of the time in which any kernel ran (NVML)", untold),
        ("memory_used", _share(first), "share of the device's memory, at most", _FEW),
        ("sm_utilization", first.sm, "share of multiprocessors at work (GPM)", _NO_GPM),
        ("sm_occupancy", first.occupancy, "warps of those that multiprocessors can hold (GPM)", _NO_GPM),
        ("tensor_utilization", first.tensor, "share of time of the tensor cores (GPM)", _NO_GPM),
        ("dram_utilization", first.dram, "share of the memory's bandwidth (GPM)", _NO_GPM),
    ]
    found = [
        Figure(name=name, value=value, unit="1", text=lacking if value is None else text)
        for name, value, text, lacking in rows
    ]
    for name, value, most in (
        ("pcie_utilization", first.pcie_bytes_per_s, peak.pcie_gb_per_s if peak else None),
        ("nvlink_utilization", first.nvlink_bytes_per_s, peak.nvlink_gb_per_s if peak else None),
    ):
        if value is None or most is None:
            text = "the device does not count it" if value is None else _no_peak(first.model)
            found.append(Figure(name=name, value=None, unit="1", text=text))
        else:
            text = f"{value / 1e9:.3g} of {most:g} GB/s, both directions"
            found.append(Figure(name=name, value=value / (most * 1e9), unit="1", text=text))
    return found


def _share(device: DeviceUse) -> float | None:
    if device.memory_used_bytes is None or not device.memory_total_bytes:
        return None
    return device.memory_used_bytes / device.memory_total_bytes


def _of_loop(loop: Loop) -> list[Figure]:
    launches, length = loop.calls.of(LAUNCH), loop.length_ns
    idle = loop.idle.total_ns / length
    measured = loop.idle.basis == BY_DEVICE
    waits = loop.calls.of(SYNC, COPY, BLOCKING_COPY)
    found = [
        Figure(
            name="busy",
            value=1 - idle,
            unit="1",
            text="share of the time in which a kernel of the job ran (device times)"
            if measured
            else "at most: as calls bound it, for device times were not measured",
        ),
        Figure(
            name="launches_per_second",
            value=float(launches.count.sum()) * 1e9 / length,
            unit="1/s",
            text="by the host",
        ),
        Figure(
            name="waiting_share",
            value=float((waits.end_ns - waits.begin_ns).sum()) / length,
            unit="1",
            text="share of the time in synchronisations and copies, of all threads",
        ),
    ]
    kernels = (loop.times.end_ns - loop.times.begin_ns)[loop.times.is_kernel]
    middle = float(np.median(kernels)) / 1e9 if len(kernels) else None
    text = "median, on the device" if measured else "device times were not measured"
    found.append(Figure(name="kernel_duration", value=middle, unit="s", text=text))
    blocks = launches.blocks[launches.blocks > 0]
    if len(blocks) and loop.sms:
        text = f"blocks of a grid in the median, over {loop.sms} multiprocessors: below 1, some have none"
        found.append(
            Figure(name="blocks_per_sm", value=float(np.median(blocks)) / loop.sms, unit="1", text=text)
        )
    else:
        text = "no grids in the input" if not len(blocks) else "the device's multiprocessors are not known"
        found.append(Figure(name="blocks_per_sm", value=None, unit="1", text=text))
    return found
