"""What names that several families use mean."""

from __future__ import annotations

from typing import Final

from otelgpu.engine import names
from otelgpu.engine.description_tables import Described, Descriptions, MetricTable, Table
from otelgpu.engine.losses import LOSSES, RECORDS_LOST, UNOBSERVED
from otelgpu.engine.self_telemetry import SELF_METRICS
from otelgpu.model.context_sources import SOURCES
from otelgpu.model.runtimes import RUNTIMES

DESCRIPTIONS: Final = Descriptions(
    attributes={
        "thread.id": Described(
            "The thread that read the request last; of a call: the thread that made it.", "4071"
        ),
        "error.type": Described(
            "What failed: a 5xx status, `connection_closed`, `invalid_http` …; of a call: the name of its "
            "result. The span's status is then ERROR.",
            "cudaErrorMemoryAllocation",
        ),
        "otelgpu.operations.dropped": Described(
            "Calls of the request that were summed but have no spans, because there were too many, of it or in all.",
            "1200",
        ),
        "otelgpu.context.source": Described(
            "How a call was tied to the span above it, or a step to its requests: docs/explanation/context.md.",
            "thread",
        ),
        "otelgpu.phase": Described(
            "Of a phase's span: which; of a step's link: what the step did for that request. `unknown`: its "
            "first tokens were not seen.",
            "decode",
        ),
        "otelgpu.count": Described(
            "How many equal calls of a thread the span stands for; absent when one. It lasts from the first's "
            "start to the last's end; where its parent has more than 32 runs others lie between them.",
            "32",
        ),
        "otelgpu.host.duration": Described("Sum of those calls' host durations, in seconds.", "0.000912"),
        "otelgpu.host.duration.min": Described("The shortest of them, in seconds.", "0.000021"),
        "otelgpu.host.duration.max": Described("The longest of them, in seconds.", "0.000087"),
        "otelgpu.merged": Described(
            "True: calls of one function and kernel that may differ otherwise: all further ones under the same "
            "parent, beyond its 512 spans.",
            "true",
        ),
        "code.function.name": Described(
            "Function that allocated; `module+0xoffset` when no symbol names it, `unknown` when it was not "
            "seen, `other` for all beyond the 20 that hold most.",
            "ggml_cuda_pool_alloc",
        ),
        "hw.id": Described(
            "Which piece of hardware: the GPU's or MIG device's UUID as DCGM writes it; of an RDMA port `mlx5_0/1`.",
            "GPU-5fd4f087-86f3-4b5c-ab5c-cf9e1a2b3c4d",
        ),
        "otelgpu.hw.pci_path": Described(
            "The PCI bridges above a device and its address, from the host bridge: those of two devices say how far "
            "they are apart.",
            "pci0000:17/0000:17:01.0/0000:1a:00.0",
        ),
        "otelgpu.hw.numa_node": Described(
            "The NUMA node that a device is on, where the kernel says it.", "0"
        ),
        "hw.name": Described(
            "`gpu` and the driver's index, not of MIG devices; of an RDMA port its device.", "gpu0"
        ),
        "hw.type": Described("`gpu` or `network`; not on temperatures.", "gpu"),
        "hw.parent": Described(
            "Of a MIG device its GPU's `hw.id`; of an RDMA port its device's PCI address.",
            "GPU-5fd4f087-86f3-4b5c-ab5c-cf9e1a2b3c4d",
        ),
        "hw.firmware_version": Described(
            "Version of the video BIOS, or of an RDMA device's firmware.", "96.00.A5.00.01"
        ),
        "nccl.root": Described("Of collectives that have one.", "0"),
        "nccl.peer": Described("The other rank of a send or receive.", "4"),
        "nccl.message.size": Described(
            "Bytes of the caller's own message: elements times their size. On a collective's root: as "
            "nccl-tests count them, all ranks' of a gathering one.",
            "16777216",
        ),
        "nccl.communicator.hash": Described(
            "The communicator's `commHash`: the same on every rank, and in NCCL's own log. `unknown` where "
            "its structure could not be read.",
            "7f3c1d2ab4e88601",
        ),
        "network.io.direction": Described("`receive` or `transmit`, as the GPU or port sees it.", "receive"),
        "otelgpu.job.id": Described("The job, as its launcher numbers it; empty where it does not.", "4711"),
        "otelgpu.job.rank": Described("The rank in its job.", "5"),
        "process.pid": Described("The process, as the host numbers it.", "1234"),
        "process.executable.name": Described("Its name.", "python3"),
        "network.interface.name": Described("The network interface.", "eth0"),
        "otelgpu.family": Described("Whose records, or which room of the program.", "cuda"),
        "otelgpu.reason": Described("Why: see docs/reference/signals.md, Losses.", "ring_full"),
        "otelgpu.record": Described("Kind of record.", "cuda_call"),
        "otelgpu.tracked.type": Described("What is remembered while it lasts.", "process"),
        "otelgpu.attach.state": Described("What became of probes on a file.", "attached"),
        "otelgpu.reload.outcome": Described("What became of a change of settings.", "applied"),
        "otel.component.name": Described("The exporter, by what it sends to.", "otlp_grpc/0"),
        "otel.component.type": Described("The kind of exporter.", "otlp_grpc_span_exporter"),
        "cpu.mode": Described("Where CPU time was spent.", "user"),
        "otel.metric.overflow": Described("The series is of all beyond a limit.", "true"),
    },
    metrics=(
        MetricTable(
            scope=names.SELF_SCOPE,
            metrics={
                LOSSES: (names.LOSS_FAMILY, names.LOSS_REASON),
                RECORDS_LOST: (names.LOSS_FAMILY,),
                UNOBSERVED: (names.LOSS_FAMILY,),
                **dict(SELF_METRICS),
            },
        ),
    ),
    tables={
        "context sources": Table(
            header=(f"`{names.CONTEXT_SOURCE}`", "The call is tied to a span by"),
            rows=lambda: [(f"`{each.source.exported}`", each.description) for each in SOURCES],
        ),
        "context tiers": Table(
            header=("Tier", "What links", "Trust"),
            rows=lambda: [(f"`{each.source.exported}`", each.links, each.trust) for each in SOURCES],
        ),
        "runtimes": Table(
            header=("Runtime", "Known by", "What it does", "What is exact", "For more"),
            rows=lambda: [
                (
                    each.label,
                    each.known_by,
                    each.does or "one request at a time per thread",
                    each.exact,
                    each.remedy,
                )
                for each in RUNTIMES.values()
            ],
        ),
    },
)
