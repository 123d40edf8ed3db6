"""What names of steps of training mean."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.description_tables import TEXT, Described, Descriptions, MetricTable, Page
from otelgpu.families.steps.training import names
from otelgpu.families.steps.training.metrics import DEVICE_TIME, METRICS, TIME
from otelgpu.families.steps.training.own_time import LABELS, OWN_TIME

DESCRIPTIONS: Final = Descriptions(
    attributes={
        "otelgpu.step.boundary": Described(
            "what parts steps: `host_to_device_copy` or `wait`; of programs that drive no device `data_loader`, "
            "`backward` or `collective`: see above"
        ),
        "otelgpu.step.period_confidence": Described(
            "share of the collectives of the last 16 steps that are of the period"
        ),
        "otelgpu.step.call.duration": Described(
            "part: in a call that queues work, a collective, or any other call but these:"
        ),
        "otelgpu.step.host_to_device_copy.duration": Described("part: in a copy to the device"),
        "otelgpu.step.file.duration": Described(
            "part: in a call that read, wrote or synced a file and took `file_slow_ms` or longer"
        ),
        "otelgpu.step.data_loader_stall.duration": Described(
            "part: in no call, and the next one is a copy to the device: the data loader, or whatever else "
            "the program did"
        ),
        "otelgpu.step.host_overhead.duration": Described("part: in no call otherwise"),
        "otelgpu.step.communication_wait.duration": Described(
            "of `otelgpu.step.wait.duration`: in waits for a stream, or the device, whose last work of the step is "
            "a collective"
        ),
        "otelgpu.step.launches": Described(
            "launches of kernels and graphs, the communication library's own among them"
        ),
        "otelgpu.step.collectives": Described("collectives, sends and receives"),
        "otelgpu.step.collective_bytes": Described("bytes that they were given"),
        "otelgpu.step.host_to_device_copies": Described("copies to the device"),
        "otelgpu.step.host_to_device_copy_bytes": Described("their bytes"),
        "otelgpu.step.files": Described("such calls on files, of all threads of the process"),
        "otelgpu.step.file_bytes": Described("bytes that they moved"),
        "otelgpu.step.written_bytes": Described(
            "where it is not 0: of these, to files. A step of 8 MiB or more is compared with no others: it wrote a "
            "checkpoint"
        ),
        "otelgpu.step.slowest_file": Described("name, without its path, of the file of the longest"),
        "otelgpu.step.cpu.throttled.duration": Described(
            "where it is not 0: seconds in which a cgroup of the process had spent its quota of CPU time, of some 2 s "
            "until the step's end"
        ),
        "otelgpu.step.major_faults": Described(
            "where it is not 0: page faults of the process that waited for a disk, likewise"
        ),
        "otelgpu.step.device.index": Described(
            "where device time is measured: the device that worked most in the step, by its ordinal in the process"
        ),
        "otelgpu.step.device.compute.duration": Described(
            "part of the device's time: any kernel ran that is not the communication library's"
        ),
        "otelgpu.step.device.exposed_communication.duration": Described(
            "part of the device's time: kernels of the communication library ran, and no others"
        ),
        "otelgpu.step.device.copy.duration": Described(
            "part of the device's time: only copies and memsets ran"
        ),
        "otelgpu.step.device.idle.duration": Described("part of the device's time: nothing ran"),
        "otelgpu.step.device.communication.duration": Described(
            "no part: kernels of the communication library ran, whatever else did"
        ),
        names.PART: Described("Which part of the step.", "wait"),
        names.KIND: Described(
            "Which kind of a rank's own work: `compute`, `copy`, `input`, `file` or `host`.", "input"
        ),
    },
    metrics=(
        MetricTable(
            scope=names.SCOPE,
            metrics={metric: (names.PART,) if metric in (TIME, DEVICE_TIME) else () for metric in METRICS}
            | {OWN_TIME: LABELS},
        ),
    ),
    pages={
        "training attributes": Page(
            header=(
                "Attribute",
                "What it reports",
            ),
            rows={
                "thread.id": ("the thread that launched most",),
                "otelgpu.step.number": (
                    "of the process's steps since its period was first seen, from 1, reported or not",
                ),
                "otelgpu.step.boundary": (TEXT,),
                "otelgpu.step.period_confidence": (TEXT,),
                "otelgpu.step.call.duration": (TEXT,),
                "otelgpu.step.host_to_device_copy.duration": (TEXT,),
                "otelgpu.step.wait.duration": (
                    "part: in a synchronisation, or a copy to the host that waits",
                ),
                "otelgpu.step.file.duration": (TEXT,),
                "otelgpu.step.data_loader_stall.duration": (TEXT,),
                "otelgpu.step.host_overhead.duration": (TEXT,),
                "otelgpu.step.communication_wait.duration": (TEXT,),
                "otelgpu.step.launches": (TEXT,),
                "otelgpu.step.collectives": (TEXT,),
                "otelgpu.step.collective_bytes": (TEXT,),
                "otelgpu.step.host_to_device_copies": (TEXT,),
                "otelgpu.step.host_to_device_copy_bytes": (TEXT,),
                "otelgpu.step.files": (TEXT,),
                "otelgpu.step.file_bytes": (TEXT,),
                "otelgpu.step.written_bytes": (TEXT,),
                "otelgpu.step.slowest_file": (TEXT,),
                "otelgpu.step.cpu.throttled.duration": (TEXT,),
                "otelgpu.step.major_faults": (TEXT,),
                "otelgpu.step.device.index": (TEXT,),
                "otelgpu.step.device.compute.duration": (TEXT,),
                "otelgpu.step.device.exposed_communication.duration": (TEXT,),
                "otelgpu.step.device.copy.duration": (TEXT,),
                "otelgpu.step.device.idle.duration": (TEXT,),
                "otelgpu.step.device.communication.duration": (TEXT,),
            },
        ),
    },
)
